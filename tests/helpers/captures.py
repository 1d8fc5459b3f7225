"""Trials whose steps are captured: on CUDA, or on the CPU with a stand-in; and their comparison with trials alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import hopfleet as hop
from hopfleet.domain.placement import Placement
from hopfleet.frameworks.base import EngineCache
from hopfleet.frameworks.torch.session import TorchSession
from hopfleet.frameworks.torch.steps import Steps
from tests.helpers.recorded_capture import recorded_capture


@dataclass(frozen=True)
class Place:
    """A device on which steps are captured."""

    device: str

    @property
    def on_cuda(self) -> bool:
        return self.device != "cpu"

    def cache(self) -> EngineCache:
        cache = EngineCache()
        if not self.on_cuda:
            recorded_capture(cache)
        return cache


class Batches:
    def __init__(
        self, device: str, shape: tuple[int, ...] = (20,), count: int = 9, ragged: bool = True, seed: int = 0
    ) -> None:
        self.device, self.shape, self.count, self.ragged, self.seed = device, shape, count, ragged, seed
        self.rows = 64 * count - 24 * ragged

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        generator = torch.Generator().manual_seed(self.seed)
        for number in range(self.count):
            rows = 40 if self.ragged and number == self.count - 1 else 64
            x = torch.randn(rows, *self.shape, generator=generator)
            y = torch.randint(0, 3, (rows,), generator=generator)
            yield {"x": x.to(self.device), "y": y.to(self.device)}


def several(place: Place, task: hop.TorchTask, configs: list[dict[str, Any]]) -> list[TorchSession]:
    cache = place.cache()
    return [
        task.framework.open(config, seed=number, placement=Placement.on(place.device), threads=1, cache=cache)
        for number, config in enumerate(configs)
    ]


def bits(one: TorchSession, folder: Path) -> bytes:
    one.save(folder / "bits")
    return (folder / "bits").read_bytes()


def compare(
    place: Place,
    task: hop.TorchTask,
    configs: list[dict[str, Any]],
    folder: Path,
    shape: tuple[int, ...] = (20,),
    watch: Callable[[TorchSession], object] = lambda session: None,
) -> Any:
    """Train five units, each on other data, with evaluations and a hop in between; return the captures of each.

    ``watch`` is called with each session after each unit.
    """
    alone, together = (several(place, task, configs) for _ in range(2))
    captures = []
    for unit, (ragged, last) in enumerate(((True, False), (True, False), (True, False), (False, True), (True, False))):
        batches = Batches(place.device, shape, ragged=ragged, seed=unit)
        found = task.framework.flotilla(together).train(batches, last=[last] * len(configs))
        captures.append([one.kept.get(Steps) for one in together])
        for one in together:
            watch(one)
        assert found == [one.train(batches, last=last) for one in alone]
        assert task.framework.flotilla(together).evaluate(batches, seed=3) == [
            one.evaluate(batches, seed=3) for one in alone
        ]
        assert [bits(one, folder) for one in together] == [bits(one, folder) for one in alone]
        if unit == 1:
            together[0].save(folder / "hop")
            together[0] = task.framework.open(
                configs[0], seed=99, placement=Placement.on(place.device), threads=1, cache=together[1].cache
            )
            together[0].load(folder / "hop")
    return captures
