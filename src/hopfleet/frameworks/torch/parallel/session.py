"""A session on a team: one trial in PyTorch on several devices, or on one device that is smaller than the model.

The same class serves all members. On the first member, the worker calls the methods of ``Session``; each of them has
the other members do their part through the methods whose names begin with ``follow``.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import torch
from torch import distributed

from hopfleet.domain.rowsum import RowSum, add
from hopfleet.domain.seeds import derive
from hopfleet.domain.trial import Config
from hopfleet.errors import TaskError
from hopfleet.frameworks.base import Batch, Batches, EngineCache, Session
from hopfleet.frameworks.state import safetensors
from hopfleet.frameworks.torch import checkpoint, randomness
from hopfleet.frameworks.torch.inherit import inherit
from hopfleet.frameworks.torch.parallel import wire
from hopfleet.frameworks.torch.parallel.strategy import NUMBER, Share, Strategy, TeamView
from hopfleet.frameworks.torch.parallel.team import TorchTeam
from hopfleet.frameworks.torch.session import TorchSession
from hopfleet.frameworks.torch.shared import SharedTensor
from hopfleet.frameworks.torch.snapshot import Snapshot
from hopfleet.frameworks.torch.steps import UNLIKE, grouped, on_host, rows_of, summed
from hopfleet.frameworks.torch.trial import SharedTask
from hopfleet.frameworks.whole_set import dealt
from hopfleet.support.files import create_folder, overwrite, temporary_folder

TOLERANCE = 1e-3
"""Relative difference up to which the loss of a batch counts as the mean of the losses of its shares."""

APART = (
    "each of several devices sees a part of every batch, so no device knows the value; use parallelism='single', or "
    "return the value from metrics()"
)
"""Why a trial on several devices logs no values of its own."""


SINGLE = "set accumulate = 1, or use parallelism='single'"
"""The remedy if the batches of an update cannot count by their labels."""


class CheckedTrials(set[tuple[int, str]]):
    """The trials, by seed and strategy, whose loss is known to be a mean over rows: a part of the engine cache."""


class TeamSession(TorchSession):
    """A trial on one member of a team."""

    def __init__(
        self,
        task: SharedTask,
        config: Config,
        *,
        seed: int,
        threads: int,
        cache: EngineCache | None,
        team: TorchTeam,
        strategy: Callable[[], Strategy],
        name: str,
    ) -> None:
        self.team: TeamView = team
        self._team = team
        self._seed, self._name, self._make_strategy = seed, name, strategy
        self._given = (task, dict(config), threads, cache)
        self._build()
        self.number = team.new_number()
        weakref.finalize(self, team.forget, self.number)
        team.tell("open", self.number, dict(config), seed, threads, name, task.batching)

    def _build(self) -> None:
        """Build the whole trial, in the memory of the host if it may not fit the device."""
        task, config, threads, cache = self._given
        self.strategy = self._make_strategy()
        self.spread = not self.strategy.replicated
        #: Whether the trial is whole on every member, as it was built or loaded.
        self.whole = True
        self._built_on = torch.device("cpu") if self.strategy.on_host else self.team.device
        super().__init__(task, config, seed=self._seed, device=str(self._built_on), threads=threads, cache=cache)
        self.device = self.team.device
        if self.team.size > 1:
            self.log.refusal = APART
            if self.logs:
                raise TaskError(f"the task uses self.log: {APART}")
        self.strategy.check(self)

    def activate(self) -> None:
        """Keep this member's part of the trial."""
        if self.whole:
            self.whole = False
            with self._team.together():
                self.strategy.spread(self)

    # ---------------------------------------------------------------------------------------------- the work

    def observe(self, metric: float) -> None:
        self._team.tell("observe", self.number, metric)
        super().observe(metric)

    def train(self, batches: Batches, *, last: bool) -> dict[str, RowSum]:
        some = iter(batches)
        first = next(some, None)
        if first is not None:
            self._check_mean(first)
        self._team.tell("follow_training", self.number, last)
        whole = some if first is None else itertools.chain([first], some)
        if self.hooks.weighs_batches:
            whole = self._numbered(whole)
        return self._train(self._dealt(self.strategy.deal(whole, self.team.size)), last=last)

    def _numbered(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield batches with the number of their update as a column."""
        weighed = set()
        for update in grouped(batches, self.options.accumulate):
            before = randomness.current(self.device)
            with self.options.autocast(self.device):
                weigh = self.hooks.weighed(self.callable, update)
            if randomness.changed(before, randomness.current(self.device)):
                raise TaskError(
                    f"the inputs of a batch are drawn at random, and each of several devices draws: {SINGLE}"
                )
            weighed.add(weigh is not None)
            if len(weighed) > 1:
                raise TaskError(UNLIKE)
            for batch in update:
                yield batch if weigh is None else {**batch, NUMBER: weigh.number.expand(rows_of(batch)).clone()}

    def follow_training(self, last: bool) -> None:
        """Train one sub-epoch on the shares that the first member sends."""
        # The trial's own streams are those of the first member. Others must not draw the same numbers.
        self.random = randomness.seeded(derive(self._seed, "member", self.team.rank, self.counters["units"]))
        self._train(self._received(), last=last)

    def _train(self, shares: Iterator[Share], *, last: bool) -> dict[str, RowSum]:
        self.activate()
        self.model.train()
        self.begin_log()
        rows = 0
        with self._team.together(), self._environment():
            steps = self.strategy.steps(self)
            for share in shares:
                steps.take_share(share)
                rows += share.rows
            result = self.end_unit(steps.result(), rows, last=last)
            self._share_buffers()
        return result

    def _dealt(self, rounds: Iterable[Sequence[Share | None]]) -> Iterator[Share]:
        """Yield the first member's shares, and send the others theirs."""
        for first, *others in rounds:
            for link, share in zip(self._team.links, others, strict=True):
                if share is not None:
                    wire.send(link, share)
            if first is not None:
                yield first
        for link in self._team.links:
            wire.send(link, None)

    def _received(self) -> Iterator[Share]:
        while (share := wire.receive(self._team.links[0])) is not None:
            yield Share(wire.moved(share.batch, self.device), *share[1:])

    def _share_buffers(self) -> None:
        """Give all members the buffers of the first one, e.g. the running statistics of BatchNorm."""
        if self.team.size > 1 and self.strategy.same_buffers:
            for buffer in self.model.buffers():
                distributed.broadcast(buffer, 0)

    def _check_mean(self, batch: Batch) -> None:
        """Raise TaskError unless the loss of a batch is the mean of the losses of its shares. Check a trial once."""
        checked = self.cache.part(CheckedTrials)
        if (
            self.team.size == 1
            or not self.strategy.splits_batches
            or not self.whole
            or (self._seed, self._name) in checked
        ):
            return
        checked.add((self._seed, self._name))
        here = self._built_on
        batch = wire.moved(batch, here)
        shares = Strategy.shares(self.strategy, batch, self.team.size)
        self.model.eval()
        with self._environment(randomness.seeded(self._seed)), torch.no_grad(), self.options.autocast(here):
            whole = float(self.hooks.loss(self.callable, batch))
            parts = sum(share.weight * float(self.hooks.loss(self.callable, share.batch)) for share in shares)
        if abs(whole - parts) > TOLERANCE * max(abs(whole), abs(parts), TOLERANCE):
            raise TaskError(
                f"loss() of a batch of {rows_of(batch)} rows is {whole:.6g}, and the mean over its shares {parts:.6g}: "
                f"{self._name!r} trains on shares of each batch, so the loss must be a mean over rows; average it, or "
                "use parallelism='single'"
            )

    def evaluate(self, batches: Batches, *, seed: int) -> dict[str, RowSum]:
        self._team.tell("follow_evaluation", self.number, seed)
        return self._evaluate(self._dealt(self.strategy.rounds(batches, self.team.size)), seed)

    def follow_evaluation(self, seed: int) -> None:
        """Evaluate the batches that the first member sends, and return the sums to it."""
        wire.send(self._team.links[0], self._evaluate(self._received(), seed))

    def _evaluate(self, shares: Iterator[Share], seed: int) -> dict[str, RowSum]:
        self.activate()
        self.model.eval()
        with self._team.together():
            with self._environment(randomness.seeded(seed)), torch.no_grad(), self.averaged():
                found = [self.strategy.measure(self, share) for share in shares]
            sums = summed(on_host(one) for one in found if one is not None)
            return add(dealt([sums, *self._team.answers()])) if self.team.rank == 0 else sums

    # ------------------------------------------------------------------------------------------ save and load

    def save(self, path: Path) -> None:
        self._write(path, self._collected(), safetensors.write)

    def snapshot(self) -> Callable[[Path], None]:
        if not self.spread:
            return super().snapshot()
        copy = Snapshot(self._collected())
        return lambda path: self._write(path, copy.rebuilt(), safetensors.write)

    def _write(
        self,
        path: Path,
        state: checkpoint.State,
        write: checkpoint.Write,
        of_host: Callable[[torch.Tensor], bool] = checkpoint.on_host,
    ) -> None:
        if not self.spread:
            super()._write(path, state, write, of_host)
            return
        # Where a tensor lies now says nothing: on one device, only the counters of optimizers stay on the host.
        checkpoint.save(path, state, self.device, self.cache, write, host=lambda tensor: not tensor.ndim)

    def _adopt(self) -> list[SharedTensor]:
        """Share no frozen tensors: members keep parts of them, or get those of the first member."""
        self.model.to(self.device)
        return []

    def _collected(self) -> checkpoint.State:
        if self.whole or not self.spread:
            return checkpoint.state_of(self)
        self._team.tell("follow_collection", self.number)
        with self._team.together():
            return self.strategy.collect(self)

    def follow_collection(self) -> None:
        """Help the first member to collect the whole state."""
        self.strategy.collect(self)

    def load(self, path: Path) -> None:
        self._load(path)
        self._tell_of_version("load", path)

    def _load(self, path: Path) -> None:
        """Load a version on this member."""
        if not self.whole and self.spread:
            self._build()
        here, self.device = self.device, self._built_on
        try:
            super().load(path)
        finally:
            self.device = here
        if self.shared:
            for tensor in [*self.model.parameters(), *self.model.buffers()]:
                tensor.data = tensor.data.clone()
            self.shared.clear()

    def inherit(self, path: Path, parent: Session) -> None:
        assert isinstance(parent, TeamSession)
        # Each member has a parent that it alone loads: a clone inherits what the version changed in its parent.
        inherit(self, path, parent, lambda: parent._load(path))
        self._tell_of_version("inherit", path, parent.number)

    def _tell_of_version(self, method: str, path: Path, *more: int) -> None:
        """Have the other members read a version, too. Those on other nodes get what this member has made of it."""
        apart = ("load_content", self._content()) if self._team.apart and self.team.rank == 0 else None
        self._team.tell(method, self.number, path, *more, apart=apart)

    def _content(self) -> bytes:
        """Return the whole state as the bytes of a file that refers to no other file."""
        with _scratch_file() as path:
            checkpoint.save(path, checkpoint.state_of(self), self._built_on, self.cache, safetensors.write)
            return path.read_bytes()

    def load_content(self, content: bytes) -> None:
        """Load the bytes of a version."""
        with _scratch_file() as path:
            overwrite(path, [content])
            self.load(path)


@contextlib.contextmanager
def _scratch_file() -> Iterator[Path]:
    """Yield a path that lasts as long as the context."""
    with temporary_folder() as folder:
        file = folder / "versions" / "version"
        create_folder(file.parent)
        yield file
