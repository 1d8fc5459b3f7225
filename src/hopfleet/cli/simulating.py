"""The command that runs experiments in virtual time: simulate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hopfleet.cli.render import console, echo, facts, print_json
from hopfleet.errors import UsageError

if TYPE_CHECKING:
    from hopfleet.simulation.backend import Failure
    from hopfleet.simulation.run import Simulation
    from hopfleet.simulation.scenario import Scenario


def simulate(
    trials: Annotated[int, typer.Option(metavar="S", help="Number of trials.")] = 16,
    partitions: Annotated[int, typer.Option(metavar="P", help="Number of partitions, each on its own worker.")] = 8,
    costs: Annotated[str, typer.Option(metavar="KIND", help="Unit times: homogeneous, cnn or lognormal.")] = "cnn",
    sigma: Annotated[float, typer.Option(help="The spread of lognormal unit times.")] = 0.5,
    file: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            help='JSON or YAML: unit times, {"times": [[...]], "replicas": ...}, or nodes and networks.',
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(help="Number of epochs; a file may set it.")] = 1,
    replicas: Annotated[int, typer.Option(metavar="R", help="Number of workers that hold each partition.")] = 1,
    noise: Annotated[float, typer.Option(help="Error of the estimates: the spread of a lognormal.")] = 0.0,
    fail: Annotated[
        list[str] | None, typer.Option(metavar="TIME:WORKER[:BACK]", help="Lose a worker; can be repeated.")
    ] = None,
    fetch: Annotated[
        float, typer.Option(metavar="TIME", help="Time to place a lost worker's partition on another worker.")
    ] = 0.0,
    policy: Annotated[str, typer.Option(metavar="NAME", help="How the next unit is chosen.")] = "auto",
    order: Annotated[str, typer.Option(help="open, or fixed: visit orders depend on the seed alone.")] = "open",
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Train in rounds, as RunOptions(deterministic=True) does.")
    ] = False,
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    seeds: Annotated[int, typer.Option(metavar="N", help="Number of seeds to simulate.")] = 1,
    gantt: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Draw the last run (.png, .svg, .pdf or .html).")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object, or a list with --seeds.")] = False,
) -> int:
    """Simulate a schedule in virtual time.

    The controller is the one that runs real experiments; only the training is left out.

    Example: hopfleet simulate --trials 16 --partitions 8 --costs cnn --policy random --seeds 5
    """
    from hopfleet.scheduler.policies.exact import too_large
    from hopfleet.simulation.scenario import Scenario, is_scenario
    from hopfleet.simulation.simulator import Workload
    from hopfleet.simulation.simulator import simulate as simulated

    if seeds < 1:
        raise UsageError(f"--seeds {seeds}: must be at least 1")
    failures = [_failure(text) for text in fail or ()]
    if file is not None and is_scenario(file):
        options = {"policy": policy, "noise": noise, "failures": failures}
        return _scenario(Scenario.read(file), range(seed, seed + seeds), options, gantt, json=json)
    work = None if file is None else Workload.read(file)
    size = (trials, partitions) if work is None else (len(work.times), len(work.replicas))
    if policy == "exact" and (warning := too_large(*size)):
        echo(f"warning: {warning}", err=True)
    unchecked: Any = {"costs": costs, "order": order}
    runs = [
        simulated(
            work,
            trials=trials,
            partitions=partitions,
            sigma=sigma,
            replicas=replicas,
            epochs=epochs,
            noise=noise,
            failures=failures,
            fetch=fetch,
            policy=policy,
            deterministic=deterministic,
            seed=number,
            **unchecked,
        )
        for number in range(seed, seed + seeds)
    ]
    if gantt is not None:
        runs[-1].gantt(gantt)
    if json:
        print_json(runs[0].as_json() if seeds == 1 else [run.as_json() for run in runs])
    else:
        _report(runs, gantt)
    return 0


def _scenario(
    scenario: Scenario, seeds: Iterable[int], options: Mapping[str, Any], gantt: Path | None, *, json: bool
) -> int:
    from hopfleet.simulation.layouts import simulate_scenario

    runs = [simulate_scenario(scenario, seed=seed, **options) for seed in seeds]
    last = runs[-1]
    if gantt is not None:
        last.simulation.gantt(gantt)
    if json:
        found = [run.as_json() for run in runs]
        print_json(found[0] if len(found) == 1 else found)
        return 0
    prepared = f"{last.prepared} partitions; each once would be {last.needed}" if last.needed else "in no time"
    more = [("prepared", prepared), ("hops", f"{last.hops} from node to node")]
    _report([run.simulation for run in runs], gantt, more)
    return 0


def _failure(text: str) -> Failure:
    from hopfleet.simulation.backend import Failure

    try:
        when, worker, *back = text.split(":")
        return Failure(float(when), worker, *map(float, back))
    except (ValueError, TypeError):
        raise UsageError(f"--fail {text}: must be TIME:WORKER or TIME:WORKER:BACK, e.g. 3.5:w2:10") from None


def _report(runs: list[Simulation], gantt: Path | None, more: Iterable[tuple[str, str]] = ()) -> None:
    from rich.table import Table

    last = runs[-1]
    if len(runs) > 1:
        rows = Table("seed", "makespan", "lower bound", "ratio", box=None, header_style="bold", pad_edge=False)
        for run in runs:
            rows.add_row(str(run.seed), f"{run.makespan:.6g}", f"{run.lower_bound:.6g}", f"{run.ratio:.4f}")
        console().print(rows)
        echo("")
    busy = list(last.utilisation.values())
    per_decision = 1000 * sum(run.schedule_seconds for run in runs) / sum(run.decisions for run in runs)
    facts(
        [
            ("simulated", f"{last.trials} trials on {last.workers} workers, policy {last.policy}"),
            ("makespan", f"{mean(run.makespan for run in runs):.6g}"),
            ("lower bound", f"{mean(run.lower_bound for run in runs):.6g}"),
            ("ratio", f"{mean(run.ratio for run in runs):.4f}, at most {max(run.ratio for run in runs):.4f}"),
            ("workers busy", f"{mean(busy):.1%}, from {min(busy):.1%} to {max(busy):.1%}"),
            ("decisions", f"{last.decisions} in {last.schedule_seconds:.3f} s, {per_decision:.3f} ms each"),
            *more,
            *([("drawn", gantt)] if gantt is not None else []),
        ]
    )
