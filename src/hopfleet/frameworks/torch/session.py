"""A session: one trial in PyTorch on one device, which trains, evaluates, saves and loads bit for bit."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.optim.lr_scheduler import ReduceLROnPlateau

from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.step_values import StepValues
from hopfleet.domain.trial import Config
from hopfleet.errors import TaskError
from hopfleet.frameworks.base import Batch, Batches, EngineCache, Session
from hopfleet.frameworks.state import safetensors
from hopfleet.frameworks.state.tree import Tree
from hopfleet.frameworks.step_log import StepLog, mentions_log
from hopfleet.frameworks.torch import built, checkpoint, randomness, repeatable, step_log
from hopfleet.frameworks.torch.capturable import capturable_updates
from hopfleet.frameworks.torch.inherit import inherit
from hopfleet.frameworks.torch.options import TrainingOptions
from hopfleet.frameworks.torch.randomness import Streams
from hopfleet.frameworks.torch.repeatable_kernels import repeatable_kernels
from hopfleet.frameworks.torch.schedules import check_lengths
from hopfleet.frameworks.torch.settings import WARN, products_in
from hopfleet.frameworks.torch.shared import SharedTensor, SharedTensors
from hopfleet.frameworks.torch.snapshot import Snapshot, identity
from hopfleet.frameworks.torch.steps import by_time, check_metrics, on_host, rows_of, summed
from hopfleet.frameworks.torch.trial import Metrics, SharedTask, TrialContext
from hopfleet.frameworks.tracked_config import TrackedConfig

LARGE = 1 << 28
"""Bytes. A model with more weights keeps a device busy by itself."""

Rows = NDArray[np.integer]
"""Numbers of rows, in the order of an epoch."""


class Arranged:
    """The partition that was put into the order of an epoch last, while that order is in use.

    Trials that train together with batches of different sizes share it.
    """

    def __init__(self) -> None:
        self._order: Callable[[], object] = lambda: None
        self._batch: Batch = {}

    def of(self, whole: Batch, order: Rows, device: torch.device) -> Batch:
        """Return the rows of a partition in an order."""
        if self._order() is not order:
            places = torch.from_numpy(order).to(device)
            self._batch = {name: column.index_select(0, places) for name, column in whole.items()}
            self._order = weakref.ref(order, lambda _: self._batch.clear())
        return dict(self._batch)


class WriteStreams:
    """The streams on which versions are fetched from devices: one each, since a stream keeps memory for itself."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, Any] = {}

    def of(self, device: torch.device) -> Any:
        if device not in self._streams:
            # Torch hands out 32 streams of each priority in turn. One of this priority is never used for a capture.
            stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
            self._streams.setdefault(device, stream)
        return self._streams[device]


class TorchSession(Session):
    """A trial in PyTorch on one device."""

    def __init__(
        self,
        task: SharedTask,
        config: Config,
        *,
        seed: int,
        device: str,
        threads: int,
        cache: EngineCache | None = None,
    ) -> None:
        #: The task that all trials share. Hooks are called on ``hooks``, this trial's view of the task.
        self.task = task
        self.config = TrackedConfig(config)
        self.device = torch.device(device)
        self.threads = threads
        self.cache = EngineCache() if cache is None else cache
        self.counters = {"units": 0, "epochs": 0}
        self.log = StepLog()
        self._logged: StepValues | None = None
        self.random = randomness.seeded(seed)
        context = TrialContext(self.config, live=self)
        self.hooks = task.for_trial(context)
        #: Captures and the like that are kept for this session from unit to unit, by the class that keeps them.
        self.kept: dict[type, Any] = {}
        with self._environment():
            parts = self.hooks.parts(self.config)
        built.check_config(self.config, config)
        self.model, self.optimizers, self.schedulers, self.scaler, single = built.sorted_out(parts)
        self.shared: list[SharedTensor] = self._adopt()
        self.model.to(self.device)
        built.move_state(self.optimizers)
        self.options: TrainingOptions
        self.adopt_options()
        context.optimizer = (self.optimizers[0] if self.optimizers else None) if single else self.optimizers
        context.lr_scheduler = self.schedulers[0] if len(self.schedulers) == 1 else (self.schedulers or None)
        context.scaler = self.scaler
        built.check_parameters(self.model, self.optimizers)
        #: For each optimizer, its settings during captured updates; None for an optimizer that stays as it is.
        self.updates = capturable_updates(self.optimizers) if self.options.capture else [None] * len(self.optimizers)

    def adopt_options(self) -> None:
        """Read the options of the task and prepare the model for them."""
        self.options = options = TrainingOptions.of(self.hooks)
        if options.deterministic and self.device.type == "cuda":
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it, cuBLAS refuses to work
        if options.channels_last:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self.shared = self._adopt()
        if options.precision == "fp16" and self.scaler is None:
            self.scaler = torch.amp.GradScaler(self.device.type)
        self.callable: Callable[..., object] = torch.compile(self.model) if options.compile else self.model
        frozen = {identity(shared.tensor) for shared in self.shared}
        self.average = [
            weight.detach() if identity(weight) in frozen else weight.detach().clone()
            for weight in (self.model.parameters() if options.ema is not None else ())
        ]

    def _adopt(self) -> list[SharedTensor]:
        """Share the frozen tensors of the model with other trials of this worker."""
        return self.cache.part(SharedTensors).adopt(self.model, self.device)

    def check_goal(self, metric: str, mode: str) -> None:
        for scheduler in self._by_metric:
            if scheduler.mode != mode:
                better = "larger" if mode == "max" else "smaller"
                raise TaskError(
                    f"ReduceLROnPlateau(mode={scheduler.mode!r}): the metric {metric!r} is better if it is {better}; "
                    f"build the schedule with mode={mode!r}"
                )

    def check_schedules(self) -> Iterator[str]:
        return check_lengths(self.schedulers, self.hooks)

    # ---------------------------------------------------------------------------------------------- the work

    def observe(self, metric: float) -> None:
        for scheduler in self._by_metric:
            scheduler.step(metric)

    @property
    def _by_metric(self) -> list[ReduceLROnPlateau]:
        """The schedules that follow the metric of the experiment."""
        return [scheduler for scheduler in self.schedulers if isinstance(scheduler, ReduceLROnPlateau)]

    def prepare(self, batch: Batch, dtypes: Mapping[str, str]) -> Batch:
        return {name: self._tensor(value, dtypes.get(name, "")) for name, value in batch.items()}

    def _tensor(self, value: object, dtype: str) -> object:
        if isinstance(value, list):
            return [self._tensor(part, dtype) if isinstance(part, np.ndarray) else part for part in value]
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "biufc":
            return value.to(self.device) if isinstance(value, torch.Tensor) else value
        tensor = torch.from_numpy(np.ascontiguousarray(value))
        if dtype == "bfloat16" and tensor.dtype == torch.uint16:
            tensor = tensor.view(torch.bfloat16)
        if self.options.channels_last and tensor.ndim == 4:
            tensor = tensor.contiguous(memory_format=torch.channels_last)
        if self.device.type == "cuda":
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor.to(self.device)

    def pick(self, whole: Batch, order: Rows | None, batch_size: int, rows: int) -> Iterator[Batch]:
        arranged = whole if order is None else self.cache.part(Arranged).of(whole, order, self.device)
        parts = zip(*(torch.split(column[:rows], batch_size) for column in arranged.values()), strict=True)
        # Copy slices of the partition: a task that writes into its batch must not change the partition.
        return (
            dict(zip(whole, some if order is not None else [part.clone() for part in some], strict=True))
            for some in parts
        )

    def train(self, batches: Batches, *, last: bool) -> dict[str, RowSum]:
        self.model.train()
        self.begin_log()
        with self._environment():
            result = self.hooks.train(self.callable, step_log.CountedBatches(batches, self), self.config)
            found = None if result is None else check_metrics("train", result)
            return self.end_unit(found, batches.rows, last=last)

    def gradient_norm(self, batches: Batches) -> float | None:
        norms: dict[torch.optim.Optimizer, float] = {}

        def note(optimizer: torch.optim.Optimizer, *_: object) -> None:
            weights = (weight for group in optimizer.param_groups for weight in group["params"])
            norms[optimizer] = math.hypot(*(w.grad.norm().item() for w in weights if w.grad is not None))

        for optimizer in self.optimizers:
            optimizer.register_step_pre_hook(note)
        self.train(batches, last=False)
        return math.hypot(*norms.values()) if norms else None

    def end_unit(self, result: Metrics | None, rows: int, *, last: bool) -> dict[str, RowSum]:
        """Close a unit, and the epoch if it was the last. Call only while the trial's environment is in place."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        if last and self.hooks.lr_step == "epoch":
            for scheduler in by_time(self.schedulers):
                scheduler.step()
        self.counters["units"] += 1
        self.counters["epochs"] += last
        self._logged = self.log.take(step_log.read)
        return {f"train_{name}": value for name, value in summed([(result or {}, rows)]).items()}

    def begin_log(self) -> None:
        """Let values that are logged from now on be those of a new unit."""
        self._logged = None
        self.log.start(self.hooks.batches_per_step)

    def logged(self) -> StepValues | None:
        logged, self._logged = self._logged, None
        return logged

    @functools.cached_property
    def _mentions_log(self) -> bool:
        return "log" not in vars(self.task) and mentions_log(type(self.task))

    @property
    def logs(self) -> bool:
        """Whether the trial's code logs values of single steps, or might."""
        return self.log.used or self._mentions_log

    def evaluate(self, batches: Batches, *, seed: int) -> dict[str, RowSum]:
        self.model.eval()
        with self._environment(randomness.seeded(seed)), torch.no_grad(), self.averaged():
            found = [on_host(self.measure(batch)) for batch in batches]
        return summed(found)

    def measure(self, batch: Batch) -> tuple[Metrics, int]:
        """Return the metrics of a batch and its rows. Call only while the trial's environment is in place."""
        with self.options.autocast(self.device):
            metrics = self.hooks.metrics(self.callable, batch)
        return check_metrics("metrics", metrics), rows_of(batch)

    def varying(self, batches: Batches) -> str:
        if self.device.type not in repeatable.DEVICES:
            return ""
        self.model.train()
        with self._environment():
            return next((repeatable.varying(self, batch) for batch in batches), "")

    def unused(self) -> tuple[str, ...]:
        return self.config.unused()

    def absent(self) -> tuple[str, ...]:
        return self.config.absent()

    # ------------------------------------------------------------------------------------------ save and load

    @property
    def size(self) -> int:
        tensors: list[torch.Tensor] = [*self.model.parameters(), *self.model.buffers()]
        for optimizer in self.optimizers:
            for state in optimizer.state.values():
                tensors += [value for value in state.values() if torch.is_tensor(value)]
        whole = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return whole - self.shared_size

    @property
    def shared_size(self) -> int:
        return sum(shared.size for shared in self.shared)

    @property
    def steady(self) -> bool:
        # Evaluation exchanges averages and weights, and the forward pass may change buffers.
        return not self.average and next(self.model.buffers(), None) is None

    @functools.cached_property
    def large(self) -> bool:
        """Whether the model keeps a device busy by itself, so that its trials take turns and share memory."""
        return sum(weight.nbytes for weight in self.model.parameters()) > LARGE

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters() if parameter.requires_grad)

    def extra_state(self) -> Tree:
        """Return what else a version stores. Adapters that build on this one may have something."""
        return None

    def load_extra_state(self, state: Tree) -> None:
        """Restore what ``extra_state`` returned."""
        return

    def save(self, path: Path) -> None:
        self._write(path, checkpoint.state_of(self), safetensors.write)

    def snapshot(self) -> Callable[[Path], None]:
        # The layout of the file is left to the thread that writes it.
        # Beside a large model, the copies of many adapters would take a part of the device's memory that is missed.
        copy = Snapshot(checkpoint.state_of(self), fetched=LARGE if self.large else 0)
        if not copy.on_cuda:
            return lambda path: self._write(path, copy.rebuilt(), safetensors.write, copy.of_host)
        made = torch.cuda.Event()  # type: ignore[no-untyped-call]
        made.record(torch.cuda.current_stream(self.device))

        def write(path: Path) -> None:
            # Another stream: writing must not wait for training, which continues on streams of its own.
            stream = self.cache.part(WriteStreams).of(self.device)
            stream.wait_event(made)
            with torch.cuda.stream(stream):
                self._write(path, copy.rebuilt(), safetensors.write_at_once)

        return write

    def _write(
        self,
        path: Path,
        state: checkpoint.State,
        write: checkpoint.Write,
        of_host: Callable[[torch.Tensor], bool] = checkpoint.on_host,
    ) -> None:
        checkpoint.save(path, state, self.device, self.cache, write, of_host)

    def load(self, path: Path) -> None:
        try:
            checkpoint.load(self, path)
        except RuntimeError as error:
            raise TaskError(f"build() returned a different model for the same configuration: {error}") from None

    def inherit(self, path: Path, parent: Session) -> None:
        assert isinstance(parent, TorchSession)
        inherit(self, path, parent, lambda: parent.load(path))

    # -------------------------------------------------------------------------------------------- environment

    @contextlib.contextmanager
    def _environment(self, random: Streams | None = None) -> Iterator[None]:
        """Have the trial's random streams and threads in place while its code runs, and the process's own afterwards.

        With other ``random`` streams, the streams of the trial stay as they are.
        """
        with process_settings(self):
            randomness.put(self.random if random is None else random, self.device)
            yield
            if random is None:
                # Keep the stream of a device that is not here: it continues when the trial comes to such a device.
                self.random = {**self.random, **randomness.current(self.device)}

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Have the averaged weights in place of the latest weights."""
        self.exchange_average()
        try:
            yield
        finally:
            self.exchange_average()

    def exchange_average(self) -> None:
        """Exchange the weights and their moving average, if the task asks for one."""
        for parameter, average in zip(self.model.parameters(), self.average, strict=False):
            if parameter.data_ptr() == average.data_ptr() != 0:
                continue  # a frozen weight is its own average
            kept = parameter.data.clone()
            parameter.data.copy_(average)
            average.copy_(kept)


@contextlib.contextmanager
def process_settings(session: TorchSession) -> Iterator[None]:
    """Apply a trial's settings to the process, and restore the process's own afterwards.

    In the user's own process, restore the random streams as well.
    """
    before = randomness.current(session.device) if session.guest else None
    threads = torch.get_num_threads()
    cudnn, attends = torch.backends.cudnn.deterministic, torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    options: TrainingOptions | None = getattr(session, "options", None)  # None while the model is being built
    rounds = options is not None and options.precision == "tf32" and session.device.type == "cuda"
    mode = torch.get_deterministic_debug_mode()
    strict = options is not None and options.deterministic and mode <= WARN
    if strict:
        torch.use_deterministic_algorithms(True)
    torch.set_num_threads(session.threads)
    torch.backends.cudnn.deterministic = True
    torch.backends.cuda.enable_cudnn_sdp(False)
    cuda = session.device.type == "cuda"
    repeats = repeatable_kernels(lasting=not session.guest) if cuda else contextlib.nullcontext()
    try:
        with products_in("high") if rounds else contextlib.nullcontext(), repeats:
            yield
    finally:
        if before is not None:
            randomness.put(before, session.device)
        torch.set_num_threads(threads)
        torch.backends.cudnn.deterministic = cudnn
        torch.backends.cuda.enable_cudnn_sdp(attends)
        if strict:
            torch.use_deterministic_algorithms(bool(mode), warn_only=mode == WARN)
