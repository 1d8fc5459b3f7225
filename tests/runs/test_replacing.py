"""Folders that are written again: replaced if Hopfleet wrote them and nothing has changed since, otherwise refused."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest

from hopfleet.errors import UsageError
from hopfleet.runs import replacing
from hopfleet.runs.replacing import check_predictions, put_predictions
from hopfleet.support.files import exchange


def put(path: Path, *texts: str) -> None:
    made = path.with_name("made")
    made.mkdir()
    for number, text in enumerate(texts):
        (made / f"part-{number}").write_text(text)
    put_predictions(made, path, "to='out'")
    for old in made.iterdir() if made.exists() else ():
        old.unlink()
    if made.exists():
        made.rmdir()


def held(path: Path) -> list[str]:
    return [file.read_text() for file in sorted(path.iterdir())]


def test_predictions_take_the_place_of_earlier_ones(tmp_path: Path) -> None:
    for texts in (["one", "two"], ["three"], ["three"], ["four", "five", "six"]):
        put(tmp_path / "out", *texts)
        assert held(tmp_path / "out") == texts
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.written", "out"]


def test_an_empty_folder_is_filled_and_keeps_its_permissions(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir(mode=0o750)
    put(tmp_path / "out", "one")
    put(tmp_path / "out", "two")
    assert held(tmp_path / "out") == ["two"]
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o750


def test_a_folder_without_a_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"^to='\.': is a folder that cannot be replaced; give the name of a new"):
        check_predictions(Path(), "to='.'")


def _link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def _file(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.write_text("a file", encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda path: (path / "part-1").write_text("TWO"), "has the file part-1, which has changed since Hopfleet"),
        (lambda path: (path / "notes.txt").write_text("mine"), "has the file notes.txt, which Hopfleet did not write"),
        (lambda path: (path / "part-0").unlink(), "lacks the file part-0, which Hopfleet wrote"),
        (lambda path: (path / "part-0").rename(path / "x") and (path / "part-0").symlink_to("x"), "has the file x,"),
        (lambda path: path.with_name(".out.written").unlink(), "is no folder of predictions that Hopfleet wrote"),
        (lambda path: path.with_name(".out.written").write_text("[1]"), "is no folder of predictions that Hopfleet"),
        (_link, "is a link"),
        (_file, "is a file"),
    ],
    ids=["changed", "added", "removed", "linked", "unrecorded", "broken record", "link", "file"],
)
def test_anything_else_is_refused(tmp_path: Path, change: Callable[[Path], object], why: str) -> None:
    path = tmp_path / "out"
    put(path, "one", "two")
    change(path)
    with pytest.raises(UsageError, match=rf"^to='out': exists already and {why}.*; remove it, or give the name"):
        check_predictions(path, "to='out'")
    made = tmp_path / "new"
    made.mkdir()
    with pytest.raises(UsageError, match=why):  # the change may come while predictions are made
        put_predictions(made, path, "to='out'")
    assert made.is_dir()


@pytest.mark.parametrize("swapped", [False, True])
def test_killed_in_between_leaves_the_old_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swapped: bool
) -> None:
    def killed(made: Path, path: Path) -> None:
        if swapped:
            exchange(made, path)
        raise KeyboardInterrupt

    put(tmp_path / "out", "old")
    with monkeypatch.context() as patch:
        patch.setattr(replacing, "put_in_place", killed)
        with pytest.raises(KeyboardInterrupt):
            put(tmp_path / "out", "new")
    assert held(tmp_path / "out") == ["new" if swapped else "old"]
    (tmp_path / "made").rename(tmp_path / "left")
    put(tmp_path / "out", "newest")
    assert held(tmp_path / "out") == ["newest"]


@pytest.mark.parametrize("at_once", [True, False])
def test_two_folders_exchange_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool) -> None:
    if not at_once:
        monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    exchange(tmp_path / "one", tmp_path / "other")
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["other"]
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["one"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "other"]


def test_what_cannot_be_exchanged_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
    (tmp_path / "other").mkdir()
    with pytest.raises(FileNotFoundError):
        exchange(tmp_path / "none", tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
