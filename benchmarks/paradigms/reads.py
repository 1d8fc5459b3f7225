"""Task parallelism with remote reads: hosts train whole trials, and read every partition remotely in every epoch.

The next partition is fetched while the model trains on the current one, and none is kept. Whole files are read, one
request each: rows are visited in a random order, and requests for single batches would only add round trips. The models
equal those of full copies, to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.paradigms.copies import claimed, visits
from benchmarks.paradigms.site import Outcome, Site
from hopfleet.data import Dataset, prefetch
from hopfleet.domain.rowsum import means

Visit = tuple[int, int, str, Dataset]
"""Epoch and partition, the temporary folder that holds it, and the data set there."""


def load(site: Site) -> Dataset:
    return site.fetch("valid", site.everything)


def train(site: Site, valid: Dataset) -> list[Outcome]:
    return [_train(site, number, valid) for number in claimed(site)]


def _train(site: Site, number: int, valid: Dataset) -> Outcome:
    session = site.session(number)
    outcome = Outcome(number, [])
    # One being read and one waiting, besides the one in use.
    for visit, (epoch, partition, folder, train) in enumerate(prefetch(_read(site, number), depth=2), 1):
        last = visit % site.workload.partitions == 0
        session.train(site.batches(session, train, partition, epoch), last=last)
        site.discard(folder)
        if last:
            outcome.epochs.append(means(site.evaluate(session, valid, site.everything, epoch)))
    site.deliver(session, number)
    return outcome


def _read(site: Site, number: int) -> Iterator[Visit]:
    for epoch, partition in visits(site, number):
        folder = f"visits/{number}-{epoch}-{partition}"
        yield epoch, partition, folder, site.fetch("train", [partition], folder=folder)
