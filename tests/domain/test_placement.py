"""Placements of units, and the shapes of teams as people write them."""

from __future__ import annotations

import pytest

from hopfleet.domain.placement import SINGLE, Placement, TeamShape, strategy_of


@pytest.mark.parametrize(
    ("shape", "text"),
    [(SINGLE, "single"), (TeamShape("spill"), "spill"), (TeamShape("ddp", 0), "ddp"), (TeamShape("fsdp", 2), "fsdp:2")],
    ids=str,
)
def test_shapes_read_as_they_are_written(shape: TeamShape, text: str) -> None:
    assert str(shape) == text


def test_a_placement_has_the_shape_of_its_team() -> None:
    assert Placement.on("cpu").shape == SINGLE
    assert Placement(("cpu", "cpu"), "ddp").shape == TeamShape("ddp", 2)


def test_the_strategy_of_a_trial() -> None:
    by_width = {"width": {"512": "ddp"}}
    assert strategy_of({"width": 64}, {}, "fsdp") == "fsdp", "as its worker does"
    assert strategy_of({"width": 512}, by_width, "fsdp") == "ddp"
    assert strategy_of({"width": 64}, by_width, "ddp") == "single"
    assert strategy_of({"width": 64, "parallelism": "ps:2"}, by_width, "ddp") == "ps"
