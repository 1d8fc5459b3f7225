"""Places where a process may die: before and after every message, journal append, rename, sync, link and removal.

Nothing in the product knows of them: functions are wrapped in the process under attack, which is told by its
environment. ``CHAOS_DIE`` is the number of the place at which the process of the controller dies. ``CHAOS_WORKERS``
is ``SEED FEWEST MOST``: each worker dies at a place that is drawn for it. ``CHAOS_CLOCK`` is the seed of a clock that
jumps by hours. ``CHAOS_WRITES`` is ``PLACE NUMBER KILLS``: each worker dies at its write of a model with that number,
at one of ``WRITES``, until ``KILLS`` workers have died. ``CHAOS_LOG`` is a file to which a process that dies adds the
place.
"""

from __future__ import annotations

import functools
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

#: How many places were reached, and at which to die. 0 is none.
_state = {"reached": 0, "last": 0}
_installed = False


WRITES = ("before a model is written", "between a write and its rename", "after a rename, before it is told")
"""Places in the write of a model."""


def reach(place: str) -> None:
    """Be at a place; it may be the last one."""
    _state["reached"] += 1
    if _state["reached"] == _state["last"]:
        die(place)


def die(place: str) -> None:
    log = os.environ.get("CHAOS_LOG")
    if log:
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, f"{place}\n".encode())
        os.close(descriptor)
    os.kill(os.getpid(), signal.SIGKILL)


def reached() -> int:
    return _state["reached"]


def around(owner: Any, name: str, what: str) -> None:
    """Make a place before and one after each call of a function."""
    function: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(function)
    def wrapped(*args: Any, **options: Any) -> Any:
        reach(f"before {what}")
        result = function(*args, **options)
        reach(f"after {what}")
        return result

    setattr(owner, name, wrapped)


def install(last: int | None = None) -> None:
    """In the process of a controller."""
    from hopfleet.backends.inline import Inline
    from hopfleet.backends.local.backend import Local
    from hopfleet.store.journal import Journal

    _files()
    around(Journal, "append", "an append to the journal")
    around(Local, "_flush", "a command to a worker")
    around(Local, "_spawn", "a worker is forked")
    around(Inline, "send", "a command to a worker")
    _jump()
    _state["reached"] = 0
    _state["last"] = int(os.environ.get("CHAOS_DIE", 0)) if last is None else last


def install_in_workers() -> None:
    """In the process that workers are forked from; each worker draws its last place."""
    _aim_at_writes()
    drawn = os.environ.get("CHAOS_WORKERS")
    if not drawn or _installed:
        _jump()
        return
    _files()
    around(Connection, "send_bytes", "a message is sent")
    around(Connection, "recv_bytes", "a message is received")
    _jump()
    seed, fewest, most = map(int, drawn.split())

    def draw() -> None:
        _state["reached"] = 0
        _state["last"] = random.Random(f"{seed} {os.getpid()}").randint(fewest, most)

    os.register_at_fork(after_in_child=draw)


def _aim_at_writes() -> None:
    """Have each worker die in its write of a model with a number, until enough have died."""
    from hopfleet.store.versions import local

    aim = os.environ.get("CHAOS_WRITES")
    if not aim or hasattr(local.write_atomically, "__wrapped__"):
        return
    index, number, kills = map(int, aim.split())
    write_atomically, writes = local.write_atomically, {"count": 0}
    os.register_at_fork(after_in_child=lambda: writes.update(count=0))

    @functools.wraps(write_atomically)
    def aimed(path: Path, write: Callable[[Path], None], **how: bool) -> None:
        if path.parent.name == "probe":  # the check before the run
            write_atomically(path, write, **how)
            return
        writes["count"] += 1
        struck = (
            writes["count"] == number
            and len(Path(os.environ["CHAOS_LOG"]).read_text(encoding="utf-8").splitlines()) < kills
        )
        if struck and index == 0:
            die(WRITES[0])

        def written(temporary: Path) -> None:
            write(temporary)
            if struck and index == 1:
                die(WRITES[1])

        write_atomically(path, written, **how)
        if struck and index == 2:
            die(WRITES[2])

    local.write_atomically = aimed


def _files() -> None:
    global _installed
    _installed = True
    around(os, "replace", "a rename")
    around(os, "rename", "a rename")
    around(os, "fsync", "a sync")
    around(os, "link", "a link")
    around(os, "unlink", "a removal")
    around(shutil, "rmtree", "the removal of a folder")


def _jump() -> None:
    """A clock that is now and then set hours ahead or back."""
    seed = os.environ.get("CHAOS_CLOCK")
    if not seed:
        return
    true, state = time.time, {"offset": 0.0}
    rng = random.Random(f"{seed} {os.getpid()}")

    def jumping() -> float:
        if rng.random() < 0.05:
            state["offset"] = rng.uniform(-6, 6) * 3600
        return true() + state["offset"]

    time.time = jumping
