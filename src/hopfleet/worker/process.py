"""The process around a worker: reads commands from a socket, writes events back, beats while it lives.

If the socket closes, the controller is gone, and the process ends with the next beat at the latest, in the middle of a
unit if need be: what was not reported did not happen.
"""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from hopfleet.domain.messages import Event, decode, encode
from hopfleet.domain.placement import Placement
from hopfleet.domain.trial import Parent, Trial
from hopfleet.errors import describe
from hopfleet.store.shared_memory import SharedMemory
from hopfleet.worker.feeding.feed import open_feed
from hopfleet.worker.logs import captured
from hopfleet.worker.spec import WorkerSpec
from hopfleet.worker.unit_runner import Broken
from hopfleet.worker.worker import Worker

BEAT_SECONDS = 0.25


def serve(connection: Connection) -> None:
    """Be a worker until told to stop, or until the other side of the connection is gone."""
    lock = threading.Lock()

    def say(kind: str, body: Any) -> None:
        with lock:
            connection.send_bytes(json.dumps([kind, body]).encode())

    def emit(events: Sequence[Event]) -> None:
        say("Events", [encode(event) for event in events])

    setup = json.loads(connection.recv_bytes())
    try:
        spec: WorkerSpec = cloudpickle.loads(connection.recv_bytes())
        shares = spec.run and spec.task.transform is not None
        folder = SharedMemory(spec.checkpoints).batches(spec.run) if shares else None
        feed = open_feed(spec, folder, [connection.fileno()])
        worker = Worker(
            setup["worker"],
            spec,
            Placement.on(setup["device"]),
            emit,
            capture=captured,
            guest=False,
            feed=feed,
        )
    except Exception as error:
        say("Unable", describe(error))
        return
    say("Ready", os.getpid())
    threading.Thread(target=_beat, args=(say,), name="heart", daemon=True).start()
    # Commands are read by this very thread: handing them over from another would double the time of a small one.
    while True:
        try:
            if not connection.poll():
                worker.rest()
            orders = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            return
        for kind, body, trial in orders:
            if kind == "Stop":
                worker.close()
                return
            if kind == "Probe":
                profile = worker.probe(_trial(trial), body)
                say("Profile", list(dataclasses.astuple(profile)))
                continue
            try:
                worker.execute(decode(kind, body), _trial(trial))  # type: ignore[arg-type]
            except Broken:
                os._exit(1)  # nothing that is left to do here could succeed


def _trial(fields: dict[str, Any]) -> Trial:
    parent = fields.pop("parent")
    return Trial(**fields, parent=None if parent is None else Parent(*parent))


def _beat(say: Any) -> None:
    never = threading.Event()
    while not never.wait(BEAT_SECONDS):
        try:
            say("Beat", None)
        except OSError:
            os._exit(0)
