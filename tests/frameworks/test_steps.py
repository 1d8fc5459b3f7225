"""The training options: the effect of each, and equal bits after a hop and in a flotilla."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import hopfleet as hop
from hopfleet.domain.placement import CPU
from hopfleet.errors import TaskError
from hopfleet.frameworks.base import IsolationError
from hopfleet.frameworks.torch import steps
from hopfleet.frameworks.torch.session import TorchSession


class Batches:
    """Five batches, one of them smaller."""

    rows = 36

    def __init__(self, shape: tuple[int, ...] = (4,)) -> None:
        self.shape = shape

    def __len__(self) -> int:
        return 5

    def __iter__(self) -> Iterator[dict[str, Any]]:
        generator = torch.Generator().manual_seed(0)
        for rows in (8, 8, 8, 8, 4):
            x = torch.randn(rows, *self.shape, generator=generator)
            yield {"x": x, "y": torch.randn(rows, generator=generator)}


class Task(hop.TorchTask):
    def __init__(self, **options: Any) -> None:
        for name, value in options.items():
            setattr(self, name, value)

    def build(self, config: Mapping[str, Any]) -> Any:
        model = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)
        )
        return model, torch.optim.Adam(model.parameters(), lr=config["lr"])

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        return ((model(batch["x"]).squeeze(1) - batch["y"]) ** 2).mean()


class Images(Task):
    def build(self, config: Mapping[str, Any]) -> Any:
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(16, 1))
        return model, torch.optim.SGD(model.parameters(), lr=config["lr"])


OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "tf32": {"precision": "tf32"},
    "bf16": {"precision": "bf16"},
    "clip": {"clip_norm": 0.01},
    "accumulate": {"accumulate": 2},
    "ema": {"ema": 0.9},
    "deterministic": {"deterministic": True},
    "all": {"precision": "bf16", "clip_norm": 0.5, "accumulate": 3, "ema": 0.5},
}


def several(task: hop.TorchTask, count: int = 3) -> list[TorchSession]:
    return [task.framework.open({"lr": 0.01 * (n + 1)}, seed=n, placement=CPU, threads=1) for n in range(count)]


def bits(one: TorchSession, folder: Path) -> bytes:
    one.save(folder / "bits")
    return (folder / "bits").read_bytes()


@pytest.mark.parametrize("name", OPTIONS)
def test_bits_are_equal_after_a_hop_and_in_a_flotilla(tmp_path, name):
    task = Task(**OPTIONS[name])
    alone, together = several(task), several(task)
    for unit in range(3):
        assert task.framework.flotilla(together).train(Batches(), last=[False] * 3) == [
            one.train(Batches(), last=False) for one in alone
        ]
        assert task.framework.flotilla(together).evaluate(Batches(), seed=1) == [
            one.evaluate(Batches(), seed=1) for one in alone
        ]
        assert [bits(one, tmp_path) for one in together] == [bits(one, tmp_path) for one in alone]
        if unit == 1:
            hopped = task.framework.open({"lr": 0.01}, seed=9, placement=CPU, threads=1)
            alone[0].save(tmp_path / "hop")
            hopped.load(tmp_path / "hop")
            together[0] = hopped


def by_hand(task: hop.TorchTask, seed: int, *, every: int = 1, norm: float | None = None) -> Any:
    """Train in a plain loop without Hopfleet."""
    torch.manual_seed(seed)
    model, optimizer = task.build({"lr": 0.01})
    batches = list(Batches())
    average = [parameter.detach().clone() for parameter in model.parameters()]
    for number, batch in enumerate(batches, 1):
        (task.loss(model, batch) / every).backward()
        if number % every == 0 or number == len(batches):
            if norm is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), norm)
            optimizer.step()
            optimizer.zero_grad()
            average = [0.9 * mean + 0.1 * p.detach() for mean, p in zip(average, model.parameters(), strict=True)]
    return model, average


@pytest.mark.parametrize(
    ("options", "by"), [({}, {}), ({"clip_norm": 0.01}, {"norm": 0.01}), ({"accumulate": 2}, {"every": 2})]
)
def test_the_bits_of_a_loop_by_hand(options, by):
    one = Task(**options).framework.open({"lr": 0.01}, seed=5, placement=CPU, threads=1)
    one.train(Batches(), last=False)
    model, _ = by_hand(Task(), 5, **by)
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), model.parameters(), strict=True))


def test_the_moving_average_is_evaluated_and_handed_out(tmp_path):
    task = Task(ema=0.9)
    one = task.framework.open({"lr": 0.01}, seed=5, placement=CPU, threads=1)
    one.train(Batches(), last=False)
    model, average = by_hand(Task(), 5)
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), model.parameters(), strict=True))
    for mine, theirs in zip(one.average, average, strict=True):
        torch.testing.assert_close(mine, theirs)
    one.save(tmp_path / "v1")
    handed = task.framework.model({"lr": 0.01}, tmp_path / "v1")
    assert all(torch.equal(a, b) for a, b in zip(handed.parameters(), one.average, strict=True))
    with torch.no_grad():
        mean = sum(float(task.loss(handed, batch)) * len(batch["y"]) for batch in Batches()) / 36
    assert float(one.evaluate(Batches(), seed=1)["loss"].mean) == pytest.approx(mean)


def test_channels_last_and_bf16_are_seen_by_the_model():
    task = Images(channels_last=True, precision="bf16")
    one = task.framework.open({"lr": 0.1}, seed=0, placement=CPU, threads=1)
    seen: list[Any] = []
    one.model[0].register_forward_hook(lambda module, inputs, output: seen.append((inputs[0], output)))
    batch = one.prepare({"x": torch.randn(2, 3, 4, 4).numpy(), "y": torch.randn(2).numpy()}, {})
    one.measure(batch)
    assert seen[0][0].is_contiguous(memory_format=torch.channels_last)
    assert seen[0][1].dtype == torch.bfloat16
    assert one.model[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_fp16_gets_a_scaler():
    one = Task(precision="fp16").framework.open({"lr": 0.1}, seed=0, placement=CPU, threads=1)
    assert isinstance(one.scaler, torch.amp.GradScaler)
    assert one.train(Batches(), last=True)["train_loss"].rows == 36


def test_a_compiled_model_is_called(tmp_path, monkeypatch):
    calls: list[Any] = []
    monkeypatch.setattr(torch, "compile", lambda model: lambda x: calls.append(x) or model(x))
    plain, compiled = (
        task.framework.open({"lr": 0.1}, seed=0, placement=CPU, threads=1) for task in (Task(), Task(compile=True))
    )
    for one in (plain, compiled):
        one.train(Batches(), last=True)
    assert len(calls) == 5
    assert bits(plain, tmp_path) == bits(compiled, tmp_path)


class PerTrial(Task):
    @property
    def clip_norm(self) -> float | None:  # type: ignore[override]
        return self.config["lr"]


def test_an_option_may_depend_on_the_configuration():
    assert [one.options.clip_norm for one in several(PerTrial())] == [0.01, 0.02, 0.03]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("precision", "int8"),
        ("clip_norm", 0),
        ("accumulate", 0),
        ("accumulate", 1.5),
        ("ema", 1.0),
        ("deterministic", 1),
    ],
)
def test_bad_options_are_named(option, value):
    with pytest.raises(TaskError, match=f"{option}={value!r}: must be"):
        Task(**{option: value}).framework.open({"lr": 0.1}, seed=0, placement=CPU, threads=1)


class Watching(Task):
    """Notes whether the process uses deterministic algorithms while a trial is at work, for all trials."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seen: list[bool] = []

    def loss(self, model: Any, batch: dict[str, Any]) -> Any:
        self.seen.append(torch.are_deterministic_algorithms_enabled())
        return super().loss(model, batch)


def test_deterministic_while_a_trial_is_at_work_and_not_longer() -> None:
    for wanted in (False, True):
        task = Watching(deterministic=wanted)
        one, *others = several(task)
        one.train(Batches(), last=False)
        one.evaluate(Batches(), seed=0)
        task.framework.flotilla(others).train(Batches(), last=[False, False])
        assert set(task.seen) == {wanted}
        assert not torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        one.train(Batches(), last=False)
        assert torch.are_deterministic_algorithms_enabled()  # as it was
    finally:
        torch.use_deterministic_algorithms(False)


def test_what_has_no_deterministic_algorithm_raises() -> None:
    class Lost(Task):
        def loss(self, model: Any, batch: dict[str, Any]) -> Any:
            torch.nn.functional.max_unpool1d(torch.ones(1, 1, 2), torch.tensor([[[0, 2]]]), 2)
            return super().loss(model, batch)

    for wanted in (False, True):
        (one,) = several(Lost(deterministic=wanted), 1)
        if wanted:
            with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
                one.train(Batches(), last=False)
        else:
            one.train(Batches(), last=False)
    assert not torch.are_deterministic_algorithms_enabled()


def test_deterministic_trials_do_not_train_with_others() -> None:
    class Mixed(Task):
        @property
        def deterministic(self) -> bool:  # type: ignore[override]
            return bool(self.config["lr"] > 0.015)

    with pytest.raises(IsolationError, match="some trials are deterministic"):
        Mixed().framework.flotilla(several(Mixed(), 2))


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_gradients_of_large_models_are_not_kept(monkeypatch: pytest.MonkeyPatch, small: bool, accumulate: int) -> None:
    class Looking(Task):
        def loss(self, model: Any, batch: dict[str, Any]) -> Any:
            seen.append(model[0].weight.grad is not None)
            return super().loss(model, batch)

    seen: list[bool] = []
    monkeypatch.setattr(steps, "SMALL", 4 * (4 * 8 + 8 + 8 + 1) - (not small))
    (one,) = several(Looking(accumulate=accumulate), 1)
    one.train(Batches(), last=True)
    after = [small] * 4 if accumulate == 1 else [True, small, True, small]
    assert seen == [False, *after]
