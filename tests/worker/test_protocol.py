"""The messages between backends and workers, and their form on a socket."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from hopfleet.domain.messages import RunUnit, SaveVersion, UnitFinished, VersionSaved
from hopfleet.domain.placement import Placement
from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.trial import Parent, Trial
from hopfleet.domain.unit import Unit
from hopfleet.domain.version_ref import VersionRef
from hopfleet.worker import protocol as p
from hopfleet.worker.serving import carry_out
from hopfleet.worker.spec import Profile

TRIAL = Trial("t0001", 0, {"lr": 0.1, "nested": {"sizes": [1, 2]}}, 7, 3)
CLONE = Trial("t0002", 1, {"lr": 0.2}, 8, 3, Parent("t0001", 4, {"lr": 0.1}))
UNIT = RunUnit("w1", Unit("t0001", 1, 2), 5, VersionRef("t0001", 2, 4), digest="abc")
SAVE = SaveVersion("w1", VersionRef("t0001", 3, 6), True)

ORDERS: list[p.Order] = [p.Execute(UNIT, TRIAL), p.Execute(SAVE, CLONE), p.Probe(CLONE, 4, 2, 1), p.Stop()]
REPORTS: list[p.Report] = [
    p.Ready(123, "cuda:1"),
    p.Unable("no module named x"),
    p.Beat(),
    p.Beat(1 << 30, 7, 1.5, 2.5, 0.25),
    p.Events(
        [
            UnitFinished("w1", Unit("t0001", 1, 2), 5, 3, 1.0, 2.0, sums={"loss": RowSum.of(0.1, 7)}),
            VersionSaved(VersionRef("t0001", 3, 6), True, "abc", 9),
        ]
    ),
    p.Profiled(Profile(("loss", "params"), seconds_per_row=0.5, size=3, gains=False, unsteady="x")),
]
ON_CLUSTERS: list[Any] = [
    p.NodeJoined("n1", "agent"),
    p.NodeLost("n1"),
    p.Execute(UNIT, TRIAL, "n1"),
    p.Fetched(VersionRef("t0001", 2, 4)),
    p.Printed("t0001.log", b"\xff"),
    p.Stopped(),
]


def test_orders_pass_a_socket() -> None:
    assert list(p.decode_orders(p.encode_orders(ORDERS))) == ORDERS
    assert list(p.decode_orders(p.encode_orders([]))) == []
    start = p.Start("w1", Placement(("cpu", "cpu"), "ddp"), 1)
    assert p.decode_start(p.encode_start(start)) == start


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: type(report).__name__)
def test_reports_pass_a_socket(report: p.Report) -> None:
    assert p.decode_report(p.encode_report(report)) == report


@pytest.mark.parametrize("message", [*ORDERS, *REPORTS, *ON_CLUSTERS], ids=lambda message: type(message).__name__)
def test_messages_are_values(message: Any) -> None:
    assert pickle.loads(pickle.dumps(message)) == message
    field = next(iter(type(message).__dataclass_fields__), None)
    if field is not None:
        with pytest.raises(AttributeError):
            setattr(message, field, None)


def test_what_has_no_form_on_a_socket_is_refused() -> None:
    with pytest.raises(TypeError, match="has no form on a socket"):
        p.encode_orders([p.NodeLost("n1")])
    with pytest.raises(TypeError, match="has no form on a socket"):
        p.encode_report(p.Stopped())
    with pytest.raises(ValueError, match="unknown order 'Dance'"):
        list(p.decode_orders(b'[["Dance"]]'))
    with pytest.raises(ValueError, match="unknown report 'Dance'"):
        p.decode_report(b'["Dance", null]')


def test_orders_are_carried_out_until_a_stop() -> None:
    done: list[Any] = []

    class Recorder:
        def execute(self, *arguments: Any) -> None:
            done.append(arguments)

        def probe(self, *arguments: Any) -> Profile:
            done.append(arguments)
            return Profile(("loss",))

        def close(self) -> None:
            done.append("closed")

    worker: Any = Recorder()
    reports: list[p.Report] = []
    assert [carry_out(worker, order, reports.append) for order in ORDERS] == [True, True, True, False]
    assert done == [(UNIT, TRIAL), (SAVE, CLONE), (CLONE, 4, 2, 1), "closed"]
    assert reports == [p.Profiled(Profile(("loss",)))]
    with pytest.raises(AssertionError, match="is not for a worker"):
        carry_out(worker, p.NodeLost("n1"), reports.append)
