"""The adapter of PyTorch: opens sessions, chooses engines for flotillas, and answers questions about devices."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from hopfleet.domain.batching import Batching
from hopfleet.domain.placement import CPU, SINGLE, Placement, TeamShape
from hopfleet.domain.rowsum import RowSum
from hopfleet.domain.trial import Config
from hopfleet.errors import TaskError, UsageError
from hopfleet.frameworks.base import Batch, Batches, EngineCache, Flotilla, Framework
from hopfleet.frameworks.estimate import ResourceEstimate
from hopfleet.frameworks.process_settings import Around, ProcessSetting, unwatched
from hopfleet.frameworks.teams import Membership, Team
from hopfleet.frameworks.torch import settings as process
from hopfleet.frameworks.torch import surroundings, weights
from hopfleet.frameworks.torch.checkpoint import averages
from hopfleet.frameworks.torch.engines import choose
from hopfleet.frameworks.torch.engines.capture_backend import LANES
from hopfleet.frameworks.torch.explain import explain
from hopfleet.frameworks.torch.formats import WRITERS, Call, Combined, combined
from hopfleet.frameworks.torch.parallel import choose as choose_strategy
from hopfleet.frameworks.torch.session import TorchSession
from hopfleet.frameworks.torch.settings import Value
from hopfleet.frameworks.torch.shared import SharedTensors
from hopfleet.frameworks.torch.steps import rows_of
from hopfleet.frameworks.torch.trial import Model, Part, SharedTask


class OneBatch:
    """The batches of a unit that has one."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self.rows = rows_of(batch)

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Batch]:
        return iter([self._batch])


class TorchFramework(Framework):
    """PyTorch, for one task. ``owns_loop`` tells whether the task overrides the training loop."""

    weights_file = weights.FILE

    def __init__(self, task: SharedTask, *, owns_loop: bool) -> None:
        self._task = task
        self._owns_loop = owns_loop

    def open(
        self, config: Config, *, seed: int, placement: Placement, threads: int, cache: EngineCache | None = None
    ) -> TorchSession:
        session: TorchSession
        if placement.strategy == SINGLE.strategy:
            if placement.kind == "cuda" and torch.device(placement.device).index is not None:
                torch.cuda.set_device(placement.device)  # engines use streams and kernels of the current device
            session = TorchSession(self._task, config, seed=seed, device=placement.device, threads=threads, cache=cache)
            if cache is not None:
                choose.make_ready(session)
        else:
            session = self._open_on_team(config, seed, placement, threads, cache)
        if not session.optimizers and not self._owns_loop:
            raise TaskError("build() returned no optimizer: return model, optimizer, or override train()")
        return session

    def _open_on_team(
        self, config: Config, seed: int, placement: Placement, threads: int, cache: EngineCache | None
    ) -> TorchSession:
        from hopfleet.frameworks.torch.parallel.session import TeamSession
        from hopfleet.frameworks.torch.parallel.team import TorchTeam

        if self._owns_loop:
            raise TaskError(
                f"parallelism={placement.strategy!r}: the task owns its training loop (it overrides train), and only "
                "the loop that Hopfleet provides trains this way; override loss() instead, or use parallelism='single'"
            )
        choose_strategy.team_shape(placement.strategy, len(placement.devices))
        team = None if cache is None else cache.team
        if team is None:
            team = TorchTeam(Membership(0, placement, ()))
        assert isinstance(team, TorchTeam)
        return TeamSession(
            self._task,
            config,
            seed=seed,
            threads=threads,
            cache=cache,
            team=team,
            strategy=choose_strategy.find(placement.strategy),
            name=placement.strategy,
        )

    def strategies(self) -> Sequence[str]:
        return choose_strategy.names()

    def team_shape(self, strategy: str, devices: int = 0) -> TeamShape:
        shape = choose_strategy.team_shape(strategy, devices)
        if self._owns_loop and shape != SINGLE:
            raise UsageError(
                f"parallelism={str(shape)!r}: must be 'single' for a task that overrides train, since teams train by "
                "the loop that Hopfleet provides; override loss() instead, or use parallelism='single'"
            )
        return shape

    def check_team(self, config: Config, shape: TeamShape, *, seed: int) -> None:
        if shape == SINGLE or not (strategy := choose_strategy.find(shape.strategy)()).cuts_models:
            return
        try:
            found = strategy.blocks(self.open(config, seed=seed, placement=Placement.on("cpu"), threads=1))
        except Exception:
            return  # the check of each configuration tells what is wrong
        if len(found) < shape.devices:
            fewer = f"'{shape.strategy}:{len(found)}', " if len(found) > 1 else "parallelism='single', "
            raise UsageError(
                f"parallelism={str(shape)!r}: the model must have a block for each of {shape.devices} devices, got "
                f"{len(found)}; use {fewer}or name more blocks in blocks(self, model)"
            )

    def spans_nodes(self, strategy: str) -> bool:
        return strategy != SINGLE.strategy and choose_strategy.find(strategy)().spans_nodes

    def repeats(self, strategy: str) -> bool:
        return strategy == SINGLE.strategy or choose_strategy.find(strategy)().repeatable

    def modules(self, strategy: str) -> Sequence[str]:
        return choose_strategy.modules(strategy)

    def join(self, membership: Membership) -> Team:
        from hopfleet.frameworks.torch.parallel.team import TorchTeam

        return TorchTeam(membership)

    def follow(self, team: Team, around: Around = unwatched) -> None:
        cache = EngineCache()
        cache.team = team

        def opened(
            config: Config, seed: int, threads: int, strategy: str, batching: Batching | None = None
        ) -> TorchSession:
            placement = replace(team.placement, strategy=strategy)
            framework = type(self)(self._task.planned(batching), owns_loop=self._owns_loop)
            with around({}) as found:
                session = framework.open(config, seed=seed, placement=placement, threads=threads, cache=cache)
            session.guest, session.own_settings = False, found.changes
            return session

        team.follow(opened, around)

    def model(self, config: Config, checkpoint: Path) -> torch.nn.Module:
        session = self._opened(config)
        session.load(checkpoint)
        session.exchange_average()
        return session.model.eval()

    def _opened(self, config: Config) -> TorchSession:
        """Open a session whose model is used without the session: the task itself gets the attributes of its trial."""
        session = self.open(config, seed=0, placement=CPU, threads=torch.get_num_threads())
        vars(self._task).update(vars(session.hooks))
        return session

    def export(self, config: Config, checkpoint: Path, path: Path) -> float:
        # Only the model tells which weights are averaged.
        averaged = averages(checkpoint)
        weights.write(path, self.model(config, checkpoint).state_dict() if averaged else weights.state_dict(checkpoint))
        return 0.0

    def pack(self, config: Config, checkpoint: Path, path: Path) -> None:
        self.export(config, checkpoint, path)

    def unpack(self, config: Config, path: Path) -> torch.nn.Module:
        model = self._opened(config).model
        model.load_state_dict(weights.state_dict(path))
        return model.eval()

    formats = ("safetensors", "torch", "torch.export", "onnx")

    def convert(self, model: torch.nn.Module, kind: str, path: Path, call: Call) -> float:
        return WRITERS[kind](model, path, call)

    def measuring(self, config: Config, dtypes: Mapping[str, str]) -> Callable[[Model, Batch], dict[str, RowSum]]:
        session = self.open(config, seed=0, placement=CPU, threads=torch.get_num_threads())

        def measure(model: Model, batch: Batch) -> dict[str, RowSum]:
            session.callable = model
            return session.evaluate(OneBatch(session.prepare(batch, dtypes)), seed=0)

        return measure

    def combined(self, outputs: Sequence[Part], weights: Sequence[float], *, logits: bool) -> Part:
        return combined(outputs, weights, logits=logits)

    def ensemble(self, models: Sequence[torch.nn.Module], weights: Sequence[float], *, logits: bool) -> torch.nn.Module:
        return Combined(models, weights, logits=logits).eval()

    def devices(self) -> tuple[str, int]:
        if torch.cuda.is_available():
            return "cuda", torch.cuda.device_count()
        if torch.backends.mps.is_available():
            return "mps", 1
        return "cpu", 1

    def settings(self) -> dict[str, Value]:
        return process.read()

    def apply(self, settings: Mapping[str, Value]) -> None:
        # Streams of CUDA run side by side as far as there are queues to the device; 8 unless told otherwise.
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", str(LANES))
        process.make(settings)

    def process_settings(self) -> Sequence[ProcessSetting]:
        return surroundings.process_settings()

    def estimate(self, session: TorchSession, batches: Batches) -> ResourceEstimate:
        from hopfleet.frameworks.torch.estimate import estimate

        return estimate(session, batches)

    @property
    def fusion_blocker(self) -> str:
        return "it owns its training loop (it overrides train)" if self._owns_loop else ""

    mixes_batch_sizes = True

    def flotilla(self, sessions: Sequence[TorchSession], *, fast: bool = False) -> Flotilla:
        return choose.flotilla(sessions, fast=fast)

    def gains(self, session: TorchSession, *, fast: bool) -> bool:
        return fast or self._task.transform is not None or choose.gains(session)

    def check_shared(self, cache: EngineCache) -> None:
        cache.part(SharedTensors).check()

    def spare_memory(self, placement: Placement) -> int:
        return int(torch.cuda.mem_get_info(placement.device)[0]) if placement.kind == "cuda" else 0

    def peak_memory(self, placement: Placement) -> int:
        if placement.kind != "cuda":
            return 0
        peak = torch.cuda.max_memory_allocated(placement.device)
        torch.cuda.reset_peak_memory_stats(placement.device)
        return int(peak)

    def used_memory(self, placement: Placement) -> int:
        return int(torch.cuda.memory_reserved(placement.device)) if placement.kind == "cuda" else 0

    def out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, torch.cuda.OutOfMemoryError)

    def broken(self, error: BaseException) -> bool:
        # After a failed kernel, say one with an index out of range, the process cannot use the device any more.
        return isinstance(error, RuntimeError) and "CUDA error:" in str(error)

    def explain(self, error: BaseException) -> None:
        explain(error)

    def free_memory(self) -> None:
        torch.cuda.empty_cache()
