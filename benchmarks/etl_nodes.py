"""Preparing data on three Ray nodes, each a host in a network namespace: what crosses the wire.

Raw CSV files come from an S3 server on a host of its own, and partitions go there, so every byte passes a counted
interface. A row may leave the server once, move between nodes once, and go back once; none may pass through the driver.
Two recipes are measured: a table's, whose chunks are large, and a function of a row, whose chunks are small.
"""

from __future__ import annotations

import csv
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import hopfleet as hop
from benchmarks.paradigms.harness import HEAD, STORAGE, Lab
from benchmarks.paradigms.hopping import GCS, cluster, environment, object_store
from benchmarks.paradigms.network import Network, Traffic, missing
from benchmarks.paradigms.workload import Workload
from benchmarks.row import Row, megabytes

NODES, FILES, ROWS, PARTITIONS, RATE = 3, 12, 60_000, 6, 1000.0
ONCE = 1.1
"""Times the bytes of all rows that may pass where each row passes once: frames and requests come on top."""

DRIVER = 0.2
"""Share of the bytes of all rows that may pass the driver's interface: tasks, and which rows each partition gets."""


def measure(quick: bool) -> list[Row]:
    lacks = missing()
    if lacks:
        return [Row("etl_nodes", "everything", f"not measured: needs {lacks[0]}")]
    names = tuple(f"host{number}" for number in range(1, NODES + 1))
    hosts = Network(dict.fromkeys((*names, HEAD, STORAGE), RATE))
    with tempfile.TemporaryDirectory(prefix="etl-nodes-", ignore_cleanup_errors=True) as folder, hosts as network:
        lab = Lab(network, Path(folder), Workload(), names)
        with cluster(lab), object_store(lab):
            return [row for kind in ("table", "rows") for row in _measured(lab, kind, 2_000 if quick else ROWS)]


def _measured(lab: Lab, kind: str, rows: int) -> list[Row]:
    said: dict[str, Any] = {}
    before = lab.network.traffic()
    after = before
    told = {
        "address": f"{lab.network.addresses[HEAD]}:{GCS}",
        "kind": kind,
        "rows": rows,
        "raw": str(lab.folder / "raw"),
    }
    words = [sys.executable, "-u", "-m", "benchmarks.etl_nodes", json.dumps(told)]
    with lab.network.start(HEAD, words, env=environment(lab, HEAD), stdin=-1, stdout=-1) as driver:
        assert driver.stdout is not None and driver.stdin is not None
        for line in driver.stdout:
            if line.startswith("ready"):
                before = lab.network.traffic()
                driver.stdin.write("go\n")
                driver.stdin.flush()
            elif line.startswith("done"):
                said, after = json.loads(line.removeprefix("done")), lab.network.traffic()
    moved = {host: after[host] - before[host] for host in after}
    parts = {path.name for host in lab.hosts for path in (lab.disk(host) / "cache" / "data").glob("*")}
    return _rows(kind, moved, said, len(parts & {*said["checksums"]}))


def _rows(kind: str, moved: dict[str, Traffic], said: dict[str, Any], kept: int) -> list[Row]:
    raw, made = said["raw"], said["made"]
    nodes = [traffic for host, traffic in moved.items() if host not in (HEAD, STORAGE)]
    storage, head = moved[STORAGE], moved[HEAD]
    # What nodes send to the driver counts here, too.
    between = sum(each.received for each in nodes) - storage.sent - head.sent + head.received
    what = f"{said['rows']:,} rows on {NODES} nodes, {'hop.Tabular' if kind == 'table' else 'a function of a row'}"
    return [
        _row(f"{what}: from the S3 server", storage.sent, raw, "raw files", ONCE),
        _row(f"{what}: between nodes", between, made, "partitions", ONCE),
        _row(f"{what}: through the driver", head.sent + head.received, made, "partitions", DRIVER),
        _row(f"{what}: to the S3 server", storage.received, made, "partitions", ONCE),
        Row("etl_nodes", f"{what}: partitions that a node keeps", str(kept), f"{PARTITIONS}: all", kept / PARTITIONS,
            "1", kept == PARTITIONS),
    ]  # fmt: skip


def _row(what: str, moved: int, size: int, of: str, bar: float) -> Row:
    return Row(
        "etl_nodes", what, megabytes(moved), f"{megabytes(size)}: {of}", moved / size, f"<= {bar}", moved <= bar * size
    )


# ------------------------------------------------------------------------------------------------ the driver


def main() -> None:
    import ray
    import s3fs

    told = json.loads(sys.argv[1])
    ray.init(address=told["address"], log_to_driver=False, logging_level="ERROR")
    while sum(node["Alive"] for node in ray.nodes()) <= NODES:
        time.sleep(0.2)
    files = s3fs.S3FileSystem()
    bucket = f"etl-{told['kind']}"
    files.mkdir(bucket)
    for number in range(FILES):
        path = _write(Path(told["raw"]), number, told["rows"])
        files.put_file(str(path), f"{bucket}/raw/{path.name}")
    recipe = _table() if told["kind"] == "table" else _function
    print("ready")
    sys.stdin.readline()
    made = hop.prepare(
        f"s3://{bucket}/raw/*.csv", f"s3://{bucket}/set", recipe, partitions=PARTITIONS, backend="ray", quiet=True
    )
    raw = sum(path.stat().st_size for path in Path(told["raw"]).iterdir())
    checksums = [part.sha256 for part in made.manifest.partitions]
    print("done", json.dumps({"rows": made.rows, "raw": raw, "made": made.size, "checksums": checksums}))


def _write(folder: Path, number: int, rows: int) -> Path:
    folder.mkdir(exist_ok=True)
    chance, path = random.Random(number), folder / f"{number:02d}.csv"
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow([*(f"x{place}" for place in range(8)), "kind"])
        lines.writerows([*(f"{chance.gauss():.6f}" for _ in range(8)), chance.choice("abc")] for _ in range(rows))
    return path


def _table() -> hop.Tabular:
    return hop.Tabular({**{f"x{place}": hop.Number() for place in range(8)}, "kind": hop.Category()}, stack="x")


def _function(row: dict[str, Any]) -> dict[str, Any]:
    return row


if __name__ == "__main__":
    main()
