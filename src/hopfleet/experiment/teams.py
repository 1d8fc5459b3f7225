"""``parallelism="auto"``: trial runs of strategies, which the run folder keeps, and the choice by dry runs."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from hopfleet.backends.base import Backend, Cluster, FormsTeams, Offer
from hopfleet.domain.placement import AUTO, SINGLE, TeamShape
from hopfleet.errors import UsageError
from hopfleet.experiment.definition import Definition
from hopfleet.experiment.previewing import scratch_folder
from hopfleet.experiment.resources import Data
from hopfleet.experiment.trial_runs import DRAWN, device_count, run_trials
from hopfleet.forecast.fleet_choice import choose_fleet
from hopfleet.forecast.team_choice import Nodes, Size, TeamChoice, choose_teams
from hopfleet.forecast.trial_runs import TrialRun
from hopfleet.search.base import MAX_LIVE
from hopfleet.version import __version__

PAIR = TeamShape("ddp", 2)
"""The team to try; the rates of larger ones are extrapolated."""

FLEET = "fleet"
"""The policy that gives trials numbers of devices in rounds."""

ALONE = "use parallelism='single', with which trials share prepared rows on one device each"
"""What to do where that policy can form no teams."""

SAVING = (TeamShape("fsdp", 2), TeamShape("spill", 1))
"""What to try where a model does not fit one device."""


def find_teams(
    definition: Definition, backend: Backend, data: Data, tell: Callable[[str], None], *, keep: bool
) -> TeamChoice | None:
    """Return how the workers of an experiment train, if trial runs decide that; None if the user does.

    Trial runs in the run folder are not repeated on the same machine; ``keep`` puts them there.
    """
    if definition.parallelism != (AUTO,):
        return None
    nodes = _nodes(definition, backend)
    in_rounds = definition.run_options.policy == FLEET
    if blocker := _blocker(definition, backend, nodes.total):
        if in_rounds:
            raise UsageError(f"policy={FLEET!r}, parallelism='auto': must form teams, but {blocker}; {ALONE}")
        return TeamChoice((SINGLE,), f"one device each: {blocker}")
    assert isinstance(backend, FormsTeams)
    made_by = _made_by(definition, backend, nodes)
    runs = _known(definition, made_by) or _tried(definition, data, nodes, tell, every=in_rounds)
    if keep:
        definition.folder.keep_trial_runs({**made_by, "runs": [run.as_json() for run in runs]})
    trials = min(MAX_LIVE, definition.trials)
    configs = definition.examples(DRAWN)
    rows, epochs = data.train.partition_rows, definition.search.max_epochs
    batch = min([definition.batch_size, *map(definition.rows_per_batch, configs)])
    extent = Size(configs, trials, epochs, sum(rows), len(rows), batch)
    seconds = _form_seconds(backend, runs)
    return choose_fleet(runs, extent, nodes.total, seconds) if in_rounds else choose_teams(runs, extent, nodes, seconds)


def _form_seconds(backend: FormsTeams, runs: Sequence[TrialRun]) -> float:
    """Return the seconds until a new team has met: on a cluster, those of the teams that were tried.

    The processes of a cluster start anew each time, while those of this machine are forks.
    """
    tried = [run.start_seconds for run in runs if run.shape.devices > 1 and run.start_seconds]
    return max(tried) if tried and isinstance(backend, Cluster) else backend.form_seconds


def _nodes(definition: Definition, backend: Backend) -> Nodes:
    """Return the devices to use: as many as ``workers``, if that is a number."""
    asked, options = definition.workers, definition.worker_options
    if isinstance(backend, Cluster):
        offer = Offer(*backend.offer(options.device, options.threads))
        there = Counter(offer.nodes or {offer.why: offer.workers})
        while not isinstance(asked, str) and there.total() > asked:
            there[there.most_common(1)[0][0]] -= 1
        return Nodes({name: count for name, count in there.items() if count}, offer.replicas, offer.sorts)
    count = device_count(definition)
    on_cpu = definition.task.framework.devices()[0] == "cpu" or definition.worker_options.device == "cpu"
    return Nodes({"this machine": count if isinstance(asked, str) else asked if on_cpu else min(asked, count)})


def _blocker(definition: Definition, backend: Backend, devices: int) -> str:
    """Return why no team can be formed; empty if teams can."""
    framework, task = definition.task.framework, type(definition.task).__name__
    if not isinstance(backend, FormsTeams):
        has = "has only this process" if backend.name == "inline" else "forms no teams during a run"
        return f"backend={backend.name!r} {has}; backend='local' can"
    options = definition.worker_options
    if blocker := backend.teams_blocker(options.device, options.threads):
        return blocker
    if PAIR.strategy not in framework.strategies():
        return f"the framework of {task} trains on one device"
    if framework.fusion_blocker:
        return framework.fusion_blocker
    if definition.run_options.deterministic:
        return "with deterministic=True, no timing may change how a trial trains"
    if definition.run_options.policy == FLEET and isinstance(backend, Cluster):
        return f"on a cluster, rounds are only simulated; backend={backend.name!r} can form teams with policy='auto'"
    return "there is only one" if devices < 2 else ""


def _tried(
    definition: Definition, data: Data, nodes: Nodes, tell: Callable[[str], None], *, every: bool
) -> list[TrialRun]:
    """Try one device of each sort of node, and a pair: of one node if one has two devices, and of two nodes if there
    are several. With ``every``, try single configurations instead of classes, on one machine.
    """
    if every:
        with scratch_folder(definition) as place:
            return list(run_trials(definition, place, [SINGLE, PAIR], tell, data, every=True))
    roomy = max(nodes.devices.values()) > 1
    first, *others = nodes.examples.items() if len(nodes.examples) > 1 else [("", "")]
    with scratch_folder(definition) as place:
        runs = list(run_trials(definition, place, [SINGLE, PAIR] if roomy else [SINGLE], tell, data, on=first))
        for other in others:
            runs += run_trials(definition, place, [SINGLE], tell, data, on=other)
        if len(nodes.devices) > 1:
            runs += run_trials(definition, place, [PAIR], tell, data, apart=True)
        if any(run.error for run in runs if run.shape == SINGLE):
            runs += run_trials(definition, place, SAVING, tell, data, apart=not roomy)
    return runs


def _known(definition: Definition, made_by: Mapping[str, str]) -> list[TrialRun]:
    """Return the trial runs of an earlier start; empty if there are none, or if they were made elsewhere."""
    record = definition.folder.trial_runs()
    if any(record.get(key) != value for key, value in made_by.items()):
        return []
    return [TrialRun.of_json(run) for run in record["runs"]]


def _made_by(definition: Definition, backend: Backend, nodes: Nodes) -> dict[str, str]:
    device = definition.worker_options.device
    if isinstance(backend, Cluster):
        _, where, *_ = backend.offer(device, definition.worker_options.threads)
        counts = " + ".join(map(str, sorted(nodes.devices.values())))
        return {"hopfleet": __version__, "device": f"{device} of {where}", "devices": counts}
    kind = definition.task.framework.devices()[0] if device == "auto" else device
    return {"hopfleet": __version__, "device": f"{kind} of {platform.node()}"}
