"""What is said of a run before it starts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import hopfleet as hop
from hopfleet.experiment import forecasting
from hopfleet.support.machine import Machine
from tests.helpers.sample_tasks import Plain, arrays


class Own(Plain):
    """A loop of its own."""

    def train(self, model: Any, batches: Any, config: Any) -> Any:
        return {}


@pytest.mark.parametrize(
    ("task", "device", "cores", "trials", "options", "advised"),
    [
        (Own(), "cuda", 16, 16, {}, 4),
        (Own(), "cuda", 6, 16, {}, 3),
        (Own(), "cuda", 16, 2, {}, 2),
        (Own(), "cuda", 2, 16, {}, None),
        (Own(), "cuda", 16, 1, {}, None),
        (Own(), "cuda", 16, 16, {"workers": 1}, None),
        (Own(), "cpu", 16, 16, {}, None),
        (Plain(), "cuda", 16, 16, {}, None),
    ],
)
def test_loops_of_their_own_may_share_a_gpu(
    task: Any,
    device: str,
    cores: int,
    trials: int,
    options: dict[str, Any],
    advised: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forecasting, "this_machine", lambda: Machine(cores, 1 << 36))
    search = hop.Random(trials=trials, max_epochs=1)
    experiment = hop.Experiment(task, train=arrays(20), space={"lr": hop.uniform(0, 1)}, search=search, **options)
    forecast: Any = SimpleNamespace(outline=SimpleNamespace(workers=1), spec=SimpleNamespace(device=device), configs={})
    found = [text for text in forecasting.notes_of(experiment.definition, forecast) if "workers=" in text]
    assert [text.partition(":")[0] for text in found] == ([f"workers={advised}"] if advised else [])
