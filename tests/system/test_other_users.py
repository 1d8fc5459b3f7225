"""Names that others, or the user's own hands, have put in the way of a writer: nothing outside is changed or deleted.

Each writer of Hopfleet meets each thing that can lie at its target, at the place in which it builds, or above both.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.errors import DataError, HopfleetError
from hopfleet.monitor.charts.canvas import save
from hopfleet.runs.replacing import put_predictions
from hopfleet.runtime.callbacks import ExperimentInfo
from hopfleet.store.folder import RunFolder
from hopfleet.store.versions.remote import Remote
from hopfleet.support import files
from hopfleet.testing.tasks import CountingTask
from hopfleet.trackers import Csv, JsonLines
from hopfleet.worker.logs import captured, copied

as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can make files of another user")

STRANGER = 12345
"""The id of another user."""

TEXT = "years of work"


class Writer(NamedTuple):
    """A function that writes to a path, and names beside the path at which it builds, or built in release 0.1."""

    write: Callable[[Path], object]
    beside: tuple[str, ...] = ()


def _info(folder: Path) -> ExperimentInfo:
    fields = dict.fromkeys(ExperimentInfo.__dataclass_fields__)
    return ExperimentInfo(**{**fields, "name": "mine", "folder": folder})  # type: ignore[arg-type]


def _track(make: Callable[[Path], Any]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        tracker = make(path)
        tracker.write_begin(_info(path.parent))
        tracker.write_end(_info(path.parent), True)

    return write


def _figure(path: Path) -> None:
    from matplotlib.figure import Figure

    picture = path.with_name(f"{path.name}.svg")
    with contextlib.suppress(FileNotFoundError):
        path.rename(picture)  # what lies in the way has the name of the picture
    save(Figure(), picture)


def _capture(path: Path) -> None:
    with captured(path):
        os.write(1, b"printed")


def _copy(path: Path) -> None:
    with copied(path):
        print("printed")


def _claim(path: Path) -> None:
    os.close(files.claim(path, "workspace"))


def _lock(path: Path) -> None:
    RunFolder(path).lock().close()


def _lock_file(path: Path) -> None:
    with files.open_lock(path) as file:
        files.replace_content(file, b"x")


def _clear(path: Path) -> None:
    run = RunFolder(path)
    with run.lock():
        run.clear()
        run.discard()


def _fit(path: Path, **more: Any) -> None:
    options = hop.RunOptions(folder=path)
    experiment = hop.Experiment(
        CountingTask(), space={"x": 1}, train={"x": np.arange(8.0)}, search=hop.Grid(max_epochs=1), partitions=2,
        batch_size=4, backend="inline", run_options=options,
    )  # fmt: skip
    experiment.fit(quiet=True, **more)


def _predict(path: Path) -> None:
    made = path.parent / "made"
    made.mkdir()
    try:
        (made / "a.parquet").write_bytes(b"")
        put_predictions(made, path, str(path))
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _download(path: Path) -> None:
    (path.parent / "remote").mkdir()
    (path.parent / "remote" / "file").write_text("x")
    Remote((path.parent / "remote").as_uri()).download("file", path)


def _prepare(path: Path, **more: Any) -> None:
    hop.prepare({"x": np.arange(8.0)}, path, partitions=2, **more)


def _partition(path: Path, **more: Any) -> None:
    hop.partition({"x": np.arange(8.0)}, path, partitions=2, **more)


def _text(path: Path) -> None:
    files.write_text(path, "x", durable=True)


WRITERS = {
    "write_text": Writer(_text, (f".target.{os.getpid()}",)),
    "write_once": Writer(lambda path: files.write_once(path, b"x")),
    "create_file": Writer(lambda path: files.create_file(path).close()),
    "start_text": Writer(lambda path: files.start_text(path).close()),
    "overwrite": Writer(lambda path: files.overwrite(path, [b"x"])),
    "append": Writer(lambda path: files.append(path, b"x")),
    "open_lock": Writer(_lock_file),
    "copy_file": Writer(lambda path: files.copy_file(Path(__file__), path)),
    "link_or_copy": Writer(lambda path: files.link_or_copy(Path(__file__), path)),
    "link_file": Writer(lambda path: files.link_file(Path(__file__), path)),
    "make_folder": Writer(lambda path: files.make_folder(path / "inner" if path.is_dir() else path, private=True)),
    "create_folder": Writer(lambda path: files.create_folder(path)),
    "claim": Writer(_claim),
    "remove_file": Writer(files.remove_file),
    "remove_folder": Writer(lambda path: files.remove_folder(path)),
    "sweep": Writer(lambda path: files.sweep(path.parent, "tar")),
    "run folder": Writer(_lock, ("target/lock", "target/hopfleet.json")),
    "cleared run folder": Writer(_clear, ("target/lock", "target/hopfleet.json", "target/logs")),
    "fit": Writer(_fit, ("target/checkpoints", "target/experiment.json", "target/data")),
    "fit, overwrite": Writer(lambda path: _fit(path, overwrite=True), ("target/.moving", "target/.outdated")),
    "partition": Writer(_partition, (".target.partial-mine",)),
    "partition, overwrite": Writer(lambda path: _partition(path, overwrite=True), (".target.partial-mine",)),
    "prepare": Writer(_prepare, (".target.prepare",)),
    "prepare, overwrite": Writer(lambda path: _prepare(path, overwrite=True), (".target.prepare",)),
    "predictions": Writer(_predict, (".target.written",)),
    "download": Writer(_download),
    "Csv": Writer(_track(Csv)),
    "JsonLines": Writer(_track(JsonLines)),
    "picture": Writer(_figure),
    "captured log": Writer(_capture),
    "copied log": Writer(_copy),
}
"""All ways in which Hopfleet writes to a path that a user gives, or builds beside it."""

DELETES = ("remove_folder",)
"""Writers that are told to delete what is at the path, if it is a folder of this user."""


def link_to_file(path: Path, victim: Path) -> None:
    path.symlink_to(victim / "thesis.txt")


def link_to_folder(path: Path, victim: Path) -> None:
    path.symlink_to(victim)


def link_to_nothing(path: Path, victim: Path) -> None:
    path.symlink_to(victim / "new")


def hard_link(path: Path, victim: Path) -> None:
    path.hardlink_to(victim / "thesis.txt")


def file(path: Path, victim: Path) -> None:
    path.write_text("a file of the user", encoding="utf-8")


def folder(path: Path, victim: Path) -> None:
    path.mkdir()
    (path / "notes.txt").write_text(TEXT)
    (path / "notes").mkdir()


def database(path: Path, victim: Path) -> None:
    """A folder with a database of another program whose name is that of a journal."""
    folder(path, victim)
    with contextlib.closing(sqlite3.connect(path / "journal.sqlite")) as base:
        base.execute("CREATE TABLE messages (text TEXT)")
        base.execute("PRAGMA user_version = 5")


def pipe(path: Path, victim: Path) -> None:
    os.mkfifo(path)


OBSTACLES = [link_to_file, link_to_folder, link_to_nothing, hard_link, file, folder, database, pipe]

REPLACES = ("create_file", "download", "link_or_copy", "remove_file")
"""Writers that replace or delete what is at the path, unless it is a folder."""

IN_PLACE = ("overwrite", "append", "open_lock", "copy_file", "captured log", "copied log")
"""Writers that go on with a file; it lies in a private folder, where no other user makes a hard link."""


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """A folder that must stay as it is."""
    place = tmp_path / "victim"
    place.mkdir()
    (place / "thesis.txt").write_text(TEXT)
    (place / "inner").mkdir()
    (place / "inner" / "data.txt").write_text(TEXT)
    yield place
    assert content(place) == {"thesis.txt": TEXT.encode(), "inner": None, "inner/data.txt": TEXT.encode()}


def content(place: Path) -> dict[str, bytes | None]:
    """Return the files and folders in a folder, by name."""
    return {
        str(path.relative_to(place)): path.read_bytes() if path.is_file() else None for path in sorted(place.rglob("*"))
    }


def attempt(writer: Writer, path: Path) -> None:
    """Let a writer write, or refuse in an ordinary way that names a path."""
    try:
        writer.write(path)
    except (HopfleetError, OSError) as error:
        assert "/" in str(error), f"names no path: {error!r}"


@pytest.mark.parametrize("obstacle", OBSTACLES)
@pytest.mark.parametrize("name", WRITERS)
def test_nothing_outside_is_changed(
    name: str, obstacle: Callable[[Path, Path], None], tmp_path: Path, victim: Path
) -> None:
    writer = WRITERS[name]
    for number, place in enumerate(("target", *writer.beside)):
        if obstacle is hard_link and name in IN_PLACE:
            continue
        shared = tmp_path / f"shared{number}"
        shared.mkdir(mode=0o700)
        (shared / place).parent.mkdir(exist_ok=True)
        obstacle(shared / place, victim)
        before = content(shared / place) if (shared / place).is_dir() else {}
        attempt(writer, shared / "target")
        if obstacle is pipe and place == "target" and name not in REPLACES:
            now = shared / place if (shared / place).exists() else shared / f"{place}.svg"
            assert now.is_fifo(), "a pipe is gone"
        if obstacle in (folder, database) and name not in DELETES:
            now = shared / place if (shared / place).exists() else shared / f"{place}.svg"
            assert content(now).items() >= before.items(), "a folder of the user's has lost files"
            if name in ("run folder", "fit", "fit, overwrite") and place == "target":
                assert content(now) == before, "a refused folder is written to"


@pytest.mark.parametrize("name", ["fit", "partition", "prepare", "Csv", "write_text", "predictions"])
def test_links_that_a_user_made_above_a_path_are_followed(name: str, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "mine").symlink_to(tmp_path / "disk")
    WRITERS[name].write(tmp_path / "mine" / "target")
    assert (tmp_path / "disk" / "target").exists()


# --------------------------------------------------------------------------------------------------------- other users


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder that everyone can write to, such as /tmp."""
    place = tmp_path / "shared"
    place.mkdir()
    place.chmod(0o1777)
    return place


@as_root
@pytest.mark.parametrize("name", ["fit", "fit, overwrite", "partition", "prepare", "partition, overwrite", "Csv"])
def test_links_of_other_users_are_not_followed(name: str, shared: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    {"Csv": lambda path: path.write_text(TEXT)}.get(name, lambda path: path.mkdir())(own)
    (shared / "target").symlink_to(own)
    os.chown(shared / "target", STRANGER, STRANGER, follow_symlinks=False)
    with pytest.raises((HopfleetError, OSError), match=r"of another user|link"):
        WRITERS[name].write(shared / "target")
    assert own.read_text() == TEXT if own.is_file() else not any(own.iterdir())


@as_root
@pytest.mark.parametrize("name", ["fit", "fit, overwrite", "claim", "remove_folder", "prepare"])
def test_folders_of_other_users_are_left_alone(name: str, shared: Path) -> None:
    place = shared / (".target.prepare" if name == "prepare" else "target")
    if name.startswith("fit"):
        _fit(place)
    elif name != "prepare":
        _claim(place)
    else:
        os.close(files.claim(place, "prepare workspace"))
    (place / "more").write_text(TEXT)
    os.chown(place, STRANGER, STRANGER)
    before = content_names(place)
    with pytest.raises((HopfleetError, OSError), match="another user"):
        WRITERS[name].write(shared / "target")
    assert content_names(place) == before


@as_root
def test_a_record_of_another_user_replaces_no_folder(shared: Path) -> None:
    _predict(shared / "target")
    os.chown(shared / ".target.written", STRANGER, STRANGER)
    with pytest.raises(HopfleetError, match="no folder of predictions that Hopfleet wrote"):
        _predict(shared / "target")
    assert (shared / "target" / "a.parquet").is_file()


def content_names(place: Path) -> list[str]:
    return sorted(str(path.relative_to(place)) for path in place.rglob("*"))


# ----------------------------------------------------------------------------------------------- what overwrite deletes


def test_overwrite_leaves_what_no_run_has_written(tmp_path: Path) -> None:
    run = tmp_path / "run"
    _fit(run)
    before = hop.load(run).definition["created"], (run / "journal.sqlite").stat().st_ino
    (run / "thesis").mkdir()
    (run / "notes.txt").write_text(TEXT)
    _fit(run, overwrite=True)
    assert (hop.load(run).definition["created"], (run / "journal.sqlite").stat().st_ino) != before
    assert hop.load(run).finished and (run / "notes.txt").read_text() == TEXT and (run / "thesis").is_dir()


@pytest.mark.parametrize("stranger", [False, pytest.param(True, marks=as_root)])
def test_a_run_that_is_cleared_leaves_what_no_run_has_written(stranger: bool, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    _fit(run.path)
    (run.path / "notes.txt").write_text(TEXT)
    if stranger:
        before = content_names(run.path)
        os.chown(run.path, STRANGER, STRANGER)
        with pytest.raises(PermissionError, match="another user"):
            run.clear()
        assert content_names(run.path) == before
    else:
        run.clear()
        assert content_names(run.path) == ["hopfleet.json", "lock", "notes.txt"]


@pytest.mark.parametrize("write", [_partition, _prepare])
def test_overwrite_names_what_no_data_set_consists_of(write: Callable[..., None], tmp_path: Path) -> None:
    write(tmp_path / "data")
    (tmp_path / "data" / "notes.txt").write_text(TEXT)
    with pytest.raises(DataError, match=r"notes\.txt.*did not write"):
        write(tmp_path / "data", overwrite=True)
    (tmp_path / "data" / "notes.txt").unlink()
    write(tmp_path / "data", overwrite=True)


def test_temporary_names_cannot_be_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Path] = []
    for _ in range(2):
        files.write_atomically(tmp_path / "target", seen.append, durable=False)
    first, second = (path.name.removeprefix(".target.") for path in seen)
    assert first != second and len(first) >= 16
    # Even if one is guessed, a link of that name is not followed.
    monkeypatch.setattr(files.writing, "temporary_name", lambda path: path.with_name("guessed"))
    (tmp_path / "guessed").symlink_to(tmp_path / "victim")
    with pytest.raises(FileExistsError):
        files.write_text(tmp_path / "target", "x", durable=False)
    assert not (tmp_path / "victim").exists()
