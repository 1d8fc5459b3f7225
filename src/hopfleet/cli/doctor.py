"""The command ``doctor``: a check of the installation, the machine and, on request, a Ray cluster."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from hopfleet.cli.render import echo, facts, size
from hopfleet.frameworks.devices import named_devices
from hopfleet.store.folder import home
from hopfleet.support import registry
from hopfleet.support.files import unnamed_file
from hopfleet.support.machine import choose_workers, this_machine
from hopfleet.version import __version__

MANY = sys.maxsize
"""A number of trials that never limits the number of workers."""


def doctor(
    ray: Annotated[bool, typer.Option("--ray", help="Also check a Ray cluster: nodes, devices and versions.")] = False,
    address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="With --ray: the cluster's address; 'auto' looks on this machine.")
    ] = "auto",
) -> int:
    """Check the installation and the machine.

    The exit code is 1 if a requirement is missing, or if nodes of a cluster differ from this machine.

    Example: hopfleet doctor
    """
    needed, extras = _requirements()
    missing = [name for name in needed if _version(name) is None]
    problem = _home_problem()
    facts(
        [
            ("python", f"{platform.python_version()} at {sys.executable}"),
            ("hopfleet", __version__),
            *((name, _version(name) or "missing: pip install --upgrade hopfleet") for name in needed),
        ]
    )
    echo()
    facts([(f"[{extra}]", _extra(extra, names)) for extra, names in extras.items()])
    echo()
    if extensions := registry.registered():
        facts([(f"{kind} {name}", f"from the package {package}") for kind, name, package in extensions])
        echo()
    facts([*_machine(), ("home folder", f"{home()}, {problem or 'writable'}"), ("free disk", _free_disk())])
    complaints = [f"{name} is missing" for name in missing] + _clashes()
    if problem:
        complaints.append(f"the home folder is {problem}; set HOPFLEET_HOME to another folder")
    if ray:
        echo()
        complaints += _cluster(address)
    echo()
    echo("Problems: " + "; ".join(complaints) if complaints else "No problems found.")
    return 1 if complaints else 0


def _clashes() -> list[str]:
    """Return the problems with names of extensions that other packages register."""
    from hopfleet.backends import BACKENDS
    from hopfleet.scheduler.policies import POLICIES
    from hopfleet.search import SEARCHES
    from hopfleet.search.stopping import STOPPING_RULES
    from hopfleet.store.local import STORES

    own = {"search": SEARCHES, "stop": STOPPING_RULES, "policy": POLICIES, "backend": BACKENDS, "store": STORES}
    return registry.clashes(own)


def _cluster(address: str) -> list[str]:
    """Print the nodes of a Ray cluster and return their problems."""
    from hopfleet.backends.ray.nodes import inspect_nodes

    found = inspect_nodes(address)
    lines, complaints = [], []
    for node, here, problems in found:
        gpus = f", {node.gpus:g} GPUs {node.kind}".rstrip() if node.gpus else ""
        versions = "" if here is None else f"; Python {here.python}, ray {here.packages.get('ray', 'unknown')}"
        verdict = "; ".join(problems) or "same versions as here"
        lines.append((node.name, f"{node.cpus:g} CPUs{gpus}, {node.free_cpus:g} free{versions}; {verdict}"))
        complaints += [f"{node.name}: {problem}" for problem in problems]
    token = os.environ.get("RAY_AUTH_MODE", "").lower() == "token"
    on, off = "on (token)", "off; set RAY_AUTH_MODE=token on every node to turn it on"
    facts([("nodes", str(len(found))), *lines, ("authentication", on if token else off)])
    return complaints


def _requirements() -> tuple[list[str], dict[str, list[str]]]:
    """Return the packages that hopfleet requires and those of each extra, from hopfleet's own metadata."""
    needed: list[str] = []
    extras: dict[str, list[str]] = {}
    for line in importlib.metadata.requires("hopfleet") or []:
        found = re.match(r"[A-Za-z0-9._-]+", line)
        assert found is not None
        extra = re.search(r"""extra == ['"]([^'"]+)""", line)
        if extra is None:
            needed.append(found[0])
        elif found[0] != "hopfleet" and extra[1] not in ("all", "dev"):
            extras.setdefault(extra[1], []).append(found[0])
    return needed, extras


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _extra(extra: str, names: list[str]) -> str:
    found = {name: _version(name) for name in names}
    if all(found.values()):
        return ", ".join(f"{name} {version}" for name, version in found.items())
    absent = ", ".join(name for name, version in found.items() if version is None)
    return f"{absent} is not installed: pip install 'hopfleet[{extra}]'"


def _machine() -> Iterator[tuple[str, str]]:
    machine = this_machine()
    kind, count, devices = named_devices()
    yield "cores", str(machine.cores)
    yield "memory", f"{size(machine.memory)} available"
    shared = Path("/dev/shm")
    yield "/dev/shm", f"{size(shutil.disk_usage(shared).free)} free" if shared.is_dir() else "none"
    yield "devices", devices
    workers, why = choose_workers(machine, device=kind, devices=count, threads=1, trials=MANY)
    yield "workers", f"'auto' means {workers} here ({why})"


def _home_problem() -> str:
    """Return why the home folder cannot be written to, or an empty string."""
    place = _existing(home())
    if not place.is_dir():
        return f"impossible: {place} is a file"
    try:
        with unnamed_file(place):
            return ""
    except OSError as error:
        return f"not writable ({os.strerror(error.errno or 0)})"


def _free_disk() -> str:
    return size(shutil.disk_usage(_existing(home())).free)


def _existing(path: Path) -> Path:
    """Return the path itself or its nearest existing parent."""
    while not path.exists():
        path = path.parent
    return path
