"""The text form of values in all views: flattened configurations, short numbers, durations, sizes.

All views share these functions, so that a learning rate looks the same in the terminal, on a chart and in a label.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hopfleet.domain.messages import RunStalled, UnitOverdue
from hopfleet.domain.trial import Config
from hopfleet.monitor.records import TrialHistory
from hopfleet.phrases import plural as plural
from hopfleet.safe_text import visible


def flatten(config: Config, prefix: str = "") -> dict[str, Any]:
    """Join nested names with dots: ``{"a": {"b": 1}}`` becomes ``{"a.b": 1}``."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = value
    return flat


def config_keys(trials: Iterable[TrialHistory]) -> list[str]:
    """Return all flattened configuration keys, those that differ between trials first."""
    varies = _varies(trials)
    return sorted(varies, key=lambda key: not varies[key])


def varying_keys(trials: Iterable[TrialHistory]) -> list[str]:
    """Return the keys that differ between trials, or all keys if none differ."""
    varies = _varies(trials)
    return [key for key in varies if varies[key]] or list(varies)


def _varies(trials: Iterable[TrialHistory]) -> dict[str, bool]:
    configs = [flatten(trial.displayed) for trial in trials]
    keys = dict.fromkeys(key for config in configs for key in config)
    return {key: len({repr(config.get(key)) for config in configs}) > 1 for key in keys}


def number(value: float) -> str:
    """Format a number with four significant digits."""
    return f"{value:.4g}"


def one_line(text: str) -> str:
    return " ".join(text.split())


def shorten(text: str, length: int) -> str:
    """Cut a text to a length, with control characters made visible."""
    text = visible(text)
    return text if len(text) <= length else text[: length - 1] + "…"


def short(value: object, length: int = 16) -> str:
    """Format a configuration value in a few characters."""
    return shorten(number(value) if isinstance(value, float) else one_line(str(value)), length)


def describe(config: Config, keys: Iterable[str], length: int) -> str:
    """Format the keys that fit as ``lr=0.01 width=64``. A key loses its prefix: ``a.b`` becomes ``b``."""
    flat = flatten(config)
    text = ""
    for key in keys:
        if key in flat:
            longer = f"{text} {key.rpartition('.')[2]}={short(flat[key])}".lstrip()
            if len(longer) > length:
                break
            text = longer
    return text


def duration(seconds: float) -> str:
    """Format a duration with its two largest units: ``12s``, ``3m 05s``, ``2h 10m``, ``3d 04h``."""
    total = round(seconds)
    if total < 60:
        return f"{total}s"
    if total < 3600:
        return f"{total // 60}m {total % 60:02d}s"
    if total < 86400:
        return f"{total // 3600}h {total % 3600 // 60:02d}m"
    return f"{total // 86400}d {total % 86400 // 3600:02d}h"


def makespan(seconds: float) -> str:
    """Format a duration for comparison with others: ``12.3 s``, from a minute on like ``duration``."""
    return f"{seconds:.1f} s" if seconds < 60 else duration(seconds)


def milliseconds(seconds: float) -> str:
    """Return a short time with three digits, as in 4.21 ms."""
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def size(count: float) -> str:
    """Format a number of bytes: ``512 B``, ``3.4 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def natural_order(name: str) -> tuple[tuple[str, int], ...]:
    """Return a sort key that puts ``w2`` before ``w10``."""
    return tuple((text, int(digits or 0)) for text, digits in re.findall(r"(\D*)(\d*)", name))


def waiting_for(partitions: Sequence[int], valid: Sequence[int] = ()) -> str:
    """Describe training and validation partitions that are on no worker; empty if there are none."""
    kinds = (("partition", partitions), ("validation partition", valid))
    named = [f"{kind}{'s' * (len(some) > 1)} {', '.join(map(str, some))}" for kind, some in kinds if some]
    if not named:
        return ""
    one = len(partitions) + len(valid) == 1
    return (
        f"{' and '.join(named)} {'is' if one else 'are'} on no worker and cannot be fetched; "
        f"waiting for a worker that has {'it' if one else 'them'}"
    )


def stalled(message: RunStalled) -> str:
    """Describe a run that stalled."""
    follows = (
        "units start without the policy" if message.overruled else "nothing can start; interrupt and resume the run"
    )
    return f"this is a bug of Hopfleet or of the policy, please report it: {message.text}; {follows}"


def overdue(message: UnitOverdue) -> str:
    """Describe a unit that hangs."""
    expected = f", estimated {duration(message.expected)}" if message.expected else ""
    limit = f", limit {duration(message.limit)}" if message.limit else ""
    return f"worker {message.worker} hangs: running for {duration(message.seconds)}{limit}{expected}; replacing it"
