"""Ray's own autoscaler, both of its versions, which starts and ends nodes on this machine while a run goes on.

The nodes are processes here, by the provider that Ray tests itself with; all else is as on machines for hire. Takes
one or two minutes each: HOPFLEET_LONG=1 runs it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import hopfleet as hop
from hopfleet.domain.messages import Finish, UnitFinished, WorkerJoined, WorkerLost
from hopfleet.store.folder import RunFolder
from tests.helpers.cluster.started import PATIENCE, Nodes, dated, fingerprints, messages, wait_until
from tests.helpers.marks import long

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

HEAD = "f" * 51 + "00000"
IDLE_SECONDS = 3
WORKERS = 3

SCRIPT = """
    import json, sys, threading, time
    import numpy as np
    from tests.helpers.cluster.chained import Chain
    import hopfleet as hop

    seen = {}
    def look():
        import ray
        while True:
            for node in ray.nodes() if ray.is_initialized() else []:
                seen.setdefault((node["NodeID"], node["Alive"]), time.time())
            with open(sys.argv[2], "w") as file:
                json.dump([[*node, when] for node, when in seen.items()], file)
            time.sleep(0.25)

    if sys.argv[1] == "grown":
        backend = hop.Ray(autoscale=True)
        threading.Thread(target=look, daemon=True).start()
    else:
        backend = "local"
    hop.Experiment(
        Chain(), train={"x": np.arange(320, dtype="float32")}, valid={"x": np.arange(32, dtype="float32")},
        space={"seconds": 0.1}, search=hop.Random(trials=4, max_epochs=24), metric="loss", partitions=4,
        name=sys.argv[1], backend=backend, workers=3,
        run_options=hop.RunOptions(order="fixed"), worker_options=hop.WorkerOptions(device="cpu"),
    ).fit(quiet=True)
"""


def scaled(port: int) -> dict[str, object]:
    """What the autoscaler is to know: a head without CPUs, and nodes of one CPU each, as many as are asked for."""
    provider = {
        "type": "external",
        "module": "tests.helpers.cluster.hired.Hired",
        "gcs_address": f"127.0.0.1:{port}",
        "head_node_id": HEAD,
        "launch_multiple": True,
        "use_node_id_as_ip": True,
        "disable_node_updaters": True,
        "disable_launch_config_check": True,
    }
    commands = ("setup", "initialization", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")
    return {
        "cluster_name": "grown",
        "max_workers": 8,
        "idle_timeout_minutes": IDLE_SECONDS / 60,
        "upscaling_speed": 1.0,
        "provider": provider,
        "auth": {},
        "head_node_type": "ray.head.default",
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "small": {"resources": {"CPU": 1}, "node_config": {}, "min_workers": 0, "max_workers": 8},
        },
        "file_mounts": {},
        "cluster_synced_files": [],
        "file_mounts_sync_continuously": False,
        "rsync_exclude": [],
        "rsync_filter": [],
        **{f"{command}_commands": [] for command in commands},
    }


def kill_raylet(node: str) -> None:
    """End a node as a lost machine would: no process can say goodbye."""
    wanted = f"RAY_OVERRIDE_NODE_ID_FOR_TESTING={node}".encode()
    for found in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):  # it has just ended
            if found.read_text() == "raylet\n" and wanted in (found.parent / "environ").read_bytes().split(b"\0"):
                os.kill(int(found.parent.name), signal.SIGKILL)


@long
@pytest.mark.parametrize("version", [1, 2])
def test_nodes_come_when_they_are_asked_for_go_when_they_are_idle_and_may_all_be_lost(
    version: int, own_home: Path, tmp_path: Path
) -> None:
    script, looks = tmp_path / "experiment.py", tmp_path / "nodes.json"
    script.write_text(textwrap.dedent(SCRIPT))
    grown, alone = RunFolder(own_home / "grown"), RunFolder(own_home / "alone")
    asked = {"RAY_enable_autoscaler_v2": str(version - 1), "RAY_CLOUD_INSTANCE_ID": HEAD, "RAY_FAKE_CLUSTER": "1"}

    def alive() -> set[str]:
        """Nodes beside the head that have not gone, as the driver has seen them."""
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(looks.read_text())
            gone = {node for node, living, _ in found if not living}
            return {node for node, _, _ in found} - gone - {HEAD}
        return set()

    with Nodes(own_home, "a token of the growing one") as nodes:
        config = tmp_path / "autoscaling.json"
        config.write_text(json.dumps(scaled(nodes.port)))
        more = {"RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD, "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
        nodes.head("--num-cpus=0", f"--autoscaling-config={config}", **asked, **more)
        words = [sys.executable, str(script), "grown", str(looks)]
        with subprocess.Popen(words, env=nodes.inside) as driver:
            try:
                wait_until(lambda: len({unit.worker for unit in messages(grown, UnitFinished)}) >= WORKERS)
                hop.control(grown.path).workers(1)
                wait_until(lambda: len(messages(grown, WorkerJoined)) - len(messages(grown, WorkerLost)) == 1)
                wait_until(lambda: len(alive()) == 1)
                assert not messages(grown, Finish), "it goes on with the last one"
                kill_raylet(*alive())
                wait_until(lambda: "raylet is gone" in messages(grown, WorkerLost)[-1].reason)
                assert driver.wait(PATIENCE) == 0
            finally:
                driver.kill()
        wait_until(lambda: re.search(r"^nodes +1$", nodes.doctor(), re.MULTILINE) is not None)
    came = sorted(when for node, living, when in json.loads(looks.read_text()) if living and node != HEAD)
    joined = sorted(when for _, when in dated(grown, WorkerJoined))
    took = [joining - coming for coming, joining in zip(came, joined, strict=False)]
    print(f"autoscaler v{version}: {len(came)} nodes came; seconds until they had a worker: {took}")
    assert max(took) < 60, "seconds, even where two cores are all machines at once"
    subprocess.run([sys.executable, str(script), "alone", "-"], env=nodes.environment, check=True, timeout=PATIENCE)
    assert fingerprints(grown) == fingerprints(alone)
