"""Whole experiments in virtual time that must never stall: searches, policies, layouts, lost workers and noise.

A seed makes an experiment. It fails if the run does not end, if the controller reports a stall, or if the history
breaks an invariant. Plans are made with little effort, so that a case takes milliseconds: poor plans stall no less.

    python -m tests.chaos.liveness --seeds 0:100000 --jobs 2
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from hopfleet.controller.controller import Controller
from hopfleet.domain import messages as m
from hopfleet.domain.space import uniform
from hopfleet.domain.trial import Trial
from hopfleet.errors import InvariantBroken
from hopfleet.scheduler.estimates import Estimates
from hopfleet.scheduler.invariants import validate_history
from hopfleet.scheduler.policies import POLICIES
from hopfleet.search import ASHA, PBT, Hyperband, Random, SuccessiveHalving
from hopfleet.search.base import Goal, Search
from hopfleet.simulation.backend import Failure, Simulated
from hopfleet.simulation.driver import simulated_driver
from tests.chaos import seeds

SEARCHES: Mapping[str, Callable[[int], Search]] = {
    "random": lambda size: Random(trials=size, max_epochs=2),
    "hyperband": lambda size: Hyperband(max_epochs=9),
    "halving": lambda size: SuccessiveHalving(trials=size, max_epochs=9),
    "asha": lambda size: ASHA(trials=size, max_epochs=9),
    "pbt": lambda size: PBT(population=4, max_epochs=3),
}
PLANNING = ("auto", "portfolio", "vector-rearrangement", "match-reserve", "auto", "auto")
"""Policies that may wait; one of them is under test in most cases."""
STEPS = 20_000
"""Moments after which a run counts as endless."""
EFFORTS = (
    "hopfleet.scheduler.policies.portfolio.FIRST_EFFORT",
    "hopfleet.scheduler.policies.portfolio.EFFORT",
    "hopfleet.scheduler.policies.auto.EFFORT",
)


@dataclass(frozen=True)
class Case:
    """One experiment."""

    seed: int
    search: str
    size: int
    policy: str
    held: tuple[tuple[int, ...], ...] | None  #: the partitions of each worker; None: every worker reads all
    workers: int
    partitions: int
    valid: int
    evaluators: tuple[tuple[int, ...], ...] | None  #: the validation partitions of each worker; None: all
    spread: float  #: of the trials' unit times
    noise: float
    informed: bool  #: whether unit times are expected beforehand
    failures: tuple[Failure, ...]

    def seconds(self, command: m.RunUnit, trial: Trial) -> float:
        unit = command.unit
        drawn = random.Random(f"{self.seed} {trial.number} {unit.epoch} {unit.partition} {unit.work}")
        return self.expected(trial.number) * drawn.lognormvariate(0.0, self.noise)

    def expected(self, number: int) -> float:
        return random.Random(f"{self.seed} cost {number}").lognormvariate(0.0, self.spread)

    def metrics(self, trial: Trial, epoch: int) -> Mapping[str, float]:
        drawn = random.Random(f"{self.seed} curve {trial.number}")
        return {"loss": drawn.random() + drawn.random() / epoch}


def case(seed: int) -> Case:
    """Return the experiment of a seed."""
    rng = random.Random(f"liveness {seed}")
    workers = rng.choice((2, 3, 3, 3, 4))
    partitions = rng.choice((workers, workers, workers, workers + 1))
    costly = rng.random() < 0.02
    policy = (
        "monte-carlo" if costly else rng.choice(PLANNING if rng.random() < 0.9 else sorted({*POLICIES} - {"exact"}))
    )
    found = Case(
        seed=seed,
        search=rng.choice([*SEARCHES, "halving", "halving"]),
        size=rng.choice((3, 9, 9, 18)),
        policy=policy,
        held=_held(rng, workers, partitions),
        workers=workers,
        partitions=partitions,
        valid=rng.choice((0, 0, 1)),
        evaluators=None,
        spread=rng.choice((0.0, 0.5, 0.5)),
        noise=rng.choice((0.0, 0.02, 0.1, 0.5)),
        informed=rng.random() < 0.3,
        failures=tuple(_failures(rng, workers)),
    )
    return replace(found, **_evaluators(random.Random(f"valid {seed}"), workers)) if found.valid else found


def _held(rng: random.Random, workers: int, partitions: int) -> tuple[tuple[int, ...], ...] | None:
    """Return pinned partitions in most cases, else replicated or free ones."""
    layout = rng.choice(("pinned", "pinned", "pinned", "replicated", "free"))
    if layout == "free":
        return None
    held: list[set[int]] = [set() for _ in range(workers)]
    for partition in range(partitions):
        held[partition % workers].add(partition)
        if layout == "replicated":
            held[rng.randrange(workers)].add(partition)
    return tuple(tuple(sorted(mine)) for mine in held)


def _evaluators(rng: random.Random, workers: int) -> dict[str, Any]:
    """Return several validation partitions, each on one or two workers, in most cases."""
    if rng.random() < 0.3:
        return {}
    valid = rng.choice((1, workers, workers, 2 * workers))
    readers = [{partition % workers, rng.randrange(workers)} for partition in range(valid)]
    held = (tuple(part for part in range(valid) if worker in readers[part]) for worker in range(workers))
    return {"valid": valid, "evaluators": tuple(held)}


def _failures(rng: random.Random, workers: int) -> Iterator[Failure]:
    """Yield the losses of some workers; at least one worker is never lost."""
    for _ in range(rng.choice((0, 0, 1, 4))):
        if workers > 1:
            at = rng.uniform(0, 40)
            yield Failure(at, f"w{rng.randint(2, workers)}", rng.choice((None, at, at + rng.uniform(0, 20))))


def run(case: Case) -> list[m.Message]:
    """Run one experiment to its end, and return what was journaled."""
    search = SEARCHES[case.search](case.size)
    search.setup({"x": uniform(0, 1)}, seed=case.seed, goal=Goal("loss" if case.valid else "train_loss", "min"))
    prior = (lambda number, worker, partition: case.expected(number)) if case.informed else None
    controller = Controller(
        search,
        POLICIES[case.policy](),
        partitions=case.partitions,
        valid_partitions=case.valid,
        seed=case.seed,
        estimates=Estimates([1] * case.partitions, prior),
    )
    backend = Simulated(case.seconds, case.metrics, partitions=case.held, valid=case.evaluators, failures=case.failures)
    messages: list[m.Message] = []
    driver = simulated_driver(controller, backend, journal=lambda now, more: messages.extend(more))
    backend.start(None, case.workers)
    for step, events in enumerate(driver.moments([m.RunStarted("test", case.workers)])):
        if step > STEPS:
            raise InvariantBroken("liveness: the run does not end")
        driver.step(events)
    for message in messages:
        if isinstance(message, m.RunStalled):
            raise InvariantBroken(message.text)
    if not controller.finished:
        raise InvariantBroken("liveness: no event is left, and the run is not finished")
    validate_history(messages, case.partitions)
    return messages


@contextmanager
def little_effort() -> Iterator[None]:
    """Let planners spend little time, as long as this context is open."""
    patches = [mock.patch(name, 200) for name in EFFORTS]
    patches.append(mock.patch("hopfleet.scheduler.policies.portfolio.for_solver", lambda units: False))
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


def run_all(numbers: Iterable[int]) -> Sequence[tuple[int, BaseException]]:
    """Run the experiments of some seeds; return the seeds that fail, with the reasons."""
    failed: list[tuple[int, BaseException]] = []
    with little_effort():
        for seed in numbers:
            try:
                run(case(seed))
            except Exception as error:
                failed.append((seed, error))
    return failed


if __name__ == "__main__":
    sys.exit(seeds.main("tests.chaos.liveness", __doc__ or "", run_all))
