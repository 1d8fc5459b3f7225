"""Properties of whole experiments, whatever the fleet does. The driver checks most of them at every step.

Few examples of each: tests/chaos runs thousands of small experiments. These are larger.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopfleet.domain import messages as m
from hopfleet.domain.trial import TrialState
from hopfleet.scheduler.invariants import validate, validate_history
from hopfleet.simulation.backend import START, Failure, Simulated
from hopfleet.simulation.driver import simulated_driver
from tests.chaos import simulated
from tests.helpers.virtual.checks import check_nobody_waits, state_of, through_json
from tests.helpers.virtual.driver import Driver
from tests.helpers.virtual.settings import FAULTS, REQUESTS, Fault, Setting, controller_of, covered

pytestmark = pytest.mark.slow

policies = st.sampled_from(
    ["auto", "longest-remaining", "match-reserve", "nearly-done", "random"]
)  # the others: test_online.py
steps = st.integers(0, 40) | st.integers(0, 400)


@st.composite
def fleets(draw: st.DrawFn, partitions: int) -> tuple[tuple[int, ...] | None, ...]:
    """1 to 8 workers, each with all or some partitions; every partition is somewhere."""
    some = st.sets(st.integers(0, partitions - 1)).map(lambda part: tuple(sorted(part)))
    workers = draw(st.lists(st.none() | some, min_size=1, max_size=8))
    for partition in range(partitions):
        if not covered(workers, partitions):
            index = partition % len(workers)
            workers[index] = tuple(sorted({*workers[index], partition}))
    return tuple(workers)


@st.composite
def experiments(draw: st.DrawFn, kinds: tuple[str, ...] = (), max_trials: int = 12, playful: bool = False) -> Setting:
    partitions = draw(st.integers(1, 8))
    trials, epochs = draw(st.integers(1, max_trials)), draw(st.integers(1, 4))
    faults = st.lists(st.builds(Fault, steps, st.sampled_from(kinds), st.integers(0, 999)), max_size=12)
    return Setting(
        workers=draw(fleets(partitions)),
        partitions=partitions,
        valid=draw(st.integers(0, 3)),
        trials=trials,
        epochs=epochs,
        stops=draw(st.dictionaries(st.integers(0, trials - 1), st.integers(1, epochs), max_size=3)),
        policy=draw(policies),
        max_live=draw(st.sampled_from([1, 3, 256])),
        seed=draw(st.integers(0, 2**16)),
        steady=draw(st.booleans()),
        save_seconds=draw(st.sampled_from([0.0, 0.5, 5.0])),
        faults=tuple(draw(faults)) if kinds else (),
        playful=draw(st.booleans()) if playful else False,
    )


@settings(deadline=None, max_examples=15)
@given(experiments())
def test_quiet_experiments(setting):
    driver = Driver(setting).run()
    assert not any(isinstance(message, m.TrialRolledBack | m.VersionLost) for message in driver.messages)


@settings(deadline=None, max_examples=15)
@given(experiments(("lose", "leave", "join", "forget")))
def test_workers_come_and_go(setting):
    Driver(setting).run()


@settings(deadline=None, max_examples=15)
@given(experiments(("drain", "crash", "cut", "lose")))
def test_resumed(setting):
    Driver(setting).run()


@settings(deadline=None, max_examples=25)
@given(experiments(FAULTS))
def test_everything_goes_wrong(setting):
    Driver(setting).run()


@settings(deadline=None, max_examples=25)
@given(experiments(playful=True))
def test_trials_pause_resume_and_clone(setting):
    Driver(setting).run()


@settings(deadline=None, max_examples=25)
@given(experiments(REQUESTS, playful=True))
def test_requests_of_a_user(setting):
    Driver(setting).run()


@settings(deadline=None, max_examples=40)
@given(experiments((*REQUESTS, *FAULTS), playful=True))
def test_requests_of_a_user_while_everything_goes_wrong(setting):
    Driver(setting).run()


def test_small_experiments_with_faults_of_every_kind():
    """The first of those that tests/chaos runs by the thousand."""
    for seed in range(300):
        Driver(simulated.setting(seed)).run()


@pytest.mark.parametrize("kind", FAULTS)
def test_each_fault_strikes(kind):
    """The faults of the properties above do happen."""
    faults = tuple(Fault(step, kind, step) for step in range(5, 60, 9))
    setting = Setting(workers=((0, 1), (1, 2), (0, 2)), partitions=3, trials=4, epochs=3, faults=faults, steady=False)
    assert Driver(setting).run().happened == {kind}


def test_rolled_back_across_the_end_of_an_epoch(monkeypatch):
    """The worker dies with epoch 1 ended and unsaved: its units run again, and count in epoch 1 alone."""
    monkeypatch.setattr("hopfleet.controller.decisions.versions.AT_RISK", 99.0)
    setting = Setting(partitions=3, valid=0, trials=1, epochs=2, save_seconds=1000.0, faults=(Fault(4, "lose"),))
    driver = Driver(setting).run()
    kinds = [type(message) for message in driver.messages]
    assert kinds.index(m.EpochEnded) < kinds.index(m.TrialRolledBack)
    assert kinds.count(m.UnitFinished) > 6


def test_completed_trial_rolled_back(monkeypatch):
    """All units are trained, the last version is lost before it was saved: the last units run again."""
    monkeypatch.setattr("hopfleet.controller.decisions.versions.AT_RISK", 99.0)
    setting = Setting(partitions=2, valid=0, trials=1, epochs=1, save_seconds=1000.0, faults=(Fault(3, "lose"),))
    driver = Driver(setting).run()
    assert driver.ended["t0001"].state is TrialState.COMPLETED
    assert [message.version for message in driver.messages if isinstance(message, m.UnitFinished)] == [1, 2, 1, 2]


def test_three_losses_in_a_row_fail_the_trial():
    setting = Setting(partitions=1, trials=1, epochs=1, faults=tuple(Fault(step, "lose") for step in (1, 3, 5)))
    end = Driver(setting).run().ended["t0001"]
    assert end.state is TrialState.FAILED
    assert end.reason.startswith("3 workers in a row were lost while t0001 trains on partition 0 in epoch 1")


# --------------------------------------------------------------------------------------------- restoring


@settings(deadline=None, max_examples=25)
@given(experiments((*REQUESTS, *FAULTS), max_trials=6, playful=True), st.data())
def test_restored_controller_equals_the_original(setting, data):
    driver = Driver(setting)
    compared = set()
    wanted = data.draw(st.sets(st.integers(1, 200), min_size=1, max_size=4))
    take = driver.take

    def noting(*events):
        take(*events)
        if len(driver.boundaries) in wanted:
            copy = controller_of(setting)
            copy.restore(through_json(driver.messages))
            assert state_of(copy) == state_of(driver.controller)
            validate(copy.schedule)
            compared.add(len(driver.boundaries))

    driver.take = noting
    driver.run()
    assert compared or min(wanted) > len(driver.boundaries)


@settings(deadline=None, max_examples=15)
@given(experiments(), st.integers(0, 10_000))
def test_goes_on_from_any_handled_event(setting, cut):
    """Cut at any boundary, a new controller finishes the experiment; nothing durable is trained twice."""
    setting = Setting(**{**vars(setting), "faults": (Fault(cut % 250, "cut"),)})
    driver = Driver(setting).run()
    rolled = [message for message in driver.messages if isinstance(message, m.TrialRolledBack)]
    trained = [x for x in driver.messages if isinstance(x, m.UnitFinished) and x.unit.trains]
    redone = len(trained) - len({(x.trial, x.version) for x in trained})
    assert bool(rolled) >= bool(redone)


# ------------------------------------------------------------------------------------- the simulated backend


def simulate(setting: Setting, *, check: bool = True, **options) -> tuple[list[m.Message], float]:
    """The experiment on the simulated backend; its messages and its makespan."""
    partitions = None if all(part is None for part in setting.workers) else setting.workers
    backend = Simulated(partitions=partitions, **options)
    controller = controller_of(setting)
    messages: list[m.Message] = []
    driver = simulated_driver(controller, backend, journal=lambda now, more: messages.extend(more))
    backend.start(None, len(setting.workers))
    for events in driver.moments([m.RunStarted("test", len(setting.workers))]):
        for event in events:
            driver.step([event])
            if check:
                validate(controller.schedule)
                check_nobody_waits(controller.schedule, setting.policy)
    assert controller.finished, "deadlock"
    return messages, backend.elapsed


@settings(deadline=None, max_examples=40)
@given(experiments(), st.lists(st.tuples(st.floats(0, 40), st.integers(1, 12)), max_size=8), st.data())
def test_simulated_backend(setting, failures, data):
    if not setting.valid:
        setting = Setting(**{**vars(setting), "valid": 1})  # it makes validation metrics only
    times = data.draw(st.lists(st.floats(0, 10), min_size=1, max_size=5))
    turns = itertools.cycle(times)
    lost = [Failure(when, f"w{number}", back=when + number / 4) for when, number in failures]
    messages, makespan = simulate(setting, seconds=lambda command, trial: next(turns), failures=lost)
    validate_history(messages, setting.partitions)
    assert messages[-1] == m.Finish(complete=True)
    ended = [message for message in messages if isinstance(message, m.TrialEnded)]
    assert len(ended) == setting.trials
    assert all(lost for message in ended if message.state is TrialState.FAILED)
    assert START + makespan >= max((x.ended for x in messages if isinstance(x, m.UnitFinished)), default=START)


def paper(policy: str, seed: int) -> Setting:
    """16 alike trials, 8 partitions, each on one worker of its own."""
    pinned = tuple((partition,) for partition in range(8))
    return Setting(workers=pinned, partitions=8, trials=16, epochs=3, policy=policy, seed=seed)


SEEDS = range(4)
LOWER_BOUND = 16 * 3.0  # what every worker has to train, evaluations aside


def makespan(policy: str, seed: int) -> float:
    def seconds(command, trial):
        return float(isinstance(command, m.RunUnit))

    return simulate(paper(policy, seed), seconds=seconds, check=False)[1]


@pytest.mark.parametrize("seed", SEEDS)
def test_makespan_is_near_the_lower_bound(seed):
    assert LOWER_BOUND <= makespan("longest-remaining", seed) <= 1.15 * LOWER_BOUND


def test_longest_remaining_is_no_worse_than_random():
    longest, randomly = (sum(makespan(policy, seed) for seed in SEEDS) for policy in ("longest-remaining", "random"))
    assert longest <= randomly
