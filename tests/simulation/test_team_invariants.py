"""The four invariants with teams in place of workers: any nodes, any division into teams, switches and losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopfleet.controller.controller import Controller
from hopfleet.domain.messages import FormTeams, Message, RunUnit, UnitFinished, WorkerJoined, WorkerLost
from hopfleet.monitor.observer import Observer
from hopfleet.runtime.driver import Driver, Effects
from hopfleet.scheduler.invariants import validate, validate_history
from hopfleet.simulation import run
from hopfleet.simulation.backend import Failure, Simulated
from hopfleet.simulation.driver import simulated_driver
from hopfleet.simulation.layouts import simulate_scenario
from hopfleet.simulation.scenario import Scenario, SimulatedNode

DIVISIONS = [(1,), (2,), (1, 1), (3,), (2, 1), (1, 1, 1), (4,), (3, 1), (2, 2), (2, 1, 1), (1, 1, 1, 1)]
rates = st.lists(st.floats(50, 500), min_size=1, max_size=7)
losses = st.lists(st.tuples(st.floats(0, 40), st.integers(1, 8), st.floats(0, 10)), max_size=3)
policies = st.sampled_from(["auto", "longest-remaining", "match-reserve", "random", "fleet"])


class Journal:
    """Takes the place of a driver's journal: the schedule is checked after every step, and the messages are kept."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def driver(
        self, controller: Controller, backend: Simulated, observers: Sequence[Observer], *, effects: Effects | None
    ) -> Driver:
        def write(now: float, messages: Sequence[Message]) -> None:
            validate(controller.schedule)
            self.messages += messages

        return simulated_driver(controller, backend, observers, journal=write, effects=effects)

    def check(self, scenario: Scenario) -> None:
        validate_history(self.messages, scenario.partitions)
        trained = [each for each in self.messages if isinstance(each, UnitFinished) and each.unit.trains]
        assert len(trained) >= len(scenario.rates) * scenario.epochs * scenario.partitions
        devices: dict[str, int] = {}
        for message in self.messages:
            if isinstance(message, WorkerJoined):
                devices[message.worker] = len(message.placement.devices)
                assert sum(devices.values()) <= sum(node.devices for node in scenario.nodes), "a device has two teams"
            elif isinstance(message, WorkerLost):
                del devices[message.worker]
            elif isinstance(message, RunUnit):
                assert message.worker in devices, "a unit starts on a team that is complete"


def simulated(scenario: Scenario, policy: str, lost: list[tuple[float, int, float]], **options: Any) -> Journal:
    journal, workers = Journal(), len(scenario.workers)
    failures = [Failure(when, f"w{1 + number % workers}", when + pause) for when, number, pause in lost]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "simulated_driver", journal.driver)
        simulate_scenario(scenario, policy, failures=failures, **options)
    return journal


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(DIVISIONS), min_size=1, max_size=4), rates, losses, policies, st.booleans())
def test_nodes_with_partitions_of_their_own(
    layout: list[tuple[int, ...]],
    rates: list[float],
    lost: list[tuple[float, int, float]],
    policy: str,
    noisy: bool,
) -> None:
    nodes = tuple(SimulatedNode(f"n{number}", sum(teams), teams=teams) for number, teams in enumerate(layout))
    options = {"scaling": (1.0, 1.9), "switch": False, "sharded": True, "fuse": False}
    scenario = Scenario(nodes, tuple(rates), 1000, len(nodes), 2, **options)  # type: ignore[arg-type]
    journal = simulated(scenario, policy, lost, noise=0.3 if noisy else 0.0)
    journal.check(scenario)
    where = {message.worker: message.partitions for message in journal.messages if isinstance(message, WorkerJoined)}
    for message in journal.messages:
        if isinstance(message, RunUnit):
            assert where[message.worker] == (message.unit.partition,), "each node reads its own partition"


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.integers(2, 8), rates, st.integers(1, 4), losses, policies, st.booleans(), st.booleans())
def test_devices_that_join_as_teams(
    devices: int,
    rates: list[float],
    partitions: int,
    lost: list[tuple[float, int, float]],
    policy: str,
    fuse: bool,
    noisy: bool,
) -> None:
    node = SimulatedNode("a", devices)
    scenario = Scenario((node,), tuple(rates), 1000, partitions, 4, scaling=(1.0, 1.9), form=0.5, fuse=fuse)
    simulated(scenario, policy, lost, noise=0.3 if noisy else 0.0).check(scenario)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "rates", "epochs", "form", "seed"),
    [(4, (108.0, 114.0), 3, 100.0, 84), (8, (138.0, 140.0, 46.0, 22.0, 87.0, 69.0, 166.0, 144.0, 128.0), 1, 1.0, 12)],
)
def test_a_unit_that_is_late_while_teams_form_keeps_its_worker(
    devices: int, rates: tuple[float, ...], epochs: int, form: float, seed: int
) -> None:
    for scaling in (1.68, 1.84):
        options = {"scaling": (1.0, scaling), "form": form, "fuse": False}
        scenario = Scenario((SimulatedNode("a", devices),), rates, 8000, 8, epochs, **options)  # type: ignore[arg-type]
        for number in range(seed, seed + 4):
            simulated(scenario, "auto", [], noise=0.1, seed=number).check(scenario)


def test_the_switch_is_among_them() -> None:
    """The property above would hold as well if no team ever formed."""
    scenario = Scenario((SimulatedNode("a", 8),), (100.0,) * 3, 8000, 4, 4, scaling=(1.0, 1.9))
    formed = [each for each in simulated(scenario, "auto", []).messages if isinstance(each, FormTeams)]
    assert [shape.devices for shape in formed[0].shapes] == [3, 3, 2]
