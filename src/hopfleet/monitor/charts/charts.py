"""All charts by kind: the functions that draw a chart and that return its data for dashboards and other programs."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from hopfleet.errors import UsageError
from hopfleet.monitor.charts.curves import curves_data, draw_curves
from hopfleet.monitor.charts.gantt import draw_gantt, gantt_data
from hopfleet.monitor.charts.importance import draw_importance, importance_data
from hopfleet.monitor.charts.lineage import draw_lineage, lineage_data
from hopfleet.monitor.charts.parallel import draw_parallel, parallel_data
from hopfleet.monitor.charts.pareto import draw_pareto, pareto_data
from hopfleet.monitor.charts.rungs import draw_rungs, rungs_data
from hopfleet.monitor.charts.steps import draw_steps, steps_data
from hopfleet.monitor.history import History
from hopfleet.phrases import did_you_mean, shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Chart:
    """One kind of chart. ``data`` and ``draw`` take a history and the same options."""

    data: Callable[..., Any]
    draw: Callable[..., Any]

    @property
    def options(self) -> list[str]:
        return list(inspect.signature(self.data).parameters)[1:]


CHARTS: Mapping[str, Chart] = {
    "curves": Chart(curves_data, draw_curves),
    "gantt": Chart(gantt_data, draw_gantt),
    "importance": Chart(importance_data, draw_importance),
    "lineage": Chart(lineage_data, draw_lineage),
    "parallel": Chart(parallel_data, draw_parallel),
    "pareto": Chart(pareto_data, draw_pareto),
    "rungs": Chart(rungs_data, draw_rungs),
    "steps": Chart(steps_data, draw_steps),
}


def draw_chart(history: History, kind: str, path: str | os.PathLike[str] | None = None, **options: Any) -> Figure:
    """Draw a chart; ``path`` ends in .png, .svg or .pdf. Raise UsageError if the kind does not apply."""
    figure: Figure = _chart(kind, options).draw(history, path, **options)
    return figure


def chart_data(history: History, kind: str, **options: Any) -> dict[str, Any]:
    """Return the data of a chart as plain values. Raise UsageError if the kind does not apply."""
    return asdict(_chart(kind, options).data(history, **options))


def _chart(kind: str, options: Mapping[str, Any]) -> Chart:
    if not isinstance(kind, str) or kind not in CHARTS:
        remedy = f"; to name a file, give path={kind!r}" if "." in str(kind) else ""
        near = did_you_mean(kind, CHARTS)
        raise UsageError(f"kind={shown(kind)}: {near}must be one of {', '.join(CHARTS)}{remedy}")
    chart = CHARTS[kind]
    for name in options:
        if name not in chart.options:
            taken = ", ".join(chart.options) or "no options"
            raise UsageError(
                f"{name}={options[name]!r}: not an option of kind={kind!r}, which takes {taken}; remove it"
            )
    return chart
