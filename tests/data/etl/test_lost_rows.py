"""Rows that a node of a cluster loses while it gathers them: they are made again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hopfleet.backends.ray import preparing
from hopfleet.errors import DataError


class Fading:
    """Rows in a file that is lost a number of times when it is about to be opened."""

    def __init__(self, path: Path, losses: int, broken: bool = False) -> None:
        self.path, self.losses, self.broken = path, losses, broken
        self.made = 0

    def make(self) -> None:
        self.made += 1
        self.path.touch()

    def cells(self) -> Any:
        if self.losses:
            self.losses -= 1
            self.path.unlink()
        if self.broken or not self.path.exists():
            raise DataError("cannot be opened")
        return "cells"


@pytest.fixture(autouse=True)
def made_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "make_chunk", lambda fading: fading.make())


@pytest.mark.parametrize("losses", range(preparing.REMADE))
def test_they_are_made_again(losses: int, tmp_path: Path) -> None:
    fading: Any = Fading(tmp_path / "rows", losses)
    assert preparing._cells((fading,), fading) == "cells"
    assert fading.made == losses + 1


def test_but_not_without_end(tmp_path: Path) -> None:
    fading: Any = Fading(tmp_path / "rows", 99)
    with pytest.raises((DataError, OSError)):
        preparing._cells((fading,), fading)
    assert fading.made == preparing.REMADE


def test_and_not_if_they_are_there_but_broken(tmp_path: Path) -> None:
    fading: Any = Fading(tmp_path / "rows", 0, broken=True)
    with pytest.raises(DataError, match="cannot be opened"):
        preparing._cells((fading,), fading)
    assert fading.made == 1
