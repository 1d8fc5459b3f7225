"""The simulator: whole experiments in virtual time, decided by the same controller that runs real ones.

Input: unit times, given or generated; the error of the estimates; replicas of partitions; failures of workers. Output:
the makespan, its lower bound, the utilisation of workers, and the history for a Gantt chart.
"""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hopfleet.domain.choices import Order, PolicyName
from hopfleet.domain.messages import RunUnit
from hopfleet.domain.seeds import derive
from hopfleet.domain.signatures import explained
from hopfleet.domain.trial import Trial
from hopfleet.errors import UsageError
from hopfleet.planner.balance import relax
from hopfleet.planner.costs import Times, cnns, homogeneous, lognormal
from hopfleet.planner.exact import load
from hopfleet.planner.shop import Shop
from hopfleet.scheduler.estimates import Estimates
from hopfleet.scheduler.policies import POLICIES
from hopfleet.scheduler.policies.portfolio import for_solver
from hopfleet.search.base import at_least_one
from hopfleet.simulation.backend import Failure, Simulated
from hopfleet.simulation.run import Listed, Simulation, error_of, run_trials
from hopfleet.support import registry

Replicas = Mapping[int, Sequence[int]]
"""The workers that hold each partition, numbered from 0."""

Costs = Literal["homogeneous", "cnn", "lognormal"]

COSTS: Mapping[str, Callable[[int, int, random.Random, float], Times]] = {
    "homogeneous": lambda trials, workers, rng, sigma: homogeneous(trials, workers),
    "cnn": lambda trials, workers, rng, sigma: cnns(trials, workers, rng),
    "lognormal": lognormal,
}


@dataclass(frozen=True, slots=True)
class Workload:
    """The input of a simulation: ``times[trial][worker]`` and the workers that hold each partition."""

    times: Times
    replicas: Replicas
    epochs: int = 1

    def __post_init__(self) -> None:
        Shop.of_times(self.times)  # raises an error for values that are not times
        at_least_one("epochs", self.epochs)
        for partition, holders in self.replicas.items():
            if not holders:
                raise UsageError(f"partition {partition}: is on no worker; name at least one")
            for worker in holders:
                if worker not in range(self.workers):
                    raise UsageError(f"partition {partition}: worker {worker!r} must be from 0 to {self.workers - 1}")
        if sorted(self.replicas) != list(range(len(self.replicas))):
            raise UsageError(f"partitions {sorted(self.replicas)}: must be numbered from 0 without gaps")

    @property
    def workers(self) -> int:
        return len(self.times[0])

    @classmethod
    def made(
        cls, costs: str, *, trials: int, partitions: int, replicas: int, epochs: int, sigma: float, seed: int
    ) -> Workload:
        """Return a workload with one worker per partition; partition j is on workers j, j + 1, ..."""
        if costs not in COSTS:
            raise UsageError(f"costs={costs!r}: unknown; there are {', '.join(sorted(COSTS))}")
        at_least_one("trials", trials)
        at_least_one("partitions", partitions)
        if not isinstance(replicas, int) or not 1 <= replicas <= partitions:
            raise UsageError(f"replicas={replicas!r}: must be from 1 to the number of partitions ({partitions})")
        times = COSTS[costs](trials, partitions, random.Random(derive(seed, "costs")), sigma)
        holders = {j: [(j + copy) % partitions for copy in range(replicas)] for j in range(partitions)}
        return cls(times, holders, epochs)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Workload:
        """Read a JSON file: ``{"times": [[...]], "replicas": {"0": [0, 1]}, "epochs": 1}``; only times are required."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            times = content["times"]
            given = content.get("replicas") or {str(worker): [worker] for worker in range(len(times[0]))}
            replicas = {int(partition): tuple(holders) for partition, holders in given.items()}
            epochs = content.get("epochs", 1)
        except OSError as error:
            raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            form = '{"times": [[1, 2], [3, 4]], "epochs": 1}'
            raise UsageError(f"{path}: must be JSON like {form} ({error!r})") from error
        return cls(times, replicas, epochs)


@explained
def simulate(
    times: Times | Workload | None = None,
    *,
    trials: int = 16,
    partitions: int = 8,
    costs: Costs = "homogeneous",
    sigma: float = 0.5,
    replicas: int = 1,
    epochs: int = 1,
    noise: float = 0.0,
    failures: Sequence[Failure] = (),
    fetch: float = 0.0,
    policy: PolicyName | str = "auto",
    order: Order = "open",
    deterministic: bool = False,
    seed: int = 0,
) -> Simulation:
    """Simulate one experiment.

    ``times[trial][worker]`` are the estimated unit times, with partition j on worker j; a ``Workload`` adds replicas.
    Without ``times``, they are generated from ``costs``: "homogeneous", "cnn" (the networks and GPUs of the Cerebro
    paper) or "lognormal" with ``sigma``. Actual times are the estimates times a lognormal error of ``noise``. The
    partitions of a worker that fails for good are placed on other workers, each in ``fetch`` seconds. With
    ``deterministic``, trials train in rounds of one epoch, as in a deterministic run whose search listens.
    """
    registry.find("policy", policy, POLICIES)
    for name, value in (("noise", noise), ("fetch", fetch), ("sigma", sigma)):
        if not (isinstance(value, (int, float)) and 0 <= value < math.inf):
            raise UsageError(f"{name}={value!r}: must be a number of at least 0")
    if not isinstance(seed, int):
        raise UsageError(f"seed={seed!r}: must be an integer")
    if not isinstance(deterministic, bool):
        raise UsageError(f"deterministic={deterministic!r}: must be True or False")
    for failure in failures:
        if not isinstance(failure, Failure):
            raise UsageError(f"failures=[{failure!r}]: must be a list of Failure(time, worker, back)")
    if order not in ("open", "fixed"):
        raise UsageError(f"order={order!r}: must be 'open' or 'fixed'")
    if times is None:
        work = Workload.made(
            costs, trials=trials, partitions=partitions, replicas=replicas, epochs=epochs, sigma=sigma, seed=seed
        )
    elif isinstance(times, Workload):
        work = times
    elif isinstance(times, str) or not isinstance(times, Sequence) or not times:
        raise UsageError(f"times={times!r}: must be a list with the unit times of each trial, e.g. [[1, 2], [3, 4]]")
    else:
        work = Workload(times, {worker: [worker] for worker in range(len(times[0]))}, epochs)
    options: dict[str, Any] = {"fetch": fetch, "policy": policy, "order": order, "deterministic": deterministic}
    return _run(work, _Actual(work, noise, seed), failures, seed=seed, **options)


class _Actual:
    """The actual times of units."""

    def __init__(self, work: Workload, noise: float, seed: int) -> None:
        self.work, self._error = work, error_of(seed, noise)

    def seconds(self, trial: int, worker: int, epoch: int, partition: int) -> float:
        return self.work.times[trial][worker] * self._error(trial, epoch, partition)

    def lower_bound(self) -> float:
        """Return a bound on the makespan of any schedule with these times."""
        work, epochs, partitions = self.work, range(1, self.work.epochs + 1), range(len(self.work.replicas))
        alike = all(len(set(row)) == 1 for row in work.times)
        if alike and all(len(set(holders)) == work.workers for holders in work.replicas.values()):
            by_trial = [
                sum(self.seconds(trial, 0, epoch, partition) for epoch in epochs for partition in partitions)
                for trial in range(len(work.times))
            ]
            return max(sum(by_trial) / work.workers, *by_trial)
        if any(len(holders) > 1 for holders in work.replicas.values()):
            # The partitions on the same workers form one cell of a trial, whose shares hold for each of them.
            alike_held: dict[frozenset[int], list[int]] = {}
            for partition in partitions:
                alike_held.setdefault(frozenset(work.replicas[partition]), []).append(partition)
            cells = {}
            for trial, row in enumerate(work.times):
                for number, (holders, held) in enumerate(alike_held.items()):
                    amount = sum(self._error(trial, epoch, partition) for epoch in epochs for partition in held)
                    cells[f"t{trial}", number] = {f"w{worker}": row[worker] * amount for worker in sorted(holders)}
            return relax(cells)[0]
        by_trial = [0.0] * len(work.times)
        by_worker = [0.0] * work.workers
        for trial in range(len(work.times)):
            for epoch in epochs:
                for partition in partitions:
                    worker = work.replicas[partition][0]
                    seconds = self.seconds(trial, worker, epoch, partition)
                    by_trial[trial] += seconds
                    by_worker[worker] += seconds
        return max(*by_trial, *by_worker)


def _run(
    work: Workload,
    actual: _Actual,
    failures: Sequence[Failure],
    *,
    fetch: float,
    policy: str,
    order: str,
    deterministic: bool,
    seed: int,
) -> Simulation:
    partitions = len(work.replicas)
    number = {f"w{worker + 1}": worker for worker in range(work.workers)}
    for failure in failures:
        if failure.worker not in number:
            raise UsageError(f"failure of {failure.worker!r}: there are only {', '.join(number)}")

    def seconds(command: RunUnit, trial: Trial) -> float:
        return actual.seconds(trial.number, number[command.worker], command.unit.epoch, command.unit.partition)

    held: list[list[int]] | None = [
        [j for j in range(partitions) if worker in work.replicas[j]] for worker in range(work.workers)
    ]
    if all(len(mine) == partitions for mine in held or ()):
        held = None
    if policy in ("auto", "portfolio", "exact") and work.epochs == 1 and for_solver(len(work.times) * partitions):
        load()  # before the clock starts, so that scheduling times exclude the import
    return run_trials(
        Listed(len(work.times), work.epochs),
        Simulated(seconds, partitions=held, failures=failures, fetch=lambda worker, partition: fetch),
        workers=work.workers,
        estimates=Estimates([1] * partitions, lambda trial, worker, partition: work.times[trial][number[worker]]),
        partitions=partitions,
        policy=policy,
        seed=seed,
        lower_bound=actual.lower_bound(),
        name="simulation",
        fixed_order=deterministic or order == "fixed",
        deterministic=deterministic,
    )
