"""The colours of trials: seen by all on both backgrounds, and told apart by people who see fewer colours."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from numpy.typing import NDArray

from hopfleet.ui.application import STATIC

SEEN = {
    "all": np.eye(3),
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "no blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
"""What is left of linear light without one kind of cones (Machado, Oliveira and Fernandes 2009)."""

Color = NDArray[np.float64]


def palettes() -> list[tuple[Color, list[Color]]]:
    """Return the background and the colours of each theme."""
    found = []
    for block in re.findall(r"{([^{}]*--s0: #[^{}]*)}", (STATIC / "style.css").read_text()):
        names = dict(re.findall(r"--(\w+): (#\w{6});", block))
        found.append((linear(names["card"]), [linear(names[f"s{place}"]) for place in range(6)]))
    return found


def linear(text: str) -> Color:
    values = np.array([int(text[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(color: Color) -> Color:
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ color.clip(0, 1)
    x, y, z = np.cbrt(xyz / [0.9505, 1.0, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def luminance(color: Color) -> float:
    return float(color @ [0.2126, 0.7152, 0.0722])


def test_themes_have_palettes() -> None:
    assert len(palettes()) == 3, "light, dark as the system says, and dark by choice"


@pytest.mark.parametrize("theme", [0, 1, 2])
def test_every_colour_stands_out_from_the_background(theme: int) -> None:
    back, colors = palettes()[theme]
    for color in colors:
        dark, light = sorted([luminance(back), luminance(color)])
        assert (light + 0.05) / (dark + 0.05) >= 3.0


@pytest.mark.parametrize("theme", [0, 1, 2])
@pytest.mark.parametrize("eyes", SEEN)
def test_colours_are_told_apart(theme: int, eyes: str) -> None:
    """A difference of 2 can be seen, and one of 10 at a glance."""
    seen = [lab(np.array(SEEN[eyes]) @ color) for color in palettes()[theme][1]]
    assert min(float(np.linalg.norm(one - other)) for one, other in itertools.combinations(seen, 2)) > 20
