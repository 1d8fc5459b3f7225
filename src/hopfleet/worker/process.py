"""The process around a worker: reads orders from a socket, writes reports back, and beats while it is alive.

If the socket closes, the controller is gone, and the process ends with the next beat at the latest, even in the middle
of a unit: work that was not reported did not happen.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection

import cloudpickle

from hopfleet.domain.placement import Placement
from hopfleet.errors import HopfleetError, describe
from hopfleet.frameworks.base import Framework
from hopfleet.frameworks.teams import MemberLost, Membership
from hopfleet.store.shared_memory import SharedMemory
from hopfleet.worker.feeding.feed import needs_feed, open_feed
from hopfleet.worker.logs import captured
from hopfleet.worker.protocol import (
    Events,
    GiveUp,
    Order,
    Ready,
    Report,
    Start,
    Unable,
    decode_orders,
    decode_start,
    encode_report,
)
from hopfleet.worker.serving import carry_out, sign_of_life
from hopfleet.worker.spec import WorkerSpec
from hopfleet.worker.surroundings import terminal
from hopfleet.worker.surroundings.isolation import Isolation
from hopfleet.worker.surroundings.table import settings_of
from hopfleet.worker.unit_runner import Broken
from hopfleet.worker.worker import Worker

BEAT_SECONDS = 0.25
"""Seconds between two beats."""


def serve(connection: Connection, links: Sequence[Connection] = ()) -> None:
    """Be a worker until told to stop, or until the other side of the connection is gone.

    ``links`` lead to the other members of the worker's team, or to its first member.
    """
    lock = threading.Lock()

    def send(report: Report) -> None:
        with lock:
            connection.send_bytes(encode_report(report))

    start = decode_start(connection.recv_bytes())
    try:
        spec: WorkerSpec = cloudpickle.loads(connection.recv_bytes())
        spec.task.framework.apply(spec.settings)
        spec.surroundings.adopt()
        terminal.do_without()
        framework = spec.task.framework
        team = framework.join(Membership(start.rank, start.placement, links)) if links else None
        if team is not None and start.rank:
            send(Ready(os.getpid(), start.placement.devices[start.rank]))
            _start_heart(send, spec, start)
            framework.follow(team, Isolation(settings_of(spec.task), guest=False).around)
            return
        shares = spec.run and needs_feed(spec)
        folder = SharedMemory(spec.checkpoints).batches(spec.run) if shares else None
        worker = Worker(
            start.worker,
            spec,
            start.placement,
            lambda events: send(Events(events)),
            capture=captured,
            guest=False,
            feed=open_feed(spec, folder, [connection.fileno()]),
            team=team,
        )
    except MemberLost:
        raise  # the process ends, and the backend starts all members anew
    except Exception as error:
        send(Unable(*why_unable(error)))
        return
    send(Ready(os.getpid(), start.placement.device))
    _start_heart(send, spec, start)
    # Orders are read by this very thread: a second thread would double the time of a small order.
    later: deque[Order] = deque()

    def listen() -> None:
        """Hear in the middle of a unit that it is given up; keep all other orders for later."""
        with contextlib.suppress(EOFError, OSError):  # the next order finds out
            while connection.poll():
                for order in decode_orders(connection.recv_bytes()):
                    if isinstance(order, GiveUp):
                        worker.interruption.order(order.attempt)
                    else:
                        later.append(order)

    worker.interruption.hear_orders = listen
    while True:
        try:
            if not connection.poll():
                worker.rest()
            message = connection.recv_bytes()
        except (EOFError, OSError):
            return
        for order in _each(decode_orders(message), later):
            try:
                if not carry_out(worker, order, send):
                    return
            except Broken:
                os._exit(1)  # no further order could succeed in this process


def why_unable(error: Exception) -> tuple[str, bool]:
    """Return why a worker cannot start, and whether that says what to do."""
    return (str(error), True) if isinstance(error, HopfleetError) else (describe(error), False)


def _each(orders: Iterable[Order], later: deque[Order]) -> Iterator[Order]:
    """Yield orders, then those that arrived while they were carried out."""
    yield from orders
    while later:
        yield later.popleft()


def _start_heart(send: Callable[[Report], None], spec: WorkerSpec, start: Start) -> None:
    device = Placement.on(start.placement.devices[start.rank])
    threading.Thread(target=_beat, args=(send, spec.task.framework, device), name="heart", daemon=True).start()


def _beat(send: Callable[[Report], None], framework: Framework, device: Placement) -> None:
    never = threading.Event()
    while not never.wait(BEAT_SECONDS):
        try:
            send(sign_of_life(framework, device))
        except OSError:
            os._exit(0)
