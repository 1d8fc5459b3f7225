"""A tracker that posts JSON to an address: ends of trials and of the run, or every epoch too."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Collection, Mapping

from hopfleet.errors import UsageError
from hopfleet.runtime.callbacks import ExperimentInfo, TrialInfo
from hopfleet.support.plain import plain
from hopfleet.trackers.base import Tracker

EVENTS = ("begin", "trial", "epoch", "trial_end", "end")

TIMEOUT_SECONDS = 5.0
"""Seconds after which one call is given up."""


class Webhook(Tracker):
    """Posts a JSON object for each of the ``events``: begin, trial, epoch, trial_end, end.

    A call that fails is logged and not repeated. A run that continues does not repeat calls of earlier runs.
    """

    recalls = False

    def __init__(
        self,
        url: str,
        events: Collection[str] = ("trial_end", "end"),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"url={url!r}: must begin with http:// or https://")
        unknown = [event for event in events if event not in EVENTS]
        if isinstance(events, str) or unknown:
            raise UsageError(f"events={events!r}: must be a list of {', '.join(EVENTS)}")
        self._url, self._events, self._headers = url, set(events), dict(headers or {})
        self._name = ""

    def write_begin(self, experiment: ExperimentInfo) -> None:
        self._name = experiment.name
        self._post("begin", metric=experiment.metric, mode=experiment.mode, resumed=experiment.resumed)

    def write_trial(self, trial: TrialInfo) -> None:
        self._post("trial", trial=trial.id, config=trial.config, chosen=trial.chosen)

    def write_epoch(self, trial: TrialInfo, epoch: int, metrics: Mapping[str, float], time: float) -> None:
        self._post("epoch", trial=trial.id, epoch=epoch, metrics=metrics, time=time)

    def write_trial_end(self, trial: TrialInfo, state: str, reason: str) -> None:
        self._post("trial_end", trial=trial.id, state=state, reason=reason)

    def write_end(self, experiment: ExperimentInfo, complete: bool) -> None:
        self._post("end", complete=complete)

    def _post(self, event: str, **values: object) -> None:
        if event not in self._events:
            return
        body = json.dumps(plain({"experiment": self._name, "event": event, **values}), allow_nan=False).encode()
        headers = {"content-type": "application/json", **self._headers}
        request = urllib.request.Request(self._url, body, headers, method="POST")
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS):
            pass
