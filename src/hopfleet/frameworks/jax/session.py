"""A session: one trial in JAX on one device."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hopfleet.domain.placement import Placement
from hopfleet.domain.rowsum import RowSum, add
from hopfleet.domain.trial import Config
from hopfleet.errors import NotFinite, TaskError
from hopfleet.frameworks.base import Batch, Batches, EngineCache, Session
from hopfleet.frameworks.host import HostSession
from hopfleet.frameworks.jax.programs import (
    Hooks,
    Numbers,
    Program,
    Programs,
    Pytree,
    State,
    branches,
    on_host,
    split,
    strong,
    taken_apart,
)
from hopfleet.frameworks.jax.programs import arrays as leaves_of
from hopfleet.frameworks.state.tree import Tree
from hopfleet.frameworks.whole_set import collected
from hopfleet.phrases import shown


class Row(NamedTuple):
    """The state of a trial as one row of the stacked states of several trials."""

    states: State
    number: int


def _row(states: State, number: int) -> State:
    """Take a state out of stacked ones."""
    if all(map(on_host, jax.tree.leaves(states))):
        return jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf)[number].copy(), leaf.device), states)  # type: ignore[no-any-return]
    return _row_on_device(states, number)  # type: ignore[no-any-return]


@jax.jit  # type: ignore[untyped-decorator]
def _row_on_device(states: State, number: int) -> State:
    return jax.tree.map(lambda leaf: leaf[number], states)  # type: ignore[no-any-return]


def leave_memory() -> None:
    """Let JAX take memory of a GPU as it needs it: otherwise the first process takes most of it, and others fail."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def device_of(placement: Placement) -> Any:
    """Return the device that a placement names."""
    leave_memory()
    return jax.devices(placement.kind)[int(placement.device.partition(":")[2] or 0)]


class JaxSession(HostSession):
    """A trial in JAX. Its arrays never change, so a snapshot costs nothing and a failed step leaves the state as is."""

    kind = "hopfleet-jax-1"

    def __init__(
        self, task: Hooks, config: Config, *, seed: int, placement: Placement, threads: int, cache: EngineCache
    ) -> None:
        super().__init__(config, seed=seed, threads=threads)
        self.device = device_of(placement)
        self._hooks = task.for_trial(self.config)
        self.task = task
        self.programs = cache.part(Programs)
        #: For each kind of work, the program chosen last and its arguments, and the count of changes at that time.
        self._chosen: dict[str, tuple[int, Program, Numbers]] = {}
        #: Columns of text, or of rows of different shapes, which programs do not take.
        self._left_out: set[str] = set()
        self._size: int | None = None
        with self.environment(seed), jax.default_device(self.device):
            first, key = jax.random.split(jax.random.key(seed))
            self.graph, params, rest = taken_apart(self._hooks.init(self.config, first))
            params = _arrays("init", params)
            if not jax.tree.leaves(params):
                raise TaskError("init() returned no parameters; its return statement may be missing")
            optimizer = self._hooks.optimizer(self.config)
            if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
                raise TaskError(
                    f"optimizer() returned {shown(optimizer)}: must be an Optax gradient transformation, e.g. "
                    'optax.adam(config["lr"])'
                )
            started = _arrays("optimizer", optimizer.init(params))
            state = State(params, rest, started, jax.random.key_data(key), jnp.uint32(0))
        self.check_config(config)
        self._state: State | Row = jax.device_put(strong(state), self.device)
        self.parameter_count: int = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))

    @property
    def place(self) -> State | Row:
        """The state, or the place of the state in a stack."""
        return self._state

    @property
    def live(self) -> State:
        """The state by itself."""
        if isinstance(self._state, Row):
            return _row(*self._state)
        return self._state

    def put(self, state: State | Row) -> None:
        """Replace the state."""
        self._state = state

    @property
    def parameters(self) -> int:
        return self.parameter_count

    # ---------------------------------------------------------------------------------------------- the work

    def prepare(self, batch: Batch, dtypes: Mapping[str, str]) -> Batch:
        columns: Batch = {}
        for name, value in batch.items():
            if not isinstance(value, np.ndarray) or value.dtype.kind not in "biufc":
                self._left_out.add(name)
                continue
            if dtypes.get(name) == "bfloat16" and value.dtype == np.uint16:
                value = value.view(jnp.bfloat16)
            # A copy: a program may still run when the memory of a batch is used again.
            columns[name] = jax.device_put(value, self.device, may_alias=False)
        return columns

    def train(self, batches: Batches, *, last: bool) -> dict[str, RowSum]:
        steps = Steps(self)
        with self.environment(0):
            for batch in batches:
                steps(batch)
        return steps.result(last=last)

    def evaluate(self, batches: Batches, *, seed: int) -> dict[str, RowSum]:
        measures = Measures(self)
        with self.environment(seed):
            for batch in batches:
                measures(batch)
        return measures.result()

    def call(self, work: str, state: State, batch: Batch) -> Any:
        """Run a program on a batch: "step" or "measure"."""
        program, numbers = self._ready(work)
        try:
            result = program.run(self.graph, state, batch, numbers)
        except jax.errors.JAXTypeError:
            if not program.names:
                raise
            # The optimizer needs the value of a number, or the code fails with constants as well.
            self.programs.fix(program, program.names)
            return self.call(work, state, batch)
        except KeyError as error:
            if error.args and error.args[0] in self._left_out:
                raise TaskError(
                    f"the column {error.args[0]!r} has text, or rows of different shapes, which compiled programs do "
                    "not take: encode it in transform(), or store rows of one shape, e.g. with hop.pad"
                ) from None
            error.add_note(f"the batch has the columns {', '.join(batch)}")
            raise
        learned = program.read_by_loss()
        if learned and not self.programs.fixed(program, learned):
            self.programs.fix(program, learned)
            if self._ready(work)[0] is not program:
                return self.call(work, state, batch)
        return result

    @property
    def settings_number(self) -> int:
        """The number of the trial's own settings among those of the trials of its worker."""
        return self.programs.number_of(self.own_settings)

    def _ready(self, work: str) -> tuple[Program, Numbers]:
        """Return the program for some work, and the numbers that are its arguments."""
        if work not in self._chosen or self._chosen[work][0] != self.programs.changes:
            known = self.config, self.threads, self.settings_number
            program = self.programs.of(work, self.task, *known, self._branches)
            own = split(self.config)[0]
            # On the device already: a number of Python would be converted for each batch.
            numbers = jax.device_put({name: own[name] for name in program.names}, self.device)
            self._chosen[work] = self.programs.changes, program, numbers
        return self._chosen[work][1:]

    def _branches(self) -> bool:
        state = self.live
        return branches(self._hooks.optimizer(self.config), state.params, state.optimizer)

    def note_reads(self) -> None:
        """Count the keys that programs read as read of the configuration."""
        for _, program, _ in self._chosen.values():
            program.tell(self.config)

    # ------------------------------------------------------------------------------------------ save and load

    @property
    def size(self) -> int:
        if self._size is None:  # arrays keep their shapes
            self._size = super().size
        return self._size

    def state(self) -> Tree:
        if isinstance(self._state, Row):
            states, number = self._state
            return {name: [np.asarray(leaf[number]) for leaf in leaves] for name, leaves in _tree(states).items()}
        return _tree(self._state)

    def restore(self, state: Tree) -> None:
        self._state = self._restored(state)

    def _restored(self, saved: Tree) -> State:
        """Return a saved state in the form of the present one."""
        mine = self.live
        parts = []
        for name, part in zip(State._fields, mine, strict=True):
            leaves, structure = jax.tree.flatten(part)
            if [leaf.shape for leaf in leaves_of(part)] != [leaf.shape for leaf in saved[name]]:
                raise TaskError(
                    f"init() or optimizer() returned other arrays for the same configuration: {name} has "
                    f"{len(leaves)} arrays, the saved version has {len(saved[name])}, or their shapes differ"
                )
            parts.append(jax.tree.unflatten(structure, map(_like, leaves, saved[name])))
        return jax.device_put(State(*parts), self.device)  # type: ignore[no-any-return]

    def snapshot(self) -> Callable[[Path], None]:
        still = copy.copy(self)
        still.counters = dict(self.counters)
        return still.save

    def inherit(self, path: Path, parent: Session) -> None:
        """Take over the state of a parent; settings that the optimizer keeps in its state are this trial's own."""
        assert isinstance(parent, JaxSession)
        own, other = self.live.optimizer, parent.live.optimizer
        if jax.tree.structure(own) != jax.tree.structure(other):
            raise TaskError("the optimizers of the two configurations keep different states, so none can be inherited")
        self.load(path)
        state = self.live
        kept = jax.tree.map(
            lambda mine, theirs, now: mine if mine.ndim == 0 and mine != theirs else now, own, other, state.optimizer
        )
        self._state = state._replace(optimizer=kept)


class Steps:
    """The training steps of one trial in one unit."""

    def __init__(self, session: JaxSession) -> None:
        self.session = session
        self._losses: list[Any] = []
        self._rows: list[int] = []

    def __call__(self, batch: Batch) -> None:
        """Train on a batch."""
        state, loss = self.session.call("step", self.session.live, batch)
        self.session.put(state)
        self.note(loss, rows_of(batch))

    def note(self, loss: Any, rows: int) -> None:
        """Note the loss of a batch."""
        self._losses.append(loss)
        self._rows.append(rows)

    def result(self, *, last: bool) -> dict[str, RowSum]:
        """Close the unit and return the mean loss."""
        if not self._losses:
            raise TaskError("the unit has no batches: the partition is empty, or smaller than a batch with drop_last")
        losses = [float(loss) for loss in self._losses]
        for number, value in enumerate(losses, 1):
            if not math.isfinite(value):
                after = f", after {losses[number - 2]:.3g}" if number > 1 else ""
                raise NotFinite(f"the loss is {value} in batch {number} of {len(losses)}{after}", batch=number)
        self.session.note_reads()
        self.session.end_unit(last=last)
        return {"train_loss": RowSum.over(losses, self._rows)}


class Measures:
    """The evaluation of one trial on some rows."""

    def __init__(self, session: JaxSession) -> None:
        self.session = session
        self._state: State | None = None
        self._metrics: list[Mapping[str, Any]] = []
        self._rows: list[int] = []

    def __call__(self, batch: Batch) -> None:
        """Evaluate a batch."""
        if self._state is None:
            self._state = self.session.live
        self.note(self.session.call("measure", self._state, batch), rows_of(batch))

    def note(self, metrics: Mapping[str, Any], rows: int) -> None:
        """Note the metrics of a batch."""
        self._metrics.append(metrics)
        self._rows.append(rows)

    def result(self) -> dict[str, RowSum]:
        """Return the sums over all batches."""
        self.session.note_reads()
        found = [collected(metrics) for metrics in self._metrics]
        gathered = [{name: value for name, value in metrics.items() if isinstance(value, RowSum)} for metrics in found]
        names = [name for name in found[0] if name not in gathered[0]] if found else []
        plain = {name: RowSum.over([float(metrics[name]) for metrics in found], self._rows) for name in names}
        return add([plain, *gathered])


def rows_of(batch: Batch) -> int:
    """Count the rows of a batch: the length of its first column."""
    return len(next(iter(batch.values()))) if batch else 0


def _arrays(hook: str, tree: Pytree) -> Pytree:
    """Turn the numbers in a pytree into arrays. Raises TaskError for something else."""
    try:
        return jax.tree.map(lambda leaf: leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf), tree)
    except (TypeError, ValueError) as error:
        raise TaskError(
            f"{hook}() returned something that is not an array ({error}): return arrays in dicts, lists and tuples"
            + (", such as module.init(key, x) of Flax Linen, or a Flax NNX module" if hook == "init" else "")
        ) from None


def _tree(state: State) -> Tree:
    return {name: leaves_of(part) for name, part in zip(State._fields, state, strict=True)}


def _like(leaf: Any, saved: np.ndarray[Any, Any]) -> Any:
    """Return a saved array as the kind of array that ``leaf`` is."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(jnp.asarray(saved), impl=jax.random.key_impl(leaf))
    return jnp.asarray(saved)
