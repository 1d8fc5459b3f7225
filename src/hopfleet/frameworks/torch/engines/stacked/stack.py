"""A stack: the weights and optimizer states of several members in tables with a row for each member.

The members' own tensors are views of their rows: a member can be evaluated, saved or leave at any time without a copy,
and members that stay together keep their tables.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial

import torch

from hopfleet.frameworks.base import Batch
from hopfleet.frameworks.torch._compat import FUSED, fused_update
from hopfleet.frameworks.torch.capturable import decoupled, sent
from hopfleet.frameworks.torch.engines.capture import SIZES, backend_of, batch_key, capturing, shared_pool
from hopfleet.frameworks.torch.engines.capture_backend import GraphCache
from hopfleet.frameworks.torch.engines.stacked.cache import Findings, Proof, StackCache
from hopfleet.frameworks.torch.engines.stacked.deferred import Escaped
from hopfleet.frameworks.torch.engines.stacked.gradients import Gradients, alike
from hopfleet.frameworks.torch.engines.stacked.kernels import SETTINGS, AdamKernel, adam_kernel
from hopfleet.frameworks.torch.engines.stacked.layout import Group, StackLayout, trained
from hopfleet.frameworks.torch.engines.stacked.models import Unstackable
from hopfleet.frameworks.torch.engines.stacked.onednn import using_onednn
from hopfleet.frameworks.torch.engines.stacked.rounding import NOT_MEASURED, Deviation
from hopfleet.frameworks.torch.engines.stacked.updates import UPDATES, Flags, Table, settings_of, state_names
from hopfleet.frameworks.torch.session import TorchSession
from hopfleet.frameworks.torch.trial import ParameterGroup

UNLIKE_ROUNDING = "which rounding does not explain"

Numbers = list[list[dict[str, float]]]
"""The settings of each group of each member."""


class Stack:
    """Members of one kind in one table: ``weights`` and each entry of ``state`` have a row for each member."""

    def __init__(self, sessions: Sequence[TorchSession]) -> None:
        self.sessions = sessions
        self._cache = sessions[0].cache
        self._layout = layout = StackLayout(sessions)
        rows = [layout.in_columns([p.detach() for p in layout.parameters(row)]) for row in layout.rows]
        self.weights = torch.stack(rows)
        parameters = layout.views(self.weights)
        #: For padded members, which keep tensors of their own: each of these, and the part of a table that it is given
        #: after a unit. Other members use their rows.
        self._kept: list[tuple[Table, Table]] = []
        for row in layout.rows:
            for number, parameter in enumerate(layout.parameters(row)):
                part = layout.own(self.weights, row, number, tuple(parameter.shape))
                if layout.padded:
                    self._kept.append((parameter.data, part))
                else:
                    parameter.data = part
        #: Which parameters need gradients: code may freeze some, or train those that were frozen, between two units.
        self._needs = _needs(sessions[0])
        self._gather()
        self.gradients = Gradients(sessions, layout, parameters)
        self.onednn = True
        #: The settings of all groups of each member at the last reading.
        self._numbers: Numbers = []
        #: The number of units that each member had trained when this stack ended its last one.
        self._units = [-1] * len(sessions)
        #: The step counts that the optimizers keep for each parameter, by device, once they hold their rows.
        self._counts: dict[torch.device, Table] = {}
        adam = type(sessions[0].optimizers[0]) in FUSED
        #: The kernel that updates all members at once, and reads all of their settings from the device.
        self._kernel = adam_kernel(self.weights.device) if adam and self.weights.dtype == torch.float32 else None
        #: Otherwise: whether updates are fused. Only their learning rates can be read from the device.
        self._fuses = adam and self._kernel is None
        #: For fused updates: weights and state of each member, piece by piece, and the update of each group and member.
        tables = self._tables_of_update if self._fuses else []
        self._lists = [[layout.pieces(table[row]) for table in tables] for row in layout.rows]
        self._updates: list[list[Callable[[Sequence[Table]], None]]] = []
        #: Whether captures contain the update. Otherwise fused updates follow them, with the settings of the moment.
        self.captures_updates = True
        #: Captured steps by batch size, the greatest number of them, and whether they stay valid in the next unit.
        self.captures: dict[Hashable, StackCapture] = {}
        self.sizes = SIZES if layout.by_parameter else 0
        self.lasting = False

    @property
    def compiles(self) -> bool:
        """Whether the task asks for compiled models."""
        return self.gradients.compiles

    @property
    def _tables_of_update(self) -> list[Table]:
        names = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
        return [self.weights, *(self.state[name] for name in names if name in self.state)]

    def _gather(self) -> None:
        """Copy the states of all optimizers into tables."""
        optimizers = [session.optimizers[0] for session in self.sessions]
        wanted = sorted({name for group in optimizers[0].param_groups for name in state_names(optimizers[0], group)})
        self.state = {name: torch.zeros_like(self.weights) for name in wanted}
        counts = []
        for row, optimizer in enumerate(optimizers):
            parameters = self._layout.parameters(row)
            steps = {_steps(optimizer.state.get(parameter, {}), wanted) for parameter in parameters}
            if len(steps) > 1:
                raise Unstackable("some weights have made fewer updates than others")
            for number, parameter in enumerate(parameters):
                for name in wanted:
                    if (value := optimizer.state.get(parameter, {}).get(name)) is not None:
                        self._layout.own(self.state[name], row, number, tuple(parameter.shape)).copy_(value)
            counts.append([*steps])
        self.steps = torch.tensor(counts, dtype=torch.float32, device=self.weights.device)

    # ------------------------------------------------------------------------------------------------ a step

    def read_settings(self) -> None:
        """Read the present settings of all optimizers. Captures stay valid if they read those that have changed."""
        before, self._numbers = self._numbers, [settings_of(session.optimizers[0]) for session in self.sessions]
        changed = _changed(before, self._numbers)
        for index, name in changed:
            column = [[of_one[index][name]] for of_one in self._numbers]
            value = sent(column, self.weights.dtype, self.weights.device)
            settings = self._layout.groups[index].settings
            settings[name] = settings[name].copy_(value) if name in settings else value
        if self._fuses and not self._updates:
            rows, groups = self._layout.rows, range(len(self._layout.groups))
            self._updates = [[self._update(index, row) for row in rows] for index in groups]
        names = {name for _, name in changed}
        if self._fuses and self.captures_updates and self.captures and not names <= {"lr"}:
            self.captures_updates = False  # a schedule changes more than learning rates
            self.captures.clear()
        reads = not self._fuses or not self.captures_updates or (self._reads_rates and names <= {"lr"})
        self.lasting = not changed or (bool(before) and reads)
        if not self.lasting:
            self.captures.clear()

    @property
    def _reads_rates(self) -> bool:
        """Whether fused updates read learning rates from the device, which torch allows in single precision."""
        return self._layout.by_parameter and self.weights.dtype == torch.float32

    def step(self, batch: Batch) -> Table:
        """Train all members on a batch; return their losses."""
        *grads, losses = self.compute(batch)
        self.update(grads)
        return losses

    def compute(self, batch: Batch) -> list[Table]:
        """Return the gradients of all members, in pieces, and their losses."""
        with using_onednn(self.onednn), torch.no_grad():
            return self.gradients.compute(batch)

    def update(self, grads: Sequence[Table]) -> None:
        """Update the weights of all members with gradients in pieces."""
        self.steps += 1
        optimizer, most = self.sessions[0].optimizers[0], self.sessions[0].options.clip_norm
        with torch.no_grad():
            grads = grads if most is None else _limited(grads, most)
            for index, (group, known) in enumerate(zip(optimizer.param_groups, self._layout.groups, strict=True)):
                if self._kernel is not None and not group["maximize"]:
                    self._by_kernel(self._kernel, known, group, grads[known.pieces])
                    continue
                if self._fuses and not group["maximize"]:
                    self._fused(index, grads[known.pieces])
                    continue
                rows = self._layout.joined(grads, known) if self._layout.by_parameter else grads[index]
                state = {name: self.state[name][:, known.columns] for name in state_names(optimizer, group)}
                flags = Flags(bool(group.get("nesterov")), decoupled(optimizer, group))
                downhill = -rows if group.get("maximize") else rows
                weights = self.weights[:, known.columns]
                UPDATES[type(optimizer)](weights, downhill, state, known.settings, self.steps, flags)

    def _by_kernel(self, kernel: AdamKernel, known: Group, group: ParameterGroup, pieces: Sequence[Table]) -> None:
        """Update a group of all members at once."""
        optimizer, columns = self.sessions[0].optimizers[0], self._layout.columns[known.parameters]
        tables = [self.weights, *(self.state[name] for name in state_names(optimizer, group))]
        by_itself = decoupled(optimizer, group)
        with self._cache.part(GraphCache).side_by_side(self.weights.device) as on_lane:
            kernel.update(tables, pieces, columns, known.settings, self.steps, on_lane, decoupled=by_itself)

    def _update(self, index: int, row: int) -> Callable[[Sequence[Table]], None]:
        """Return the fused update of a group of one member, a function of the pieces of its gradient."""
        optimizer, some = self.sessions[0].optimizers[0], self._layout.groups[index].pieces
        group = optimizer.param_groups[index]
        weights, first, second, *largest = (pieces[some] for pieces in self._lists[row])
        rates = {"lr": self._layout.groups[index].settings["lr"][row, 0]} if self._reads_rates else {}
        rest = first, second, largest[0] if group["amsgrad"] else [], [self.steps[row]] * len(weights)
        fused = fused_update(decoupled=decoupled(optimizer, group))
        read: Numbers = []
        settings: dict[str, float | Table] = {}

        def update(grads: Sequence[Table]) -> None:
            nonlocal read
            if read is not self._numbers:
                read = self._numbers
                settings.update({name: read[row][index][name] for name in SETTINGS}, **rates)
            fused(weights, grads, *rest, **settings, amsgrad=group["amsgrad"], maximize=False)

        return update

    def _fused(self, index: int, pieces: Sequence[Table]) -> None:
        """Update a group of one member after another."""
        of_rows = zip(*(piece.unbind() for piece in pieces), strict=True)
        if not self._layout.by_parameter:  # a device with one stream
            for update, grads in zip(self._updates[index], of_rows, strict=True):
                update(grads)
            return
        with self._cache.part(GraphCache).side_by_side(self.weights.device) as on_lane:
            for row, (update, grads) in enumerate(zip(self._updates[index], of_rows, strict=True)):
                with on_lane(row):
                    update(grads)

    def tables(self) -> list[Table]:
        """Return the tables that a step changes."""
        return [self.weights, self.steps, *self.state.values(), *self.gradients.frozen.values()]

    def try_out(self, batch: Batch) -> list[TorchSession]:
        """Measure the deviation of this kind of stack and choose the faster library, unless that is known already.

        Return the members that do not compute what the first one computes. Raises Differs if they must be grouped.
        """
        key = self.gradients.key(batch)
        cache = self._cache.part(StackCache)
        if key not in cache.tried:
            found, self.onednn = self._deviation(batch)
            if not found.explained:
                raise Unstackable(f"gradients of a stack deviate by {found.off:.0e} of the largest, {UNLIKE_ROUNDING}")
            cache.tell(f"trials are stacked; gradients deviate by {found.off:.0e} of the largest")
            cache.tried[key] = Findings(self.onednn, self.gradients.config, found.rounding)
        findings = cache.tried[key]
        self.onednn = findings.onednn
        self.gradients.config.share(findings.config)
        proof = self.sessions[0].kept.get(Proof)
        if proof is None or proof.findings is not findings:
            proof = Proof(findings)
        if all(session.kept.get(Proof) is proof for session in self.sessions):
            return []
        unlike = [self.sessions[row] for row in self.gradients.unlike(batch, findings.rounding)]
        for session in self.sessions:
            session.kept[Proof] = proof
        return unlike

    def _deviation(self, batch: Batch) -> tuple[Deviation, bool]:
        """Measure the deviation; if rounding does not explain it, that with every operation by itself."""
        try:
            found = self.gradients.deviation(batch)
        except Escaped:
            found = NOT_MEASURED, True
        return self.gradients.deviation(batch) if not found[0].explained and self.gradients.take_apart() else found

    # ------------------------------------------------------------------------------------------ from unit to unit

    @property
    def whole(self) -> bool:
        """Whether all members still use their rows: none was loaded anew or has trained without the others."""
        kept = {own.data_ptr() for own, _ in self._kept}
        for row, session in enumerate(self.sessions):
            if session.counters["units"] != self._units[row] + 1 or _needs(session) != self._needs:
                return False
            optimizer = session.optimizers[0]
            for group, known in zip(optimizer.param_groups, self._layout.groups, strict=True):
                # A member with other tensors has none of these: the first parameter of each group tells.
                parameter, columns = trained(group)[0], self._layout.columns[known.parameters.start]
                state = optimizer.state.get(parameter, {})
                pairs = [(parameter, self.weights), *((state.get(name), table) for name, table in self.state.items())]
                for own, table in pairs:
                    place = None if own is None else own.data_ptr()
                    if place not in (kept or {_place(table, row, columns)}):
                        return False
        return True

    def settle(self) -> None:
        """Update the states of all optimizers, as if each had made its own steps."""
        self._units = [session.counters["units"] for session in self.sessions]
        for session in self.sessions:
            session.config.share(self.gradients.config)
        if not self._counts:
            self._hand_out()
        for counts in self._counts.values():
            counts.copy_(self.steps.expand_as(counts))
        for own, part in self._kept:
            own.copy_(part)

    def _hand_out(self) -> None:
        """Let the state of every optimizer consist of views of its rows, or, if it is padded, of tensors of its own."""
        for row, session in enumerate(self.sessions):
            optimizer, update = session.optimizers[0], session.updates[0]
            places = {id(p): number for number, p in enumerate(self._layout.parameters(row))}
            for group in optimizer.param_groups:
                there = group.get("capturable") or group.get("fused") or (update is not None and update.active)
                device = self.weights.device if there else torch.device("cpu")
                if device not in self._counts:
                    self._counts[device] = torch.zeros(len(self.sessions), len(places), device=device)
                for parameter in trained(group):
                    number, state = places[id(parameter)], optimizer.state[parameter]
                    for name in state_names(optimizer, group):
                        state[name] = part = self._layout.own(self.state[name], row, number, tuple(parameter.shape))
                        if self._layout.padded:
                            state[name] = torch.empty_like(parameter)
                            self._kept.append((state[name], part))
                    if type(optimizer) is not torch.optim.SGD:
                        state["step"] = self._counts[device][row, number]


def _steps(state: Mapping[str, object], wanted: Sequence[str]) -> float:
    """Return the updates that a weight has made. SGD counts none; its update only asks whether it is the first."""
    if isinstance(count := state.get("step"), torch.Tensor | float | int):
        return float(count)
    return 2.0 if any(state.get(name) is not None for name in wanted) else 0.0


def _needs(session: TorchSession) -> list[bool]:
    """Return whether each parameter of a model needs a gradient."""
    return [parameter.requires_grad for parameter in session.model.parameters()]


def _limited(grads: Sequence[Table], most: float) -> list[Table]:
    """Scale the gradients of each member down to a norm, if theirs is larger."""
    norms = torch.stack([torch.linalg.vector_norm(piece, dim=1) for piece in grads])
    scales = (most / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1.0).unsqueeze(1)
    return [piece * scales for piece in grads]


def _changed(before: Numbers, now: Numbers) -> list[tuple[int, str]]:
    """Return the groups and names of the settings that have changed for some member; at first, all of them."""
    names = [(index, name) for index, numbers in enumerate(now[0]) for name in numbers]
    return [
        (index, name)
        for index, name in names
        if not before or any(old[index][name] != new[index][name] for old, new in zip(before, now, strict=True))
    ]


def _place(table: Table, row: int, columns: slice) -> int:
    """Return the address of the first of some columns in a row."""
    return int(table.data_ptr() + (row * table.stride(0) + columns.start) * table.element_size())


class StackCapture:
    """The step of a stack, ready to be replayed. It draws from a generator of its own, which starts at ``random``."""

    def __init__(self, stack: Stack, batch: Batch, random: torch.Tensor) -> None:
        device = stack.weights.device
        if batch_key(batch, device) is None:
            raise ValueError("a batch has a column that is not a tensor")
        self._inputs = {name: value.clone() for name, value in batch.items()}
        self._backend = backend = backend_of(stack.sessions[0])
        self._generator = backend.generator(device)
        self._generator.set_state(random)
        # Stacks with batches of other sizes step at the same time.
        self._pool = pool = shared_pool(stack.sessions[0], ("stack", dict.get(stack.sessions[0].config, "batch_size")))
        if pool is not None:
            backend.free_unused()  # the eager step before took as much memory as the capture
        self._graph, stream = backend.graph(), backend.stream(device) if pool is None else pool.stream
        stream.wait_stream(backend.current_stream())
        with (
            backend.own_generator(device, self._generator),
            backend.on_stream(stream),
            capturing(self._graph, backend, pool),
        ):
            if stack.captures_updates:
                self._update, self._losses = None, stack.step(dict(self._inputs))
            else:
                *grads, self._losses = stack.compute(dict(self._inputs))
                self._update = partial(stack.update, grads)
        backend.current_stream().wait_stream(stream)
        self._check(stack)

    def step(self, batch: Batch) -> Table:
        """Replay the step on a batch; return the losses."""
        for name, value in self._inputs.items():
            value.copy_(batch[name], non_blocking=True)
        self._generator.set_state(self._backend.random_state(self._losses.device))
        self._graph.replay()
        if self._update is not None:
            self._update()
        self._backend.set_random_state(self._generator.get_state(), self._losses.device)
        return self._losses.clone()

    def _check(self, stack: Stack) -> None:
        """Raise ValueError if a replay differs from the step. Restore the state of the stack."""
        before = [table.clone() for table in stack.tables()]
        random = self._backend.random_state(self._losses.device)
        replayed = [self.step(self._inputs), *(table.clone() for table in stack.tables())]
        for again in (True, False):
            for table, value in zip(stack.tables(), before, strict=True):
                table.copy_(value)
            self._backend.set_random_state(random, self._losses.device)
            if again:
                with contextlib.nullcontext() if self._pool is None else self._pool.lent():
                    eager = [stack.step(dict(self._inputs)), *(table.clone() for table in stack.tables())]
        if not all(alike(a, b, stack.compiles) for a, b in zip(replayed, eager, strict=True)):
            raise ValueError("a replayed step differs from the step")
