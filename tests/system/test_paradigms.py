"""Other ways to train in parallel do what they say: on two hosts at loopback addresses, against one plain loop."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from benchmarks.paradigms import catalogue, network, source
from benchmarks.paradigms.catalogue import PARADIGMS, Sizes
from benchmarks.paradigms.harness import Mark, Measured, Phase, SteppedProcesses, in_the_middle
from benchmarks.paradigms.network import Traffic
from benchmarks.paradigms.report import bars, table
from benchmarks.paradigms.site import on_interface
from benchmarks.paradigms.workload import Images, Workload
from hopfleet.frameworks.state import safetensors
from hopfleet.scheduler.orders import fixed_order
from tests.helpers.plain_loop import derived_seed

ROOT = Path(__file__).parents[2]
TINY = Workload(rows=512, valid_rows=64, partitions=2, trials=2, epochs=2, width=16)
HOSTS = ("127.0.0.1", "127.0.0.2")
LOOPBACK = "lo" if sys.platform == "linux" else "lo0"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="a second loopback address needs Linux"),
]


# --------------------------------------------------------------------------------------------- by a plain loop


def batches(folder: Path, partition: int, epoch: int) -> Iterator[dict[str, torch.Tensor]]:
    """The batches of a unit, read straight from the Arrow file in the order that docs/concepts.md gives."""
    with pa.OSFile(str(folder / "train" / f"part-{partition:05d}.arrow")) as file:
        table = pa.ipc.open_file(file).read_all()
    x = np.array(table["x"].to_pylist(), dtype="float32")
    y = np.array(table["y"].to_pylist())
    random = np.random.Generator(np.random.PCG64(derived_seed(TINY.seed, "order", epoch, partition)))
    order = random.permutation(len(y))
    for start in range(0, len(y), TINY.batch_size):
        take = order[start : start + TINY.batch_size]
        yield {"x": torch.from_numpy(x[take]), "y": torch.from_numpy(y[take])}


def built(number: int) -> tuple[Any, Any]:
    torch.manual_seed(derived_seed(TINY.seed, "trial", number))
    model, optimizer = Images().build(TINY.configs[number])
    return model, optimizer


def train(model: Any, optimizer: Any, streams: Sequence[Iterator[dict[str, torch.Tensor]]]) -> None:
    """Each step takes the mean of the gradients of one batch of every stream."""
    for parts in zip(*streams, strict=True):
        optimizer.zero_grad()
        for part in parts:
            (Images().loss(model, part) / len(parts)).backward()
        optimizer.step()


def in_sequence(folder: Path, number: int) -> Any:
    model, optimizer = built(number)
    order = fixed_order(TINY.seed, number, partitions=TINY.partitions, epochs=TINY.epochs)
    for visit, partition in enumerate(order):
        train(model, optimizer, [batches(folder, partition, visit // TINY.partitions + 1)])
    return model


def in_large_batches(folder: Path, number: int) -> Any:
    model, optimizer = built(number)
    for epoch in (1, 2):
        train(model, optimizer, [batches(folder, partition, epoch) for partition in range(TINY.partitions)])
    return model


def averaged(folder: Path, number: int) -> Any:
    pairs = [built(number) for _ in HOSTS]
    models = [model for model, _ in pairs]
    for epoch in (1, 2):
        for partition, pair in enumerate(pairs):
            train(*pair, [batches(folder, partition, epoch)])
        with torch.no_grad():
            for group in zip(*(model.parameters() for model in models), strict=True):
                mean = sum(group) / len(group)
                for parameter in group:
                    parameter.copy_(mean)
    return models[0]


# --------------------------------------------------------------------------------------------- on two hosts


class Ran:
    """What came of all paradigms on two hosts."""

    def __init__(self, folder: Path, outcomes: dict[str, dict[int, list[Any]]]) -> None:
        self.folder = folder
        self.outcomes = outcomes

    def model(self, paradigm: str, number: int) -> dict[str, torch.Tensor]:
        tensors, _ = safetensors.read(self.folder / paradigm / f"t{number}.safetensors")
        prefix = "model.state."
        return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


@pytest.fixture
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    folder = tmp_path_factory.mktemp("paradigms")
    TINY.write(folder)
    store = source.serve(folder, "127.0.0.1", 0)
    threading.Thread(target=store.serve_forever, daemon=True).start()
    told = {
        "paradigms": list(PARADIGMS),
        "addresses": HOSTS,
        "port": free_port(),
        "source": f"http://127.0.0.1:{store.server_address[1]}",
        "workload": asdict(TINY),
    }
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    orders = [{**told, "rank": rank, "folder": str(folder / f"host{rank}")} for rank in range(len(HOSTS))]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.paradigms.host", json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**on_interface(LOOPBACK), "PYTHONPATH": path},
        )
        for order in orders
    ]
    stepped = SteppedProcesses(processes)
    outcomes = {}
    try:
        for name in PARADIGMS:
            for done in ("ready", "loaded", "trained"):
                said = stepped.all_say(done)
                if done == "trained":
                    (folder / "models").rename(folder / name)
                    outcomes[name] = {trial["number"]: trial["epochs"] for part in said for trial in part}
                stepped.go_on()
    except RuntimeError:
        pytest.fail(processes[0].communicate()[1] + processes[1].communicate()[1])
    finally:
        stepped.end()
        store.shutdown()
        store.server_close()
    yield Ran(folder, outcomes)


def free_port() -> int:
    """One of a pair: the parameter servers take the next."""
    while True:
        with socket.create_server((HOSTS[0], 0)) as first:
            port: int = first.getsockname()[1]
            try:
                for host in HOSTS:
                    socket.create_server((host, port + 1)).close()
            except OSError:
                continue
            return port


def assert_same(found: dict[str, torch.Tensor], model: Any) -> None:
    expected = model.state_dict()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def test_what_two_hosts_train(ran: Ran) -> None:
    """One test, since several processes of pytest would each begin the two hosts."""
    for number in (0, 1):
        # Trials in parallel are plain sequential training to the bit.
        for name in ("copies", "reads"):
            assert_same(ran.model(name, number), in_sequence(ran.folder, number))
        # So are synchronous steps with two hosts: halves are exact, and a sum of two has one order.
        for name in ("allreduce", "ps-sync"):
            assert_same(ran.model(name, number), in_large_batches(ran.folder, number))
        assert_same(ran.model("averaging", number), averaged(ran.folder, number))

    for name in PARADIGMS:
        assert ran.outcomes[name].keys() == {0, 1}
        for epochs in ran.outcomes[name].values():
            assert len(epochs) == TINY.epochs
            assert all(0 < metrics["accuracy"] <= 1 for metrics in epochs)
    # A host that evaluates everything, and two that evaluate a half each.
    assert ran.outcomes["copies"] == ran.outcomes["reads"]
    assert ran.outcomes["allreduce"] == ran.outcomes["ps-sync"]

    part = (ran.folder / "train" / "part-00000.arrow").stat().st_size
    files = list((ran.folder / "host0" / "data" / "train").glob("part-*"))
    assert len(files) == 2 and sum(path.stat().st_size for path in files) >= 2 * part - 64, "full copies came first"
    assert not list((ran.folder / "host0" / "visits").rglob("*.arrow")), "remote reads keep nothing"


# ------------------------------------------------------------------------------------------- the pieces


def test_the_formulas_give_the_papers_example() -> None:
    sizes = Sizes(S=20, k=20, p=10, m=10**9, D=10**12, b=10_000)
    terabytes = [
        getattr(catalogue, name).count(sizes) / 1e12
        for name in ("HOPPING", "COPIES", "READS", "AVERAGING", "SERVER", "ALL_REDUCE")
    ]
    # The paper's table rounds, and leaves out the 0.02 TB of the models themselves.
    assert terabytes == [4.02, 10.02, 400.02, 8.0, 80_000.0, 72_000.0]


def test_the_source_shows_its_own_folder_only(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("no")
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown" / "file").write_text("yes")
    store = source.serve(tmp_path / "shown", "127.0.0.1", 0)
    threading.Thread(target=store.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{store.server_address[1]}"
    try:
        source.fetch(f"{url}/file", tmp_path / "got")
        source.deliver(tmp_path / "got", f"{url}/models/again")
        for name in ("../secret", "nothing"):
            with pytest.raises(FileNotFoundError, match="answered 40"):
                source.fetch(f"{url}/{name}", tmp_path / "never")
    finally:
        store.shutdown()
        store.server_close()
    assert (tmp_path / "shown" / "models" / "again").read_text() == "yes"


def test_a_machine_without_root_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr("shutil.which", lambda name: None)
    lacks = network.missing()
    assert [words.partition(":")[0] for words in lacks] == ["root", "ip", "tc"]


def test_a_phase_counts_bytes_where_they_are_sent_and_the_busiest_link_of_a_host() -> None:
    def mark(when: float, factor: int) -> Mark:
        sent = {"host1": (10, 40), "host2": (70, 5), "source": (900, 0), "head": (3, 3)}
        traffic = {host: Traffic(factor * out, factor * into) for host, (out, into) in sent.items()}
        return Mark(when, 2.0 * factor, traffic)

    assert mark(5.0, 1).until(mark(7.5, 3)) == Phase(2.5, 4.0, 2 * 983, 2 * 70)


def test_the_table_has_hopping_first_and_what_was_measured_only() -> None:
    found = Measured(9.0, Phase(1, 1, 1, 1), Phase(2, 3, 4_000_000, 50_000_000), 5, 6, 0.75, [[0.5, 0.75]], 1.0)
    sizes = Sizes(S=8, k=3, p=4, m=10**6, D=10**8, b=200)
    lines = table({"reads": found, "hopping": found}, sizes, rate=200).splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert [row[1] for row in cells[2:]] == ["kmpS + mS", "kSD + mS"]
    hopping = dict(zip(cells[0], cells[2], strict=True))
    assert (hopping["by formula, MB"], hopping["training, MB"], hopping["link, s"]) == ("104.0", "4.0", "2.0")


def test_bars_are_met_or_not() -> None:
    def measured(seconds: float, moved: int, storage: int, **notes: float) -> Measured:
        loading, training = Phase(1.0, 1.0, 1, 1), Phase(seconds, 1.0, moved, 1)
        return Measured(0.0, loading, training, 5, storage, 0.75, [], 1.0, dict(notes))

    sizes = Sizes(S=8, k=3, p=4, m=10**6, D=10**8, b=200)
    results = {
        "hopping": measured(10.0, 110_000_000, 25, busy=0.96),
        "copies": measured(9.6, 1, 101),
        "reads": measured(9.6, 1_200_000_000, 101),
    }
    found = [[cell.strip() for cell in line.split("|")[1:-1]] for line in bars(results, sizes).splitlines()[2:]]
    assert {row[0]: row[1:] for row in found} == {
        "bytes, of kmpS + mS": ["1.06", "≤ 1.10", "yes"],
        "bytes of task-parallel, remote reads, of its own": ["10.91", "≥ 10", "yes"],
        "time, of full copies": ["1.04", "≤ 1.05", "yes"],
        "the same with the copying of data": ["1.04", "≤ 1.00", "**no**"],
        "disk of a host, of full copies": ["0.25", "≤ 0.25", "yes"],
        "idle time of workers": ["0.04", "≤ 0.05", "yes"],
    }
    assert bars({"copies": results["copies"]}, sizes) == ""


def test_the_run_in_the_middle_knows_the_others() -> None:
    phase = Phase(0.0, 0.0, 1, 1)
    runs = [
        Measured(0.0, phase, replace(phase, seconds=seconds), 5, 6, 0.75, [], 1.0, {"number": number})
        for number, seconds in enumerate((3.0, 1.0, 2.0, 9.0))
    ]
    assert in_the_middle(runs[:1]).notes == {"number": 0, "seconds of all": [3.0]}
    assert in_the_middle(runs).notes == {"number": 2, "seconds of all": [3.0, 1.0, 2.0, 9.0]}
    assert "| 2.0 (1.0 to 9.0) |" in table({"copies": in_the_middle(runs)}, Sizes(1, 1, 1, 1, 1, 1), rate=200)


def test_some_configurations_tell_of_all() -> None:
    assert Phase(2.0, 3.0, 10, 7).times(2.5) == Phase(5.0, 7.5, 25, 18)
    assert [name for name, paradigm in PARADIGMS.items() if not paradigm.in_turn] == ["copies", "reads"]


# ------------------------------------------------------------------------------- on hosts of their own


@pytest.mark.skipif(not os.environ.get("HOPFLEET_LONG"), reason="HOPFLEET_LONG=1 runs it, as root")
def test_interfaces_count_what_the_formulas_say(tmp_path: Path) -> None:
    """Four network namespaces and a tiny workload. No time is asserted: a loaded machine cannot tell."""
    if lacks := network.missing():
        pytest.skip("; ".join(lacks))
    names = ("copies", "reads", "averaging", "allreduce", "ps-sync")
    only = [word for name in names for word in ("--only", name)]
    results = tmp_path / "results.json"
    subprocess.run(
        [sys.executable, "-m", "benchmarks.paradigms", "--quick", "--some", "2", "--results", str(results), *only],
        cwd=ROOT,
        check=True,
    )
    found = json.loads(results.read_text())
    model, data = 99_010 * 4, 2_560 * (22 * 22 * 4 + 8)
    batches, trials, epochs, others = 20, 4, 2, 3
    expected = {
        "copies": model * trials,
        "reads": (data * epochs + model) * trials,
        "averaging": (2 * model * others * epochs + model) * trials,
        "allreduce": (2 * model * others * batches * epochs + model) * trials,
        "ps-sync": (2 * model * others * batches * epochs + model) * trials,
    }
    for name, count in expected.items():
        # Frames have headers, receivers acknowledge, and hosts of a group greet each other.
        assert 1.0 <= found[name]["training"]["bytes"] / count < 1.15, name
    assert found["copies"]["curves"] == found["reads"]["curves"]
    # All have room for a model beside the data, or a quarter of them.
    assert found["copies"]["storage"] - model > 3.9 * (found["allreduce"]["storage"] - model)
