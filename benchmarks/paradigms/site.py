"""One host among others: its rank, its disk, its group, and the training of a trial on it.

Sessions and streams are Hopfleet's own, so a trial that sees the same rows in the same order gets the same bits as in
an experiment. A paradigm adds the communication between hosts, and nothing else.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore

from benchmarks.paradigms.source import deliver, fetch
from benchmarks.paradigms.workload import Images, Workload
from hopfleet.data import Dataset, open_dataset
from hopfleet.data.manifest import FILE, partition_name
from hopfleet.domain.placement import CPU
from hopfleet.domain.rowsum import RowSum, add, means
from hopfleet.domain.seeds import derive
from hopfleet.frameworks.torch.session import TorchSession
from hopfleet.worker.feeding.stream import Stream, valid_batch

TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a trial: its validation metrics after each epoch."""

    number: int
    epochs: list[dict[str, float]]


@dataclass(slots=True)
class Site:
    """A host. Host 0 meets the others at its address and ``port``; parameter servers take the port above."""

    rank: int
    addresses: Sequence[str]
    port: int
    source: str  #: URL of the folder with the data sets; models are delivered there
    folder: Path  #: the host's own disk
    workload: Workload
    store: Any = None
    slate: Any = None

    @property
    def hosts(self) -> int:
        return len(self.addresses)

    # ------------------------------------------------------------------------------------------------ the group

    def meet(self) -> None:
        """Wait for all hosts, and form a group with them."""
        first = self.rank == 0
        self.store = TCPStore(self.addresses[0], self.port, self.hosts, is_master=first, timeout=TIMEOUT)
        dist.init_process_group("gloo", store=self.store, rank=self.rank, world_size=self.hosts, timeout=TIMEOUT)

    def begin(self, name: str) -> None:
        """Start a step that all hosts take, with its own key-value store for agreements."""
        self.slate = PrefixStore(name, self.store)

    def part(self) -> None:
        dist.barrier()
        dist.destroy_process_group()

    # ------------------------------------------------------------------------------------------------- the data

    def fetch(self, name: str, partitions: Iterable[int], *, folder: str = "data") -> Dataset:
        """Return a data set of the source, with these partitions on this host's disk."""
        target = self.folder / folder / name
        for file in (FILE, *map(partition_name, partitions)):
            fetch(f"{self.source}/{name}/{file}", target / file)
        return open_dataset(target)

    @property
    def everything(self) -> range:
        return range(self.workload.partitions)

    @property
    def own(self) -> range:
        """Return the partitions of this host if each partition is on one host."""
        return range(self.rank, self.workload.partitions, self.hosts)

    # ----------------------------------------------------------------------------------------------- the trials

    def session(self, number: int) -> TorchSession:
        """Return the initial model of a trial: the same bits on every host, and in an experiment with this seed."""
        seed = derive(self.workload.seed, "trial", number)
        session = Images(self.workload.waits).framework.open(
            self.workload.configs[number], seed=seed, placement=CPU, threads=1
        )
        session.guest = False
        return session

    def batches(self, session: TorchSession, train: Dataset, partition: int, epoch: int) -> Stream:
        """Return the training batches of a unit."""
        return Stream(
            train,
            partition,
            session=session,
            batch_size=self.workload.batch_size,
            seed=self.workload.seed,
            epoch=epoch,
        )

    def evaluate(
        self, session: TorchSession, valid: Dataset, partitions: Iterable[int], epoch: int
    ) -> dict[str, RowSum]:
        """Compute metrics over some partitions of the validation data."""
        found = []
        for partition in partitions:
            stream = Stream(valid, partition, session=session, batch_size=valid_batch(valid))
            seed = derive(self.workload.seed, "evaluate", epoch, partition)
            found.append(session.evaluate(stream, seed=seed))
        return add(found)

    def evaluate_together(self, session: TorchSession, valid: Dataset, epoch: int) -> dict[str, float]:
        """Compute metrics over all validation data; each host evaluates its own partitions."""
        found: list[Any] = [None] * self.hosts
        dist.all_gather_object(found, self.evaluate(session, valid, self.own, epoch))
        return means(add(found))

    def deliver(self, session: TorchSession, number: int) -> None:
        """Deliver a trained model, and keep no copy."""
        path = self.folder / "models" / f"t{number}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        session.save(path)
        deliver(path, f"{self.source}/models/{path.name}")
        path.unlink()

    def discard(self, folder: str) -> None:
        shutil.rmtree(self.folder / folder)


def on_interface(name: str) -> dict[str, str]:
    """Return the environment in which a host's group uses this network interface and one core."""
    return {**os.environ, "GLOO_SOCKET_IFNAME": name, "OMP_NUM_THREADS": "1"}
