"""A tracker that reports a run as spans of OpenTelemetry: the run, its trials, and every unit on its worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hopfleet.errors import MissingExtra
from hopfleet.runtime.callbacks import ExperimentInfo, TrialInfo, UnitInfo
from hopfleet.trackers.base import Tracker

NANOSECONDS = 1_000_000_000
"""Nanoseconds in a second: OpenTelemetry counts time in them."""


class OpenTelemetry(Tracker):
    """Reports spans to ``provider``, by default the tracer provider that the script has set for its process.

    A unit is a span below its trial, from its start to its end on the worker; an epoch is an event of the trial's span.
    A run that continues does not report the spans of earlier runs again.
    """

    recalls = False

    def __init__(self, provider: Any = None) -> None:
        try:
            from opentelemetry import trace
        except ImportError as error:
            raise MissingExtra("OpenTelemetry", "otel") from error
        super().__init__()
        self._trace, self._provider = trace, provider
        self._tracer: Any = None
        self._run: Any = None
        self._trials: dict[str, Any] = {}  #: open spans, by trial

    def write_begin(self, experiment: ExperimentInfo) -> None:
        self._tracer = self._trace.get_tracer("hopfleet", tracer_provider=self._provider)
        attributes = {"hopfleet.experiment": experiment.name, "hopfleet.resumed": experiment.resumed}
        self._run = self._tracer.start_span(f"experiment {experiment.name}", attributes=attributes)
        self._trials = {}

    def write_trial(self, trial: TrialInfo) -> None:
        self._span(trial)

    def write_epoch(self, trial: TrialInfo, epoch: int, metrics: Mapping[str, float], time: float) -> None:
        attributes = {"hopfleet.epoch": epoch, **{f"hopfleet.metric.{name}": metrics[name] for name in metrics}}
        self._span(trial).add_event("epoch", attributes, timestamp=int(time * NANOSECONDS))

    def on_unit_end(self, trial: TrialInfo, unit: UnitInfo) -> None:
        self._add(self._write_unit, trial, unit)

    def write_trial_end(self, trial: TrialInfo, state: str, reason: str) -> None:
        span = self._span(trial)
        span.set_attribute("hopfleet.state", state)
        if state == "failed":
            span.set_status(self._trace.StatusCode.ERROR, reason)
        self._trials.pop(trial.id).end()

    def write_end(self, experiment: ExperimentInfo, complete: bool) -> None:
        for span in self._trials.values():
            span.end()
        self._run.set_attribute("hopfleet.complete", complete)
        self._run.end()

    def _span(self, trial: TrialInfo) -> Any:
        """Return the open span of a trial. A trial that was resumed after its end has a second one."""
        if trial.id not in self._trials:
            within = self._trace.set_span_in_context(self._run)
            attributes = {"hopfleet.trial": trial.id, "hopfleet.origin": trial.origin}
            self._trials[trial.id] = self._tracer.start_span(f"trial {trial.id}", within, attributes=attributes)
        return self._trials[trial.id]

    def _write_unit(self, trial: TrialInfo, unit: UnitInfo) -> None:
        attributes = {
            "hopfleet.trial": trial.id,
            "hopfleet.worker": unit.worker,
            "hopfleet.epoch": unit.epoch,
            "hopfleet.partition": unit.partition,
        }
        within = self._trace.set_span_in_context(self._span(trial))
        started, ended = int(unit.started * NANOSECONDS), int(unit.ended * NANOSECONDS)
        span = self._tracer.start_span(unit.work, within, attributes=attributes, start_time=started)
        if unit.error:
            span.set_status(self._trace.StatusCode.ERROR, unit.error)
        span.end(ended)
