"""What an experiment runs with: its data, partitioned into the run folder where needed, and its workers."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hopfleet.backends.base import Backend, Cluster
from hopfleet.data import Dataset, Live, open_dataset, partition
from hopfleet.data.partitioning import join
from hopfleet.data.sources import open_source
from hopfleet.data.unseen import unseen
from hopfleet.domain.bounds import MOST_WORKERS, ROWS, integer
from hopfleet.domain.placement import SINGLE, TeamShape
from hopfleet.domain.secrets import references
from hopfleet.domain.trial import Config
from hopfleet.errors import UsageError
from hopfleet.experiment.definition import Definition
from hopfleet.frameworks.base import Task
from hopfleet.frameworks.folds import folded
from hopfleet.monitor.wording import plural
from hopfleet.planner.fleet.allocation import Fleet
from hopfleet.planner.teams import Scaling
from hopfleet.store.folder import RunFolder
from hopfleet.support.files import make_folder
from hopfleet.support.machine import choose_workers, most_workers, this_machine
from hopfleet.worker.secrets import read
from hopfleet.worker.spec import WorkerSpec
from hopfleet.worker.surroundings.script import Surroundings

VERIFY_BYTES = 4 << 30
"""Data sets up to this many bytes are read and compared with their checksums before work starts."""

SHARED = 8
"""Transformed batches take at most one part in ``SHARED`` of the free memory."""


CROWDED_TEAM, LEAST_TEAM = 2, 4
"""Members of a team for each core of this machine, at most, and the number that may share even fewer cores."""

CHECK_SECONDS = 60.0
"""Seconds after which a worker that checks a configuration before the run counts as hung; at most ``unit_timeout``."""


# ---------------------------------------------------------------------------------------------------------------- data


@dataclass(frozen=True, slots=True)
class Data:
    """The data sets of an experiment: one for training and, if given, one for validation."""

    train: Dataset
    valid: Dataset | None

    def check(self) -> None:
        """Raise an error unless both data sets are complete and have the same columns."""
        if self.valid is not None and self.valid.columns.keys() != self.train.columns.keys():
            mine, theirs = ", ".join(self.valid.columns), ", ".join(self.train.columns)
            raise UsageError(f"valid has the columns {mine}, train has {theirs}: they must be the same")
        for dataset in self._both():
            dataset.require_items()
            dataset.check()

    def verify(self) -> None:
        """Raise DataError for the first file with a wrong checksum. Larger data sets are not read here."""
        for dataset in self._both():
            if dataset.size <= VERIFY_BYTES:
                dataset.check(checksums=True)

    def bytes_in(self, folder: Path) -> int:
        """Count the bytes of the data sets that lie in a folder."""
        return sum(dataset.size for dataset in self._both() if folder in Path(dataset.url).parents)

    def _both(self) -> list[Dataset]:
        if self.valid is self.train:
            return [self.train, unseen(self.train)]
        return [self.train] if self.valid is None else [self.train, self.valid]


@dataclass(frozen=True, slots=True)
class Joined:
    """Several data sets whose partitions become those of one data set, without a copy of the rows."""

    sets: tuple[Dataset, ...]


def partitioned(source: Any, folder: Path, *, partitions: int | None, seed: int, least: int = 0) -> Dataset:
    """Return ``source`` as a data set: as is, or joined or partitioned into ``folder``.

    If ``partitions`` is None, their number suits the rows, and is not below ``least``.

    Raise DataChanged if ``folder`` already holds a data set made from other rows.
    """
    if isinstance(source, Dataset):
        return source
    if isinstance(source, Joined):
        return join(source.sets, folder)
    make_folder(folder.parent, private=True)
    if partitions is None:
        partitions = len(open_dataset(folder)) if folder.exists() else max(least, _fitting_partitions(source))
    return partition(source, folder, partitions=partitions, seed=seed)


def check_configs(configs: Sequence[Config], train: Dataset, batch_size: int, team: int = 1) -> None:
    """Check configurations that are known in advance, so that none fails during a run.

    ``batch_size`` is that of configurations without their own; ``team`` the number of devices of the largest team.
    """
    smallest = min(train.partition_rows)
    for reference in set().union(*map(references, configs)):
        read(reference)
    for size in {config.get("batch_size", batch_size) for config in configs}:
        integer("batch_size", size, 1, ROWS)
        if size > smallest:
            raise UsageError(
                f"batch_size={size}: is larger than the smallest partition ({smallest} rows); use smaller "
                "batches or fewer partitions"
            )
        if size < team:
            raise UsageError(
                f"batch_size={size}: is smaller than a team of {team} devices, and each device takes a share of every "
                "batch; use larger batches or smaller teams"
            )


def _fitting_partitions(source: Any) -> int:
    """Return how many partitions suit the rows: at most 8, fewer for few rows."""
    rows = len(source) if isinstance(source, Live) else open_source(source).rows
    return 8 if rows is None else max(1, min(8, rows // 256))


# ------------------------------------------------------------------------------------------------------------- workers


class WorkerPlan(NamedTuple):
    """The workers that a run starts with: their device, their number and the reason for that number."""

    device: str
    workers: int
    why: str
    #: How workers train, in turn.
    teams: tuple[TeamShape, ...] = (SINGLE,)
    #: How fast teams are, if idle devices may join as teams when trials run out.
    scaling: Scaling | None = None
    #: What is known about the rates of trials, if trials get numbers of devices in rounds.
    fleet: Fleet | None = None
    #: The node of each worker, and whether all members of a team are on one node; see ``WorkerSpec``.
    homes: tuple[str, ...] = ()
    one_node: bool = False


def on_cluster(backend: Backend | type[Backend]) -> bool:
    """Whether a backend, or a class of backends, has workers on several machines."""
    return issubclass(backend if isinstance(backend, type) else type(backend), Cluster)


def check_device(backend: Backend | type[Backend], task: Task, device: str) -> None:
    """Raise UsageError if the user asked for a kind of device that this machine does not have.

    The machines of a cluster may have other devices than this one, and every machine has a CPU.
    """
    kind = device.partition(":")[0]
    if kind != kind.lower():
        raise UsageError(f"device={device!r}: must be in lower case, {device.lower()!r}")
    if on_cluster(backend) or kind in ("auto", "cpu"):
        return
    found, count = task.framework.devices()
    if kind != found:
        has = "no GPU that this process can use" if found == "cpu" else f"{count} of kind {found!r}"
        raise UsageError(f"device={device!r}: this machine has {has}; use device='auto', or 'cpu'")


def plan_workers(
    backend: Backend,
    task: Task,
    *,
    workers: int | str,
    device: str,
    threads: int,
    trials: int,
    teams: tuple[TeamShape, ...] = (SINGLE,),
) -> WorkerPlan:
    """Plan the workers of a run; ``workers="auto"`` takes what the machine or cluster offers, at most ``trials``."""
    device, devices = _device(backend, task, device)
    if any(shape.devices != 1 for shape in teams):
        if isinstance(backend, Cluster):
            return _plan_cluster_teams(backend, task, workers, device, threads, trials, teams)
        return _plan_teams(workers, device, devices, threads, trials, teams)
    if teams != (SINGLE,):
        plan = plan_workers(backend, task, workers=workers, device=device, threads=threads, trials=trials)
        return plan._replace(teams=teams)
    if isinstance(workers, int):
        most = most_workers(this_machine()) if backend.name == "local" else workers
        return WorkerPlan(device, min(workers, most), "as asked" if workers <= most else f"{workers} were asked for")
    if isinstance(backend, Cluster):
        room, why, *_ = backend.offer(device, threads)
        return WorkerPlan(device, room, why) if room <= trials else WorkerPlan(device, trials, "one per trial")
    count, why = choose_workers(this_machine(), device=device, devices=devices, threads=threads, trials=trials)
    return WorkerPlan(device, count, why)


def worker_limit(backend: Backend, workers: int) -> int:
    """Return how many workers a person may ask a run for that starts with ``workers``: as many, or what is sensible."""
    return MOST_WORKERS if on_cluster(backend) else max(workers, most_workers(this_machine()))


def _plan_cluster_teams(
    backend: Cluster,
    task: Task,
    workers: int | str,
    device: str,
    threads: int,
    trials: int,
    teams: tuple[TeamShape, ...],
) -> WorkerPlan:
    """Plan teams on a cluster. Its backend refuses to start more than fit."""
    for shape in teams:
        if not shape.devices:
            raise UsageError(
                f"parallelism={shape.strategy!r}: on a cluster, name the number of devices of each team, as in "
                f"'{shape.strategy}:2'"
            )
    spanning = {shape.strategy for shape in teams if task.framework.spans_nodes(shape.strategy)}
    room, why, *_ = backend.offer(device, threads, teams, spanning=spanning)
    if isinstance(workers, int):
        return WorkerPlan(device, workers, "as asked", teams)
    return WorkerPlan(device, min(room, trials), f"{why}, {_each(teams)}", teams)


def _plan_teams(
    workers: int | str,
    device: str,
    devices: int,
    threads: int,
    trials: int,
    teams: tuple[TeamShape, ...],
) -> WorkerPlan:
    """Plan workers on several devices each. Raise UsageError if a team has too few devices."""
    offer, why = choose_workers(
        this_machine(), device=device, devices=devices, threads=threads, trials=len(teams) * 4096
    )
    share = offer // workers if isinstance(workers, int) else offer
    shapes = tuple(shape if shape.devices else shape._replace(devices=share) for shape in teams)
    largest = max(zip(shapes, teams, strict=True), key=lambda pair: pair[0].devices)
    # Processes can share the cores of a machine, but GPUs do not take two members of a team.
    if largest[0].devices < 2 or (device != "cpu" and largest[0].devices > offer):
        raise UsageError(_too_few(largest[1], device, offer, workers))
    cores = this_machine().cores
    if largest[0].devices > (most := max(LEAST_TEAM, CROWDED_TEAM * cores)):
        raise UsageError(
            f"parallelism={str(largest[1])!r}: a team must have at most {most} members on {plural(cores, 'core')}, got "
            f"{largest[0].devices}; use '{largest[1].strategy}:{max(2, min(cores, most))}'"
        )
    if isinstance(workers, int):
        return WorkerPlan(device, workers, "as asked", shapes)
    count = max(1, min(offer * len(shapes) // sum(shape.devices for shape in shapes), trials))
    return WorkerPlan(device, count, f"{why}, {_each(shapes)}", shapes)


def _too_few(asked: TeamShape, device: str, offer: int, workers: int | str) -> str:
    """Say why no team of this shape fits on the devices of this machine, and what to do."""
    what, kind = f"parallelism={str(asked)!r}", device.partition(":")[0]
    if kind != device:
        return f"{what}: device={device!r} is one device, and a team has several; use device={kind!r}"
    has = f"this machine has {plural(offer, 'device')} of kind {kind!r}"
    if asked.devices:  # GPUs
        fewer = f"'{asked.strategy}:{offer}', " if offer > 1 else ""
        return f"{what}: {has}, and each member of a team needs its own; use {fewer}device='cpu', or 'single'"
    several = isinstance(workers, int) and workers > 1
    remedies = ["use fewer workers"] if several and offer > 1 else []
    if kind == "cpu":
        remedies.append(f"let processes share cores with a number, as in '{asked.strategy}:2'")
    remedies.append("use parallelism='single'")
    has += f" for {workers} workers" if several else ""
    return f"{what}: {has}, and each team needs at least 2; {', or '.join(remedies)}"


def _each(shapes: Sequence[TeamShape]) -> str:
    return f"{sum(shape.devices for shape in shapes) / len(shapes):g} devices each"


def _device(backend: Backend, task: Task, device: str) -> tuple[str, int]:
    """Return the device of each worker, and how many such devices there are."""
    if isinstance(backend, Cluster):
        return device, 1
    found, count = task.framework.devices()
    if device == "auto":
        return found, count
    return device, count if device == found else 1


def worker_spec(
    definition: Definition,
    data: Data,
    place: RunFolder,
    *,
    plan: WorkerPlan,
    spare: int,
) -> WorkerSpec:
    """Return what each worker of an experiment needs; ``spare`` counts the cores that no worker needs."""
    options, limit = definition.worker_options, definition.run_options.unit_timeout
    return WorkerSpec(
        task=folded(definition.task, definition.folds, data.train),
        train=data.train,
        valid=unseen(data.train) if definition.folds else data.valid,
        checkpoints=place.checkpoints,
        logs=place.logs,
        seed=definition.seed,
        device=plan.device,
        threads=options.threads,
        batch_size=definition.batch_size,
        drop_last=options.drop_last,
        epochs=definition.search.max_epochs,
        settings=definition.task.framework.settings(),
        surroundings=Surroundings.of(definition.task),
        metric=definition.goal.metric,
        mode=definition.goal.mode,
        fast=options.fuse == "fast",
        count_parameters=definition.goal.counts_parameters,
        run=uuid.uuid4().hex,
        transform_workers=spare if isinstance(options.transform_workers, str) else options.transform_workers,
        shared_bytes=this_machine().memory // SHARED,
        checkpoint_every=definition.run_options.checkpoint_every,
        start_timeout=options.start_timeout,
        store=definition.store,
        teams=plan.teams,
        homes=plan.homes,
        one_node=plan.one_node,
        joining="" if plan.scaling is None else plan.scaling.strategy,
        strategies=definition.strategies,
        check_seconds=min(CHECK_SECONDS, limit if isinstance(limit, float | int) else CHECK_SECONDS),
    )
