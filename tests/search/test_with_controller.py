"""What searches need of the controller, and persons do to both."""

from __future__ import annotations

import pytest

import hopfleet as hop
from hopfleet.controller.controller import Controller
from hopfleet.domain import messages as m
from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.trial import TrialState
from hopfleet.scheduler.fusion import Fusion
from hopfleet.scheduler.policies import POLICIES
from hopfleet.search.base import Goal
from hopfleet.testing.searches import SearchSuite
from hopfleet.testing.virtual import Run, VirtualExperiment


def controller_of(search, partitions=1):
    search.setup({"x": hop.uniform(0, 1)}, seed=0, goal=Goal("train_loss", "min"))
    controller = Controller(search, POLICIES["longest-remaining"](), partitions=partitions, valid_partitions=0)
    controller.handle(m.RunStarted("test"))
    return controller


def finish(controller, command, loss=1.0):
    """The unit of a command ends well."""
    sums, where = {"train_loss": RowSum.of(loss, 1)}, (command.worker, command.unit, command.attempt)
    return controller.handle(m.UnitFinished(*where, command.model.version + 1, 0.0, 1.0, sums=sums))


def of(kind, messages):
    return [message for message in messages if isinstance(message, kind)]


def test_a_search_hears_that_a_paused_trial_is_deleted():
    controller = controller_of(hop.SuccessiveHalving(trials=2, max_epochs=2, eta=2))
    (first,) = of(m.RunUnit, controller.handle(m.WorkerJoined("w1")))
    follow = finish(controller, first, loss=0.1)
    (second,), (save,) = of(m.RunUnit, follow), of(m.SaveVersion, follow)
    assert of(m.TrialPaused, controller.handle(m.VersionSaved(save.ref, True, "", 0)))
    follow = controller.handle(m.RequestMade("delete", {"trial": "t0001"}))
    assert follow[1:] == [
        m.TrialEnded("t0001", TrialState.STOPPED, "deleted by a person"),
        m.DropVersion(save.ref),
        m.TrialDeleted("t0001"),
    ]
    # So the other one is the best that there is.
    assert m.TrialResumed("t0002", 2) in finish(controller, second, loss=0.2)


def test_a_live_trial_is_not_resumed_for_less():
    controller = controller_of(hop.Random(trials=1, max_epochs=5))
    controller.handle(m.WorkerJoined("w1"))
    for epochs in (3, 5):
        (answer,) = controller.handle(m.RequestMade("resume", {"trial": "t0001", "epochs": epochs}))
        assert answer.text == f"epochs={epochs}: t0001 trains until epoch 5 already; ask for more"
    answer, resumed = controller.handle(m.RequestMade("resume", {"trial": "t0001", "epochs": 6}))
    assert answer.granted
    assert resumed == m.TrialResumed("t0001", 6)


def test_searches_know_who_wanted_a_trial():
    heard = []

    class Listening(hop.Random):
        def added(self, trial):
            heard.append((trial.id, trial.origin))

    search = Listening(trials=1)
    controller = controller_of(search)
    controller.handle(m.WorkerJoined("w1"))
    controller.handle(m.RequestMade("add", {"config": {"x": 0.5}}))
    controller.handle(m.RequestMade("clone", {"trial": "t0001"}))
    assert heard == [("t0001", "search"), ("t0002", "person"), ("t0003", "clone")]


@pytest.mark.parametrize("workers", [1, 3, 8])
@pytest.mark.parametrize("make", [hop.Random, hop.ASHA, hop.Hyperband])
def test_a_budget_of_epochs_is_exact(make, workers):
    """Epochs counted when they ended, so that many more were under way, and were lost, when the budget was spent."""

    class Suite(SearchSuite):
        def make(self):
            return hop.Stopping(make(trials=None, max_epochs=9), [hop.Budget(epochs=20)])

    for seed in range(4):
        run = Run(Suite(), VirtualExperiment(seed=seed, workers=workers, partitions=3, steady=False)).go()
        assert len(of(m.EpochEnded, run.messages)) == 20
        assert sum(unit.unit.trains for unit in of(m.UnitFinished, run.messages)) == 60
        reasons = {end.reason for end in of(m.TrialEnded, run.messages)}
        assert reasons <= {"", "the budget of 20 epochs is spent"} | {r for r in reasons if r.startswith("not among")}


def test_a_flotilla_takes_no_more_epochs_than_the_budget_has():
    search = hop.Stopping(hop.Random(trials=8, max_epochs=2, concurrency=8), [hop.Budget(epochs=3)])
    search.setup({"x": hop.uniform(0, 1)}, seed=0, goal=Goal("train_loss", "min"))
    fusion = Fusion(lambda config: 0)
    controller = Controller(search, POLICIES["longest-remaining"](), partitions=1, valid_partitions=0, fusion=fusion)
    controller.handle(m.RunStarted("test"))
    starts = of(m.RunUnit, controller.handle(m.WorkerJoined("w1")))
    assert [start.trial for start in starts] == ["t0001", "t0002", "t0003"]
    assert [start.more for start in starts] == [True, True, False]
    # A trial that comes too late is stopped before it trains.
    follow = controller.handle(m.RequestMade("add", {"config": {"x": 0.5}}))
    assert of(m.TrialEnded, follow) == [m.TrialEnded("t0004", TrialState.STOPPED, "the budget of 3 epochs is spent")]


def test_a_small_asha_completes_its_best_trial():
    class Suite(SearchSuite):
        def make(self):
            return hop.ASHA(trials=4, max_epochs=9)

    run = Run(Suite(), VirtualExperiment(workers=2)).go()
    assert [end.state for end in of(m.TrialEnded, run.messages)] == [TrialState.COMPLETED]
    (best,) = of(m.TrialEnded, run.messages)
    last = {end.trial: end.metrics["loss"] for end in of(m.EpochEnded, run.messages) if end.epoch == 1}
    assert last[best.trial] <= sorted(last.values())[1]


def test_promotions_cost_no_training_twice():
    class Suite(SearchSuite):
        def make(self):
            return hop.ASHA(trials=9, max_epochs=9)

    run = Run(Suite(), VirtualExperiment(workers=2, partitions=3)).go()
    units = [message for message in run.messages if isinstance(message, m.RunUnit) and message.unit.trains]
    epochs = [message for message in run.messages if isinstance(message, m.EpochEnded)]
    assert len(units) == 3 * len(epochs) == 3 * sum(known.trained for known in run.known.values())
    resumed = [message.trial for message in run.messages if isinstance(message, m.TrialResumed)]
    paused = [message.trial for message in run.messages if isinstance(message, m.TrialPaused)]
    assert set(resumed) & set(paused)
