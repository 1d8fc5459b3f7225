"""Dry runs of an ensemble of networks on a cluster: the paradigms that FLEET compares, and the one that hopping allows.

Time passes from event to event. A network trains epoch after epoch until it has converged; only ``in_rounds`` knows the
number of its epochs before.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field

from hopfleet.errors import UsageError
from hopfleet.planner.fleet.balance import Balance
from hopfleet.planner.fleet.flotillas import create_flotilla, plan_flotilla
from hopfleet.planner.fleet.rounds import after, next_round
from hopfleet.planner.rates import Rates


@dataclass(frozen=True, slots=True)
class Network:
    """A network to train until it converges."""

    rates: Rates
    epochs: int


@dataclass(frozen=True, slots=True)
class Ensemble:
    """Networks, their data and the cluster that trains them."""

    networks: tuple[Network, ...]
    #: Rows of the training data.
    rows: int
    gpus: int
    gpus_per_node: int
    #: Seconds to store a network and to load it elsewhere.
    move_seconds: float = 0.0
    #: Rates of each network on 1 to ``gpus`` GPUs.
    table: tuple[tuple[float, ...], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for network in self.networks:
            if network.epochs < 1:
                raise UsageError(f"network {network.rates.name}: epochs={network.epochs}: must be at least 1")
        if not self.networks or self.rows < 1 or self.gpus < 1 or self.gpus_per_node < 1:
            raise UsageError(
                f"an ensemble of {len(self.networks)} networks, {self.rows} rows and {self.gpus} GPUs, "
                f"{self.gpus_per_node} on each node: it needs at least one of each"
            )
        object.__setattr__(self, "table", tuple(network.rates.up_to(self.gpus) for network in self.networks))

    def epoch_seconds(self, network: int, gpus: int) -> float:
        return self.rows / self.table[network][gpus - 1]

    def alone(self, network: int) -> float:
        """Return the seconds of a network on one GPU."""
        return self.networks[network].epochs * self.epoch_seconds(network, 1)


@dataclass(frozen=True, slots=True)
class DryRun:
    """The outcome of a dry run."""

    seconds: float
    #: Seconds of GPUs in training.
    busy: float
    #: The number of flotillas, or of plans.
    plans: int
    #: Seconds from start to end of each network's training, whether it trains or waits.
    spans: tuple[float, ...]
    #: Seconds for which each network of each flotilla trains; empty without flotillas.
    trained: tuple[tuple[float, ...], ...] = ()


def one_per_gpu(ensemble: Ensemble, rng: random.Random) -> DryRun:
    """Train each network on one GPU; a free GPU takes any of those that are left. FLEET's baseline."""
    order = rng.sample(range(len(ensemble.networks)), len(ensemble.networks))
    lengths = [ensemble.alone(network) for network in order]
    free = [0.0] * ensemble.gpus
    for length in lengths:
        heapq.heapreplace(free, free[0] + length)
    return DryRun(max(free), sum(lengths), 1, tuple(lengths))


def homogeneous(ensemble: Ensemble, rng: random.Random) -> DryRun:
    """Train as many networks as there are GPUs, then the next ones when the longest is done: sharing for equals."""
    order = rng.sample(range(len(ensemble.networks)), len(ensemble.networks))
    spans = [ensemble.alone(network) for network in order]
    rounds = [max(spans[start : start + ensemble.gpus]) for start in range(0, len(spans), ensemble.gpus)]
    return DryRun(sum(rounds), sum(spans), len(rounds), tuple(spans))


def in_rounds(ensemble: Ensemble) -> DryRun:
    """Train flotilla after flotilla, if it is known how many epochs each network has: FLEET's global paradigm."""
    left = {at: float(network.epochs * ensemble.rows) for at, network in enumerate(ensemble.networks)}
    busy, spans = 0.0, []
    while left:
        chosen = next_round(left, ensemble.table, ensemble.gpus, ensemble.move_seconds)
        for network, gpus in chosen.gpus.items():
            busy += gpus * min(chosen.seconds, left[network] / ensemble.table[network][gpus - 1])
        left = after(chosen, left, ensemble.table)
        spans.append(ensemble.move_seconds + chosen.seconds)
    return DryRun(sum(spans), busy, len(spans), tuple(spans))


def as_published(ensemble: Ensemble, *, delta: float = 20.0, alpha: float = 0.8) -> DryRun:
    """Train flotilla after flotilla by the published algorithm, which does not know how many epochs a network has.

    A flotilla ends when less than a part ``alpha`` of the GPUs is in use; those that have not converged are stored, and
    may join the next one. Until then each network trains at its own pace: similar rates and queues keep them together.
    """
    #: Rows that each network has yet to train on.
    left = {at: float(network.epochs * ensemble.rows) for at, network in enumerate(ensemble.networks)}
    now = busy = 0.0
    spans: list[float] = []
    lengths: list[tuple[float, ...]] = []
    while left:
        flotilla = plan_flotilla(sorted(left), ensemble.table, ensemble.gpus, ensemble.gpus_per_node, delta)
        rates = {network: ensemble.table[network][len(gpus) - 1] for network, gpus in flotilla.gpus.items()}
        ends = sorted((left[network] / rate, network) for network, rate in rates.items())
        # GPUs that would make no member faster count as used: the published algorithm gives them to the slowest.
        seconds, used = 0.0, ensemble.gpus
        for needed, network in ends:
            seconds = needed if used >= alpha * ensemble.gpus else seconds
            used -= len(flotilla.gpus[network])
        for needed, network in ends:
            trained = min(needed, seconds)
            busy += len(flotilla.gpus[network]) * trained
            left[network] -= trained * rates[network]
            if needed <= seconds:
                del left[network]
        spans.append(ensemble.move_seconds + seconds)
        lengths.append(tuple(min(needed, seconds) for needed, _ in ends))
        now += spans[-1]
    return DryRun(now, busy, len(spans), tuple(spans), tuple(lengths))


def as_freed(ensemble: Ensemble, *, delta: float = 20.0) -> DryRun:
    """Fill GPUs as soon as networks have converged, by the same greedy choice: FLEET's local paradigm."""
    left, free, now, plans = set(range(len(ensemble.networks))), ensemble.gpus, 0.0, 0
    running: list[tuple[float, int]] = []
    spans: list[float] = []
    busy = 0.0
    while left or running:
        if left:
            plans += 1
            for network, gpus in create_flotilla(sorted(left), ensemble.table, free, delta).items():
                seconds = ensemble.networks[network].epochs * ensemble.epoch_seconds(network, gpus)
                heapq.heappush(running, (now + seconds, gpus))
                spans.append(seconds)
                left.remove(network)
                free, busy = free - gpus, busy + gpus * seconds
        now, gpus = heapq.heappop(running)
        free += gpus
    return DryRun(now, busy, plans, tuple(spans))


def hopping(ensemble: Ensemble) -> DryRun:
    """Plan again whenever a network has converged; each network takes its new GPUs at the end of its epoch.

    No network waits for a round to end: one that the plan leaves alone goes on at once, and moving one costs
    ``move_seconds``.
    """
    balance = Balance(ensemble.table, ensemble.rows, ensemble.gpus)
    count = len(ensemble.networks)
    done, held, begun, spans = [0] * count, [0] * count, [0.0] * count, [0.0] * count
    left, free, now, busy, plans = set(range(count)), ensemble.gpus, 0.0, 0.0, 1
    plan = balance.plan(left, done)
    #: Networks without GPUs, and the one that has just ended an epoch.
    waiting, resting = set(left), -1
    running: list[tuple[float, int]] = []
    while left:
        for network, gpus in balance.start(plan, waiting, free):
            waiting.remove(network)
            moved = network != resting or gpus != held[network]
            seconds = ensemble.epoch_seconds(network, gpus) + moved * ensemble.move_seconds
            begun[network] = begun[network] if done[network] else now
            held[network], free, busy = gpus, free - gpus, busy + gpus * seconds
            heapq.heappush(running, (now + seconds, network))
        now, resting = heapq.heappop(running)
        free += held[resting]
        done[resting] += 1
        if done[resting] < ensemble.networks[resting].epochs:
            waiting.add(resting)
            continue
        left.remove(resting)
        spans[resting] = now - begun[resting]
        balance.learn(done[resting])
        if left:
            plan, plans = balance.plan(left, done), plans + 1
    return DryRun(now, busy, plans, tuple(spans))
