"""Which nodes are used when they join, come back, or are lost; no cluster is needed for that."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hopfleet.backends.ray import discovery as discovery
from hopfleet.backends.ray.discovery import Discovery
from hopfleet.backends.ray.placement import Node, WorkerNeeds
from hopfleet.domain.placement import TeamShape
from hopfleet.errors import WorkersLost

A = Node("a", "10.0.0.1", cpus=4, free_cpus=4)
B = Node("b", "10.0.0.2", cpus=2, free_cpus=2)
ONE, PAIR = WorkerNeeds(device="cpu"), WorkerNeeds(device="cpu", shape=TeamShape("ddp", 2), spans=True)
FULL = Node("f", "10.0.0.3", cpus=2)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(discovery, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def begun(monkeypatch: pytest.MonkeyPatch, *, elastic: bool = True, autoscale: bool = False) -> Discovery:
    """One that has begun with node ``a``."""
    monkeypatch.setattr(discovery.cluster, "living", lambda: [A])
    made = Discovery(elastic=elastic, autoscale=autoscale, outage=60.0)
    assert made.choose(2, [ONE]) == ([A], [(ONE, ("a",)), (ONE, ("a",))])
    return made


def test_who_joins_is_used_to_the_full_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = begun(monkeypatch)
    made._seen = [A, B, FULL]
    assert made.newcomers({"a"}, []) == [(B, [ONE] * 2)]
    assert made.newcomers({"a"}, []) == [], "it is told once"
    made._seen = [A, B]
    assert made.newcomers({"a"}, []) == [], "it is known, and was left"


@pytest.mark.parametrize(("elastic", "autoscale"), [(False, False), (True, True)])
def test_who_is_not_wanted_is_used_for_those_who_wait(
    elastic: bool, autoscale: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = begun(monkeypatch, elastic=elastic, autoscale=autoscale)
    made._seen = [A, B]
    assert made.newcomers({}, []) == []
    made._seen = [A, B]
    assert made.newcomers({}, [ONE] * 5) == [(A, [ONE] * 4), (B, [ONE])]


def test_a_node_takes_the_teams_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery.cluster, "living", lambda: [A])
    made = Discovery(elastic=True, autoscale=False, outage=60.0)
    assert made.choose(3, [ONE, PAIR]) == ([A], [(ONE, ("a",)), (PAIR, ("a", "a")), (ONE, ("a",))])
    made._seen = [B]
    assert made.newcomers({"a"}, []) == [(B, [ONE, ONE])], "the workers take turns, where they fit"
    made = Discovery(elastic=False, autoscale=False, outage=60.0)
    made.choose(3, [ONE, PAIR])
    made._seen = [B, Node("c", "10.0.0.4", cpus=1, free_cpus=1)]
    waiting = made.newcomers({"a"}, [PAIR, PAIR, ONE])
    assert [(node.id, starts) for node, starts in waiting] == [("b", [PAIR]), ("c", [ONE])]
    made._seen = [Node("d", "10.0.0.5", cpus=1, free_cpus=1)]
    assert [starts for _, starts in made.newcomers({"a"}, [PAIR])] == [[]], "it has room for a member"


def test_who_was_lost_is_used_again_after_a_while(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    made = begun(monkeypatch)
    made.lose("a")
    made._seen = [A]
    assert made.newcomers({}, [ONE]) == []
    clock[0] += discovery.RETURN_SECONDS + 1
    made._seen = [A]
    assert made.newcomers({}, []) == [(A, [ONE] * 4)]


def test_who_is_of_no_use_is_never_used(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    made = begun(monkeypatch)
    made.shun("b")
    clock[0] += 1e9
    made._seen = [B]
    assert made.newcomers({"a"}, [ONE]) == []


@pytest.mark.parametrize(("autoscale", "seconds"), [(False, 60), (True, 900)])
def test_where_no_other_node_comes_after_the_last(autoscale: bool, seconds: int, clock: list[float]) -> None:
    made = Discovery(elastic=True, autoscale=autoscale, outage=60.0)
    assert made.check_wait() == ""
    made.lose_last("the last node is lost: a, its raylet is gone")
    clock[0] += seconds
    assert made.check_wait() == "the last node is lost: a, its raylet is gone; waiting for another node"
    clock[0] += 1
    with pytest.raises(WorkersLost, match=rf"raylet is gone; no other node came within {seconds} s; `hopfleet resume`"):
        made.check_wait()


def test_a_node_that_comes_after_the_last_ends_the_wait(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    made = begun(monkeypatch, autoscale=True)
    made.lose_last("the last node is lost: a, its raylet is gone")
    made._seen = [B]
    assert made.newcomers({}, [ONE]) == [(B, [ONE])]
    clock[0] += discovery.GROW_SECONDS + 1
    assert made.check_wait() == ""


def test_a_head_without_its_state_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    made = begun(monkeypatch)
    asked: list[str] = []
    monkeypatch.setattr(discovery, "WATCH_SECONDS", 0.01)
    monkeypatch.setattr(discovery.cluster, "head_forgot", lambda: True)
    monkeypatch.setattr(discovery.cluster, "nodes", lambda: asked.append("nodes"))
    made.watch(lambda: 0)
    _, watcher = made._watching  # type: ignore[misc]
    watcher.join(30)
    with pytest.raises(WorkersLost, match="was started again without its state; `hopfleet resume` continues"):
        made.check_wait()
    assert made.now() == {}
    made.close()
    assert not asked, "Ray would end the process"
