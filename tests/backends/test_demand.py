"""What is asked of Ray's autoscaler, and when; Ray itself is not needed for that."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from hopfleet.backends.ray import demand
from hopfleet.backends.ray.demand import Demand


class Groups:
    """Placement groups as Ray has them: a requested group waits until a test grants it."""

    def __init__(self) -> None:
        self.states: dict[str, str] = {}

    def placement_group(self, bundles: list[dict[str, float]]) -> Any:
        assert bundles == [{"CPU": 2}]
        name = f"g{len(self.states)}"
        self.states[name] = "PENDING"
        return SimpleNamespace(id=SimpleNamespace(hex=lambda: name))

    def placement_group_table(self) -> dict[str, dict[str, str]]:
        return {name: {"state": state} for name, state in self.states.items()}

    def remove_placement_group(self, group: Any) -> None:
        self.states[group.id.hex()] = "REMOVED"

    @property
    def waiting(self) -> list[str]:
        return [name for name, state in self.states.items() if state == "PENDING"]


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> Groups:
    made = Groups()
    monkeypatch.setitem(sys.modules, "ray.util", made)  # type: ignore[arg-type]
    return made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(demand, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_as_many_wait_as_are_wanted(groups: Groups, clock: list[float]) -> None:
    wanted = Demand({"CPU": 2})
    assert not wanted.keep(3) and len(groups.waiting) == 3
    assert not wanted.keep(3) and len(groups.states) == 3, "no worker is requested twice"
    assert not wanted.keep(1) and groups.waiting == ["g0"]
    assert not wanted.keep(0) and groups.waiting == []


def test_when_one_is_granted_nothing_is_in_the_way_of_workers_for_a_while(groups: Groups, clock: list[float]) -> None:
    wanted = Demand({"CPU": 2})
    wanted.keep(3)
    groups.states["g1"] = "CREATED"
    assert wanted.keep(3)
    assert set(groups.states.values()) == {"REMOVED"}
    clock[0] += demand.PAUSE_SECONDS - 1
    assert not wanted.keep(2) and groups.waiting == []
    clock[0] += 1
    assert not wanted.keep(2) and len(groups.waiting) == 2, "what is still lacking is asked for again"


def test_who_wants_nothing_needs_no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray.util", None)
    assert not Demand({}).keep(0)
