"""What deploy/ says fits what is here: versions, commands, and authentication."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from hopfleet.cli.app import app

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def manifests() -> list[dict[str, Any]]:
    return [
        document
        for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
    ]


def specs() -> list[dict[str, Any]]:
    found = [document["spec"] for document in manifests() if document["kind"] in ("RayCluster", "RayJob")]
    return [spec.get("rayClusterSpec", spec) for spec in found]


def test_clusters_have_the_tested_ray_and_demand_a_token() -> None:
    (pinned,) = re.findall(r"^ray==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert {document["kind"] for document in manifests()} == {"RayCluster", "RayJob", "PersistentVolumeClaim"}
    for spec in specs():
        assert spec["rayVersion"] == pinned
        assert spec["authOptions"] == {"mode": "token"}
    assert f"FROM rayproject/ray:{pinned}-py311\n" in (DEPLOY / "Dockerfile").read_text()


#: The fields of ray.io/v1 that we use, as KubeRay's reference has them; what is not there the API server would drop.
FIELDS = {
    "RayCluster": {"rayVersion", "authOptions", "enableInTreeAutoscaling", "autoscalerOptions", "headGroupSpec"}
    | {"workerGroupSpecs", "suspend", "headServiceAnnotations", "gcsFaultToleranceOptions"},
    "RayJob": {"entrypoint", "backoffLimit", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished", "rayClusterSpec"}
    | {"runtimeEnvYAML", "submissionMode", "submitterPodTemplate", "activeDeadlineSeconds", "suspend", "jobId"},
    "head": {"rayStartParams", "template", "serviceType", "headService", "enableIngress", "resources", "labels"},
    "worker": {"groupName", "replicas", "minReplicas", "maxReplicas", "numOfHosts", "rayStartParams", "template"}
    | {"scaleStrategy", "idleTimeoutSeconds", "resources", "labels", "suspend"},
    "autoscalerOptions": {"idleTimeoutSeconds", "upscalingMode", "resources", "image", "imagePullPolicy", "env"}
    | {"envFrom", "volumeMounts", "securityContext", "version"},
}
QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|Ki|Mi|Gi)?")
NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def groups() -> list[dict[str, Any]]:
    return [group for spec in specs() for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]


def test_manifests_have_fields_that_kuberay_knows() -> None:
    for document in manifests():
        assert NAME.fullmatch(document["metadata"]["name"])
        if document["kind"] in FIELDS:
            assert document["apiVersion"] == "ray.io/v1"
            assert document["spec"].keys() <= FIELDS[document["kind"]]
    for spec in specs():
        assert spec.keys() <= FIELDS["RayCluster"] and {"headGroupSpec", "rayVersion"} <= spec.keys()
        assert spec.get("autoscalerOptions", {}).keys() <= FIELDS["autoscalerOptions"]
        assert spec["headGroupSpec"].keys() <= FIELDS["head"]
        for group in spec["workerGroupSpecs"]:
            assert group.keys() <= FIELDS["worker"] and NAME.fullmatch(group["groupName"])
            assert 0 <= group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    for group in groups():
        assert {"rayStartParams", "template"} <= group.keys()
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())


def test_pods_are_whole_and_confined() -> None:
    for group in groups():
        pod = group["template"]["spec"]
        user = pod["securityContext"]
        assert user["runAsNonRoot"] and user["runAsUser"] == 1000 and user["seccompProfile"]["type"] == "RuntimeDefault"
        (container,) = pod["containers"]
        assert NAME.fullmatch(container["name"]) and container["image"] == "hopfleet:latest"
        confined = container["securityContext"]
        assert confined == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        assert container["resources"]["requests"] == container["resources"]["limits"], "what Ray is told is there"
        assert all(QUANTITY.fullmatch(value) for value in container["resources"]["limits"].values())
        assert all(set(one) == {"name", "value"} and isinstance(one["value"], str) for one in container["env"])
        names = [one["name"] for one in container["env"]]
        assert len(set(names)) == len(names)
        assert not any(name.startswith("RAY_AUTH") for name in names), "KubeRay gives the token to every pod"


def test_pods_mount_what_they_declare() -> None:
    claims = {document["metadata"]["name"] for document in manifests() if document["kind"] == "PersistentVolumeClaim"}
    for group in groups():
        pod = group["template"]["spec"]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert all(len(volume) == 2 for volume in volumes.values()), "a name, and one source"
        assert volumes["storage"]["persistentVolumeClaim"]["claimName"] in claims
        for container in pod["containers"]:
            mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
            assert mounts.keys() == volumes.keys()
            assert {"/dev/shm", "/storage"} <= set(mounts.values())


def test_the_image_has_all_that_it_is_built_from() -> None:
    """The build context lacks most files of the repository, but nothing that the Dockerfile installs from."""
    allowed = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    there = {line[1:] for line in allowed if line.startswith("!")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = {project["project"]["readme"], *project["project"]["license-files"], "src", "pyproject.toml"}
    assert "*" in allowed and there == {*needed, "constraints.txt"}
    assert all((ROOT / name).exists() for name in there)
    (installed,) = re.findall(
        r"^RUN pip install .* '/opt/hopfleet\[(.*)\]'$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE
    )
    assert set(installed.split(",")) <= project["project"]["optional-dependencies"].keys()


def test_commands_exist() -> None:
    texts = [path.read_text() for path in DEPLOY.rglob("*") if path.suffix in (".md", ".yaml")]
    lines = [line for text in texts for line in re.findall(r"hopfleet ((?:run|doctor|resume) .*)$", text, re.MULTILINE)]
    assert len(lines) >= 4
    for line in lines:
        command, *words = shlex.split(line.split("#")[0].rstrip("`"))
        known = {name for parameter in COMMANDS[command].params for name in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known, line


@pytest.mark.parametrize("path", sorted(DEPLOY.rglob("*.md")), ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target
