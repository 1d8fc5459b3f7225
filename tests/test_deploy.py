"""What deploy/ says fits what is here: versions, commands, and authentication."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from hopfleet.cli.app import app

ROOT = Path(__file__).parent.parent
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


def test_pods_mount_what_they_declare() -> None:
    for spec in specs():
        for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
            pod = group["template"]["spec"]
            volumes = {volume["name"] for volume in pod["volumes"]}
            for container in pod["containers"]:
                assert {mount["name"] for mount in container["volumeMounts"]} == volumes
                assert "/dev/shm" in {mount["mountPath"] for mount in container["volumeMounts"]}


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
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target
