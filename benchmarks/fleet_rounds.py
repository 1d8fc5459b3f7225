"""FLEET-G against all schedules in rounds: 300 random instances, small enough to enumerate.

A schedule is a list of flotillas: any networks, each on any number of GPUs, until one of them has ended; forming a
flotilla costs the time of a checkpoint. The enumeration shares nothing with the planner but the description of the
instance. It leaves out only what cannot be shorter than a schedule that is known: no network ends sooner than on all
GPUs, and no GPU-second is worth more than at the best rate per GPU.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from statistics import mean

from benchmarks.row import Row, milliseconds, table
from hopfleet.planner.fleet.ensemble import Ensemble, Network, as_published, in_rounds
from hopfleet.planner.rates import Rates

MEAN, WORST = 0.97, 0.80
"""Bars: the shortest time of all schedules by that of FLEET-G."""

Left = tuple[tuple[int, float], ...]
"""Networks and the rows that they have left."""


def draw(seed: int) -> Ensemble:
    """Return two to four networks on two to six GPUs; the rates of some stop growing."""
    rng = random.Random(f"fleet {seed}")
    gpus, networks = rng.randint(2, 6), []
    for number in range(rng.randint(2, 4)):
        rate, kept = rng.uniform(20, 176), rng.uniform(0.7, 1.0)
        rates = [count * rate * kept ** (count - 1) for count in range(1, gpus + 1)]
        growing = 1 + sum(1 for _ in itertools.takewhile(lambda pair: pair[1] > pair[0], itertools.pairwise(rates)))
        networks.append(Network(Rates(f"network {number}", tuple(rates[:growing])), rng.randint(1, 20)))
    return Ensemble(tuple(networks), 1000, gpus, rng.choice([1, 2, 4]), rng.choice([0.0, 0.0, 5.0]))


def shortest(ensemble: Ensemble, known: float) -> float:
    """Return the seconds of the shortest of all schedules in rounds, at most those of one that is ``known``."""
    rates, gpus = ensemble.table, ensemble.gpus
    least = [min(count / rate for count, rate in enumerate(row, 1)) for row in rates]
    shares = {count: _shares(count, gpus) for count in range(1, len(rates) + 1)}
    begun: dict[Left, float] = {}
    best = known

    def at_least(left: Left) -> float:
        if not left:
            return 0.0
        longest = max(rows / rates[network][-1] for network, rows in left)
        return ensemble.move_seconds + max(longest, sum(rows * least[network] for network, rows in left) / gpus)

    def go_on(left: Left, now: float) -> None:
        nonlocal best
        if not left:
            best = min(best, now)
            return
        if begun.get(left, known) <= now:
            return
        begun[left] = now
        following = []
        for counts in shares[len(left)]:
            pace = [
                rates[network][count - 1] if count else 0.0 for (network, _), count in zip(left, counts, strict=True)
            ]
            for seconds in {rows / rate for (_, rows), rate in zip(left, pace, strict=True) if rate}:
                rest = tuple(
                    (network, round(rows - seconds * rate, 6))
                    for (network, rows), rate in zip(left, pace, strict=True)
                    if rows - seconds * rate > 1e-6
                )
                end = now + ensemble.move_seconds + seconds
                following.append((end + at_least(rest), end, rest))
        for bound, end, rest in sorted(following):
            if bound >= best:
                return
            go_on(rest, end)

    go_on(tuple((at, float(network.epochs * ensemble.rows)) for at, network in enumerate(ensemble.networks)), 0.0)
    return best


def _shares(networks: int, gpus: int) -> list[tuple[int, ...]]:
    """Return all ways to give some GPUs to networks."""
    some = itertools.product(range(gpus + 1), repeat=networks)
    return [counts for counts in some if 0 < sum(counts) <= gpus]


def compared(seeds: range) -> tuple[list[float], list[float], float]:
    """Return by how much FLEET-G and the published algorithm reach the shortest time, and the longest decision."""
    ours, published, longest = [], [], 0.0
    for seed in seeds:
        ensemble = draw(seed)
        began = time.process_time()
        rounds = in_rounds(ensemble).seconds
        longest = max(longest, time.process_time() - began)
        greedy = as_published(ensemble).seconds
        best = shortest(ensemble, min(rounds, greedy))
        ours.append(best / rounds)
        published.append(best / greedy)
    return ours, published, longest


def measure(quick: bool = False) -> list[Row]:
    ours, published, longest = compared(range(20 if quick else 300))
    average, worst = mean(ours), min(ours)
    return [
        Row(
            "fleet_rounds",
            f"the shortest of all schedules in rounds by FLEET-G with known epochs, {len(ours)} instances, mean",
            f"{average:.4f}",
            f"published algorithm {mean(published):.4f}",
            average,
            f"≥ {MEAN}",
            average >= MEAN,
        ),
        Row(
            "fleet_rounds",
            "the same, worst instance",
            f"{worst:.4f}",
            f"published algorithm {min(published):.4f}",
            worst,
            f"≥ {WORST}",
            worst >= WORST,
        ),
        Row("fleet_rounds", "all decisions of a run, the longest", milliseconds(longest)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet_rounds", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="20 instances: a functional check only")
    print(table(measure(parser.parse_args().quick)))


if __name__ == "__main__":
    main()
