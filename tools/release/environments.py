"""Empty environments in which a distribution is installed and tried, one for each Python at hand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

OLDEST = (3, 11)

SMOKE = Path(__file__).with_name("smoke.py")


class Failed(Exception):
    """A command that failed; the message has its output."""


def interpreters() -> dict[str, Path]:
    """Return the Pythons at hand from the oldest supported version on, by version: this one, of the path, of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    folders = [Path(each) for each in os.environ.get("PATH", "").split(os.pathsep) if each]
    found = {f"{sys.version_info.major}.{sys.version_info.minor}": Path(sys.executable)}
    for path in _candidates([*folders, *sorted(pyenv.glob("versions/*/bin"), reverse=True)]):
        version = path.name.removeprefix("python")
        if version not in found and _works(path):
            found[version] = path
    return dict(sorted(found.items(), key=lambda item: number(item[0])))


def number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _candidates(folders: Iterable[Path]) -> Iterator[Path]:
    for folder in folders:
        for path in sorted(folder.glob("python3.*")):
            if re.fullmatch(r"python3\.\d+", path.name) and number(path.name.removeprefix("python")) >= OLDEST:
                yield path


def _works(python: Path) -> bool:
    """Whether an interpreter can make environments. pyenv has commands for versions that are not switched on."""
    return subprocess.run([python, "-c", "import ssl, sqlite3, venv"], capture_output=True, check=False).returncode == 0


class Environment:
    """A virtual environment without any package but those installed by ``install``."""

    def __init__(self, python: Path, folder: Path) -> None:
        self.folder = folder
        run([str(python), "-m", "venv", "--without-pip", str(folder)])

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    def install(self, *what: str) -> None:
        run([*PIP, "--python", self.python, "install", "--quiet", "--no-compile", *what])

    def borrow(self, places: Iterable[str]) -> None:
        """Let packages be found in other folders too, after those of the environment itself."""
        code = "import sysconfig; print(sysconfig.get_path('purelib'))"
        own = Path(run([self.python, "-c", code]).strip())
        (own / "borrowed.pth").write_text("".join(f"{place}\n" for place in places), encoding="utf-8")

    def command(self, *words: str, folder: Path, expected: int = 0) -> str:
        """Run the installed ``hopfleet`` in a folder, and return its output."""
        return run([str(self.folder / "bin" / "hopfleet"), *words], folder=folder, expected=expected)

    def smoke(self, folder: Path) -> str:
        """Run a small experiment, where warnings are errors."""
        return run([self.python, "-W", "error", str(SMOKE)], folder=folder)


PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def run(command: list[str], *, folder: Path | None = None, expected: int = 0) -> str:
    """Run a command as a user does, without settings for Python or Hopfleet, and return its output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HOPFLEET_"))}
    if folder is not None:
        environment["HOPFLEET_HOME"] = str(folder / "home")
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8"
    )
    if done.returncode != expected:
        shown = " ".join(command)
        raise Failed(f"{shown}: exit code {done.returncode}, expected {expected}\n{done.stdout}")
    return done.stdout
