"""Model averaging: every host trains a copy of the model on its own partitions, and all average after each epoch.

One trial at a time. Weights and buffers are averaged by a ring all-reduce of one flat vector, which moves less than
sending everything to one host and back; the state of an optimizer stays on its host. This is not sequential SGD: an
epoch on p hosts averages p short walks instead of taking one long one.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from benchmarks.paradigms.site import Outcome, Site
from hopfleet.data import Dataset


def load(site: Site) -> tuple[Dataset, Dataset]:
    return site.fetch("train", site.own), site.fetch("valid", site.own)


def train(site: Site, data: tuple[Dataset, Dataset]) -> list[Outcome]:
    found = [_train(site, number, data) for number in range(site.workload.trials)]
    return found if site.rank == 0 else []


def _train(site: Site, number: int, data: tuple[Dataset, Dataset]) -> Outcome:
    session = site.session(number)
    train, valid = data
    outcome = Outcome(number, [])
    for epoch in range(1, site.workload.epochs + 1):
        for partition in site.own:
            session.train(site.batches(session, train, partition, epoch), last=partition == site.own[-1])
        average(session.model)
        outcome.epochs.append(site.evaluate_together(session, valid, epoch))
    if site.rank == 0:
        site.deliver(session, number)
    return outcome


@torch.no_grad()
def average(model: torch.nn.Module) -> None:
    """Replace all floating-point weights and buffers by their means over the group."""
    tensors = [tensor for tensor in (*model.parameters(), *model.buffers()) if tensor.is_floating_point()]
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view_as(tensor))
