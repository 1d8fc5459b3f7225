"""Build, look into, install and try the distribution, and prepare its release.

make package    a wheel and a source distribution, installed for each Python at hand; CI runs it
make release    everything up to the upload: the command that uploads is printed and not run
"""

from __future__ import annotations

import argparse
import os
import shutil
import site
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.release import distribution, records
from tools.release.distribution import Built, Unbuilt
from tools.release.environments import PIP, Environment, Failed, interpreters, run

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ("--constraint", str(ROOT / "constraints.txt"))
CHECKERS = ROOT / "build" / "release"
"""The environment of tools that only releases need."""


class Refused(Exception):
    """What keeps a distribution from being released, with the remedy."""


@dataclass
class Release:
    """What the steps of a release share."""

    root: Path
    place: Path  #: a folder for all that is made on the way
    built: Built | None = None
    omitted: list[str] = field(default_factory=list)  #: checks that were left out, with the reason

    @property
    def version(self) -> str:
        return records.version_in((self.root / records.VERSION_FILE).read_text(encoding="utf-8"))

    @property
    def project(self) -> dict[str, Any]:
        found: dict[str, Any] = tomllib.loads((self.root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        return found

    @property
    def files(self) -> Built:
        assert self.built is not None
        return self.built

    def omit(self, text: str) -> None:
        self.omitted.append(text)
        say(f"  {text}")


Step = tuple[str, Callable[[Release], None]]


def say(text: str) -> None:
    print(text, flush=True)


def refuse(problems: Iterable[str]) -> None:
    if found := list(problems):
        raise Refused("\n".join(found))


# ------------------------------------------------------------------------------------------------------- before it


def clean(release: Release) -> None:
    changed = _git(release, "status", "--porcelain").splitlines()
    if changed:
        shown = "\n".join(changed[:10])
        raise Refused(f"the working tree must be clean, got {len(changed)} changed files; commit them\n{shown}")


def stated(release: Release) -> None:
    changelog = (release.root / "CHANGELOG.md").read_text(encoding="utf-8")
    head = _git(release, "rev-parse", "HEAD").strip()
    tags = {name: _git(release, "rev-list", "-n1", name).strip() for name in _git(release, "tag").split()}
    version = release.version
    refuse([*records.changelog_problems(changelog, version), *records.tag_problems(tags, version, head)])
    say(f"  version {version} at {head[:12]}")


def _git(release: Release, *words: str) -> str:
    return run(["git", "-C", str(release.root), *words])


def tested(release: Release) -> None:
    env = {**os.environ, "HOPFLEET_LONG": "1"}
    if subprocess.run(["make", "test-all"], cwd=release.root, env=env, check=False).returncode:
        raise Refused("HOPFLEET_LONG=1 make test-all fails; mend it, and release again")


# ------------------------------------------------------------------------------------------------------- the files


def build(release: Release) -> None:
    release.built = built = distribution.build(release.root, release.place)
    expected = distribution.package_files(release.root)
    wheel, sdist = distribution.names_in(built.wheel), distribution.names_in_sdist(built.sdist)
    refuse([*distribution.wheel_problems(wheel, expected), *distribution.sdist_problems(sdist, expected)])
    direct = distribution.wheel_of_tree(release.root, release.place)
    refuse(
        f"{name}: differs between the wheel of the source distribution and that of the tree"
        for name in distribution.differences(built.wheel, direct)
    )
    for path in built.files:
        say(f"  {path.name}, {path.stat().st_size / 1e6:.1f} MB")


def described(release: Release) -> None:
    """Have twine check the description that an index would show."""
    python = CHECKERS / "bin" / "python"
    if not python.exists():
        Environment(Path(sys.executable), CHECKERS)
    try:
        run([*PIP, "--python", str(python), "install", "--quiet", *CONSTRAINTS, "twine"])
    except Failed as error:
        release.omit(f"the description was not checked, because twine could not be installed: {last_line(error)}")
        return
    say("  " + last_line(run([str(python), "-m", "twine", "check", "--strict", *map(str, release.files.files)])))


def last_line(text: object) -> str:
    return (str(text).strip().splitlines() or [""])[-1].strip()


# -------------------------------------------------------------------------------------------------------- the tries


def installed(release: Release) -> None:
    """Install the wheel alone for each Python at hand, and run a small experiment."""
    found = interpreters()
    named = [each.rpartition(" ")[2] for each in release.project["classifiers"] if "Python :: 3." in each]
    for version in named:
        if version not in found:
            release.omit(f"Python {version} is not at hand")
    for version, python in found.items():
        start, folder = time.monotonic(), release.place / version
        environment = Environment(python, folder / "environment")
        environment.install(*CONSTRAINTS, str(release.files.wheel))
        here = fresh(folder / "elsewhere")
        if (said := environment.command("--version", folder=here)) != f"hopfleet {release.version}\n":
            raise Refused(f"Python {version}: hopfleet --version must be {release.version}, got {said}")
        environment.smoke(here)
        environment.command("doctor", folder=here)
        if "hopfleet[demo]" not in (said := environment.command("demo", folder=here, expected=1)):
            raise Refused(f"Python {version}: without its packages, hopfleet demo must name hopfleet[demo], got {said}")
        say(f"  Python {version}: installed, and ran an experiment, in {time.monotonic() - start:.0f} s")


def demonstrated(release: Release) -> None:
    """Run the demo from the wheel, with the packages of this environment: PyTorch is large."""
    environment = Environment(Path(sys.executable), release.place / "demo")
    environment.borrow(site.getsitepackages())
    environment.install("--no-deps", str(release.files.wheel))
    here = fresh(release.place / "visitor")
    environment.command("demo", folder=here)
    pictures = sorted(path.name for path in (here / "home").glob("demo/plots/*.png"))
    if pictures != ["curves.png", "gantt.png"]:
        raise Refused(f"hopfleet demo must draw curves.png and gantt.png, got {pictures}")
    place = environment.python, "-c", "import hopfleet; print(hopfleet.__file__)"
    if not (said := run(list(place), folder=here)).startswith(str(environment.folder)):
        raise Refused(f"the demo must run from the wheel, ran from {said}")
    say("  trained and drew")


def resolved(release: Release) -> None:
    """Have pip choose the packages of each extra, as in an empty environment."""
    for extra in sorted(release.project["optional-dependencies"]):
        wanted = f"{release.files.wheel}[{extra}]"
        run([*PIP, "install", "--quiet", "--dry-run", "--ignore-installed", *CONSTRAINTS, wanted])
        say(f"  hopfleet[{extra}]")


def fresh(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


# --------------------------------------------------------------------------------------------------------- after it


def kept(release: Release) -> None:
    """Put the files and their checksums into ``dist``."""
    folder = release.root / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    files = [Path(shutil.copy(path, folder)) for path in release.files.files]
    (folder / "SHA256SUMS").write_text(distribution.checksums(files), encoding="utf-8")
    for line in (folder / "SHA256SUMS").read_text(encoding="utf-8").splitlines():
        say(f"  {line}")


BEFORE: Sequence[Step] = (("The working tree is clean", clean), ("Version, changelog and tag agree", stated))
TESTS: Step = ("HOPFLEET_LONG=1 make test-all", tested)
PACKAGE: Sequence[Step] = (
    ("The wheel and the source distribution have the files of the package, and agree", build),
    ("Each Python at hand runs the wheel in an empty environment", installed),
    ("The demo runs from the wheel", demonstrated),
)
AFTER: Sequence[Step] = (
    ("The description can be shown", described),
    ("The packages of each extra can be installed together", resolved),
    ("The files and their checksums are in dist", kept),
)


def carry_out(steps: Sequence[Step], release: Release) -> None:
    for count, (title, step) in enumerate(steps, 1):
        say(f"[{count}/{len(steps)}] {title}")
        start = time.monotonic()
        step(release)
        say(f"  done in {time.monotonic() - start:.0f} s")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("package", "release"))
    parser.add_argument("--rehearsal", action="store_true", help="leave out what needs a clean tree and make test-all")
    asked = parser.parse_args(arguments)
    whole = asked.what == "release"
    first = [] if asked.rehearsal or not whole else [*BEFORE, TESTS]
    steps = [*first, *PACKAGE, *(AFTER if whole else ())]
    with tempfile.TemporaryDirectory(prefix="hopfleet-release-") as place:
        release = Release(ROOT, Path(place).resolve())
        try:
            carry_out(steps, release)
        except (Refused, Unbuilt, Failed, ValueError, OSError) as error:
            say(f"\n{asked.what} stopped: {error}")
            return 1
    if release.omitted:
        say("\nLeft out:\n" + "\n".join(f"  {text}" for text in release.omitted))
    if first:
        say(f"\nEverything is ready. To release version {release.version}:\n")
        say(f"  git tag --annotate v{release.version} --message 'Release {release.version}'")
        say(f"  {CHECKERS.relative_to(ROOT)}/bin/python -m twine upload dist/hopfleet-{release.version}*")
        say(f"  git push origin v{release.version}")
    elif whole:
        say("\nThis was a rehearsal: tree, version, changelog and tests were not checked. To release: make release")
    return 0


if __name__ == "__main__":
    sys.exit(main())
