"""The command that plans one training on a cluster: plan."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hopfleet.cli.render import console, echo, facts, json_alone, print_json, size
from hopfleet.errors import UsageError

if TYPE_CHECKING:
    from hopfleet.backends.base import Backend
    from hopfleet.experiment.planning import MeasuredModel
    from hopfleet.planner.dike.place import Plan
    from hopfleet.planner.dike.problem import Cluster, Need
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
            dir_okay=False,
            metavar="FILE",
            help="Nodes and links as JSON or YAML; by default, those of the experiment's backend, measured.",
        ),
    ] = None,
    run: Annotated[bool, typer.Option("--run", help="Train the experiment in the way that the plan chooses.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Plan the training of one model on several nodes.

    Measures the largest of the experiment's first models on a batch: parameters, operations, longest path, seconds to
    prepare a row. Measures the links of the backend's nodes one by one. Compares all-reduce and parameter servers: how
    many workers and servers, where, with which resources. Without --run, nothing is trained and nothing is left behind.

    Example: hopfleet plan digits.py --cluster cluster.yaml
    """
    from hopfleet.cli.scripts import load_for_preview, split_target
    from hopfleet.experiment.planning import measure_cluster, measure_model
    from hopfleet.experiment.previewing import scratch_folder
    from hopfleet.forecast.clusters import read_cluster
    from hopfleet.planner.dike.place import compare
    from hopfleet.planner.dike.rings import rings

    if run and (json or cluster is not None):
        raise UsageError(
            f"--run: trains on the experiment's own backend; leave {'--json' if json else '--cluster'} out"
        )
    if cluster is not None:
        read_cluster(cluster, 1.0)  # a mistake in it shows before the model is measured
    file, variable = split_target(target)
    with json_alone(json):
        definition = load_for_preview(file, variable).definition
        with scratch_folder(definition) as place:
            measured = measure_model(definition, place)
        if cluster is not None:
            nodes, device = read_cluster(cluster, measured.flops), ""
        else:
            nodes, device = measure_cluster(definition, definition.find_backend(), measured)
    by_servers, by_rings = compare(nodes, measured.model), rings(nodes, measured.model)
    chosen = _choose(nodes, by_servers, by_rings)
    if json:
        print_json(_as_json(nodes, measured, by_servers, by_rings, chosen))
        return 0
    _report(nodes, measured, by_servers, by_rings, chosen)
    return _train(file, variable, chosen, definition.backend, device) if run else 0


def _train(file: Path, variable: str, chosen: Chosen, backend: Backend | type[Backend], device: str) -> int:
    """Train the experiment as planned: with one team on the nodes of the plan."""
    from hopfleet.backends.base import Measurable
    from hopfleet.cli.training import train_with

    echo()
    need = chosen.need
    settings: dict[str, Any] = {"parallelism": chosen.parallelism}
    if chosen.devices == 1:
        return train_with(file, variable, settings)
    on_cpus, here = device == "cpu", isinstance(backend, type) or not isinstance(backend, Measurable)
    if here and not on_cpus:
        settings["transform_workers"] = need.cpus
    # If CPUs train, and on this machine, a member's threads are its cores, and cores that are left prepare rows.
    cpus = None if on_cpus or here else need.cpus
    team = {"members": chosen.members, "cpus": cpus, "memory": need.memory}
    return train_with(file, variable, {**settings, "workers": 1}, team=team)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The fastest plan, in words and as settings."""

    text: str
    strategy: str
    #: The node of each process of the team: those that serve and train, those that train, those that serve.
    members: list[str]
    need: Need
    speed: float
    other: str
    #: Members that only serve.
    only_serve: int = 0

    @property
    def devices(self) -> int:
        return len(self.members)

    @property
    def parallelism(self) -> str:
        return f"{self.strategy}:{self.devices}" if self.devices > 1 else "single"


def _choose(cluster: Cluster, by_servers: list[Plan], by_rings: list[Ring]) -> Chosen:
    from hopfleet.monitor.wording import plural

    ring, best = by_rings[0], by_servers[0] if by_servers else None
    against = ring.rows_per_second
    if best is None or CLEAR * against >= best.rows_per_second:
        workers = sum(ring.workers)
        how = f"all-reduce with {workers} workers" if workers > 1 else "one worker"
        other = f"{best.rows_per_second:,.0f} with parameter servers" if best else "none with parameter servers"
        text = f"{how}: {_ring_counts(cluster, ring)}"
        pairs = zip(ring.nodes, ring.workers, strict=True)
        members = [cluster.nodes[at].name for at, count in pairs for _ in range(count)]
        return Chosen(text, "ddp", members, ring.worker, ring.rows_per_second, other)
    text = (
        f"{plural(len(best.placement.servers), 'parameter server')} on {_names(cluster, best.placement.servers)}, "
        f"{plural(best.workers, 'worker')} on {_counts(cluster, best.placement.counts)}"
    )
    other = f"{against:,.0f} by all-reduce"
    names = [node.name for node in cluster.nodes]
    servers = [names[at] for at in best.placement.servers]
    members = [name for name, count in zip(names, best.placement.counts, strict=True) for _ in range(count)]
    # A server is one of its node's members that train; on a node without such members, it only serves.
    first, last = ([name for name in servers if (name in members) is trains] for trains in (True, False))
    for name in first:
        members.remove(name)
    served = f"/{len(first)}+{len(last)}" if last else f"/{len(first)}" if members else ""
    return Chosen(text, f"ps{served}", first + members + last, best.largest, best.rows_per_second, other, len(last))


def _report(
    cluster: Cluster, measured: MeasuredModel, by_servers: list[Plan], by_rings: list[Ring], chosen: Chosen
) -> None:
    from hopfleet.monitor.wording import describe, plural

    model, need = measured.model, chosen.need
    gpus = sum(node.gpus for node in cluster.nodes)
    facts(
        [
            ("model", describe(measured.config, list(measured.config), 80)),
            ("parameters", size(int(model.parameters))),
            ("operations", f"{model.flops:.3g} per row, {model.longest:.0%} on the longest path of the forward pass"),
            ("preparation", f"{model.prepare_seconds * 1e6:.3g} µs of a core per row"),
            ("cluster", f"{plural(len(cluster.nodes), 'node')}, {plural(gpus, 'device')}"),
            ("each device", f"{cluster.gpu_flops:.3g} operations per second"),
            ("links", _links(cluster)),
        ]
    )
    echo()
    _table(cluster, by_servers, by_rings)
    echo()
    each = f"1 device, {plural(need.cpus, 'core')}, {size(int(need.memory))} of memory"
    devices = chosen.devices - chosen.only_serve
    computing, preparing = model.computing_seconds(cluster.gpu_flops, devices), model.preparing_seconds(need)
    transfers = model.step_rows(devices) / chosen.speed - max(computing, preparing)
    step = f"computing {_short(computing)} beside preparing {_short(preparing)}, then transfers {_short(transfers)}"
    pairs = [
        ("chosen", chosen.text),
        ("each worker", each),
        ("why", f"{chosen.speed:,.0f} rows/s against {chosen.other}"),
        ("a step", step),
    ]
    if len(set(chosen.members)) == 1 and chosen.devices > 1:
        pairs.append(("to train so", f'hop.Experiment(..., parallelism="{chosen.parallelism}"), or --run'))
    facts(pairs)


def _links(cluster: Cluster) -> str:
    """Return the slowest and the fastest rate between nodes, or the rate within the only node."""
    costs, nodes = cluster.seconds_per_byte, range(len(cluster.nodes))
    between = [costs[one][other] for one in nodes for other in nodes if one != other]
    slowest, fastest = (f"{size(int(1 / cost))}/s" for cost in (max(between or costs[0]), min(between or costs[0])))
    rate = slowest if slowest == fastest else f"{slowest} to {fastest}"
    return f"{rate} {'between nodes' if between else 'within the node'}"


def _short(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _table(cluster: Cluster, by_servers: list[Plan], by_rings: list[Ring]) -> None:
    from rich.table import Table

    found: list[tuple[float, tuple[str, ...]]] = [
        (ring.rows_per_second, ("all-reduce", "", _ring_counts(cluster, ring), str(ring.worker.cpus)))
        for ring in by_rings
    ]
    for each in by_servers:
        placed = _names(cluster, each.placement.servers), _counts(cluster, each.placement.counts)
        found.append((each.rows_per_second, ("servers", *placed, str(each.largest.cpus))))
    found.sort(key=lambda pair: -pair[0])
    columns = ("rows/s", "how", "servers on", "workers on", "cores each")
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


def _as_json(
    cluster: Cluster, measured: MeasuredModel, by_servers: list[Plan], by_rings: list[Ring], chosen: Chosen
) -> dict[str, Any]:
    import dataclasses

    from hopfleet.forecast.clusters import described

    names = [node.name for node in cluster.nodes]
    return {
        "config": dict(measured.config),
        "model": dataclasses.asdict(measured.model),
        "cluster": described(cluster),
        "chosen": {
            "parallelism": chosen.parallelism,
            "members": chosen.members,
            "rows_per_second": chosen.speed,
            "worker": dataclasses.asdict(chosen.need),
        },
        "parameter_servers": [
            {
                "rows_per_second": plan.rows_per_second,
                "servers": [names[at] for at in plan.placement.servers],
                "workers": dict(zip(names, plan.placement.counts, strict=True)),
                "worker": {"cpus": plan.largest.cpus, "gpus": plan.largest.gpus},
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
