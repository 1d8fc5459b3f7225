"""The interface of strategies: how the members of a team train one trial together.

A session on a team exists on every member. Each member builds or loads the whole trial, then ``spread`` keeps its part.
The first member deals shares of each batch to the others; steps and evaluations run on all members at once, and
``collect`` brings the whole state back to the first member. A version is that whole state, so a trial can continue on
one device or under any other strategy.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import distributed

from hopfleet.errors import TaskError
from hopfleet.frameworks.base import Batch
from hopfleet.frameworks.torch import _compat, checkpoint
from hopfleet.frameworks.torch.parallel import blocks
from hopfleet.frameworks.torch.sparse import REMEDY, sparse_module
from hopfleet.frameworks.torch.steps import Steps, rows_of
from hopfleet.frameworks.torch.trial import LiveTrial, Metrics

NUMBER = "number of the update"
"""A column of batches on their way to members, where losses depend on the other batches of the update."""


class Share(NamedTuple):
    """A member's part of a batch."""

    batch: Batch
    #: Rows of the whole batch.
    rows: int
    #: The part of these rows that the member has; 0 for a member that computes along only because all must.
    weight: float = 1.0


class TeamView(Protocol):
    """The part of a team that strategies read: the place of their own member in it."""

    rank: int
    size: int
    device: torch.device
    #: The member's address on the network that the members share; empty if all are on one machine.
    address: str


class SpreadTrial(LiveTrial, Protocol):
    """A live trial on a member of a team."""

    team: TeamView

    def measure(self, batch: Batch) -> tuple[Metrics, int]:
        """Return the metrics of a batch and its rows."""
        ...


class TeamSteps(Steps):
    """The steps of one member in one unit. A loss counts by the rows of its share, so the sum is that of the batch."""

    def __init__(self, trial: SpreadTrial) -> None:
        super().__init__(trial)
        self._share = Share({}, 0)

    def take_share(self, share: Share) -> None:
        """Train on this member's share of a batch."""
        batch = dict(share.batch)
        if (numbers := batch.pop(NUMBER, None)) is not None:
            # A loss that is divided by the number counts by the rows of the share in the end, as a mean does.
            number = numbers[0] * share.weight if 0 < share.weight < 1 else numbers[0]
            self._weigh = self._trial.hooks.weighed_by(number)
        self._share = share._replace(batch=batch)
        self(batch)

    def _loss(self, batch: Batch) -> torch.Tensor:
        loss, weight = super()._loss(batch), self._share.weight
        return loss if weight == 1.0 else loss * weight

    def note(self, values: Metrics, *rows: int) -> None:
        super().note(values, self._share.rows)

    def result(self) -> Metrics:
        if self.waiting:
            self.update()
        if self._losses:
            losses = torch.cat([loss.reshape(-1).double() for loss in self._losses])
            distributed.all_reduce(losses)
            self._losses = [losses]
        return super().result()


class Strategy(ABC):
    """One way to train a trial on several devices. A session on each member has a strategy of its own."""

    #: Devices that the strategy needs at least, and at most (0: any number).
    fewest, most = 2, 0
    #: Whether each member has the whole state, so that the first one can save it without the others.
    replicated = False
    #: Whether the whole model is first built and loaded in the memory of the host, because it may not fit the device.
    on_host = True
    #: Whether all members must take each step of an evaluation together.
    lockstep = True
    #: Whether all members have the same buffers, those of the first member after each unit.
    same_buffers = True
    #: Whether members may be on several nodes, with a network between them.
    spans_nodes = False
    #: Whether training again gives the same bits.
    repeatable = True
    #: Whether each member needs a block of the model, so that there can be no more members than blocks.
    cuts_models = False
    #: Rows that a share must have if the batch has them: BatchNorm cannot normalize one row. Set by ``check``.
    fewest_rows = 1
    #: Whether members train on shares of each batch, so that the loss must be a mean over rows.
    splits_batches = True
    #: Options of tasks and models that the strategy cannot respect.
    unsupported: tuple[str, ...] = ("compile", "fp16")

    def check(self, trial: SpreadTrial) -> None:
        """Raise TaskError if the trial cannot be trained this way. Called before ``spread``."""
        name, options = type(self).__name__.lower(), trial.options
        self.fewest_rows = 2 if any(isinstance(module, _compat.BATCH_NORM) for module in trial.model.modules()) else 1
        if "compile" in self.unsupported and options.compile:
            raise TaskError(f"compile=True: {name} cannot train compiled models; set compile=False")
        if "fp16" in self.unsupported and trial.scaler is not None:
            raise TaskError(
                f"precision='fp16' or a GradScaler: {name} cannot scale gradients that lie on several devices; use "
                "'bf16'"
            )

        if "sparse" in self.unsupported and (found := sparse_module(trial.model)):
            raise TaskError(f"{found}: {REMEDY}")

    @abstractmethod
    def spread(self, trial: SpreadTrial) -> None:
        """Keep this member's part of a trial that is whole on every member."""

    def steps(self, trial: SpreadTrial) -> TeamSteps:
        """Return the steps of a unit on this member."""
        return TeamSteps(trial)

    def shares(self, batch: Batch, size: int) -> list[Share]:
        """Divide a batch of training among ``size`` members: consecutive rows for each.

        If the rows are too few for all members, the first ones have all rows; the others take the step with rows that
        count nothing.
        """
        rows, fewest = rows_of(batch), self.fewest_rows
        some = size if fewest == 1 else min(size, max(1, rows // fewest))
        bounds = [rows * min(rank, some) // some for rank in range(size + 1)]
        found = []
        for start, stop in itertools.pairwise(bounds):
            weight = (stop - start) / rows
            start = max(0, min(start, rows - fewest))
            found.append(
                Share({name: part[start : max(stop, start + fewest)] for name, part in batch.items()}, rows, weight)
            )
        return found

    def deal(self, batches: Iterable[Batch], size: int) -> Iterator[Sequence[Share | None]]:
        """Deal the batches of training to ``size`` members: a share of each batch to every member."""
        for batch in batches:
            yield self.shares(batch, size)

    def rounds(self, batches: Iterable[Batch], size: int) -> Iterator[list[Share | None]]:
        """Deal the batches of an evaluation to ``size`` members, a whole batch to each."""
        dealt: list[Share | None] = []
        for batch in batches:
            dealt.append(Share(batch, rows_of(batch)))
            if len(dealt) == size:
                yield dealt
                dealt = []
        if dealt:
            spare = dealt[0]._replace(weight=0.0) if self.lockstep and dealt[0] is not None else None
            yield dealt + [spare] * (size - len(dealt))

    def measure(self, trial: SpreadTrial, share: Share) -> tuple[Metrics, int] | None:
        """Return the metrics of a share of an evaluation and its rows; None if another member has them."""
        found = trial.measure(share.batch)
        return found if share.weight else None

    def collect(self, trial: SpreadTrial) -> checkpoint.State:
        """Return the whole state; all members call this, and only the first one needs the result."""
        return checkpoint.state_of(trial)

    def blocks(self, trial: LiveTrial) -> list[blocks.Block]:
        """Return the blocks of a trial's model: those that the task names, or those found in the model."""
        return blocks.find(trial.model, getattr(trial.hooks, "blocks", None))
