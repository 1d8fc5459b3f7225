"""The colours of trials, the same in all charts.

The few best trials have strong colours, so that the eye finds the same trial in the curves and in the Gantt chart. All
others have pale colours that differ between neighbours.
"""

from __future__ import annotations

from colorsys import hls_to_rgb

from hopfleet.monitor.history import History, TrialHistory

#: Strong colours that remain distinct with the common kinds of colour blindness, the best trial's first.
HIGHLIGHTS = ("#1f5fa8", "#d9702b", "#2a9270", "#b0467f", "#8a7a1f")

INK = "#222222"
MUTED = "#767676"
RULE = "#dddddd"
OTHERS = "#b9bcc2"
FAILURE = "#c1272d"

#: Shades from the worst value to the best, paler than the strong colours drawn on top of them.
_SHADES = ((0xE9, 0xE4, 0xDA), (0xA9, 0xB8, 0xC6), (0x5C, 0x70, 0x92))

_GOLDEN_RATIO = 0.618033988749895


def highlighted(history: History, limit: int = len(HIGHLIGHTS)) -> list[TrialHistory]:
    """Return the best trials that have a value, best first, at most one per strong colour."""
    leaders = [trial for trial in history.leaderboard() if history.value(trial) is not None]
    return leaders[: min(limit, len(HIGHLIGHTS))]


def trial_colors(history: History) -> dict[str, str]:
    """Return a colour for every trial. Pale colours depend on the trial's number alone."""
    colors = {trial.id: _pale(trial.number) for trial in history.trials.values()}
    colors.update({trial.id: color for trial, color in zip(highlighted(history), HIGHLIGHTS, strict=False)})
    return colors


def _pale(number: int) -> str:
    # Steps of the golden ratio keep the hues of neighbouring numbers far apart for any number of trials.
    hue = number * _GOLDEN_RATIO % 1.0
    red, green, blue = hls_to_rgb(hue, 0.80 + 0.05 * (number % 3 - 1), 0.38)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def shade(merit: float) -> str:
    """Return the colour of a merit between 0, the worst, and 1, the best."""
    place = min(1.0, max(0.0, merit)) * (len(_SHADES) - 1)
    index = min(int(place), len(_SHADES) - 2)
    mixed = (a + (b - a) * (place - index) for a, b in zip(_SHADES[index], _SHADES[index + 1], strict=True))
    return "#" + "".join(f"{round(part):02x}" for part in mixed)


def readable_on(color: str) -> str:
    """Return the colour of a text on a bar of this colour."""
    red, green, blue = (int(color[place : place + 2], 16) for place in (1, 3, 5))
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 150 else INK
