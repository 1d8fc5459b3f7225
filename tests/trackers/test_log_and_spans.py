"""A run in the log, as text and as JSON, and as spans of OpenTelemetry."""

from __future__ import annotations

import io
import json
import logging
from typing import Any

import pytest

import hopfleet as hop
from hopfleet.support.logging import JsonFormatter, StandardError, messages
from hopfleet.testing.observers import CallbackSuite
from hopfleet.trackers import Log, OpenTelemetry
from tests.helpers.curve_task import SPACE, curve_experiment


class TestLog(CallbackSuite):
    experiments = 4

    def make(self) -> hop.Callback:
        return Log()


class TestOpenTelemetry(CallbackSuite):
    experiments = 4

    def make(self) -> hop.Callback:
        return OpenTelemetry()


PLACE = ("worker", "trial", "epoch", "partition")


@pytest.fixture
def faulty() -> dict[str, Any]:
    return {"space": {**SPACE, "fault": hop.grid_search([False, True])}, "search": hop.Random(trials=4, max_epochs=2)}


def test_every_line_of_the_log_is_json_with_the_ids_of_trial_and_worker(
    monkeypatch: pytest.MonkeyPatch, faulty: dict[str, Any]
) -> None:
    monkeypatch.setenv("HOPFLEET_LOG", "json")
    written = io.StringIO()
    monkeypatch.setattr("sys.stderr", written)
    monkeypatch.setattr(messages(), "handlers", [StandardError()])
    monkeypatch.setattr(messages("run"), "level", logging.DEBUG)
    logging.getLogger("hopfleet").manager._clear_cache()  # type: ignore[attr-defined]  # levels were changed
    results = curve_experiment("logged", callbacks=["log"], **faulty).fit(quiet=True)
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    run = [line for line in lines if line["logger"] == "hopfleet.run"]
    assert {line["experiment"] for line in run} == {"logged"}
    epochs = {(line["trial"], line["epoch"]): line["metrics"] for line in run if "metrics" in line}
    assert epochs.keys() == {(trial.id, row["epoch"]) for trial in results.trials for row in trial.history}
    units = [line for line in run if "seconds" in line]
    assert len(units) == len(results.history.spans)
    assert {line["worker"] for line in units} == set(results.history.workers)
    failed = [line for line in run if line["level"] == "WARNING"]
    assert {line["trial"] for line in failed} == {trial.id for trial in results.trials if trial.error} != set()


def test_a_line_of_json_has_the_traceback_and_no_line_break() -> None:
    try:
        raise ValueError("a\nb")
    except ValueError as error:
        record = logging.LogRecord("hopfleet", logging.ERROR, "", 0, "%s\n\x1b[31m", ("x",), (ValueError, error, None))
    line = JsonFormatter().format(record)
    assert "\n" not in line and "\x1b" not in line
    assert json.loads(line)["message"] == "x\n\x1b[31m"
    assert "ValueError" in json.loads(line)["error"]


def test_spans_of_units_are_those_of_the_journal(faulty: dict[str, Any]) -> None:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from opentelemetry.trace import StatusCode

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    results = curve_experiment("traced", callbacks=[OpenTelemetry(provider)], **faulty).fit(quiet=True)
    spans = exporter.get_finished_spans()
    names = {span.context.span_id: span.name for span in spans}
    units = [span for span in spans if "hopfleet.worker" in span.attributes]
    found = {
        (*(span.attributes[f"hopfleet.{name}"] for name in PLACE), span.name, span.start_time, span.end_time)
        for span in units
    }
    assert found == {
        (*(getattr(span, name) for name in PLACE), span.work.value, int(span.started * 10**9), int(span.ended * 10**9))
        for span in results.history.spans
    }
    assert all(names[span.parent.span_id] == f"trial {span.attributes['hopfleet.trial']}" for span in units)
    trials = {span.attributes["hopfleet.trial"]: span for span in spans if span.name.startswith("trial ")}
    for trial in results.trials:
        assert len(trials[trial.id].events) == len(trial.history)
        assert (trials[trial.id].status.status_code is StatusCode.ERROR) == bool(trial.error)
        assert names[trials[trial.id].parent.span_id] == "experiment traced"
