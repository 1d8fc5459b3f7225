"""The gradients of all members of a stack: computed by one function over stacked tensors, or by a program.

On the CPU, most of the time of a small step goes into finding out, again and again, which operations it consists of. So
the operations are recorded once, as a program, and from then on the program runs. A task whose loss depends on more
than model, batch and configuration, say on a counter of its own, would not see that time passes; so every now and then
a batch is computed both ways, and if the outcomes differ the program is discarded.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch.func import functional_call, grad_and_value, vmap

from hopfleet.errors import describe
from hopfleet.frameworks.base import Batch, IsolationError
from hopfleet.frameworks.torch import _compat, randomness
from hopfleet.frameworks.torch.engines.alike import Loss
from hopfleet.frameworks.torch.engines.common import CommonConfig, Differs, separating
from hopfleet.frameworks.torch.engines.common import compared as compared_configs
from hopfleet.frameworks.torch.engines.host_state import HostState
from hopfleet.frameworks.torch.engines.stacked import onednn
from hopfleet.frameworks.torch.engines.stacked.cache import Program, StackCache
from hopfleet.frameworks.torch.engines.stacked.dropout import Dropout, use_rates, without_dropout
from hopfleet.frameworks.torch.engines.stacked.layout import StackLayout
from hopfleet.frameworks.torch.engines.stacked.linear import replace_composed
from hopfleet.frameworks.torch.engines.stacked.models import Absent, Unstackable, constants, form
from hopfleet.frameworks.torch.engines.stacked.operations import CertainOperations, StackedOperations
from hopfleet.frameworks.torch.engines.stacked.programs import quickened, recorded
from hopfleet.frameworks.torch.engines.stacked.rounding import (
    MEMBERS,
    NOT_MEASURED,
    ROUNDING,
    STRICT,
    TIMES,
    Deviation,
    Draws,
    compared,
    gradients_in_double,
)
from hopfleet.frameworks.torch.engines.stacked.updates import Table
from hopfleet.frameworks.torch.session import TorchSession
from hopfleet.frameworks.torch.settings import products_in

CHANGING = "the loss of the task is not always the same function of model, batch and configuration"

PAYS = 16
"""Batches of a kind from which on a program pays."""

COMPARED = 64
"""A program is compared with the function that it stands for in the first batch of a unit, the 64th, the 4096th etc."""

CLOSE = 0.01
"""Deviation of a compiled program, as a part of the largest value, up to which the program counts as equal: more than
rounding, less than another function."""


def alike(found: Table, expected: Table, compiled: bool) -> bool:
    """Whether a program computes the function that it stands for; a compiled program may round differently."""
    if torch.equal(found, expected) or bool(found.isnan().any()):
        return True
    off = (found - expected).abs().max() / expected.abs().max().clamp(min=1e-30)
    return compiled and float(off) < CLOSE


class Gradients:
    """The loss of all members as a function of stacked tensors, and its gradients."""

    def __init__(self, sessions: Sequence[TorchSession], layout: StackLayout, parameters: Mapping[str, Table]) -> None:
        self._sessions = sessions
        self._layout = layout
        self._parameters = parameters
        self._cache = sessions[0].cache.part(StackCache)
        self._device = sessions[0].device
        #: The frozen tensors that all members share, by name: they are not stacked, so each product with one of them is
        #: made once for all members.
        self._common = {f"model.{one.name}": one.tensor for one in sessions[0].shared}
        same, numbers, differing = compared_configs([session.config for session in sessions])
        self._scalars = {key: torch.tensor(column, device=self._device) for key, column in numbers.items()}
        #: The configuration as the loss sees it, but for the numbers that differ.
        self.config = CommonConfig(same, differing, set(), set())
        #: Whether kernels of this package are used: a compiler writes its own.
        self._kernels = self._device.type == "cuda" and not self.compiles
        if self._kernels:  # programs that others may use later must be passed all values
            # What is computed from these, say masks, is computed once for all members. Torch refuses to change them.
            self._common |= {f"model.{name}": value for name, value in constants(sessions).items()}
        self.loss = self._module()
        self.frozen = self._others()
        #: Whether nothing is dropped, so that outcomes can be compared.
        self._certain = False
        self._kind = ""
        self._runs: Counter[Hashable] = Counter()
        of_one = grad_and_value(self._of_one)
        self._grads = vmap(of_one, in_dims=(0, 0, 0, None), randomness="different")
        #: The same for comparisons: all members draw the numbers that each of them would draw alone.
        self._grads_of_same = vmap(of_one, in_dims=(0, 0, 0, None), randomness="same")

    @property
    def compiles(self) -> bool:
        """Whether the task asks for compiled models."""
        return self._sessions[0].options.compile

    def _module(self) -> Loss:
        """Return the loss as a module with a copy of the first member's model, fit to be stacked."""
        first = self._sessions[0]
        places = {one.tensor.data_ptr() for one in first.shared}
        kept: dict[int, object] = {
            id(one): one for one in (*first.model.parameters(), *first.model.buffers()) if one.data_ptr() in places
        }
        # A model that keeps its configuration has it without the numbers that differ, too.
        kept[id(first.config)] = self.config.with_values({}, self.config.differing | self._scalars.keys())
        loss = Loss(first.hooks.with_parts(Absent()), copy.deepcopy(first.model, kept))
        use_rates(loss.model, [session.model for session in self._sessions])
        #: Whether operations wait for what follows them, to be computed together.
        self._deferred = self._kernels and form(first) not in self._cache.apart
        if self._deferred:
            replace_composed(loss.model)
        return loss.train()

    def take_apart(self) -> bool:
        """Compute every operation by itself from now on; return whether some were computed together."""
        deferred = self._deferred
        self._cache.apart.add(form(self._sessions[0]))
        self.loss = self._module()
        return deferred

    def _others(self) -> dict[str, Table]:
        """Stack buffers, dropout rates, and parameters that no optimizer holds."""
        found: dict[str, Table] = {}
        models = [dict(session.model.named_modules()) for session in self._sessions]
        for name, _ in [*self.loss.named_buffers(), *self.loss.named_parameters()]:
            if name in self._parameters or name in self._common:
                continue
            path, _, last = name.removeprefix("model.").rpartition(".")
            if isinstance(self.loss.get_submodule(f"model.{path}" if path else "model"), Dropout):
                rates = [float(model[path].p) for model in models]
                found[name] = torch.tensor(rates, device=self._device)
            else:
                found[name] = torch.stack([getattr(model[path], last).detach() for model in models])
                for row, model in enumerate(models):
                    getattr(model[path], last).data = found[name][row]
        return found

    def _of_one(
        self, mine: Mapping[str, Table], others: Mapping[str, Table], scalars: Mapping[str, Table], batch: Batch
    ) -> Table:
        """Return the loss of one member; under vmap, of all members."""
        config = self.config.with_values(scalars)
        with (
            _compat.as_written(),
            StackedOperations(self._kernels, self._certain, self._deferred) as operations,
        ):
            loss: Table = functional_call(self.loss, {**mine, **others, **self._common}, (dict(batch), config))
            config.check()
            found: Table = operations.result(loss)
            return found

    def eager(self, batch: Batch) -> list[Table]:
        """Compute the gradients of all members, in pieces, and their losses, without a program."""
        return self._layout.flat(*self._grads(*self._tables, batch))

    @property
    def _tables(self) -> tuple[Mapping[str, Table], Mapping[str, Table], Mapping[str, Table]]:
        """What the loss is a function of, beside the batch."""
        return self._parameters, self.frozen, self._scalars

    def compute(self, batch: Batch) -> list[Table]:
        """Compute the gradients of all members, in pieces, and their losses; by a program if there is one."""
        if (self._layout.by_parameter and not self.compiles) or not all(map(torch.is_tensor, batch.values())):
            return self.eager(batch)
        key = self.key(batch)
        program = self._program(batch, key)
        if program is None:
            began = time.thread_time()
            found = self.eager(batch)
            if key not in self._cache.programs:
                self._cache.waiting[key].append(time.thread_time() - began)
            return found
        self._runs[key] += 1
        if self._runs[key] != COMPARED ** round(math.log(self._runs[key], COMPARED)):
            return program(*self._inputs(batch))
        return self._compared(program, batch, key)

    def key(self, batch: Batch) -> Hashable:
        """Return everything that a program depends on."""
        if not self._kind:
            first = self._sessions[0]
            differing = sorted(self.config.differing), list(self._scalars)
            sizes = len(self._sessions), self._layout.shapes
            rates = [module.common for module in self.loss.modules() if isinstance(module, Dropout)]
            self._kind = f"{id(first.task)} {form(first)} {sizes} {rates} {self.config} {differing}"
        return self._kind, *(
            (name, getattr(value, "shape", None), getattr(value, "dtype", None)) for name, value in batch.items()
        )

    def _compared(self, program: Program, batch: Batch, key: Hashable) -> list[Table]:
        """Compute both ways; if the outcomes differ, stop using the program."""
        streams, buffers = randomness.current(self._device), self._buffers()
        found = program(*self._inputs(batch))
        randomness.put(streams, self._device)
        self._restore(buffers)
        expected = self.eager(batch)
        if not all(alike(a, b, self.compiles) for a, b in zip(found, expected, strict=True)):
            self._cache.programs[key] = None
            if self._runs[key] > 1:
                raise IsolationError(CHANGING)
        return expected

    def _buffers(self) -> dict[str, Table]:
        return {name: value.clone() for name, value in self.frozen.items()}

    @contextlib.contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Restore the buffers of all members in the end."""
        buffers = self._buffers()
        try:
            yield
        finally:
            self._restore(buffers)

    @contextlib.contextmanager
    def _without_dropout(self, *models: torch.nn.Module) -> Iterator[None]:
        """Drop nothing in the stack and in some models alone: chance would hide the effect of rounding."""
        self._certain = True
        try:
            with without_dropout(self.loss, *models), CertainOperations():
                yield
        finally:
            self._certain = False

    def _restore(self, buffers: Mapping[str, Table]) -> None:
        for name, value in buffers.items():
            self.frozen[name].copy_(value)

    def _inputs(self, batch: Batch) -> list[Table]:
        return [*self._parameters.values(), *self.frozen.values(), *self._scalars.values(), *batch.values()]

    def _program(self, batch: Batch, key: Hashable) -> Program | None:
        """Return the program of a kind of batch; None if there can be none, or not yet: few batches do not pay."""
        programs = self._cache.programs
        if key not in programs:
            waited = self._cache.waiting.get(key, [])
            if len(waited) + 1 < PAYS and not self.compiles:
                return None
            pays = self.compiles or min(waited, default=0.0) < onednn.LONG
            try:
                programs[key] = self._written(batch) if pays else None
            except Exception as error:
                programs[key] = None
                self._cache.tell(f"trials are stacked without a program: {describe(error)}")
        return programs[key]

    def _written(self, batch: Batch) -> Program:
        names = [list(part) for part in (self._parameters, self.frozen, self._scalars, batch)]

        def work(*values: Table) -> list[Table]:
            rest = iter(values)
            mine, others, scalars, some = ({name: next(rest) for name in part} for part in names)
            return self._layout.flat(*self._grads(mine, others, scalars, some))

        streams, buffers = randomness.current(self._device), self._buffers()
        inputs = self._inputs(batch)
        try:
            return _compat.inductor(work, inputs) if self.compiles else quickened(recorded(work, inputs), inputs)
        finally:
            randomness.put(streams, self._device)
            self._restore(buffers)

    def deviation(self, batch: Batch) -> tuple[Deviation, bool]:
        """Measure how far a member's gradients deviate from those alone, given the same random numbers.

        Also return whether oneDNN is faster. No weight is changed. Raises Unstackable if a loss alone does something
        that one of many members cannot do.
        """
        sessions, layout, faster = self._sessions, self._layout, True
        before, streams = randomness.current(self._device), randomness.settled(sessions[0].random, self._device)
        try:
            with self._without_dropout(*(session.model for session in sessions)):
                found, stacked = NOT_MEASURED, None
                for row, alone, exact in itertools.islice(self._alone(batch, streams), MEMBERS):
                    if stacked is None:
                        faster, stacked = self._stacked(batch, streams)
                    ours = [layout.own(stacked, row, number, tuple(one.shape)) for number, one in enumerate(alone)]
                    found = compared(ours, alone, exact)
                    if found.explained:
                        break
        finally:
            randomness.put(before, self._device)
        if stacked is None:
            raise Unstackable("no gradient is finite")
        return found, faster

    def _stacked(self, batch: Batch, streams: randomness.Streams) -> tuple[bool, Table]:
        """Return whether oneDNN is faster, and the gradients of all members in one table, given random numbers."""
        faster = True
        if self._device.type == "cpu":
            with self._unchanged():
                faster = onednn.faster_with_onednn(lambda: self.eager(batch))
        randomness.put(streams, self._device)
        with self._unchanged(), onednn.using_onednn(faster):
            *pieces, _ = self._layout.flat(*self._grads_of_same(*self._tables, batch))
        if not self._layout.by_parameter:
            return faster, torch.cat(pieces, 1)
        return faster, self._layout.in_columns(pieces, rows=(len(self._sessions),))

    def _alone(
        self, batch: Batch, streams: randomness.Streams
    ) -> Iterator[tuple[int, list[Table], Callable[[], Sequence[Table] | None]]]:
        """Yield the members with finite gradients, these, and what computes them in double precision."""
        for row, session in enumerate(self._sessions):
            host = HostState(session)
            with _as_before(session):
                randomness.put(streams, self._device)
                loss = session.hooks.loss(session.model, dict(batch))
                drawn = randomness.changed(streams, randomness.current(self._device))
                if on_host := drawn - {"torch" if self._device.type == "cpu" else "device"}:
                    names = ", ".join(sorted(on_host))
                    raise Unstackable(
                        f"random numbers are drawn on the host ({names}); draw them with torch, on the device"
                    )
                alone = torch.autograd.grad(loss, self._layout.parameters(row))
                if host.changes(tensors=True):  # or it has just been made, for all batches
                    host = HostState(session)
                    session.hooks.loss(session.model, dict(batch))
                if change := host.changes(tensors=True):
                    raise Unstackable(
                        f"the loss changes {change} on the host; let it be a buffer, and change that in place"
                    )
            if any(one.is_sparse for one in alone):
                raise Unstackable("gradients are sparse")
            if all(bool(one.isfinite().all()) for one in alone):
                yield row, list(alone), partial(self._in_double, row, batch, streams if drawn else None)

    def _in_double(self, row: int, batch: Batch, streams: randomness.Streams | None) -> list[Table] | None:
        """Return the gradients of a member alone in double precision, with the same random numbers if it draws some."""
        session, draws = self._sessions[row], Draws()
        with _as_before(session):
            if streams is not None:
                randomness.put(streams, self._device)
                with draws:
                    loss = session.hooks.loss(session.model, dict(batch))
                    torch.autograd.grad(loss, self._layout.parameters(row))
            return gradients_in_double(session, batch, self._layout.names, draws.values)

    @torch.no_grad()
    def unlike(self, batch: Batch, rounding: float) -> list[int]:
        """Return the rows of members that have another loss alone than in the stack, given the same random numbers.

        A model may compute with a number of its configuration that its modules do not show; the stack computes with the
        number of the first member. Gradients alone have been found to be rounded by a part of ``rounding``. Raises
        Differs if members may compute with something else of their configurations.
        """
        streams = randomness.current(self._device)
        models = [session.model for session in self._sessions]
        alone: list[Table] = []
        # TF32 would round more than some functions differ.
        with self._unchanged(), self._without_dropout(*models), products_in("highest"):
            losses = vmap(self._of_one, in_dims=(0, 0, 0, None), randomness="same")
            stacked = losses(*self._tables, batch)
            for session in self._sessions:
                randomness.put(streams, self._device)
                with _as_before(session):
                    alone.append(session.hooks.loss(session.model, dict(batch)).detach())
        randomness.put(streams, self._device)
        expected = torch.stack(alone)
        deviations = (stacked - expected).abs() / expected.abs().clamp(min=1e-30)
        off: list[float] = torch.where(stacked.isfinite() | ~expected.isfinite(), deviations, math.inf).tolist()
        usual = min(next(filter(math.isfinite, off), 0.0), CLOSE)
        limit = max(10 * usual, TIMES * rounding, self._limit(expected.dtype))
        rows = [row for row, one in enumerate(off) if one > limit]
        differing = self.config.differing
        if rows and differing:
            raise Differs(separating([session.config for session in self._sessions], differing, rows))
        return rows

    def _limit(self, dtype: torch.dtype) -> float:
        """Return the deviation up to which a loss of some type counts as the same.

        Among members whose configurations differ in more than numbers, it is small: if rounding is taken for another
        function, they are stacked apart.
        """
        types = {dtype, *(value.dtype for value in self._parameters.values())}
        precision = float(max(torch.finfo(one).eps for one in types))
        limit = ROUNDING * math.sqrt(precision)
        return min(limit, STRICT * precision) if self.config.differing else limit


@contextlib.contextmanager
def _as_before(session: TorchSession) -> Iterator[None]:
    """Restore the buffers of a member, and what its code keeps on the host, in the end."""
    host, buffers = HostState(session), [(buffer, buffer.clone()) for buffer in session.model.buffers()]
    try:
        yield
    finally:
        host.restore()
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
