"""A flotilla as one program: members of one architecture, with their weights stacked, take every step at once.

One batched operation does what as many small ones did, so the overhead of each is paid once for all members. The sums
inside a batched product are taken in another order than alone, so the last bits differ: this is for ``fuse="fast"``,
and how far the first step is off is measured and told.

Weights and what the optimizer gathers lie in one table, a row for each member. The members' own tensors are views of
their rows: a member can be evaluated, saved or leave at any time without a copy, and those that stay together keep
their table.

On the CPU most of the time of a small step would go into finding out, again and again, which operations it is made of.
So they are written down once, as a program, and from then on the program runs. A task whose loss looks at more than its
model, batch and configuration, say at a counter of its own, would not notice that time goes by; so every now and then a
batch goes both ways, and if the outcomes differ the program is thrown away. On CUDA the step is captured and replayed,
as in ``graphs``.
"""

from __future__ import annotations

import contextlib
import copy
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.func import functional_call, grad_and_value, vmap

from hopfleet.errors import describe
from hopfleet.frameworks.base import Batch, Batches, IsolationError, Result, TrackedConfig
from hopfleet.frameworks.torch import randomness
from hopfleet.frameworks.torch.engines.cuda_graphs import (
    SIZES,
    Graphs,
    batch_key,
    capturing,
    own_generator,
    side_by_side,
)
from hopfleet.frameworks.torch.engines.interleaved import Eager, Member
from hopfleet.frameworks.torch.engines.stacked.attention import Attending
from hopfleet.frameworks.torch.engines.stacked.programs import compiled, quickened, recorded
from hopfleet.frameworks.torch.engines.stacked.updates import ALIKE, FUSED, UPDATES, Flags, Table, gathers, settings_of
from hopfleet.frameworks.torch.steps import Steps, rows_of
from hopfleet.frameworks.torch.task import TorchSession

ALIGNED = 32
"""Each parameter begins at a multiple of so many places: products of matrices are slow where it does not."""

LARGE = 1 << 22
"""Bytes of weights of a model that is not stacked on a CPU: it has little overhead to share, and would take memory for
gradients and activations of all members at once."""

CHANGING = "the loss of the task is not always the same function of model, batch and configuration"

COMPARED = 64
"""A program is compared with what it stands for in the first batch of a unit, the 64th, the 4096th and so on."""


CLOSE = 0.01
"""So far, compared with the largest, what is compiled may be off: more than rounding, less than another function."""


class Unstackable(Exception):
    """Why members cannot be stacked."""


# ----------------------------------------------------------------------------------------------------- models


class Dropout(torch.nn.Module):
    """Dropout with a rate for each member."""

    rate: torch.Tensor

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.register_buffer("rate", torch.tensor(rate))

    def forward(self, x: Any) -> Any:
        if not self.training:
            return x
        kept = torch.rand_like(x) >= self.rate
        return x * kept / (1 - self.rate).clamp(min=1e-12)


def _with_rates(model: Any) -> None:
    """Put our own dropout in place of torch's."""
    for module in model.modules():
        for name, child in list(module.named_children()):
            if type(child) is torch.nn.Dropout:
                setattr(module, name, Dropout(child.p))


class Loss(torch.nn.Module):
    """The loss of a task as a module, so that all it reads can be handed in."""

    def __init__(self, task: Any, model: Any) -> None:
        super().__init__()
        self.model = model
        self._task = [task]

    def forward(self, batch: Batch, config: Mapping[str, Any]) -> Any:
        task = self._task[0]
        task.config = config
        return task.loss(self.model, batch)


def kind(session: TorchSession) -> Hashable:
    """Members of one kind can be stacked."""
    if len(session.optimizers) != 1 or type(session.optimizers[0]) not in UPDATES:
        names = [type(one).__name__ for one in session.optimizers] or ["none"]
        raise Unstackable(f"the optimizer is {', '.join(names)}")
    if session.scaler is not None:
        raise Unstackable("a gradient scaler looks at values")
    if not session.options.plain:
        raise Unstackable("the task clips, averages or gathers, or has another precision")
    weights = sum(weight.numel() * weight.element_size() for weight in session.model.parameters())
    if session.device.type == "cpu" and weights > LARGE and not session.options.compile:
        raise Unstackable("models are large, and on a CPU large ones gain little by being stacked")
    return form(session), session.counters["units"] == 0


def form(session: TorchSession) -> str:
    """What members that are computed alike have in common."""
    optimizer = session.optimizers[0]
    layers = [
        (name, type(module), "" if isinstance(module, torch.nn.Dropout) else module.extra_repr())
        for name, module in session.model.named_modules()
    ]
    shapes = [(name, tuple(value.shape), value.dtype) for name, value in session.model.named_parameters()]
    groups = [
        (
            [tuple(p.shape) for p in group["params"]],
            [bool(group.get(flag)) for flag in ALIKE],
            gathers(optimizer, group),
        )
        for group in optimizer.param_groups
    ]
    words = {key: value for key, value in dict.items(session.config) if not isinstance(value, float)}
    return str((layers, shapes, type(optimizer), groups, words, session.device))


# ------------------------------------------------------------------------------------------------ the library


@contextlib.contextmanager
def library(onednn: bool) -> Iterator[None]:
    """Let products on the CPU be taken by oneDNN, or by the plain BLAS, which may be much quicker for small ones."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(before and onednn)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def quicker(work: Callable[[], object], times: int = 3) -> bool:
    """Whether some work is done sooner with oneDNN than without it. The first time it may have something to set up."""
    if not torch._C._get_mkldnn_enabled():
        return True
    best = {True: float("inf"), False: float("inf")}
    for number in range(times):
        if number > 1 and min(best.values()) > LONG:
            break
        for onednn in best:
            with library(onednn):
                began = time.thread_time()
                work()
                best[onednn] = min(best[onednn], time.thread_time() - began)
    return best[True] <= best[False]


# -------------------------------------------------------------------------------------------------- the stack


class Tried(NamedTuple):
    """What was found out about members of one kind."""

    onednn: bool  #: whether it is quicker
    config: TrackedConfig  #: that of a member, by which it is known what the loss reads


class Group(NamedTuple):
    """A group of parameters: which they are, where they lie in the table, and its settings, a row for each member.

    Gradients come in ``pieces``: on CUDA one for each parameter, elsewhere all of a group in one.
    """

    parameters: slice
    columns: slice
    pieces: slice
    settings: dict[str, Table]


def _place(table: Table, row: int, columns: slice) -> int:
    """Where a row of some columns lies in memory."""
    return int(table.data_ptr() + (row * table.stride(0) + columns.start) * table.element_size())


def _alike(found: Table, expected: Table, compiled: bool) -> bool:
    """Whether a program has done what it stands for; a compiler may round otherwise."""
    if torch.equal(found, expected) or bool(found.isnan().any()):
        return True
    off = (found - expected).abs().max() / expected.abs().max().clamp(min=1e-30)
    return compiled and float(off) < CLOSE


class Stack:
    """Members of one kind in one table: ``weights`` and each entry of ``state`` have a row for each of them."""

    def __init__(self, sessions: Sequence[TorchSession]) -> None:
        self.sessions = sessions
        first = sessions[0]
        names = {id(parameter): name for name, parameter in first.model.named_parameters()}
        self._groups: list[Group] = []
        self._names: list[str] = []
        self._columns: list[slice] = []
        for group in first.optimizers[0].param_groups:
            number, start, first_name = len(self._groups), self._width, len(self._names)
            for parameter in group["params"]:
                self._names.append(names[id(parameter)])
                first_column = self._width
                self._columns.append(slice(first_column, first_column + parameter.numel()))
            parameters = slice(first_name, len(self._names))
            pieces = parameters if first.device.type == "cuda" else slice(number, number + 1)
            self._groups.append(Group(parameters, slice(start, self._width), pieces, {}))
        self._shapes = [tuple(parameter.shape) for parameter in self._members(0)]
        self.weights = torch.stack([self._in_columns([p.detach() for p in self._members(i)]) for i in self._rows])
        self._parameters = self._views(self.weights)
        for row in self._rows:
            for parameter, columns, shape in zip(self._members(row), self._columns, self._shapes, strict=True):
                parameter.data = self.weights[row, columns].view(shape)
        self._gather()
        self._loss = Loss(first.task, copy.deepcopy(first.model))
        _with_rates(self._loss.model)
        self._loss.train()
        self._frozen = self._others()
        self._scalars = self._configs()
        self.onednn = True
        self._kind = ""
        self._runs: Counter[Hashable] = Counter()
        #: The settings of all groups of each member, as they were read.
        self._numbers: list[list[dict[str, float]]] = []
        #: How many units each member had trained when this stack began its last one.
        self._units = [-1] * len(sessions)
        #: The numbers of steps that optimizers count for each parameter, by device, once they know their rows.
        self._counts: dict[Any, Table] = {}
        #: For updates that are made in one go: weights and state of each member, piece by piece, and who makes them.
        self._lists = [[self._pieces(table[row]) for table in self._tables_of_update] for row in self._rows]
        self._updates: list[list[Callable[..., None]]] = []
        #: Its captured steps, for batches of some sizes; how many there can be, and whether they will last.
        self.captures: dict[Hashable, StackCapture] = {}
        self.sizes = SIZES if self.weights.is_cuda and first.task.lr_step != "batch" else 0
        self.lasting = False
        self._grads = vmap(grad_and_value(self._of_one), in_dims=(0, 0, 0, None), randomness="different")

    @property
    def _width(self) -> int:
        return -(-self._columns[-1].stop // ALIGNED) * ALIGNED if self._columns else 0

    @property
    def _tables_of_update(self) -> list[Table]:
        names = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
        return [self.weights, *(self.state[name] for name in names if name in self.state)]

    def _pieces(self, row: Table) -> list[Table]:
        on_cuda = self.weights.is_cuda
        return [row[columns] for columns in (self._columns if on_cuda else [group.columns for group in self._groups])]

    @property
    def _rows(self) -> range:
        return range(len(self.sessions))

    def _members(self, row: int) -> list[Any]:
        """The parameters of one member, in the order of the columns."""
        return [p for group in self.sessions[row].optimizers[0].param_groups for p in group["params"]]

    def _views(self, table: Table) -> dict[str, Table]:
        rows = len(self.sessions)
        places = zip(self._names, self._columns, self._shapes, strict=True)
        return {f"model.{name}": table[:, columns].view(rows, *shape) for name, columns, shape in places}

    def _in_columns(self, values: Sequence[Table], some: slice = slice(None), rows: tuple[int, ...] = ()) -> Table:
        """Values for some parameters, of one member or of all, as they lie in the table: with zeros in the gaps."""
        pieces: list[Table] = []
        ends = [*(columns.start for columns in self._columns[1:]), self._width]
        for value, columns, end in zip(values, self._columns[some], ends[some], strict=True):
            pieces.append(value.reshape(*rows, -1))
            if columns.stop < end:
                pieces.append(value.new_zeros(*rows, end - columns.stop))
        return torch.cat(pieces, dim=-1)

    def _flat(self, grads: Mapping[str, Table], losses: Table) -> list[Table]:
        """Gradients in pieces, each with a row for each member, and losses."""
        pieces = [grads[f"model.{name}"].reshape(len(self.sessions), -1) for name in self._names]
        if not losses.is_cuda:
            pieces = [self._joined(pieces, group) for group in self._groups]
        return [*pieces, losses.detach()]

    def _joined(self, pieces: Sequence[Table], group: Group) -> Table:
        return self._in_columns(pieces[group.parameters], group.parameters, (len(self.sessions),))

    # ------------------------------------------------------------------------------------- what is handed in

    def _gather(self) -> None:
        """Lay out what the optimizers have gathered so far."""
        optimizers = [session.optimizers[0] for session in self.sessions]
        wanted = sorted({name for group in optimizers[0].param_groups for name in gathers(optimizers[0], group)})
        self.state = {name: torch.zeros_like(self.weights) for name in wanted}
        counts = []
        for row, optimizer in enumerate(optimizers):
            count = 0.0
            for parameter, columns in zip(self._members(row), self._columns, strict=True):
                state = optimizer.state.get(parameter, {})
                for name in wanted:
                    if state.get(name) is not None:
                        self.state[name][row, columns] = state[name].reshape(-1)
                        count = max(count, 2.0)  # SGD only wants to know whether it has begun
                count = float(state["step"]) if "step" in state else count
            counts.append([count])
        self.steps = torch.tensor(counts, dtype=torch.float32, device=self.weights.device)

    def _others(self) -> dict[str, Table]:
        """Buffers, rates of dropout, and parameters that no optimizer has."""
        mine = set(self._parameters)
        found: dict[str, Table] = {}
        models = [dict(session.model.named_modules()) for session in self.sessions]
        for name, _ in [*self._loss.named_buffers(), *self._loss.named_parameters()]:
            if name in mine:
                continue
            path, _, last = name.removeprefix("model.").rpartition(".")
            if last == "rate" and isinstance(self._loss.get_submodule(f"model.{path}" if path else "model"), Dropout):
                rates = [model[path].p for model in models]
                found[name] = torch.tensor(rates, device=self.weights.device)
            else:
                found[name] = torch.stack([getattr(model[path], last).detach() for model in models])
                for row, model in enumerate(models):
                    getattr(model[path], last).data = found[name][row]
        return found

    def _configs(self) -> dict[str, Table]:
        """The numbers of the configurations that are not the same for all."""
        configs = [dict(dict.items(session.config)) for session in self.sessions]
        differ = [k for k, v in configs[0].items() if isinstance(v, float) and any(c[k] != v for c in configs)]
        return {key: torch.tensor([c[key] for c in configs], device=self.weights.device) for key in differ}

    def _of_one(
        self, mine: Mapping[str, Any], others: Mapping[str, Any], scalars: Mapping[str, Any], batch: Batch
    ) -> Any:
        """The loss of one member; under vmap, of all of them."""
        config = {**dict(dict.items(self.sessions[0].config)), **scalars}
        with Attending():
            return functional_call(self._loss, {**mine, **others}, (dict(batch), config))

    # ------------------------------------------------------------------------------------------------ a step

    def read_settings(self) -> None:
        """Take over the settings of all optimizers, as they are now."""
        groups_of = [session.optimizers[0].param_groups for session in self.sessions]
        before, self._numbers = self._numbers, [[settings_of(group) for group in groups] for groups in groups_of]
        self.lasting = self._numbers == before
        if self.lasting:
            return
        self.captures.clear()  # they have the old ones
        for index, group in enumerate(self._groups):
            numbers = [of_one[index] for of_one in self._numbers]
            for name in numbers[0]:
                column = [[entry[name]] for entry in numbers]
                group.settings[name] = torch.tensor(column, dtype=self.weights.dtype, device=self.weights.device)
        if type(self.sessions[0].optimizers[0]) in FUSED:
            self._updates = [[self._update(index, row) for row in self._rows] for index in range(len(self._groups))]

    def step(self, batch: Batch) -> Table:
        """Train all members on a batch; returns their losses."""
        with library(self.onednn), torch.no_grad():
            *grads, losses = self._run(batch)
        self.steps += 1
        optimizer = self.sessions[0].optimizers[0]
        with torch.no_grad():
            for index, (group, known) in enumerate(zip(optimizer.param_groups, self._groups, strict=True)):
                if type(optimizer) in FUSED and not group["maximize"]:
                    self._fused(index, grads[known.pieces])
                    continue
                rows = self._joined(grads, known) if self.weights.is_cuda else grads[index]
                state = {name: self.state[name][:, known.columns] for name in gathers(optimizer, group)}
                flags = Flags(bool(group.get("nesterov")), isinstance(optimizer, torch.optim.AdamW))
                downhill = -rows if group.get("maximize") else rows
                weights = self.weights[:, known.columns]
                UPDATES[type(optimizer)](weights, downhill, state, known.settings, self.steps, flags)
        return losses

    def _update(self, index: int, row: int) -> Callable[..., None]:
        """What updates a group of one member, in one go, given the pieces of its gradient."""
        some, numbers = self._groups[index].pieces, self._numbers[row][index]
        weights, first, second, *largest = (pieces[some] for pieces in self._lists[row])
        options = {name: numbers[name] for name in ("lr", "beta1", "beta2", "weight_decay", "eps")}
        rest = first, second, largest[0] if largest else [], [self.steps[row]] * len(weights)
        fused = FUSED[type(self.sessions[0].optimizers[0])]
        return lambda grads: fused(weights, grads, *rest, **options, amsgrad=bool(largest), maximize=False)

    def _fused(self, index: int, pieces: Sequence[Table]) -> None:
        """Update a group of one member after the other."""
        of_rows = zip(*(piece.unbind() for piece in pieces), strict=True)
        with side_by_side(self.weights.device) as on_lane:
            for row, (update, grads) in enumerate(zip(self._updates[index], of_rows, strict=True)):
                with on_lane(row):
                    update(grads)

    def tables(self) -> list[Table]:
        """All that a step changes."""
        return [self.weights, self.steps, *self.state.values(), *self._frozen.values()]

    @property
    def whole(self) -> bool:
        """Whether all members still have their rows: none was loaded anew, or has trained without the others."""
        for row, session in enumerate(self.sessions):
            if session.counters["units"] != self._units[row] + 1:
                return False
            optimizer = session.optimizers[0]
            for group, known in zip(optimizer.param_groups, self._groups, strict=True):
                # Whoever has other tensors has none of these: one of a group tells.
                parameter, columns = group["params"][0], self._columns[known.parameters.start]
                state = optimizer.state.get(parameter, {})
                pairs = [(parameter, self.weights), *((state.get(name), table) for name, table in self.state.items())]
                if any(own is None or own.data_ptr() != _place(table, row, columns) for own, table in pairs):
                    return False
        return True

    def gradients(self, batch: Batch) -> list[Table]:
        """The gradients of all members, in pieces, and their losses."""
        return self._flat(*self._grads(self._parameters, self._frozen, self._scalars, batch))

    def _run(self, batch: Batch) -> list[Table]:
        """The same, by a program if there can be one."""
        if (self.weights.is_cuda and not self.compiles) or not all(map(torch.is_tensor, batch.values())):
            return self.gradients(batch)
        key = self._key(batch)
        program = self._program(batch, key)
        if program is None:
            began = time.thread_time()
            found = self.gradients(batch)
            if key not in _programs:
                _waiting.setdefault(key, []).append(time.thread_time() - began)
            return found
        self._runs[key] += 1
        if self._runs[key] != COMPARED ** round(math.log(self._runs[key], COMPARED)):
            return program(*self._inputs(batch))
        return self._compared(program, batch, key)

    @property
    def compiles(self) -> bool:
        return self.sessions[0].options.compile

    def _compared(self, program: Program, batch: Batch, key: Hashable) -> list[Table]:
        """Both ways; if they differ, the program is not used again."""
        device = self.weights.device
        streams, buffers = randomness.current(device), {name: value.clone() for name, value in self._frozen.items()}
        found = program(*self._inputs(batch))
        randomness.put(streams, device)
        for name, value in buffers.items():
            self._frozen[name].copy_(value)
        expected = self.gradients(batch)
        if not all(_alike(a, b, self.compiles) for a, b in zip(found, expected, strict=True)):
            _programs[key] = None
            if self._runs[key] > 1:
                raise IsolationError(CHANGING)
        return expected

    def _inputs(self, batch: Batch) -> list[Table]:
        return [*self._parameters.values(), *self._frozen.values(), *self._scalars.values(), *batch.values()]

    def _key(self, batch: Batch) -> Hashable:
        """What a program depends on."""
        if not self._kind:
            alike = {k: v for k, v in dict.items(self.sessions[0].config) if k not in self._scalars}
            task = self.sessions[0].task
            self._kind = f"{id(task)} {form(self.sessions[0])} {len(self.sessions)} {alike} {list(self._scalars)}"
        return self._kind, *(
            (name, getattr(value, "shape", None), getattr(value, "dtype", None)) for name, value in batch.items()
        )

    def _program(self, batch: Batch, key: Hashable) -> Program | None:
        """The operations of a step; None if they cannot be written down, or not yet: few batches do not pay."""
        if key not in _programs:
            waited = _waiting.get(key, [])
            if len(waited) + 1 < PAYS and not self.compiles:
                return None
            pays = self.compiles or min(waited, default=0.0) < LONG
            try:
                _programs[key] = self._written(batch) if pays else None
            except Exception as error:
                _programs[key] = None
                _tell(f"trials are stacked without a program: {describe(error)}")
        return _programs[key]

    def _written(self, batch: Batch) -> Program:
        names = [list(part) for part in (self._parameters, self._frozen, self._scalars, batch)]

        def work(*values: Table) -> list[Table]:
            rest = iter(values)
            mine, others, scalars, some = ({name: next(rest) for name in part} for part in names)
            return self._flat(*self._grads(mine, others, scalars, some))

        device = self.weights.device
        streams, buffers = randomness.current(device), {name: value.clone() for name, value in self._frozen.items()}
        inputs = self._inputs(batch)
        try:
            return compiled(work, inputs) if self.compiles else quickened(recorded(work, inputs), inputs)
        finally:
            randomness.put(streams, device)
            for name, value in buffers.items():
                self._frozen[name].copy_(value)

    def try_out(self, batch: Batch) -> None:
        """Find out how far members of this kind are off, and how they are quickest, if that is not known."""
        key = self._key(batch)
        if key not in _tried:
            off = self._deviation(batch)
            _tell(f"trials are stacked; gradients are off by {off:.0e} of the largest")
            _tried[key] = Tried(self.onednn, self.sessions[0].config)
        self.onednn = _tried[key].onednn
        self.sessions[0].config.share(_tried[key].config)

    def _deviation(self, batch: Batch) -> float:
        """How far the first member's gradients are off, compared with the largest of them. Changes no weight."""
        session = self.sessions[0]
        kept = [buffer.clone() for buffer in session.model.buffers()]
        session.activate()
        # Chance would hide what rounding does.
        chance = [m for m in (*session.model.modules(), *self._loss.modules()) if "Dropout" in type(m).__name__]
        for module in chance:
            module.eval()
        mine = self._members(0)
        loss = session.task.loss(session.model, dict(batch))
        alone = self._in_columns(torch.autograd.grad(loss, mine))
        for buffer, value in zip(session.model.buffers(), kept, strict=True):
            buffer.copy_(value)
        others = {name: value.clone() for name, value in self._frozen.items()}
        if self.weights.device.type == "cpu":
            self.onednn = quicker(lambda: self.gradients(batch))
        with library(self.onednn):
            pieces = [piece[0] for piece in self.gradients(batch)[:-1]]
        stacked = self._in_columns(pieces) if self.weights.is_cuda else torch.cat(pieces)
        for name, value in others.items():
            self._frozen[name].copy_(value)
        for module in chance:
            module.train()
        return float((stacked - alone).abs().max() / alone.abs().max().clamp(min=1e-30))

    def settle(self) -> None:
        """Let every optimizer know what it would have gathered by itself."""
        self._units = [session.counters["units"] for session in self.sessions]
        for session in self.sessions:
            session.config.share(self.sessions[0].config)
        if not self._counts:
            self._hand_out()
        for counts in self._counts.values():
            counts.copy_(self.steps.expand_as(counts))

    def _hand_out(self) -> None:
        """Give every optimizer its rows of what is gathered."""
        for row, session in enumerate(self.sessions):
            optimizer = session.optimizers[0]
            places = {id(p): number for number, p in enumerate(self._members(row))}
            for group in optimizer.param_groups:
                there = group.get("capturable") or group.get("fused")
                device = self.weights.device if there else torch.device("cpu")
                if device not in self._counts:
                    self._counts[device] = torch.zeros(len(self.sessions), len(places), device=device)
                for parameter in group["params"]:
                    number, state = places[id(parameter)], optimizer.state[parameter]
                    for name in gathers(optimizer, group):
                        state[name] = self.state[name][row, self._columns[number]].view(parameter.shape)
                    if type(optimizer) is not torch.optim.SGD:
                        state["step"] = self._counts[device][row, number]


class Stacked(Eager):
    """Members of one kind as one program; the others one after another."""

    def _go(self, members: Sequence[Member], batches: Batches) -> None:
        self._stacks: list[tuple[Stack, list[Member]]] | None = None
        self._losses: list[list[Table]] = []
        self._counts: list[int] = []
        super()._go(members, batches)
        stacks: list[tuple[Stack, list[Member]]] = self._stacks or []
        for (stack, crew), losses in zip(stacks, self._losses, strict=True):
            stack.settle()
            table = torch.stack(losses).cpu()
            for row, member in enumerate(crew):
                steps = member.work
                assert isinstance(steps, Steps)
                steps.note({"loss": table[:, row]}, *self._counts)

    def evaluate(self, batches: Batches, *, seed: int) -> list[Result]:
        on_cuda = self.sessions[0].device.type == "cuda"
        others = Graphs(self.sessions) if on_cuda else Eager(self.sessions)
        others.turn = self.turn
        with library(all(known.onednn for known in _tried.values())), _uncompiled(self.sessions):
            results = others.evaluate(batches, seed=seed)
        self.shares = others.shares
        return results

    def _launch(self, members: list[Member], batch: Batch) -> list[Member]:
        if self._stacks is None:
            self._stacks = list(self._stacked(members, batch))
            self._losses = [[] for _ in self._stacks]
        stacked: set[Member] = set()
        self._counts.append(rows_of(batch))
        device = self.sessions[0].device
        quick = randomness.QUICK & randomness.names(device)
        still = randomness.current(device, quick)
        for (stack, crew), losses in zip(self._stacks, self._losses, strict=True):
            stacked.update(crew)
            captain = crew[0]
            session = captain.session
            randomness.put(captain.random, device, quick)
            began = time.perf_counter()
            losses.append(_stepped(stack, captain, batch))
            spent = (time.perf_counter() - began) / len(crew)
            captain.random |= randomness.current(device, quick)
            for member in crew:
                member.seconds += spent
                if session.task.lr_step == "batch" and member.session.schedulers:
                    member.session.activate()
                    member.work.step_schedule()  # type: ignore[attr-defined]
            if session.task.lr_step == "batch":
                stack.read_settings()
        randomness.put(still, device, quick)
        return [member for member in members if member not in stacked]

    def _stacked(self, members: list[Member], batch: Batch) -> Iterator[tuple[Stack, list[Member]]]:
        whole = _kept([member.session for member in members])
        for crew in [members] if whole else self._crews(members):
            sessions = [member.session for member in crew]
            try:
                stack = whole or _kept(sessions) or Stack(sessions)
                stack.read_settings()
                stack.try_out(batch)
            except Exception as error:
                _tell(f"trials train in turn: {describe(error)}")
                continue
            for member in crew:
                member.draws = frozenset()
                member.session.aboard[Stack] = stack
                member.session.optimizers[0]._opt_called = True  # else schedules warn that it never steps
            yield stack, crew

    def _crews(self, members: list[Member]) -> list[list[Member]]:
        """Members that can be stacked with each other."""
        kinds: dict[Hashable, list[Member]] = {}
        for member in members:
            try:
                kinds.setdefault(kind(member.session), []).append(member)
            except Unstackable as reason:
                _tell(f"trials train in turn: {reason}")
        return [crew for crew in kinds.values() if len(crew) > 1]


def _kept(sessions: Sequence[TorchSession]) -> Stack | None:
    """The stack of just these, if they have one."""
    stack: Stack | None = sessions[0].aboard.get(Stack) if sessions else None
    return stack if stack is not None and stack.sessions == sessions and stack.whole else None


@contextlib.contextmanager
def _uncompiled(sessions: Sequence[TorchSession]) -> Iterator[None]:
    """Have models as they are: compiling each of them takes longer than it saves where all train as one."""
    kept = [session.callable for session in sessions]
    for session in sessions:
        session.callable = session.model
    try:
        yield
    finally:
        for session, compiled in zip(sessions, kept, strict=True):
            session.callable = compiled


def _stepped(stack: Stack, captain: Member, batch: Batch) -> Table:
    """A step of a stack, replayed if it was captured."""
    key = batch_key(batch, stack.weights.device) if stack.sizes else None
    if key in stack.captures:
        return stack.captures[key].step(batch)
    losses = stack.step(batch)
    # The last batch of a partition is often a smaller one: to capture it pays only if it comes again.
    if len(stack.captures) < min(stack.sizes, SIZES if stack.lasting else 1):
        try:
            stack.captures[key] = StackCapture(stack, batch, captain)
        except Exception as error:
            stack.sizes = len(stack.captures)
            _tell(f"steps of the stack are not captured: {describe(error)}")
    return losses


class StackCapture:
    """The step of a stack, ready to be replayed. What it draws comes from a generator of its own."""

    def __init__(self, stack: Stack, batch: Batch, captain: Member) -> None:
        device = stack.weights.device
        if batch_key(batch, device) is None:
            raise ValueError("a batch has a column that is not a tensor")
        self._inputs = {name: value.clone() for name, value in batch.items()}
        self._generator = torch.Generator(device)
        self._generator.set_state(captain.random["device"])
        self._graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        captain.session.activate()
        with own_generator(device, self._generator), torch.cuda.stream(stream), capturing(self._graph):
            self._losses = stack.step(dict(self._inputs))
        torch.cuda.current_stream().wait_stream(stream)
        self._check(stack)

    def step(self, batch: Batch) -> Table:
        for name, value in self._inputs.items():
            value.copy_(batch[name], non_blocking=True)
        self._generator.set_state(torch.cuda.get_rng_state(self._losses.device))
        self._graph.replay()
        torch.cuda.set_rng_state(self._generator.get_state(), self._losses.device)
        return self._losses.clone()

    def _check(self, stack: Stack) -> None:
        """Raise if a replay does not do what the step does. All is as before then."""
        before = [table.clone() for table in stack.tables()]
        random = torch.cuda.get_rng_state(self._losses.device)
        replayed = [self.step(self._inputs), *(table.clone() for table in stack.tables())]
        for again in (True, False):
            for table, value in zip(stack.tables(), before, strict=True):
                table.copy_(value)
            torch.cuda.set_rng_state(random, self._losses.device)
            if again:
                eager = [stack.step(dict(self._inputs)), *(table.clone() for table in stack.tables())]
        if not all(_alike(a, b, stack.compiles) for a, b in zip(replayed, eager, strict=True)):
            raise ValueError("a replayed step does not do what the step does")


PAYS = 16
"""Batches of a kind after which it is worth while to write a program."""

LONG = 0.05
"""Seconds. What takes longer is not quicker by a program: a few milliseconds of it are Python at most."""

Program = Callable[..., list[Table]]

_programs: dict[Hashable, Program | None] = {}
_waiting: dict[Hashable, list[float]] = {}

_tried: dict[Hashable, Tried] = {}

_told: set[str] = set()


def _tell(text: str) -> None:
    if text not in _told:
        _told.add(text)
        sys.stderr.write(f"hopfleet: {text}\n")
