"""Whole experiments on teams: workers that train each trial on several processes."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hopfleet as hop
from hopfleet.backends.local.backend import Local, ProcessHandle
from hopfleet.clients.replay import replay
from hopfleet.domain.messages import Event, RecordLogged, UnitFinished, WorkerJoined, WorkerLost
from hopfleet.domain.placement import SINGLE, TeamShape
from hopfleet.errors import UsageError
from hopfleet.experiment.previewing import scratch_folder
from hopfleet.experiment.resources import WorkerPlan, plan_workers
from hopfleet.experiment.trial_runs import run_trials
from hopfleet.runs.verify import verify
from hopfleet.store.local import open_journal
from hopfleet.support.machine import Machine
from hopfleet.worker.protocol import Beat, Report
from tests.helpers import marks
from tests.helpers.marks import long
from tests.helpers.sample_tasks import Changing
from tests.helpers.sample_tasks import DoubleNet as Net


class Failing(Net):
    """Raises in the second epoch of the trial with the larger learning rate, in all members at once."""

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        loss = super().loss(model, batch)
        if self.config["lr"] == 0.01 and model.training and self.optimizer.state and len(batch["y"]) < 16:
            steps = next(iter(self.optimizer.state.values()))["step"]
            if steps >= 8:
                raise ValueError("enough")
        return loss


class WithBatchNorm(Net):
    def build(self, config: Mapping[str, Any]) -> Any:
        model = torch.nn.Sequential(torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1)).double()
        return model, torch.optim.Adam(model.parameters(), lr=config["lr"])


class KillsMembers(Local):
    """Kills one process of a team each time when some reports have arrived, signs of life not counted.

    So there is progress between two kills on a busy machine, too: a unit that loses its worker again and again fails.
    """

    def __init__(self, moments: Sequence[int]) -> None:
        super().__init__()
        self._moments, self._reports, self._random = set(moments), 0, random.Random(7)
        self.killed = 0

    def _hear(self, handle: ProcessHandle, report: Report) -> None:
        super()._hear(handle, report)
        self._reports += not isinstance(report, Beat)
        worker = handle.leader or handle
        if not isinstance(report, Beat) and self._reports in self._moments and worker.members:
            os.kill(self._random.choice(worker.team).pid, signal.SIGKILL)
            self.killed += 1


class StartsTogether(Local):
    """Reports its workers when all of them are ready, so that none of them trains everything alone."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count
        self._held: list[Event] = []

    def receive(self, timeout: float) -> list[Event]:
        self._held += super().receive(timeout)
        if sum(isinstance(event, WorkerJoined) for event in self._held) < self._count:
            return []
        self._count = 0
        held, self._held = self._held, []
        return held


def data(rows: int = 200) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 8))
    return {"x": x, "y": x[:, 0] * 2 + x[:, 1] ** 2}


def experiment(name: str, task: hop.TorchTask | None = None, **options: Any) -> hop.Experiment:
    space = {"lr": hop.choice([0.01, 0.003]), **options.pop("space", {})}
    defaults = {
        "train": data(),
        "valid": data(80),
        "search": hop.Grid(max_epochs=2),
        "partitions": 4,
        "workers": 1,
        "batch_size": 16,
        "run_options": hop.RunOptions(order="fixed"),
    }
    return hop.Experiment(task or Net(), space=space, name=name, **{**defaults, **options})


def messages(results: hop.Results) -> list[Any]:
    journal = open_journal(results.folder)
    try:
        return [message for _, _, message in journal.read()]
    finally:
        journal.close()


def digests(results: hop.Results) -> list[Any]:
    trials = results.history.trials.items()
    return [(name, version, saved.digest) for name, trial in trials for version, saved in trial.saved.items()]


def losses(results: hop.Results) -> list[float]:
    return [row["loss"] for trial in results.trials for row in trial.history]


@pytest.mark.slow
@pytest.mark.usefixtures("warm_compiler")
def test_a_team_trains_like_one_worker_and_replays() -> None:
    alone = experiment("alone").fit(quiet=True)
    team = experiment("team", parallelism="ddp:2").fit(quiet=True)
    assert losses(team) == pytest.approx(losses(alone), rel=1e-9)
    placements = {message.placement for message in messages(team) if isinstance(message, UnitFinished)}
    assert {(str(placement), placement.shape) for placement in placements} == {("cpu+cpu (ddp)", ("ddp", 2))}
    assert verify(team.folder).ok
    assert [trial.verdict for trial in replay(team).trials] == ["equal", "equal"]


@pytest.mark.slow
@pytest.mark.usefixtures("warm_compiler")
def test_trials_of_a_team_do_not_see_what_others_change() -> None:
    def fitted(name: str, changes: list[bool]) -> hop.Results:
        grid = {"lr": 0.01, "changes": hop.grid_search(changes), "dropout": 0.2}
        return experiment(name, Changing(), space=grid, parallelism="ddp:2").fit(quiet=True)

    plain, dirty = fitted("plain", [False, False]), fitted("dirty", [True, False])
    both = [dict(zip(("first", "second"), _by_trial(results), strict=True)) for results in (plain, dirty)]
    assert both[0]["first"] != both[1]["first"]
    assert both[0]["second"] == both[1]["second"]
    assert [trial.verdict for trial in replay(dirty).trials] == ["equal", "equal"]


def _by_trial(results: hop.Results) -> list[Any]:
    return [
        (trial.history, {v: one.digest for v, one in results.history.trials[trial.id].saved.items()})
        for trial in sorted(results.trials, key=lambda trial: trial.id)
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("warm_compiler")
def test_asynchronous_training_is_announced_as_not_repeatable_and_not_replayed() -> None:
    results = experiment("loose", parallelism="ps_async:2").fit(quiet=True)
    assert any("training again ends with other weights" in message.text for message in _records(results))
    again = replay(results)
    assert {(trial.verdict, trial.reason) for trial in again.trials} == {
        ("skipped", "was trained with 'ps_async', which gives other bits each time")
    }
    assert again.ok


def _records(results: hop.Results) -> list[RecordLogged]:
    return [message for message in messages(results) if isinstance(message, RecordLogged)]


@pytest.mark.slow
@pytest.mark.usefixtures("warm_compiler")
def test_trials_hop_between_workers_of_all_shapes_and_replay() -> None:
    shapes = ["single", "ddp:2", "fsdp:2", "pipeline:2", "spill"]
    options: Any = {"space": {"lr": hop.choice([0.1, 0.05, 0.02, 0.01, 0.005])}, "search": hop.Grid(max_epochs=1)}
    alone = experiment("alone", **options).fit(quiet=True)
    backend = StartsTogether(len(shapes))
    mixed = experiment("mixed", parallelism=shapes, workers=len(shapes), backend=backend, **options).fit(quiet=True)
    assert losses(mixed) == pytest.approx(losses(alone), rel=1e-9)
    placements = [message.placement for message in messages(mixed) if isinstance(message, UnitFinished)]
    assert len({None if one is None else one.shape for one in placements}) > 2
    assert {trial.verdict for trial in replay(mixed).trials} == {"equal"}


@pytest.mark.slow  # members import the compiler themselves, as those of users do
def test_a_search_over_strategies() -> None:
    alone = experiment("alone", space={"lr": 0.01, "any": hop.choice([1, 2, 3])}).fit(quiet=True)
    space = {"lr": 0.01, "parallelism": hop.choice(["single", "ddp", "fsdp"])}
    results = experiment("over", parallelism="ddp:2", space=space).fit(quiet=True)
    assert losses(results) == pytest.approx(losses(alone), rel=1e-9)
    shapes = {message.placement and message.placement.shape for message in messages(results) if _trains(message)}
    assert shapes == {None, ("ddp", 2), ("fsdp", 2)}


def _trains(message: object) -> bool:
    return isinstance(message, UnitFinished) and message.unit.trains


@pytest.mark.slow
@pytest.mark.usefixtures("warm_compiler")
@pytest.mark.parametrize(
    ("strategy", "reports"), [("ddp:2", range(9, 60, 17)), pytest.param("fsdp:2", range(9, 60, 17), marks=long)]
)
def test_killed_members_cost_nothing_but_time(strategy: str, reports: range) -> None:
    """Whichever process of a team dies, and when: no unit is lost or counted twice, and the bits stay."""
    options: Any = {"parallelism": strategy, "space": {"dropout": hop.choice([0.0, 0.3])}}
    calm = experiment("calm", **options).fit(quiet=True)
    backend = KillsMembers(reports)
    killed = experiment("killed", backend=backend, **options).fit(quiet=True)
    assert backend.killed > 1
    lost = [message for message in messages(killed) if isinstance(message, WorkerLost)]
    assert any("killed by SIGKILL" in message.reason for message in lost)
    assert digests(killed) == digests(calm)
    assert losses(killed) == losses(calm)
    assert verify(killed.folder).ok


@pytest.mark.slow
@pytest.mark.usefixtures("warm_compiler")
@marks.long
@pytest.mark.parametrize("strategy", ["ddp:2", "fsdp:2", "pipeline:2", "ps:2"])
def test_members_killed_again_and_again_cost_nothing_but_time(strategy: str) -> None:
    """Thirteen moments for each strategy: while a team forms, trains, evaluates, saves or rests."""
    options: Any = {"parallelism": strategy, "search": hop.Grid(max_epochs=12), "space": {"dropout": 0.3}}
    calm = experiment("calm", **options).fit(quiet=True)
    backend = KillsMembers(range(5, 122, 9))
    killed = experiment("killed", backend=backend, **options).fit(quiet=True)
    assert backend.killed == 13
    assert digests(killed) == digests(calm)
    assert losses(killed) == losses(calm)
    assert verify(killed.folder).ok


@pytest.mark.slow
@pytest.mark.usefixtures("warm_compiler")
def test_a_failing_trial_fails_alone() -> None:
    results = experiment("failing", Failing(), parallelism="ddp:2", batch_size=32).fit(quiet=True)
    states = {trial.config["lr"]: trial.state.value for trial in results.trials}
    assert states == {0.01: "failed", 0.003: "completed"}
    (failed,) = [trial for trial in results.trials if trial.config["lr"] == 0.01]
    assert "ValueError: enough" in failed.error


@pytest.mark.slow
@pytest.mark.usefixtures("warm_compiler")
@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        pytest.param("ddp:2", "BatchNorm on a team: each member normalizes its own share", id="shares"),
        pytest.param("pipeline:2", "BatchNorm on a team: it normalizes each of the 8 micro-batches", id="stages"),
    ],
)
def test_batch_norm_on_a_team_is_announced(strategy: str, said: str, capfd: pytest.CaptureFixture[str]) -> None:
    experiment("norm", WithBatchNorm(), parallelism=strategy, search=hop.Grid(max_epochs=1), batch_size=25).fit()
    printed = capfd.readouterr()
    assert said in " ".join((printed.out + printed.err).split())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        pytest.param({"parallelism": "ddpp"}, "unknown; did you mean 'ddp'", id="unknown"),
        pytest.param({"parallelism": "ddp:two"}, "after the colon must come a number", id="number"),
        pytest.param({"parallelism": "ddp:1"}, "needs at least 2 devices, as in 'ddp:2'", id="one"),
        pytest.param({"parallelism": "ps/3:2"}, "'ps/3' needs at least 3 devices", id="servers"),
        pytest.param({"parallelism": "ps/0:2"}, "a number of servers, at least 1", id="no server"),
        pytest.param({"parallelism": "ps/0+2:2"}, r"'ps/0\+2' needs at least 3 devices", id="no worker"),
        pytest.param({"parallelism": "ps/1+:3"}, "those that only serve, as in 'ps/0\\+1:4'", id="half a sum"),
        pytest.param({"parallelism": "ps/1+1+1:4"}, "those that only serve", id="a longer sum"),
        pytest.param({"parallelism": "ddp/2:2"}, "parallelism='ddp/2'", id="servers of ddp"),
        pytest.param({"parallelism": []}, "name at least one strategy", id="none"),
        pytest.param(
            {"parallelism": "ddp:4", "batch_size": 3}, "batch_size=3: is smaller than a team of 4", id="batch"
        ),
        pytest.param({"parallelism": "ddp:2", "backend": "inline"}, "use backend='local'", id="inline"),
        pytest.param(
            {"parallelism": "ddp", "workers": 64},
            "for 64 workers, and each team needs at least 2; .*with a number, as in 'ddp:2', or use",
            id="few",
        ),
        pytest.param(
            {"parallelism": "ddp:2", "worker_options": hop.WorkerOptions(device="cpu:0")},
            "parallelism='ddp:2': device='cpu:0' is one device, and a team has several; use device='cpu'",
            id="one of several",
        ),
    ],
)
def test_mistakes(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said.replace("(", r"\(")):
        experiment("wrong", **options).fit(quiet=True)


@pytest.mark.parametrize(
    ("gpus", "asked", "said"),
    [
        pytest.param(2, TeamShape("ddp", 4), "2 devices of kind 'cuda', and each .* use 'ddp:2', dev", id="more"),
        pytest.param(1, TeamShape("ddp", 2), "1 device of kind 'cuda', .* needs its own; use device='cpu'", id="other"),
        pytest.param(1, TeamShape("ddp", 0), "has 1 device of kind 'cuda', and each team needs .*; use par", id="one"),
    ],
)
def test_too_few_gpus(gpus: int, asked: TeamShape, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task = Net()
    monkeypatch.setattr(type(task.framework), "devices", lambda framework: ("cuda", gpus))
    with pytest.raises(UsageError, match=said):
        plan_workers(Local(), task, workers="auto", device="auto", threads=1, trials=4, teams=(asked,))


@pytest.mark.parametrize(("cores", "most"), [(1, 4), (2, 4), (8, 16)])
def test_a_team_that_crowds_the_cores(cores: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopfleet.experiment.resources.this_machine", lambda: Machine(cores, 64 << 30))

    def plan(devices: int) -> WorkerPlan:
        shape = TeamShape("ddp", devices)
        return plan_workers(Local(), Net(), workers=1, device="cpu", threads=1, trials=4, teams=(shape,))

    assert plan(most).teams == (TeamShape("ddp", most),)
    said = f"parallelism='ddp:{most + 1}': a team must have at most {most} members on .*, got {most + 1}; use 'ddp:"
    with pytest.raises(UsageError, match=said):
        plan(most + 1)


@pytest.mark.slow
@pytest.mark.usefixtures("warm_compiler")
def test_trial_runs_of_strategies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopfleet.experiment.resources.this_machine", lambda: Machine(3, 8 << 30))
    tried = experiment("tried", space={"width": hop.choice(["cut", "whole"])}, train=data(64), partitions=1)
    with scratch_folder(tried.definition) as place:
        shapes = [SINGLE, TeamShape("ddp", 2), TeamShape("pipeline", 5)]
        runs = list(run_trials(tried.definition, place, shapes, lambda text: None))
    assert not place.path.exists()
    assert [(run.config["width"], run.shape) for run in runs] == [
        (width, shape) for shape in shapes for width in ("cut", "whole")
    ]
    assert [run.error for run in runs[:4]] == [""] * 4
    assert all(run.rows_per_second > 0 for run in runs[:4])
    assert all("for 5 stages" in run.error for run in runs[4:])


@pytest.mark.slow
def test_spilling_works_in_this_process(tmp_path: Path) -> None:
    alone = experiment("alone", backend="inline").fit(quiet=True)
    spilled = experiment("spilled", backend="inline", parallelism="spill").fit(quiet=True)
    assert digests(spilled) == digests(alone)


@pytest.mark.slow
@pytest.mark.usefixtures("warm_compiler")
def test_a_model_that_cannot_be_cut() -> None:
    with pytest.raises(UsageError, match=r"the model must have a block for each of 3 devices, got 2; use 'pipeline:2'"):
        experiment("cut", WithBatchNorm(), parallelism="pipeline:3").fit(quiet=True)
