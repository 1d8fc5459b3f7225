"""The files of a distribution: what it must contain, how it is built, and what two wheels differ in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

PACKAGE = "hopfleet"
BESIDE = ("pyproject.toml", "README.md", "LICENSE")
"""Files beside the package from which a distribution is built."""

NOT_SOURCES = ("__pycache__", "*.egg-info")

EPOCH = "315532800"
"""The time stamp of files in a wheel, so that equal files make equal wheels: the earliest one of a zip file."""


class Unbuilt(Exception):
    """A distribution that cannot be built; the message has what the tools said."""


@dataclass(frozen=True)
class Built:
    """A source distribution, and the wheel that was built from it."""

    sdist: Path
    wheel: Path

    @property
    def files(self) -> tuple[Path, Path]:
        return self.sdist, self.wheel


def package_files(root: Path) -> set[str]:
    """Return the files of the package, as they must lie in a wheel."""
    found = (path for path in (root / "src" / PACKAGE).rglob("*") if path.is_file())
    return {path.relative_to(root / "src").as_posix() for path in found if "__pycache__" not in path.parts}


def build(root: Path, folder: Path) -> Built:
    """Build a source distribution and, from that, a wheel.

    They are built from a copy, because files of earlier builds that lie in the tree would get into the wheel.
    """
    copy = copied(root, folder / "tree")
    made = folder / "made"
    _run("-m", "build", "--quiet", "--outdir", str(made), str(copy))
    (sdist,), (wheel,) = made.glob("*.tar.gz"), made.glob("*.whl")
    return Built(sdist, wheel)


def wheel_of_tree(root: Path, folder: Path) -> Path:
    """Build a wheel without a source distribution."""
    _run("-m", "build", "--quiet", "--wheel", "--outdir", str(folder / "direct"), str(copied(root, folder / "other")))
    (wheel,) = (folder / "direct").glob("*.whl")
    return wheel


def copied(root: Path, folder: Path) -> Path:
    """Copy what a distribution is built from to a new folder."""
    shutil.copytree(root / "src" / PACKAGE, folder / "src" / PACKAGE, ignore=shutil.ignore_patterns(*NOT_SOURCES))
    for name in BESIDE:
        shutil.copy(root / name, folder)
    return folder


def _run(*arguments: str) -> None:
    environment = os.environ | {"SOURCE_DATE_EPOCH": EPOCH}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        raise Unbuilt(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")


def wheel_problems(names: Collection[str], expected: Collection[str]) -> Iterator[str]:
    """Yield the files that a wheel lacks, and those that it has beside the package and its metadata."""
    yield from (f"the wheel lacks {name}" for name in sorted(set(expected) - set(names)))
    others = (name for name in set(names) - set(expected) if not name.split("/")[0].endswith(".dist-info"))
    yield from (f"the wheel has {name}, which is no file of the package" for name in sorted(others))


def names_in(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return [name for name in archive.namelist() if not name.endswith("/")]


def sdist_problems(names: Collection[str], expected: Collection[str]) -> Iterator[str]:
    """Yield the files that a source distribution lacks, and those that it should not have."""
    wanted = {*BESIDE, *(f"src/{name}" for name in expected)}
    made = {"PKG-INFO", "setup.cfg"}
    yield from (f"the source distribution lacks {name}" for name in sorted(wanted - set(names)))
    others = (name for name in set(names) - wanted - made if ".egg-info/" not in name)
    yield from (f"the source distribution has {name}, which it does not need" for name in sorted(others))


def names_in_sdist(sdist: Path) -> list[str]:
    """Return the files of a source distribution, without the folder that holds all of them."""
    with tarfile.open(sdist) as archive:
        return [member.name.partition("/")[2] for member in archive if member.isfile()]


def differences(first: Path, second: Path) -> list[str]:
    """Return the files in which two wheels differ."""
    contents = [_digests(wheel) for wheel in (first, second)]
    names = contents[0].keys() | contents[1].keys()
    return sorted(name for name in names if contents[0].get(name) != contents[1].get(name))


def _digests(wheel: Path) -> dict[str, str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: sha256(archive.read(name)).hexdigest() for name in archive.namelist()}


def checksums(files: Collection[Path]) -> str:
    """Return lines that ``sha256sum --check`` reads."""
    return "".join(f"{sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
