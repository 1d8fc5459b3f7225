"""A trial that is timed before a run is checked on the way: the first one hops, where a run follows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import hopfleet as hop
from hopfleet.domain.placement import CPU
from hopfleet.domain.trial import Trial
from hopfleet.worker import profiler
from hopfleet.worker.logs import copied
from hopfleet.worker.spec import WorkerSpec
from hopfleet.worker.worker import Worker
from tests.helpers.sample_tasks import Plain, arrays


class Counting(Plain):
    """Depends on a counter of its own."""

    seen = [0]  # noqa: RUF012

    def loss(self, model: Any, batch: Any) -> Any:
        self.seen[0] += 1
        return super().loss(model, batch) * self.seen[0]


class PutBack(Plain):
    """Depends on a counter that starts anew with each unit, because a number is put back."""

    count = 0

    def loss(self, model: Any, batch: Any) -> Any:
        PutBack.count += 1
        return super().loss(model, batch) * PutBack.count


@pytest.mark.parametrize(
    ("task", "run", "doubts"),
    [(Counting(), "r", 1), (Counting(), "", 0), (PutBack(), "r", 0), (Plain(), "r", 0)],
)
def test_the_first_trial_that_is_timed_hops(
    task: Any, run: str, doubts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiler, "QUICK", math.inf)  # a busy machine would skip the hop
    data = hop.partition(arrays(), tmp_path / "data", partitions=1)
    places: dict[str, Any] = {"checkpoints": tmp_path / "versions", "logs": tmp_path}
    numbers: dict[str, Any] = {"seed": 0, "threads": 1, "batch_size": 8}
    spec = WorkerSpec(task, data, None, **places, **numbers, device="cpu", drop_last=False, run=run)
    worker = Worker("w1", spec, CPU, lambda events: None, capture=copied, guest=True)
    found = [worker.probe(Trial(f"t{number}", number, {"lr": 0.1}, 0, 1), 2) for number in range(2)]
    worker.close()
    assert not any(profile.error for profile in found) and all(profile.seconds_per_row for profile in found)
    assert all(each.seconds > each.open_seconds + each.save_seconds + each.load_seconds for each in found)
    assert ["hop" in profile.doubt for profile in found] == [bool(doubts), False]
    assert not list((tmp_path / "versions").glob("probe/*"))
