"""What ``policy="fleet"`` knows about the rates of trials, from trial runs on one device and on two.

The run folder keeps the trial runs, and numbers of devices depend on nothing else that was measured. So a run that is
resumed gives its trials the devices that they would have had.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import fmean

from hopfleet.domain.placement import SINGLE
from hopfleet.domain.trial import Config, Trial
from hopfleet.errors import UsageError
from hopfleet.forecast.profiling import architecture
from hopfleet.forecast.team_choice import Size, TeamChoice
from hopfleet.forecast.trial_runs import CLEAR, TrialRun
from hopfleet.planner.fleet.allocation import Fleet
from hopfleet.planner.rates import Rates
from hopfleet.planner.teams import Scaling


def choose_fleet(runs: Sequence[TrialRun], extent: Size, devices: int, form_seconds: float) -> TeamChoice:
    """Return how a run starts that gives its trials numbers of devices in rounds: on one device each.

    A configuration that was not tried, or that failed, counts as the mean of its class, or of all.
    """
    alone = {_key(run.config): run for run in runs if run.shape == SINGLE and run.rows_per_second}
    if not alone:
        raise UsageError(
            f"policy='fleet': each configuration must train on one device, and none does: {runs[0].failure}; use "
            "policy='auto', which tries other strategies"
        )
    pairs = {_key(run.config): run for run in runs if run.shape.devices == 2 and run.rows_per_second}
    tables = {key: _rates(run, pairs.get(key)) for key, run in alone.items()}
    by_class: dict[object, list[Rates]] = {}
    for key, run in alone.items():
        by_class.setdefault(architecture(run.config), []).append(tables[key])
    usual = _mean(list(tables.values()))

    def rates(trial: Trial) -> Rates:
        some = by_class.get(architecture(trial.config))
        return tables.get(_key(trial.config)) or (usual if some is None else _mean(some))

    opening = max(run.open_seconds for run in (pairs or alone).values())
    strategy = next((run.shape.strategy for run in pairs.values()), "ddp")
    scaling = Scaling(strategy, usual, form_seconds + opening, extent.batch)
    gains = [table(2) / table(1) for table in tables.values()]
    why = f"FLEET's rounds; two devices are {min(gains):.2f} to {max(gains):.2f} times as fast as one"
    fleet = Fleet(scaling, rates, extent.rows)
    return TeamChoice((SINGLE,), why, devices, scaling, tuple(runs), fleet=fleet)


def _key(config: Config) -> str:
    """Return a configuration as text: the same before and after a journal has kept it."""
    return json.dumps(config, sort_keys=True, default=repr)


def _rates(alone: TrialRun, pair: TrialRun | None) -> Rates:
    """Return the rates of a configuration; two devices that are not clearly faster than one count as one."""
    gains = pair is not None and pair.rows_per_second >= CLEAR * alone.rows_per_second
    profiled = (alone.rows_per_second, pair.rows_per_second) if gains and pair else (alone.rows_per_second,)
    return Rates("a trial", profiled)


def _mean(tables: Sequence[Rates]) -> Rates:
    """Return the rates of trials that train one after another, with as many rows each."""
    one, two = (1 / fmean(1 / table(count) for table in tables) for count in (1, 2))
    return Rates("the mean", (one, two) if two > one else (one,))
