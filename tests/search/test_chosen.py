"""What a space that is a function asked for stays with each trial, whatever search, sampler or person added it."""

from __future__ import annotations

from typing import Any

import pytest

import hopfleet as hop
from hopfleet.controller.controller import Controller
from hopfleet.domain import messages as m
from hopfleet.domain import space as spaces
from hopfleet.domain.messages.codec import decode, encode
from hopfleet.scheduler.policies import POLICIES
from hopfleet.search import SEARCHES
from hopfleet.search.base import Goal, Search, Suggestion
from hopfleet.search.stopping import Budget, Stopping

GOAL = Goal("loss", "min")


def nets(trial: Any) -> dict[str, Any]:
    depth = trial.suggest_int("depth", 1, 3)
    widths = [8 * trial.suggest_int(f"blocks{layer}", 1, 4) for layer in range(depth)]
    return {"lr": trial.suggest_float("lr", 1e-4, 1e-1, log=True), "net": {"widths": widths}}


class Repeats(Search):
    """A search as users write them: it knows nothing of the names."""

    trials = 6
    max_epochs = 1

    def suggest(self, number: int) -> Suggestion | None:
        return Suggestion(self.draw(number // 2), 1) if number < self.trials else None


def added(search: Any, *events: m.Event, space: Any = nets, **options: Any) -> list[m.TrialAdded]:
    search.setup(space, seed=0, goal=GOAL)
    policy = POLICIES["longest-remaining"]()
    controller = Controller(search, policy, partitions=1, valid_partitions=0, **options)
    follow = [
        each for event in (m.RunStarted("test"), m.WorkerJoined("w1"), *events) for each in controller.handle(event)
    ]
    assert not [each.text for each in follow if isinstance(each, m.RequestAnswered) and not each.granted]
    found = [message for message in follow if isinstance(message, m.TrialAdded)]
    assert all(decode(*encode(message)) == message and type(message.config) is dict for message in found)
    return found


def asked_for(message: m.TrialAdded, space: Any = nets) -> bool:
    """Whether the function makes the configuration of just the values that are in the message."""
    config, drawn = spaces.walk(space, lambda name, dimension: message.chosen[name], {})
    return config == message.config and {name: value for name, (_, value) in drawn.items()} == message.chosen


OWN = {
    "sampled": lambda: hop.ASHA(trials=4, sampler=hop.TPE()),
    "stopped": lambda: Stopping(hop.ASHA(trials=4), [Budget(trials=3)]),
    "own": Repeats,
}


@pytest.mark.parametrize("name", [*(name for name in SEARCHES if name not in ("grid", "pbt")), *OWN])
def test_every_search_keeps_what_was_asked_for(name: str) -> None:
    messages = added((OWN.get(name) or SEARCHES[name])())
    assert len(messages) > 1
    assert all(map(asked_for, messages))


def test_points_keep_what_was_asked_for() -> None:
    points = [spaces.complete(nets, {"depth": 2, "blocks1": 3}, seed=0, number=0)]
    first, second = added(hop.Random(trials=1), points=points)
    assert (first.origin, first.chosen["blocks1"], second.origin) == ("point", 3, "search")
    assert asked_for(first)
    assert asked_for(second)


def clone(**arguments: Any) -> tuple[m.TrialAdded, m.TrialAdded]:
    first, second = added(hop.Random(trials=1), m.RequestMade("clone", {"trial": "t0001", **arguments}))
    return first, second


def test_a_clone_has_what_its_parent_had() -> None:
    parent, child = clone()
    assert child.chosen == parent.chosen != {}


def test_a_changed_clone_has_what_the_function_makes_it_of() -> None:
    parent, child = clone(changes={"lr": 0.01})
    assert child.chosen == {**parent.chosen, "lr": 0.01}
    assert asked_for(child)


@pytest.mark.parametrize("changes", [{"lr": 7.0}, {"net.widths": [5]}])
def test_a_clone_that_the_function_does_not_make_has_its_configuration_alone(changes: dict[str, Any]) -> None:
    assert clone(changes=changes)[1].chosen == {}


def test_a_configuration_of_a_person_has_what_it_tells() -> None:
    def doubled(trial: Any) -> dict[str, Any]:
        lr = trial.suggest_float("lr", 0.1, 0.9)
        return {"lr": lr, "twice": 2 * lr}

    def of(space: Any, config: Any) -> m.TrialAdded:
        return added(hop.Random(trials=1), m.RequestMade("add", {"config": config}), space=space)[-1]

    assert of(doubled, {"lr": 0.5, "twice": 1.0}).chosen == {"lr": 0.5}
    assert of(doubled, {"lr": 0.5, "twice": 3.0}).chosen == {}
    assert of(nets, {"lr": 0.01, "net": {"widths": [8]}}).chosen == {}


def test_what_the_configuration_says_is_not_said_twice() -> None:
    def flat(trial: Any) -> None:
        trial.suggest_float("lr", 0.1, 0.9)

    for space in (flat, {"lr": hop.uniform(0.1, 0.9)}):
        (message,) = added(hop.Random(trials=1), space=space)
        assert message.config.keys() == {"lr"}
        assert message.chosen == {}
        assert "chosen" not in encode(message)[1]


def test_a_value_under_the_name_of_a_key_is_what_was_asked_for() -> None:
    def scaled(trial: Any) -> dict[str, Any]:
        return {"lr": 0.5 * trial.suggest_float("lr", 0.1, 0.9), "constant": 3}

    parent, child = added(hop.Random(trials=1), m.RequestMade("clone", {"trial": "t0001"}), space=scaled)
    assert parent.config["lr"] == 0.5 * parent.chosen["lr"]
    assert child.chosen == parent.chosen
    assert parent.chosen.keys() == {"lr"}
