"""HTML for notebooks: facts and tables in the colours of the page, so that they suit light and dark themes."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from hopfleet.monitor.history import History, TrialHistory
from hopfleet.monitor.terminal.tables import Column, best_text, leaderboard_table
from hopfleet.monitor.wording import flatten, number, one_line, plural, short, shorten
from hopfleet.safe_text import visible

_TRIALS = 10  #: rows of a leaderboard
_COLUMNS = 10  #: columns of a leaderboard, the most important first


def facts_html(facts: Iterable[tuple[str, str]]) -> str:
    """Return names and values as a table."""
    rows = "".join(
        f'<tr><th style="text-align:left">{_safe(name)}</th><td style="text-align:left">{_safe(value)}</td></tr>'
        for name, value in facts
    )
    return f'<table style="color:inherit">{rows}</table>'


def results_html(history: History) -> str:
    """Return the best trials as a table, below a summary."""
    counts = ", ".join(f"{count} {state.value}" for state, count in history.counts().items() if count)
    trials = f"{plural(len(history.trials), 'trial')}: {counts}" if counts else "no trials"
    lines = [f"<b>{_safe(history.name)}</b> {_safe(trials)}", _safe(best_text(history))]
    if not history.trials:
        return _block(lines)
    more = len(history.trials) - _TRIALS
    table = _table(_most_important(leaderboard_table(history, _TRIALS).columns))
    return _block([*lines, table, *([plural(more, "more trial")] if more > 0 else [])])


def trial_html(trial: TrialHistory, experiment: str) -> str:
    """Return the state, the metrics and the configuration of a trial as a table."""
    best = trial.best
    metrics = ", ".join(f"{name}={number(value)}" for name, value in best.metrics.items()) if best else ""
    facts = [
        ("trial", f"{trial.id} of {experiment}"),
        ("state", f"{trial.state.value}, {trial.epochs_trained} of {plural(trial.epochs, 'epoch')}"),
        *([("best", f"{metrics} at epoch {best.epoch}")] if best else []),
        *((key, short(value, 60)) for key, value in flatten(trial.displayed).items()),
        *([("why it ended", shorten(one_line(trial.reason), 200))] if trial.reason else []),
    ]
    return facts_html(facts)


def _most_important(columns: Sequence[Column]) -> list[Column]:
    shown = sorted(columns, key=lambda column: column.priority)[:_COLUMNS]
    return [column for column in columns if column in shown]


def _table(columns: Sequence[Column]) -> str:
    head = "".join(f'<th style="text-align:{column.justify}">{_safe(column.header)}</th>' for column in columns)
    rows = "".join(
        "<tr>" + "".join(f"<td style='text-align:{c.justify}'>{_safe(c.cells[row])}</td>" for c in columns) + "</tr>"
        for row in range(len(columns[0].cells))
    )
    return f'<table style="color:inherit"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'


def _block(lines: Iterable[str]) -> str:
    return '<div style="overflow-x:auto">' + "".join(f"<div>{line}</div>" for line in lines) + "</div>"


def _safe(text: str) -> str:
    return html.escape(visible(text))
