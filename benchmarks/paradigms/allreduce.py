"""Data parallelism with an all-reduce per batch: PyTorch's DistributedDataParallel over gloo.

One trial at a time. Every host computes the gradient of a batch of its own rows; their mean is one step. So p hosts
with batches of b rows take the steps of one host with batches of p·b. The user's own loop runs unchanged: the session's
model is wrapped while it trains.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch.nn.parallel import DistributedDataParallel

from benchmarks.paradigms.site import Outcome, Site
from hopfleet.data import Dataset
from hopfleet.errors import UsageError

BUCKET_MB = 25
"""Size of the buckets of gradients; the first are exchanged while the rest is still computed."""


def load(site: Site) -> tuple[Dataset, Dataset]:
    data = site.fetch("train", site.own), site.fetch("valid", site.own)
    check_even(data[0], site)
    return data


def train(site: Site, data: tuple[Dataset, Dataset]) -> list[Outcome]:
    found = [_train(site, number, data) for number in range(site.workload.trials)]
    return found if site.rank == 0 else []


def check_even(train: Dataset, site: Site) -> None:
    """Raise a UsageError unless all hosts take the same number of steps in an epoch."""
    steps = [_steps(train.partition_rows[rank :: site.hosts], site.workload.batch_size) for rank in range(site.hosts)]
    if len(set(steps)) > 1:
        raise UsageError(f"batches per host={steps}: must be equal to step together; partition evenly")


def _steps(rows: Sequence[int], batch_size: int) -> int:
    return sum(-(-count // batch_size) for count in rows)


def _train(site: Site, number: int, data: tuple[Dataset, Dataset]) -> Outcome:
    session = site.session(number)
    train, valid = data
    together = DistributedDataParallel(
        session.model, bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True, static_graph=True, init_sync=False
    )
    outcome = Outcome(number, [])
    for epoch in range(1, site.workload.epochs + 1):
        session.callable = together
        for partition in site.own:
            session.train(site.batches(session, train, partition, epoch), last=partition == site.own[-1])
        session.callable = session.model
        outcome.epochs.append(site.evaluate_together(session, valid, epoch))
    if site.rank == 0:
        site.deliver(session, number)
    return outcome
