"""PyTorch: the task that users write, and the session that trains, saves and restores it bit for bit."""

from __future__ import annotations

import contextlib
import copy
import json
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hopfleet.domain.rowsum import RowSum, add
from hopfleet.errors import CheckpointError, MissingExtra, TaskError
from hopfleet.frameworks.base import Batch, Batches, Flotilla, IsolationError, Session, Task, TrackedConfig
from hopfleet.frameworks.state.tree import Arrays, flatten, unflatten

try:
    import torch

    from hopfleet.frameworks.state import safetensors
    from hopfleet.frameworks.torch import randomness
    from hopfleet.frameworks.torch.steps import Steps, TrainingOptions, rows_of
except ImportError as error:
    raise MissingExtra("PyTorch", "torch") from error

FORMAT = "hopfleet-torch-1"

COMPILER = "torch._dynamo.config"
"""What to import to have PyTorch's compiler, and not its stand-in."""


class TorchTask(Task):
    """A training task in PyTorch. Override ``build`` and ``loss``; the rest has defaults.

    While its methods run, ``self.config`` is the configuration of the trial at hand, and ``self.optimizer``,
    ``self.lr_scheduler`` and ``self.scaler`` are those that ``build`` returned for it.
    """

    preload: Sequence[str] = ("torch", "hopfleet.frameworks.torch.uncompiled", "hopfleet.frameworks.torch.task")

    #: Step the LR scheduler after each "epoch" or after each "batch".
    lr_step: str = "epoch"

    # Each of these may be a property that looks at self.config. They hold for the loop below, not for one of your own.
    #: "float32", or "bf16" or "fp16" to compute losses and metrics in that type where it is safe (autocast).
    precision: str = "float32"
    #: Scale gradients down to this norm, over all parameters, if they are larger.
    clip_norm: float | None = None
    #: Update after so many batches, with the mean of their gradients; at the end of a unit with those that are there.
    accumulate: int = 1
    #: Lay out images channel by channel in memory, which convolutions may like.
    channels_last: bool = False
    #: Compile the model with torch.compile.
    compile: bool = False
    #: Evaluate, and in the end hand out, a moving average of the weights, of which each update keeps this share.
    ema: float | None = None
    #: Use algorithms only that give the same bits each time; what has none raises. This may be slower.
    deterministic: bool = False

    optimizer: Any = None
    lr_scheduler: Any = None
    scaler: Any = None
    _session: TorchSession | None = None
    config: Mapping[str, Any] = {}

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if cls.compile is not False and "preload" not in vars(cls):
            cls.preload = (*cls.preload, COMPILER)

    def build(self, config: Mapping[str, Any]) -> Any:
        """The model, its optimizer and, if wanted, an LR scheduler and a gradient scaler, as a tuple."""
        raise TaskError(f"{type(self).__name__}: override build(self, config) and return model, optimizer")

    def loss(self, model: Any, batch: Batch) -> Any:
        """The loss of one mini-batch, a scalar tensor."""
        raise TaskError(
            f"{type(self).__name__}: override loss(self, model, batch), or train(self, model, batches, config)"
        )

    def metrics(self, model: Any, batch: Batch) -> Mapping[str, Any]:
        """What to know of one mini-batch of validation data; averaged over its rows. By default the loss."""
        return {"loss": self.loss(model, batch)}

    def train(self, model: Any, batches: Batches, config: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """One sub-epoch. Who overrides it owns the loop; what it returns is recorded as ``train_<name>``."""
        assert self._session is not None, "train() is called by workers"
        steps = Steps(self._session)
        for batch in batches:
            steps(batch)
        return steps.result()

    # ------------------------------------------------------------------------------------- what workers call

    def open(self, config: Mapping[str, Any], *, seed: int, device: str, threads: int) -> TorchSession:
        return TorchSession(self, config, seed=seed, device=device, threads=threads)

    def model(self, config: Mapping[str, Any], checkpoint: Path) -> Any:
        session = self.open(config, seed=0, device="cpu", threads=torch.get_num_threads())
        session.load(checkpoint)
        session._exchange()
        return session.model.eval()

    def devices(self) -> tuple[str, int]:
        if torch.cuda.is_available():
            return "cuda", torch.cuda.device_count()
        if torch.backends.mps.is_available():
            return "mps", 1
        return "cpu", 1

    @property
    def alone(self) -> str:
        return "" if type(self).train is TorchTask.train else "it owns its training loop (it overrides train)"

    def flotilla(self, sessions: Sequence[TorchSession], *, fast: bool = False) -> Flotilla:
        if len({session.options.deterministic for session in sessions}) > 1:
            raise IsolationError("some are deterministic and others are not; that is a matter of the whole process")
        on_cuda = sessions[0].device.type == "cuda"
        if fast and not (on_cuda and _convolves(sessions[0].model)):
            from hopfleet.frameworks.torch.engines.stacked.stacked import Stacked

            return Stacked(sessions)
        if on_cuda:
            from hopfleet.frameworks.torch.engines.cuda_graphs import Graphs

            return Graphs(sessions)
        from hopfleet.frameworks.torch.engines.interleaved import Eager

        return Eager(sessions)

    def gains(self, session: TorchSession, *, fast: bool) -> bool:
        if fast or self.transform is not None or session.device.type != "cpu":
            return True
        from hopfleet.frameworks.torch.engines.joint_optimizer import may_join

        return may_join(session)

    def be_nobodys(self) -> None:
        """Have no trial at hand. Who looks for one finds nothing, and cannot take it for its own."""
        self.optimizer = self.lr_scheduler = self.scaler = self._session = None
        self.config = None  # type: ignore[assignment]

    def spare_memory(self, device: str) -> int:
        return int(torch.cuda.mem_get_info(device)[0]) if device.startswith("cuda") else 0

    def peak_memory(self, device: str) -> int:
        if not device.startswith("cuda"):
            return 0
        peak = torch.cuda.max_memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        return int(peak)

    def out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, torch.cuda.OutOfMemoryError)

    def broken(self, error: BaseException) -> bool:
        # A kernel that has failed, say with an index that is out of range, leaves nothing of use to its process.
        return isinstance(error, RuntimeError) and "CUDA error:" in str(error)

    def free_memory(self) -> None:
        torch.cuda.empty_cache()


class FunctionTask(TorchTask):
    """The Cerebro paper's three functions as a task.

    ``input_fn(batch)`` makes what the other functions see of a batch of the data; ``model_fn(config)`` returns
    model, optimizer and, if wanted, an LR scheduler; ``train_fn(model, optimizer, batches, config)`` runs one
    sub-epoch and returns a dict of metrics. In evaluation ``train_fn`` is called with ``optimizer=None``, with
    gradients off and the model in evaluation mode, one batch at a time: it must not step then.
    """

    def __init__(self, input_fn: Any, model_fn: Any, train_fn: Any) -> None:
        for name, function in (("input_fn", input_fn), ("model_fn", model_fn), ("train_fn", train_fn)):
            if not callable(function):
                raise TaskError(f"{name}={function!r}: must be a function")
        self.input_fn, self.model_fn, self.train_fn = input_fn, model_fn, train_fn

    def build(self, config: Mapping[str, Any]) -> Any:
        return self.model_fn(config)

    def train(self, model: Any, batches: Batches, config: Mapping[str, Any]) -> Mapping[str, Any] | None:
        result: Mapping[str, Any] | None = self.train_fn(model, self.optimizer, map(self.input_fn, batches), config)
        return result

    def metrics(self, model: Any, batch: Batch) -> Mapping[str, Any]:
        result: Mapping[str, Any] | None = self.train_fn(model, None, iter([self.input_fn(batch)]), self.config)
        if not isinstance(result, Mapping):
            raise TaskError(f"train_fn returned {result!r}: must be a dict of metrics, e.g. {{'loss': 0.3}}")
        return result


class TorchSession(Session):
    """A trial in PyTorch on one device."""

    def __init__(self, task: TorchTask, config: Mapping[str, Any], *, seed: int, device: str, threads: int) -> None:
        self.task = task
        self.config = TrackedConfig(config)
        self.device = torch.device(device)
        self.threads = threads
        self.counters = {"units": 0, "epochs": 0}
        self.random = randomness.seeded(seed)
        with self._environment():
            parts = task.build(self.config)
        self.model, self.optimizers, self.schedulers, self.scaler = _parts(parts)
        self._single = not isinstance(parts, Sequence) or len(parts) < 2 or not isinstance(parts[1], Sequence)
        self.model.to(self.device)
        self._move_optimizers()
        self._adopt_options()
        #: What a flotilla keeps with it from unit to unit.
        self.aboard: dict[Any, Any] = {}
        self._check_parameters()

    # ---------------------------------------------------------------------------------------------- the work

    def prepare(self, batch: Batch, dtypes: Mapping[str, str]) -> Batch:
        return {name: self._tensor(value, dtypes.get(name, "")) for name, value in batch.items()}

    def pick(self, whole: Batch, order: np.ndarray[Any, Any] | None, batch_size: int, rows: int) -> Iterator[Batch]:
        if order is not None:
            places = torch.from_numpy(order[:rows]).to(self.device)
            whole = {name: column.index_select(0, places) for name, column in whole.items()}
        for some in zip(*(torch.split(column[:rows], batch_size) for column in whole.values()), strict=True):
            # Whoever writes into a batch must not write into the partition that is kept.
            yield dict(zip(whole, some if order is not None else [part.clone() for part in some], strict=True))

    def train(self, batches: Batches, *, last: bool) -> dict[str, RowSum]:
        self.model.train()
        with self._environment():
            result = self.task.train(self.callable, batches, self.config)
            return self.end_unit(result, batches.rows, last=last)

    def end_unit(self, result: Mapping[str, Any] | None, rows: int, *, last: bool) -> dict[str, RowSum]:
        """Close a unit, and the epoch if it was the last. Called while the trial is at work."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        if last and self.task.lr_step == "epoch":
            for scheduler in self.schedulers:
                scheduler.step()
        self.counters["units"] += 1
        self.counters["epochs"] += last
        return {f"train_{name}": value for name, value in summed([(result or {}, rows)]).items()}

    def evaluate(self, batches: Batches, *, seed: int) -> dict[str, RowSum]:
        self.model.eval()
        with self._environment(randomness.seeded(seed)), torch.no_grad(), self.averaged():
            found = [self.measure(batch) for batch in batches]
        return summed(found)

    def measure(self, batch: Batch) -> tuple[Mapping[str, Any], int]:
        """The metrics of one batch, and its rows. Called while the trial is at work."""
        with self.options.autocast(self.device):
            metrics = self.task.metrics(self.callable, batch)
        if not isinstance(metrics, Mapping):
            raise TaskError(f"metrics() returned {metrics!r}: must be a dict of names to numbers")
        return metrics, rows_of(batch)

    def unused(self) -> tuple[str, ...]:
        return self.config.unused()

    # ------------------------------------------------------------------------------------------ save and load

    @property
    def size(self) -> int:
        tensors = [*self.model.parameters(), *self.model.buffers()]
        for optimizer in self.optimizers:
            for state in optimizer.state.values():
                tensors += [value for value in state.values() if torch.is_tensor(value)]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    @property
    def steady(self) -> bool:
        # An average changes places with the weights, and buffers may count whatever they like.
        return not self.average and next(self.model.buffers(), None) is None

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters() if parameter.requires_grad)

    def save(self, path: Path) -> None:
        safetensors.write(path, *self._described(self._parts()))

    def still(self) -> Callable[[Path], None]:
        # How it is written is found out by whoever writes it.
        restored = stilled(self._parts())
        if self.device.type != "cuda":
            return lambda path: safetensors.write(path, *self._described(restored()))
        made = torch.cuda.Event()  # type: ignore[no-untyped-call]
        made.record(torch.cuda.current_stream(self.device))

        def write(path: Path) -> None:
            # Training goes on in other streams, and must not be waited for.
            stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            stream.wait_event(made)
            with torch.cuda.stream(stream):
                safetensors.write_at_once(path, *self._described(restored()))

        return write

    def _parts(self) -> dict[str, Any]:
        """All that is to be saved."""
        return {
            "model": _model_state(self.model),
            "optimizer": [_optimizer_state(optimizer) for optimizer in self.optimizers],
            "scheduler": [scheduler.state_dict() for scheduler in self.schedulers],
            "scaler": self.scaler.state_dict() if self.scaler else None,
            "average": self.average,
            # The streams of a unit are put here when it ends, and never changed.
            "random": Constant(self.random),
            "counters": self.counters,
        }

    def _described(self, parts: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        """All that is to be saved, as tensors and as text."""
        arrays = Arrays(torch.is_tensor, _identity)
        tree = {
            "model": flatten(parts["model"], arrays, "model"),
            "optimizer": [flatten(state, arrays, f"optimizer.{i}") for i, state in enumerate(parts["optimizer"])],
            "scheduler": [flatten(state, arrays, f"scheduler.{i}") for i, state in enumerate(parts["scheduler"])],
            "scaler": flatten(parts["scaler"], arrays, "scaler"),
            "average": flatten(parts["average"], arrays, "average"),
            "random": flatten(randomness.pack(parts["random"].value), arrays, "random"),
            "counters": parts["counters"],
            "host": [name for name, tensor in arrays.named.items() if tensor.device.type == "cpu"],
        }
        if self.device.type == "cpu":
            tree["host"] = []
        tensors = {name: tensor.detach().contiguous() for name, tensor in arrays.named.items()}
        return tensors, {FORMAT: json.dumps(tree)}

    def load(self, path: Path) -> None:
        try:
            self._load(path)
        except RuntimeError as error:
            raise TaskError(f"build() made another model than before from the same configuration: {error}") from None

    def inherit(self, path: Path, parent: Session) -> None:
        assert isinstance(parent, TorchSession)
        mine, theirs = self._settings(), parent._settings()
        parent.load(path)
        then = parent._settings()
        # Momenta of another kind of optimizer mean nothing to this one, nor does the progress of another schedule: it
        # starts afresh.
        schedules = [type(own) for own in self.schedulers] == [type(other) for other in parent.schedulers]
        optimizers = [_shape(own) == _shape(other) for own, other in _pairs(self.optimizers, parent.optimizers)]
        try:
            self._load(path, optimizers=optimizers, schedulers=schedules)
        except (RuntimeError, LookupError, ValueError) as error:
            text = " ".join(str(error).split())
            raise TaskError(f"the parent's model does not fit this configuration; clone it cold ({text})") from None
        for optimizer, now, own, other in zip(self.optimizers, *(s[0] for s in (then, mine, theirs)), strict=False):
            for group, *three in zip(optimizer.param_groups, now, own, other, strict=False):
                settings = _became_of(*three) if schedules else three[1]
                group.update({name: value for name, value in settings.items() if name in group})
        if schedules:
            for scheduler, *three in zip(self.schedulers, *(s[1] for s in (then, mine, theirs)), strict=True):
                scheduler.load_state_dict(_became(*three))

    def _settings(self) -> tuple[list[list[dict[str, Any]]], list[dict[str, Any]]]:
        """What optimizers (each with its groups) and schedulers were built with, and what became of it since."""
        groups = [
            [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
            for optimizer in self.optimizers
        ]
        return copy.deepcopy((groups, [scheduler.state_dict() for scheduler in self.schedulers]))

    def _load(self, path: Path, *, optimizers: Sequence[bool] | None = None, schedulers: bool = True) -> None:
        """Become what was saved; what is not wanted of it stays as it was built."""
        tensors, metadata = safetensors.read(path)
        if FORMAT not in metadata:
            raise CheckpointError(f"{path}: is not a {FORMAT} checkpoint")
        tree = json.loads(metadata[FORMAT])
        host = set(tree["host"])

        # What is read is a mapping of the file, which may be written over as soon as the model has gone on.
        def array(name: str) -> Any:
            return tensors[name].to("cpu" if name in host else self.device, copy=True)

        _load_model(self.model, unflatten(tree["model"], lambda name: tensors[name]))
        if optimizers is None:
            self._check_count("optimizer", tree, self.optimizers)
            self._check_count("scheduler", tree, self.schedulers)
            optimizers = [True] * len(self.optimizers)
        for optimizer, state, wanted in zip(self.optimizers, tree["optimizer"], optimizers, strict=False):
            if wanted:
                _load_optimizer(optimizer, unflatten(state, array))
        for scheduler, state in zip(self.schedulers if schedulers else (), tree["scheduler"], strict=False):
            scheduler.load_state_dict(unflatten(state, array))
        if self.scaler is not None and tree["scaler"] is not None:
            self.scaler.load_state_dict(unflatten(tree["scaler"], array))
        for average, value in zip(self.average, unflatten(tree.get("average") or [], array), strict=True):
            average.copy_(value)
        self.random = randomness.unpack(unflatten(tree["random"], lambda name: tensors[name].clone()))
        self.counters = dict(tree["counters"])

    def _check_count(self, kind: str, tree: Mapping[str, Any], mine: Sequence[Any]) -> None:
        if len(tree[kind]) != len(mine):
            raise TaskError(f"the saved version has {len(tree[kind])} {kind}(s), build() returned {len(mine)}")

    # ------------------------------------------------------------------------------------------------ helpers

    def _tensor(self, value: Any, dtype: str) -> Any:
        if isinstance(value, list):
            return [self._tensor(part, dtype) if isinstance(part, np.ndarray) else part for part in value]
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "biufc":
            return value.to(self.device) if torch.is_tensor(value) else value
        tensor = torch.from_numpy(np.ascontiguousarray(value))
        if dtype == "bfloat16" and tensor.dtype == torch.uint16:
            tensor = tensor.view(torch.bfloat16)
        if self.options.channels_last and tensor.ndim == 4:
            tensor = tensor.contiguous(memory_format=torch.channels_last)
        if self.device.type == "cuda":
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor.to(self.device)

    @contextlib.contextmanager
    def _environment(self, random: Mapping[str, Any] | None = None) -> Iterator[None]:
        """The trial's own random streams, threads and optimizer while its code runs; the process's own afterwards.

        With other ``random`` streams, its own stay as they are.
        """
        with process_settings(self):
            randomness.put(self.random if random is None else random, self.device)
            self.activate()
            yield
            if random is None:
                # A device that is not here has a stream too, which goes on where the trial comes to such a device.
                self.random = {**self.random, **randomness.current(self.device)}

    def activate(self) -> None:
        """Let the task's attributes be those of this trial."""
        task = self.task
        if hasattr(self, "optimizers"):
            task.optimizer = (self.optimizers[0] if self.optimizers else None) if self._single else self.optimizers
            task.lr_scheduler = self.schedulers[0] if len(self.schedulers) == 1 else (self.schedulers or None)
            task.scaler = self.scaler
        task.config, task._session = self.config, self

    def _adopt_options(self) -> None:
        self.task.config = self.config
        self.options = options = TrainingOptions.of(self.task)
        if options.deterministic and self.device.type == "cuda":
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # or cuBLAS is refused
        if options.channels_last:
            self.model.to(memory_format=torch.channels_last)
        if options.precision == "fp16" and self.scaler is None:
            self.scaler = torch.amp.GradScaler(self.device.type)
        #: The model as it is called: compiled or as it is.
        self.callable = torch.compile(self.model) if options.compile else self.model
        #: The moving average of each parameter, if there is to be one.
        self.average = [p.detach().clone() for p in self.model.parameters()] if options.ema is not None else []

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Have the averaged weights in place of the newest."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self) -> None:
        for parameter, average in zip(self.model.parameters(), self.average, strict=False):
            kept = parameter.data.clone()
            parameter.data.copy_(average)
            average.copy_(kept)

    def _move_optimizers(self) -> None:
        """What an optimizer has laid out for each parameter beforehand follows it to its device."""
        for optimizer in self.optimizers:
            for parameter, state in optimizer.state.items():
                for name, value in state.items():
                    if torch.is_tensor(value) and value.ndim and value.shape == parameter.shape:
                        state[name] = value.to(parameter.device)

    def _check_parameters(self) -> None:
        """Optimizers must hold the model's own parameters, also after it moved to its device."""
        known = {id(parameter) for parameter in self.model.parameters()}
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                if any(id(parameter) not in known for parameter in group["params"]):
                    raise TaskError("build() returned an optimizer with parameters that are not the model's own")


@contextlib.contextmanager
def process_settings(session: TorchSession) -> Iterator[None]:
    """What a trial's code needs of the process; it is left as it was, random streams too if it is somebody else's."""
    before = randomness.current(session.device) if session.guest else None
    threads = torch.get_num_threads()
    cudnn = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    options: TrainingOptions | None = getattr(session, "options", None)  # a model that is being built has none yet
    strict = options is not None and options.deterministic and not torch.are_deterministic_algorithms_enabled()
    lenient = torch.is_deterministic_algorithms_warn_only_enabled()
    if strict:
        torch.use_deterministic_algorithms(True)
    torch.set_num_threads(session.threads)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    try:
        yield
    finally:
        task = session.task
        task.optimizer = task.lr_scheduler = task.scaler = task._session = None
        if before is not None:
            randomness.put(before, session.device)
        torch.set_num_threads(threads)
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = cudnn
        if strict:
            torch.use_deterministic_algorithms(False, warn_only=lenient)


def _parts(built: Any) -> tuple[Any, list[Any], list[Any], Any]:
    """What build() returned, sorted out: model, optimizers, schedulers, scaler."""
    parts = list(built) if isinstance(built, (tuple, list)) else [built]
    if not parts or not isinstance(parts[0], torch.nn.Module):
        raise TaskError(
            f"build() returned {type(built).__name__}: return model, optimizer[, lr_scheduler[, scaler]], "
            "the model being a torch.nn.Module"
        )
    optimizers: list[Any] = []
    schedulers: list[Any] = []
    scaler: Any = None
    for part in parts[1:]:
        for piece in part if isinstance(part, (tuple, list)) else [part]:
            if isinstance(piece, torch.optim.lr_scheduler.ReduceLROnPlateau):
                raise TaskError(
                    "ReduceLROnPlateau needs the validation metric, which training does not see; use another schedule"
                )
            if isinstance(piece, torch.optim.Optimizer):
                optimizers.append(piece)
            elif isinstance(piece, torch.optim.lr_scheduler.LRScheduler):
                schedulers.append(piece)
            elif isinstance(piece, torch.amp.GradScaler):
                scaler = piece
            elif piece is not None:
                raise TaskError(
                    f"build() returned a {type(piece).__name__} after the model: expected an optimizer, "
                    "an lr_scheduler or a GradScaler"
                )
    return parts[0], optimizers, schedulers, scaler


def summed(found: Iterable[tuple[Mapping[str, Any], int]]) -> dict[str, RowSum]:
    """The metrics of many batches. Only here are they fetched from the device."""
    found = list(found)
    there = [value for metrics, _ in found for value in metrics.values() if torch.is_tensor(value) and value.is_cuda]
    numbers: dict[int, float] = {}
    for dtype in {value.dtype for value in there}:
        some = [value for value in there if value.dtype == dtype and value.numel() == 1]
        if some:
            numbers |= zip(map(id, some), torch.cat([value.reshape(1) for value in some]).tolist(), strict=True)
    exact: list[Mapping[str, RowSum]] = []
    plain: dict[str, tuple[list[float], list[int]]] = {}
    for metrics, rows in found:
        for name, value in metrics.items():
            if isinstance(value, RowSum):
                exact.append({name: value})
                continue
            means, counts = plain.setdefault(name, ([], []))
            means.append(_number(name, numbers.get(id(value), value)))
            counts.append(rows)
    return add([{name: RowSum.over(*pieces) for name, pieces in plain.items()}, *exact])


def _convolves(model: Any) -> bool:
    """Whether a model has convolutions: on CUDA, those of many models in one are slower than side by side."""
    return any(isinstance(module, torch.nn.modules.conv._ConvNd) for module in model.modules())


def _number(name: str, value: Any) -> float:
    try:
        if torch.is_tensor(value):
            if value.numel() != 1:
                raise ValueError(f"a tensor of shape {tuple(value.shape)}")
            value = value.detach()
        return float(value)
    except (TypeError, ValueError) as error:
        raise TaskError(f"metric {name!r} is {value!r}: must be one number ({error})") from None


# ------------------------------------------------------------------------------------------- state in, state out


class Constant(NamedTuple):
    """What nobody changes."""

    value: Any


PLAIN = frozenset({bool, int, float, str, type(None)})
"""What most of a state is made of, beside tensors."""


class Still(NamedTuple):
    """A tensor of a state that was copied: its number among them."""

    number: int


@torch.no_grad()
def stilled(state: Any) -> Callable[[], Any]:
    """Copy a state; what is returned makes it up again, in memory of its own. What shares memory still does.

    All tensors of a kind are copied in one go: the model is wanted back, and there is time for the rest afterwards.
    """
    tensors: list[Any] = []
    tree = _noted(state, tensors, {})
    kinds: dict[Any, list[int]] = {}
    for number, tensor in enumerate(tensors):
        kinds.setdefault((tensor.dtype, tensor.device), []).append(number)
    rows = [_in_a_row([tensors[number] for number in some]) for some in kinds.values()]
    shapes = [tensor.shape for tensor in tensors]
    tensors.clear()

    def restored() -> Any:
        copies: dict[int, Any] = {}
        for row, numbers in zip(rows, kinds.values(), strict=True):
            pieces = row.split([shapes[number].numel() for number in numbers])
            copies |= {number: piece.view(shapes[number]) for number, piece in zip(numbers, pieces, strict=True)}
        return _made_up(tree, copies)

    return restored


def _in_a_row(tensors: list[Any]) -> Any:
    """The numbers of some tensors, copied."""
    if len(tensors) == 1:
        return tensors[0].reshape(-1).clone()
    return torch._utils._flatten_dense_tensors(tensors)  # type: ignore[no-untyped-call]


def _noted(value: Any, tensors: list[Any], numbers: dict[int, list[int]]) -> Any:
    """A state in containers of its own, with its tensors told by their numbers. ``numbers`` has them by place."""
    if type(value) in PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        here = numbers.setdefault(value.data_ptr(), [])
        for number in here:
            if _identity(tensors[number]) == _identity(value):
                return Still(number)
        here.append(len(tensors))
        tensors.append(value)
        return Still(here[-1])
    if isinstance(value, Constant):
        return value
    if isinstance(value, Counter):
        return Counter(value)
    if isinstance(value, dict):
        return {key: part if type(part) in PLAIN else _noted(part, tensors, numbers) for key, part in value.items()}
    if type(value) in (list, tuple, deque):
        return type(value)(_noted(part, tensors, numbers) for part in value)
    return value.copy() if isinstance(value, set) else value


def _made_up(tree: Any, copies: Mapping[int, Any]) -> Any:
    if isinstance(tree, Still):
        return copies[tree.number]
    if isinstance(tree, dict) and not isinstance(tree, Counter):
        return {key: _made_up(part, copies) for key, part in tree.items()}
    if type(tree) in (list, tuple, deque):
        return type(tree)(_made_up(part, copies) for part in tree)
    return tree


def _identity(tensor: Any) -> tuple[Any, ...]:
    if tensor.numel() == 0:
        return ("empty", id(tensor))
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device


def _model_state(model: Any) -> dict[str, Any]:
    """The state dict, and the buffers that it leaves out."""
    state = dict(model.state_dict())
    hidden = {name: buffer for name, buffer in model.named_buffers() if name not in state}
    return {"state": state, "hidden": hidden}


def _load_model(model: Any, saved: Mapping[str, Any]) -> None:
    """Copy what was saved into the model's own tensors."""
    extra = {name: copy.deepcopy(value) for name, value in saved["state"].items() if name.endswith("_extra_state")}
    model.load_state_dict({**saved["state"], **extra})
    buffers = dict(model.named_buffers())
    with torch.no_grad():
        for name, value in saved["hidden"].items():
            buffers[name].copy_(value)


def _optimizer_state(optimizer: Any) -> Any:
    """State by the position of each parameter. An optimizer with a format of its own keeps it."""
    if type(optimizer).state_dict is not torch.optim.Optimizer.state_dict:
        return optimizer.state_dict()
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {
        "groups": [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups],
        "state": {index: optimizer.state[p] for index, p in enumerate(parameters) if p in optimizer.state},
    }


def _load_optimizer(optimizer: Any, saved: Any) -> None:
    """Restore without the casts of ``load_state_dict``, which would round a state wider than its parameter."""
    if type(optimizer).load_state_dict is not torch.optim.Optimizer.load_state_dict:
        optimizer.load_state_dict(saved)
        return
    for group, values in zip(optimizer.param_groups, saved["groups"], strict=True):
        group.update(values)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    optimizer.state.clear()
    for index, state in saved["state"].items():
        optimizer.state[parameters[index]] = state


def _pairs(mine: Sequence[Any], theirs: Sequence[Any]) -> list[tuple[Any, Any]]:
    """One with one; none if there are more of one kind than of the other."""
    return list(zip(mine, theirs, strict=True)) if len(mine) == len(theirs) else []


def _shape(optimizer: Any) -> Any:
    """What must be alike for one optimizer to go on with what another one has gathered."""
    return type(optimizer), [len(group["params"]) for group in optimizer.param_groups]


def _same(one: Any, other: Any) -> bool:
    if torch.is_tensor(one) or torch.is_tensor(other):
        return torch.is_tensor(one) and torch.is_tensor(other) and torch.equal(one, other)
    return bool(one == other)


def _became_of(then: Mapping[str, Any], mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> Any:
    """``_became`` for each setting that all three have."""
    result = copy.copy(then)
    for name in [name for name in then if name in mine and name in theirs]:
        result[name] = _became(then[name], mine[name], theirs[name])  # type: ignore[index]
    return result


def _became(then: Any, mine: Any, theirs: Any) -> Any:
    """What training would have made of the setting ``mine``, if it made ``then`` of ``theirs``.

    A setting that both have alike is as it was then. One that the clone has another value of is its own, and where
    training changed it, as a schedule does with a learning rate, it is changed by the same factor.
    """
    three = (then, mine, theirs)
    if all(isinstance(part, dict) for part in three) and then.keys() == theirs.keys() == mine.keys():
        return _became_of(then, mine, theirs)
    if all(isinstance(part, list | tuple) for part in three) and len(then) == len(mine) == len(theirs):
        return type(mine)(_became(*parts) for parts in zip(*three, strict=True))
    if _same(mine, theirs):
        return then
    if not all(torch.is_tensor(part) or type(part) in (int, float) for part in three):
        return mine
    return mine if _same(then, theirs) or not theirs else mine * (then / theirs)
