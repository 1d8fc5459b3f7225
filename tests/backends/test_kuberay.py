"""The manifests of deploy/kubernetes, as KubeRay carries them out, without Kubernetes.

Head and workers are processes on this machine: their command lines are made of rayStartParams and resources by the
operator's rules, their environment is that of the containers, and a folder of the test is behind each mount. Then the
entrypoint of the RayJob is submitted, or for the RayCluster what deploy/jobs.md says. Takes one or two minutes:
HOPFLEET_LONG=1 runs it.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from hopfleet.domain.messages import Finish, UnitFinished
from hopfleet.store.folder import RunFolder
from tests.helpers.cluster.started import PATIENCE, RAY, Nodes, fingerprints, free_ports, messages, wait_until
from tests.helpers.marks import long
from tests.helpers.processes import ROOT

yaml = pytest.importorskip("yaml")
pytest.importorskip("ray")
pytest.importorskip("opencensus", reason="jobs need ray[default]")
pytestmark = [long, pytest.mark.slow, pytest.mark.filterwarnings("default")]

DEPLOY = ROOT / "deploy"

EXPERIMENT = """
    import numpy as np
    from tests.helpers.cluster.chained import Chain
    import hopfleet as hop

    experiment = hop.Experiment(
        Chain(), train={"x": np.arange(320, dtype="float32")}, valid={"x": np.arange(32, dtype="float32")},
        space={"seconds": 0.02}, search=hop.Random(trials=4, max_epochs=3), metric="loss", partitions=4,
        name="experiment", workers=2,
        run_options=hop.RunOptions(order="fixed"), worker_options=hop.WorkerOptions(device="cpu"),
    )
"""


class Operator:
    """What KubeRay does with a cluster, with folders in place of volumes."""

    def __init__(self, spec: dict[str, Any], nodes: Nodes, folder: Path) -> None:
        self.spec, self.nodes = spec, nodes
        self.folders = {name: folder / name for name in ("storage", "experiment", "home")}
        for path in self.folders.values():
            path.mkdir(exist_ok=True)

    def start(self) -> None:
        assert self.spec["authOptions"] == {"mode": "token"}  # which these nodes have
        self._pod(self.spec["headGroupSpec"], head=True)
        wait_until(lambda: self.nodes.doctor().count("; same versions as here") == 1)
        for count, group in enumerate(self.spec["workerGroupSpecs"]):
            self._pod(group, head=False)
            wait_until(lambda expected=count + 2: self.nodes.doctor().count("; same versions as here") == expected)

    def _pod(self, group: dict[str, Any], *, head: bool) -> None:
        (container,) = group["template"]["spec"]["containers"]
        environment = {one["name"]: self.here(one["value"], container) for one in container["env"]}
        # The image sets it where the container does not.
        environment.setdefault("HOPFLEET_HOME", str(self.folders["home"]))
        options = self._options(group["rayStartParams"], container["resources"]["limits"], head=head)
        words = [f"--{name}" if value == "true" else f"--{name}={value}" for name, value in options.items()]
        if head:
            # All pods have the same address here, and so the dashboard must not be open to others.
            self.nodes.head(*words, **environment)
        else:
            self.nodes.start(*words, **environment)

    def _options(self, given: dict[str, str], limits: dict[str, str], *, head: bool) -> dict[str, str]:
        agent, metrics = free_ports(2)  # on machines of their own, all have the same
        options = {
            "num-cpus": limits["cpu"],
            "memory": str(int(limits["memory"].removesuffix("Gi")) << 30),
            "dashboard-agent-listen-port": str(agent),
            "metrics-export-port": str(metrics),
        }
        if not head:
            options |= {"address": self.nodes.address, "node-ip-address": "127.0.0.1"}
        elif self.spec.get("enableInTreeAutoscaling"):
            options["no-monitor"] = "true"
        return {**options, **{name: value for name, value in given.items() if name != "dashboard-host"}}

    def here(self, text: str, container: dict[str, Any]) -> str:
        """Paths in a container as they are on this machine."""
        volumes = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        for path, name in {"/home/ray/.hopfleet": "home", **volumes}.items():
            if name in self.folders:
                text = re.sub(rf"(?<![\w/]){re.escape(path)}(?!\w)", str(self.folders[name]), text)
        return text

    def submit(self, entrypoint: str, *options: str, **more: Any) -> None:
        """Submit a job and wait for its end, as a pod of the operator does."""
        board = ["--address", f"http://127.0.0.1:{self.nodes.board}"]
        submit = [*RAY, "job", "submit", *board, "--no-wait", "--submission-id", "one", *options]
        self.nodes.run([*submit, "--", *shlex.split(entrypoint)], **more)
        said = self.nodes.run([*RAY, "job", "logs", *board, "--follow", "one"], capture_output=True)
        status = self.nodes.run([*RAY, "job", "status", *board, "one"], capture_output=True)
        assert "succeeded" in status.stdout + status.stderr, said.stdout


def manifest(file: str, kind: str) -> dict[str, Any]:
    documents = yaml.safe_load_all((DEPLOY / "kubernetes" / file).read_text())
    (found,) = [document["spec"] for document in documents if document["kind"] == kind]
    return found


@pytest.mark.parametrize("kind", ["RayJob", "RayCluster"])
def test_an_experiment_runs_as_the_manifest_says(kind: str, own_home: Path, tmp_path: Path) -> None:
    spec = manifest(f"{kind.lower()}.yaml", kind)
    cluster = spec.get("rayClusterSpec", spec)
    with Nodes(own_home, "a token that KubeRay made", RAY_worker_niceness="15") as nodes:
        operator = Operator(cluster, nodes, tmp_path)
        work = operator.folders["experiment"]
        (work / "experiment.py").write_text(textwrap.dedent(EXPERIMENT))
        operator.start()
        (container,) = cluster["headGroupSpec"]["template"]["spec"]["containers"]
        if kind == "RayJob":
            operator.submit(operator.here(spec["entrypoint"], container))
        else:
            (entry,) = re.findall(r"^ray job submit .* -- (.*)$", (DEPLOY / "jobs.md").read_text(), re.MULTILINE)
            operator.submit(operator.here(entry, container), "--working-dir", ".", cwd=work)
    folder = RunFolder(operator.folders["storage"] / "experiment")
    assert messages(folder, Finish)[-1].complete
    assert sum(message.unit.trains for message in messages(folder, UnitFinished)) == 4 * 3 * 4
    words = [sys.executable, "-m", "hopfleet", "run", str(work / "experiment.py"), "--quiet"]
    subprocess.run(words, env=nodes.environment, check=True, timeout=PATIENCE)
    assert fingerprints(folder) == fingerprints(RunFolder(own_home / "experiment"))
