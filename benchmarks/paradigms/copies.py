"""Task parallelism with full copies: every host holds all the data, and trains whole trials, one after another.

A trial goes to the first free host. Its training is plain and sequential: it visits the partitions as an
experiment with ``order="fixed"`` would, and ends with the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.paradigms.site import Outcome, Site
from hopfleet.data import Dataset
from hopfleet.domain.rowsum import means
from hopfleet.scheduler.orders import fixed_order


def load(site: Site) -> tuple[Dataset, Dataset]:
    return site.fetch("train", site.everything), site.fetch("valid", site.everything)


def train(site: Site, data: tuple[Dataset, Dataset]) -> list[Outcome]:
    return [_train(site, number, data) for number in claimed(site)]


def claimed(site: Site) -> Iterator[int]:
    """Yield trials for this host, each requested when the last one is done."""
    while (number := site.slate.add("trials", 1) - 1) < site.workload.trials:
        yield number


def visits(site: Site, number: int) -> Iterator[tuple[int, int]]:
    """Yield the epochs and partitions of a trial, in order."""
    workload = site.workload
    order = fixed_order(workload.seed, number, partitions=workload.partitions, epochs=workload.epochs)
    for index, partition in enumerate(order):
        yield index // workload.partitions + 1, partition


def _train(site: Site, number: int, data: tuple[Dataset, Dataset]) -> Outcome:
    session = site.session(number)
    train, valid = data
    outcome = Outcome(number, [])
    for visit, (epoch, partition) in enumerate(visits(site, number), 1):
        last = visit % site.workload.partitions == 0
        session.train(site.batches(session, train, partition, epoch), last=last)
        if last:
            outcome.epochs.append(means(site.evaluate(session, valid, site.everything, epoch)))
    site.deliver(session, number)
    return outcome
