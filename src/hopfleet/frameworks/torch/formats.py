"""Whole models in files of other formats, each read back and compared, and several models as one.

The inputs of a model are those with which the task's own code calls it.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from hopfleet.errors import MissingExtra, TaskError, UsageError, describe
from hopfleet.frameworks.torch import _compat, weights
from hopfleet.frameworks.torch.trial import Model, Part
from hopfleet.support.files import move, remove_file, write_atomically

Call = Callable[[Model], object]
"""Runs the task's code with a model on a few rows."""

LARGEST = 2**31 - 1
"""Bytes that an ONNX file can have."""


def safetensors(model: torch.nn.Module, path: Path, call: Call) -> float:
    """Write the state dict of a model for ``safetensors.torch.load_file``."""
    weights.write(path, model.state_dict())
    return 0.0


def state_dict(model: torch.nn.Module, path: Path, call: Call) -> float:
    """Write the state dict of a model for ``torch.load``."""
    state = model.state_dict()

    def fill(place: Path) -> None:
        torch.save(state, place)
        found = torch.load(place, weights_only=True)
        weights.check_equal(path, {name: value for name, value in state.items() if torch.is_tensor(value)}, found)

    write_atomically(path, fill, durable=True)
    return 0.0


def program(model: torch.nn.Module, path: Path, call: Call) -> float:
    """Write a model as a program of ``torch.export``, for any number of rows."""
    given = Inputs(model, call)
    found: list[float] = []

    def fill(place: Path) -> None:
        named = place.with_name(f"{place.name}.pt2")  # torch.export warns about any other ending
        try:
            torch.export.save(_exported(model, given), named)
            loaded = torch.export.load(named).module()
            found.append(given.deviation(lambda some: loaded(*some.args, **some.kwargs)))
            move(named, place)
        finally:
            remove_file(named)

    with _quiet():
        write_atomically(path, fill, durable=True)
    return found[0]


def onnx(model: torch.nn.Module, path: Path, call: Call) -> float:
    """Write a model as an ONNX file, for any number of rows, and compare it as ONNX Runtime computes it."""
    try:
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingExtra("ONNX with ONNX Runtime", "onnx") from error

    size = sum(value.numel() * value.element_size() for value in model.state_dict().values() if torch.is_tensor(value))
    if size > LARGEST:
        raise UsageError(
            f"format='onnx': the model has {size:,} bytes, and a file holds {LARGEST:,}; use 'torch.export'"
        )
    given = Inputs(model, call)
    found: list[float] = []

    def fill(place: Path) -> None:
        made = torch.onnx.export(_exported(model, given), dynamo=True, verbose=False)
        assert made is not None
        made.save(place)
        session = onnxruntime.InferenceSession(str(place), providers=["CPUExecutionProvider"])
        names = [each.name for each in session.get_inputs()]

        def run(some: Arguments) -> object:
            arrays = [value.detach().numpy() for value in tensors((some.args, some.kwargs))]
            return [torch.from_numpy(value) for value in session.run(None, dict(zip(names, arrays, strict=False)))]

        found.append(given.deviation(run))

    with _quiet():
        write_atomically(path, fill, durable=True)
    return found[0]


WRITERS = {"safetensors": safetensors, "torch": state_dict, "torch.export": program, "onnx": onnx}


class Arguments:
    """The arguments of one call of a model."""

    def __init__(self, args: tuple[Part, ...], kwargs: dict[str, Part]) -> None:
        self.args = args
        self.kwargs = kwargs

    def without_last(self, rows: int) -> Arguments:
        """Return the arguments for all rows but the last."""

        def cut(value: Part) -> Part:
            return value[: rows - 1] if _has_rows(value, rows) else value

        args, kwargs = _compat.tree_map(cut, (self.args, self.kwargs))
        return Arguments(args, kwargs)


class Inputs:
    """The arguments with which a task's code calls a model on a few rows, and the outputs of the model for them."""

    def __init__(self, model: torch.nn.Module, call: Call) -> None:
        calls: list[Arguments] = []

        def note(_: object, args: tuple[Part, ...], kwargs: dict[str, Part]) -> None:
            # Tensors that a task makes in torch.inference_mode() cannot be traced.
            with torch.inference_mode(False):
                calls.append(Arguments(*_compat.tree_map(_copied, (args, kwargs))))

        handle = model.register_forward_pre_hook(note, with_kwargs=True)
        try:
            call(model)
        finally:
            handle.remove()
        if not calls or not tensors((calls[0].args, calls[0].kwargs)):
            raise TaskError(
                f"the task does not call {type(model).__name__} with tensors, as in model(batch['x']), so its inputs "
                "are unknown; define predict(model, batch) on the task that calls the model, or use format='bundle'"
            )
        self.first = calls[0]
        self.rows = len(next(value for value in tensors((self.first.args, self.first.kwargs)) if value.ndim))
        self._model = model

    def deviation(self, run: Callable[[Arguments], object]) -> float:
        """Return the largest difference between the outputs of the model and those of ``run``."""
        found = 0.0
        for some in (self.first, self.first.without_last(self.rows)):
            with torch.no_grad():
                wanted = tensors(self._model(*some.args, **some.kwargs))
                try:
                    outputs = tensors(run(some))
                except Exception as error:
                    raise TaskError(
                        f"the exported model fails on rows that {type(self._model).__name__} takes "
                        f"({describe(error)}); write x.shape[0] rather than len(x) in it, or use format='bundle'"
                    ) from error
            for one, other in zip(wanted, outputs, strict=True):
                difference = (
                    (one.double() - other.double()).abs() if one.shape == other.shape else torch.tensor(torch.inf)
                )
                found = max(found, float(difference.nan_to_num(torch.inf).max()) if difference.numel() else 0.0)
        return found


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide what the exporters of PyTorch say about themselves; their errors are raised."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _exported(model: torch.nn.Module, given: Inputs) -> torch.export.ExportedProgram:
    def dynamic(value: Part) -> Part:
        return {0: torch.export.Dim.AUTO} if _has_rows(value, given.rows) else None

    # The keys are the parameters of forward(); those of a parameter such as *args share one entry.
    signature = inspect.signature(model.forward)
    bound = signature.bind(*given.first.args, **given.first.kwargs).arguments
    shapes: dict[str, Part] = {}
    for name, value in bound.items():
        kind = signature.parameters[name].kind
        mapped = _compat.tree_map(dynamic, value)
        shapes |= mapped if kind is inspect.Parameter.VAR_KEYWORD else {name: mapped}
    try:
        return torch.export.export(model, given.first.args, given.first.kwargs, dynamic_shapes=shapes)
    except Exception as error:
        raise TaskError(
            f"{type(model).__name__} cannot be exported ({describe(error)}); torch.export needs a forward() without "
            "branches on values; format='bundle' takes any model"
        ) from error


def _copied(value: Part) -> Part:
    return value.detach().clone() if torch.is_tensor(value) else value


def _has_rows(value: Part, rows: int) -> bool:
    return torch.is_tensor(value) and value.ndim > 0 and len(value) == rows


def tensors(value: object) -> list[torch.Tensor]:
    """Return all tensors in nested tuples, lists and dicts, in order."""
    return [leaf for leaf in _compat.tree_leaves(value) if torch.is_tensor(leaf)]


# ----------------------------------------------------------------------------------------------------------- ensembles


class Combined(torch.nn.Module):
    """Several models as one: its outputs are the weighted mean of theirs."""

    def __init__(self, models: Sequence[torch.nn.Module], shares: Sequence[float], *, logits: bool) -> None:
        super().__init__()
        self.members = torch.nn.ModuleList(models)
        self.shares = tuple(shares)
        self.logits = logits

    def forward(self, *args: Part, **kwargs: Part) -> Part:
        return combined([member(*args, **kwargs) for member in self.members], self.shares, logits=self.logits)


def combined(outputs: Sequence[Part], shares: Sequence[float], *, logits: bool) -> Part:
    """Return the weighted mean of nested outputs; values that are not tensors of floats are those of the first."""
    leaves = [_compat.tree_flatten(output) for output in outputs]
    structure = leaves[0][1]
    if any(other != structure for _, other in leaves):
        raise TaskError("the models of an ensemble return outputs of different structures; they must return the same")
    means = [_mean(values, shares, logits) for values in zip(*(found for found, _ in leaves), strict=True)]
    return _compat.tree_unflatten(means, structure)


def _mean(values: Sequence[Part], shares: Sequence[float], logits: bool) -> Part:
    if not (torch.is_tensor(values[0]) and values[0].is_floating_point()):
        return values[0]
    if any(value.shape != values[0].shape for value in values):
        shapes = ", ".join(sorted({str(tuple(value.shape)) for value in values}))
        raise TaskError(f"the models of an ensemble return tensors of different shapes ({shapes}); choose trials alike")
    if logits and values[0].ndim > 1:
        return sum(share * value.softmax(-1) for share, value in zip(shares, values, strict=True)).log()
    return sum(share * value for share, value in zip(shares, values, strict=True))
