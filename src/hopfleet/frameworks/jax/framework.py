"""The adapter of JAX: opens sessions, lets trials train together, and answers questions about devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from safetensors import deserialize
from safetensors.numpy import save

from hopfleet.domain.placement import CPU, Placement
from hopfleet.domain.trial import Config
from hopfleet.errors import CheckpointError
from hopfleet.frameworks.base import EngineCache, Flotilla, Framework
from hopfleet.frameworks.jax import surroundings
from hopfleet.frameworks.jax.compiled import keep_compiled
from hopfleet.frameworks.jax.flotilla import InTurn, Stacked
from hopfleet.frameworks.jax.programs import Hooks, assembled, statistics
from hopfleet.frameworks.jax.session import JaxSession, leave_memory
from hopfleet.frameworks.process_settings import ProcessSetting
from hopfleet.support.files import overwrite, write_atomically

DEFAULTS: Mapping[str, Any] = {
    "jax_default_matmul_precision": None,
    "jax_default_prng_impl": "threefry2x32",
    "jax_enable_x64": False,
    "jax_numpy_dtype_promotion": "standard",
    "jax_threefry_partitionable": True,
}
"""Settings of the process that change results, with their values in a new process."""

_SHAPES = (
    "loss() and metrics() are compiled by jax.jit: shapes must not depend on values in the data; keep the shape and "
    "mask values instead, e.g. jnp.where(mask, values, 0).sum() / mask.sum() rather than values[mask].mean(), "
    "or give a fixed size, e.g. jnp.nonzero(mask, size=10)"
)
_BRANCH = (
    "loss() and metrics() are compiled by jax.jit, so Python's if and while cannot look at values in the data; write "
    "jnp.where(condition, a, b) or jax.lax.cond"
)
_NUMPY = (
    "loss() and metrics() are compiled by jax.jit: use jax.numpy instead of numpy, and no float(), int() or .item()"
)

_PRINT = (
    "loss() and metrics() are compiled by jax.jit, so values cannot be formatted as text; write "
    'jax.debug.print("{}", value)'
)
_KEY = "the key is None in evaluation, where metrics() calls loss(): leave randomness out, e.g. by `if key is not None`"

_FILTERED = "JAX has removed its internal frames"
"""Part of a note of JAX's own, which is of no use in a short message."""

_CONVERSIONS = ("`float` function", "`int` function", "`complex` function", "item()", "tolist()")
"""Conversions to numbers of Python, as errors of JAX name them."""


class JaxFramework(Framework):
    """JAX, for one task."""

    weights_file = "model.safetensors"

    def __init__(self, task: Any) -> None:
        self._task: Hooks = task
        self._transforms = task.transform is not None

    def open(
        self, config: Config, *, seed: int, placement: Placement, threads: int, cache: EngineCache | None = None
    ) -> JaxSession:
        cache = EngineCache() if cache is None else cache
        return JaxSession(self._task, config, seed=seed, placement=placement, threads=threads, cache=cache)

    def model(self, config: Config, checkpoint: Path) -> Any:
        session = self._loaded(config, checkpoint)
        return assembled(session.graph, session.live.params, session.live.rest, trains=False)

    def _loaded(self, config: Config, checkpoint: Path) -> JaxSession:
        session = self.open(config, seed=0, placement=CPU, threads=1)
        session.load(checkpoint)
        return session

    def export(self, config: Config, checkpoint: Path, path: Path) -> float:
        session = self._loaded(config, checkpoint)
        state = session.live.params, statistics(session.graph, session.live.rest)
        arrays = {_name(place[1:]): leaf.__array__() for place, leaf in jax.tree.leaves_with_path(state)}

        def write(place: Path) -> None:
            overwrite(place, [save(arrays)])
            found = {name: bytes(each["data"]) for name, each in deserialize(place.read_bytes())}  # type: ignore[no-untyped-call]
            if found != {name: array.tobytes() for name, array in arrays.items()}:
                raise CheckpointError(f"{path}: differs from what was written; check that disk, and export again")

        write_atomically(path, write, durable=True)
        return 0.0

    def devices(self) -> tuple[str, int]:
        leave_memory()
        backend = jax.default_backend()
        return {"gpu": "cuda"}.get(backend, backend), len(jax.devices())

    def settings(self) -> dict[str, Any]:
        found = {name: getattr(jax.config, name) for name in DEFAULTS if hasattr(jax.config, name)}
        return {name: value for name, value in found.items() if value != DEFAULTS[name]}

    def apply(self, settings: Mapping[str, Any]) -> None:
        present = self.settings()
        for name, default in DEFAULTS.items():
            value = settings.get(name, default)
            if present.get(name, default) != value:
                jax.config.update(name, value)

    def begin_worker(self) -> None:
        keep_compiled()

    def process_settings(self) -> Sequence[ProcessSetting]:
        return surroundings.process_settings()

    @property
    def fusion_blocker(self) -> str:
        return ""

    def flotilla(self, sessions: Sequence[JaxSession], *, fast: bool = False) -> Flotilla:
        return Stacked(sessions) if fast else InTurn(sessions)

    def gains(self, session: JaxSession, *, fast: bool) -> bool:
        return fast or self._transforms

    def out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error)

    def explain(self, error: BaseException) -> None:
        notes = [note for note in getattr(error, "__notes__", ()) if _FILTERED not in note]
        error.__notes__ = [*filter(None, [_hint(error)]), *notes]


def _hint(error: BaseException) -> str:
    """Return what to write instead of code that needs values while it is compiled; empty for other errors."""
    text = str(error)
    if isinstance(error, jax.errors.TracerBoolConversionError):
        return _BRANCH
    if isinstance(error, jax.errors.TracerArrayConversionError):
        return _NUMPY
    if isinstance(error, jax.errors.ConcretizationTypeError):
        return _NUMPY if any(word in text for word in _CONVERSIONS) else _SHAPES
    if isinstance(error, jax.errors.NonConcreteBooleanIndexError | jax.errors.TracerIntegerConversionError):
        return _SHAPES
    if isinstance(error, TypeError) and "Tracer.__format__" in text:
        return _PRINT
    if isinstance(error, TypeError) and "PRNG key type <class 'NoneType'>" in text:
        return _KEY
    traced = isinstance(error, IndexError | TypeError) and "Tracer" in text
    return _SHAPES if traced and ("static" in text or "concrete" in text) else ""


def _name(path: Sequence[Any]) -> str:
    """Return the name of an array in a pytree, e.g. ``dense.kernel``."""
    parts = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path]
    return ".".join(parts[:-1] if parts[-1] == "value" else parts)
