"""A release is refused for what its records say, for what its files lack, and for wheels that differ."""

from __future__ import annotations

import shutil
import stat
import sys
import zipfile
from pathlib import Path

import pytest

from tools.release import __main__ as release
from tools.release import distribution, environments, records

CHANGELOG = "# Changelog\n\n## Unreleased\n\n## 0.2.0\n\nClearer names.\n\n## 0.1.0\n\nThe first one.\n"


@pytest.mark.parametrize("version", ["0.2.0", "10.0.1", "1.0.0rc2"])
def test_the_version_is_read_from_its_file(version: str) -> None:
    assert records.version_in(f'"""The version."""\n\n__version__ = "{version}"\n') == version


@pytest.mark.parametrize("text", ["", '__version__ = "0.2"', '__version__ = "0.2.0.dev1"', "__version__ = version()"])
def test_other_versions_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must say __version__"):
        records.version_in(text)


def test_the_version_of_the_package_can_be_released() -> None:
    import hopfleet

    assert release.Release(release.ROOT, Path()).version == hopfleet.__version__


@pytest.mark.parametrize(
    ("changelog", "said"),
    [
        (CHANGELOG, []),
        (CHANGELOG.replace("## Unreleased\n\n", ""), []),
        (CHANGELOG.replace("Unreleased\n", "Unreleased\n\nA name.\n\n- More.\n"), ["must be empty, got 3 lines"]),
        (CHANGELOG.replace("## 0.2.0", "## 0.3.0"), ["the first section must be '## 0.2.0', got '## 0.3.0'"]),
        (CHANGELOG.replace("Clearer names.\n", ""), ["'## 0.2.0' is empty"]),
        ("# Changelog\n", ["got nothing"]),
    ],
)
def test_the_changelog_describes_the_version(changelog: str, said: list[str]) -> None:
    found = list(records.changelog_problems(changelog, "0.2.0"))
    assert len(found) == len(said)
    assert all(part in text for part, text in zip(said, found, strict=True))


@pytest.mark.parametrize(
    ("tags", "said"),
    [
        ({}, []),
        ({"v0.1.0": "a", "v0.2.0rc1": "a", "nightly": "a"}, []),
        ({"v0.2.0": "head"}, []),
        ({"v0.2.0": "a"}, ["this version exists"]),
        ({"v0.10.0": "a", "v0.9.0": "a"}, ["tag v0.10.0: is later"]),
    ],
)
def test_tags_are_those_of_earlier_versions(tags: dict[str, str], said: list[str]) -> None:
    found = list(records.tag_problems(tags, "0.2.0", "head"))
    assert len(found) == len(said)
    assert all(part in text for part, text in zip(said, found, strict=True))


def test_a_wheel_has_the_files_of_the_package_and_no_others() -> None:
    expected = {"hopfleet/a.py", "hopfleet/ui/static/app.js"}
    names = ["hopfleet/a.py", "hopfleet/old.py", "hopfleet-0.2.0.dist-info/RECORD", "tests/test_a.py"]
    assert list(distribution.wheel_problems([*expected, "hopfleet-0.2.0.dist-info/RECORD"], expected)) == []
    assert list(distribution.wheel_problems(names, expected)) == [
        "the wheel lacks hopfleet/ui/static/app.js",
        "the wheel has hopfleet/old.py, which is no file of the package",
        "the wheel has tests/test_a.py, which is no file of the package",
    ]


def test_a_source_distribution_has_what_the_wheel_is_built_from() -> None:
    expected = {"hopfleet/a.py"}
    names = [*distribution.BESIDE, "PKG-INFO", "src/hopfleet/a.py", "src/hopfleet.egg-info/SOURCES.txt"]
    assert list(distribution.sdist_problems(names, expected)) == []
    assert list(distribution.sdist_problems([*names[1:], "notes.txt"], expected)) == [
        "the source distribution lacks pyproject.toml",
        "the source distribution has notes.txt, which it does not need",
    ]


def test_the_files_of_the_package_include_data() -> None:
    found = distribution.package_files(release.ROOT)
    data = {"hopfleet/py.typed", "hopfleet/planner/data/cnn_flops.json", "hopfleet/ui/static/vendor/preact-LICENSE"}
    assert data <= found
    assert not any("__pycache__" in name or name.endswith(".pyc") for name in found)


def wheel(path: Path, **files: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def test_differences_of_wheels_are_named(tmp_path: Path) -> None:
    first = wheel(tmp_path / "first.whl", same="a", changed="a", gone="a")
    second = wheel(tmp_path / "second.whl", same="a", changed="b", new="a")
    assert distribution.differences(first, second) == ["changed", "gone", "new"]
    assert distribution.differences(first, first) == []


def test_checksums_are_those_that_sha256sum_reads(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"")
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert distribution.checksums([tmp_path / "a.whl"]) == f"{empty}  a.whl\n"


def command(path: Path, code: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\nexit {code}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_interpreters_are_found_on_the_path_and_in_pyenv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command(tmp_path / "bin" / "python3.98", 127)  # a command of pyenv for a version that is not switched on
    command(tmp_path / "bin" / "python3.10", 0)
    command(tmp_path / "bin" / "python3.97-config", 0)
    command(tmp_path / "pyenv" / "versions" / "3.98.1" / "bin" / "python3.98", 0)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert environments.interpreters() == {
        own: Path(sys.executable),
        "3.98": tmp_path / "pyenv" / "versions" / "3.98.1" / "bin" / "python3.98",
    }


def test_commands_see_no_settings_of_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("HOPFLEET_CI", "1")
    code = "import os; print(sorted(name for name in os.environ if name.startswith(('PYTHON', 'HOPFLEET'))))"
    assert environments.run([sys.executable, "-c", code], folder=tmp_path) == "['HOPFLEET_HOME']\n"


def test_a_command_that_fails_is_shown_with_its_output() -> None:
    with pytest.raises(environments.Failed, match=r"exit code 3, expected 0\nsaid"):
        environments.run([sys.executable, "-c", "print('said'); raise SystemExit(3)"])


def test_the_first_step_that_fails_ends_a_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(_: release.Release) -> None:
        raise release.Refused("the tree must be clean; commit it")

    def never(_: release.Release) -> None:
        raise AssertionError

    monkeypatch.setattr(release, "BEFORE", [("The first", fails), ("The second", never)])
    monkeypatch.setattr(release, "PACKAGE", [])
    assert release.main(["release"]) == 1
    said = capsys.readouterr().out
    assert "[1/6] The first\n" in said
    assert "release stopped: the tree must be clean; commit it" in said
    assert "upload" not in said


def test_the_upload_is_printed_and_a_rehearsal_prints_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("BEFORE", "PACKAGE", "AFTER"):
        monkeypatch.setattr(release, name, [])
    monkeypatch.setattr(release, "TESTS", ("make test-all", lambda found: found.omit("Python 3.99 is not at hand")))
    assert release.main(["release"]) == 0
    said = capsys.readouterr().out
    assert "Left out:\n  Python 3.99 is not at hand" in said
    assert "twine upload dist/hopfleet-" in said
    assert release.main(["release", "--rehearsal"]) == 0
    said = capsys.readouterr().out
    assert "rehearsal" in said
    assert "upload" not in said


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_a_changed_tree_is_refused(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        name = "-c", "user.name=a", "-c", "user.email=a"
        environments.run(["git", *name, "-C", str(tmp_path), *words])

    git("init", "--quiet")
    (tmp_path / "a").touch()
    with pytest.raises(release.Refused, match=r"must be clean, got 1 changed files; commit them\n\?\? a"):
        release.clean(release.Release(tmp_path, tmp_path))
    git("add", ".")
    git("commit", "--quiet", "--message", "a")
    release.clean(release.Release(tmp_path, tmp_path))
