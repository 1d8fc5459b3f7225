"""The command that plans one training on a cluster: plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hopfleet.cli.render import console, echo, facts, json_alone, print_json, size

if TYPE_CHECKING:
    from hopfleet.experiment.planning import MeasuredModel
    from hopfleet.planner.dike.place import Plan
    from hopfleet.planner.dike.problem import Cluster
    from hopfleet.planner.dike.rings import Ring

SHOWN = 8
"""Candidates that are listed."""

CLEAR = 1.01
"""How much faster parameter servers must be to be chosen: all-reduce needs no processes besides its workers."""


def plan(
    target: Annotated[
        str, typer.Argument(metavar="FILE.py[:VARIABLE]", help="The file, and the variable if there are several.")
    ],
    cluster: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False, metavar="FILE", help="Nodes and links as JSON or YAML; by default, this machine alone."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Plan the training of one model on several nodes.

    Measures the largest of the experiment's first models on a batch: parameters, operations, longest path, seconds to
    prepare a row. Compares all-reduce and parameter servers: how many workers and servers, where, with which resources.
    Nothing is trained and nothing is left behind.

    Example: hopfleet plan digits.py --cluster cluster.yaml
    """
    from hopfleet.cli.scripts import load_for_preview, split_target
    from hopfleet.experiment.planning import measure_model
    from hopfleet.experiment.previewing import scratch_folder
    from hopfleet.forecast.clusters import read_cluster, this_cluster
    from hopfleet.planner.dike.place import compare
    from hopfleet.planner.dike.rings import rings
    from hopfleet.support.machine import this_machine

    if cluster is not None:
        read_cluster(cluster, 1.0)  # a mistake in it shows before the model is measured
    with json_alone(json):
        experiment = load_for_preview(*split_target(target))
        with scratch_folder(experiment) as place:
            measured = measure_model(experiment, place)
    if cluster is not None:
        nodes = read_cluster(cluster, measured.flops)
    else:
        _, devices = experiment.task.framework.devices()
        nodes = this_cluster(this_machine(), measured.device, devices, measured.flops)
    by_servers, by_rings = compare(nodes, measured.model), rings(nodes, measured.model)
    if json:
        print_json(_as_json(nodes, measured, by_servers, by_rings))
    else:
        _report(nodes, measured, by_servers, by_rings)
    return 0


def _report(cluster: Cluster, measured: MeasuredModel, by_servers: list[Plan], by_rings: list[Ring]) -> None:
    from hopfleet.monitor.wording import describe, plural

    model, best = measured.model, by_servers[0]
    gpus = sum(node.gpus for node in cluster.nodes)
    facts(
        [
            ("model", describe(measured.config, list(measured.config), 80)),
            ("parameters", size(int(model.parameters))),
            ("operations", f"{model.flops:.3g} per row, {model.longest:.0%} on the longest path of the forward pass"),
            ("preparation", f"{model.prepare_seconds * 1e6:.3g} µs of a core per row"),
            ("cluster", f"{plural(len(cluster.nodes), 'node')}, {plural(gpus, 'device')}"),
            ("each device", f"{cluster.gpu_flops:.3g} operations per second"),
        ]
    )
    echo()
    _table(cluster, by_servers, by_rings)
    echo()
    against = by_rings[0].rows_per_second if by_rings else 0.0
    if CLEAR * against >= best.rows_per_second:
        ring = by_rings[0]
        workers, need = sum(ring.workers), ring.worker
        how = f"all-reduce with {workers} workers" if workers > 1 else "one worker"
        chosen, strategy, nodes = f"{how}: {_ring_counts(cluster, ring)}", "ddp", len(ring.nodes)
        speed, other = ring.rows_per_second, f"{best.rows_per_second:,.0f} with parameter servers"
    else:
        workers, need = best.workers, best.assignment.worker
        chosen = (
            f"{plural(best.assignment.servers, 'parameter server')} on {_names(cluster, best.placement.servers)}, "
            f"{plural(workers, 'worker')} on {_counts(cluster, best.placement.workers)}"
        )
        speed, other = best.rows_per_second, f"{against:,.0f} by all-reduce"
        strategy, nodes = (
            "ps",
            len({*best.placement.servers, *(at for at, n in enumerate(best.placement.workers) if n)}),
        )
    each = f"{plural(need.gpus, 'device')}, {plural(need.cpus, 'core')}, {size(int(need.memory))} of memory"
    computing = model.batch_seconds(cluster.gpu_flops)
    preparing = model.batch * need.gpus * model.prepare_seconds / need.cpus
    transfers = workers * need.gpus * model.batch / speed - max(computing, preparing)
    step = f"computing {_short(computing)} beside preparing {_short(preparing)}, then transfers {_short(transfers)}"
    pairs = [
        ("chosen", chosen),
        ("each worker", each),
        ("why", f"{speed:,.0f} rows/s against {other}"),
        ("a step", step),
    ]
    if nodes == 1 and workers * need.gpus > 1:  # a team lies on one machine
        pairs.append(("to train so", f'hop.Experiment(..., parallelism="{strategy}:{workers * need.gpus}")'))
    facts(pairs)


def _short(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _table(cluster: Cluster, by_servers: list[Plan], by_rings: list[Ring]) -> None:
    from rich.table import Table

    found: list[tuple[float, tuple[str, ...]]] = [
        (ring.rows_per_second, ("all-reduce", "", _ring_counts(cluster, ring), "1", str(ring.worker.cpus)))
        for ring in by_rings
    ]
    for each in by_servers:
        placed = _names(cluster, each.placement.servers), _counts(cluster, each.placement.workers)
        worker = each.assignment.worker
        found.append((each.rows_per_second, ("servers", *placed, str(worker.gpus), str(worker.cpus))))
    found.sort(key=lambda pair: -pair[0])
    columns = ("rows/s", "how", "servers on", "workers on", "devices each", "cores each")
    rows = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for speed, cells in found[:SHOWN]:
        rows.add_row(f"{speed:,.0f}", *cells)
    console().print(rows)
    if len(found) > SHOWN:
        echo(f"and {len(found) - SHOWN} more")


def _names(cluster: Cluster, nodes: tuple[int, ...]) -> str:
    return ", ".join(cluster.nodes[at].name for at in nodes)


def _counts(cluster: Cluster, workers: tuple[int, ...]) -> str:
    return ", ".join(f"{node.name} ({count})" for node, count in zip(cluster.nodes, workers, strict=True) if count)


def _ring_counts(cluster: Cluster, ring: Ring) -> str:
    return ", ".join(f"{cluster.nodes[at].name} ({count})" for at, count in zip(ring.nodes, ring.workers, strict=True))


def _as_json(cluster: Cluster, measured: MeasuredModel, by_servers: list[Plan], by_rings: list[Ring]) -> dict[str, Any]:
    import dataclasses

    names = [node.name for node in cluster.nodes]
    return {
        "config": dict(measured.config),
        "model": dataclasses.asdict(measured.model),
        "gpu_flops": cluster.gpu_flops,
        "parameter_servers": [
            {
                "rows_per_second": plan.rows_per_second,
                "servers": [names[at] for at in plan.placement.servers],
                "workers": dict(zip(names, plan.placement.workers, strict=True)),
                "worker": {"cpus": plan.assignment.worker.cpus, "gpus": plan.assignment.worker.gpus},
            }
            for plan in by_servers
        ],
        "all_reduce": [
            {
                "rows_per_second": ring.rows_per_second,
                "workers": {names[at]: count for at, count in zip(ring.nodes, ring.workers, strict=True)},
                "worker": {"cpus": ring.worker.cpus, "gpus": ring.worker.gpus},
            }
            for ring in by_rings
        ],
    }
