"""Who may read a run, what may be read from a disk, and that names stay within the folder of runs."""

from __future__ import annotations

import ast
import functools
import os
import stat
from pathlib import Path

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.domain.version_ref import VersionRef
from hopfleet.errors import CheckpointError, NotFound, UsageError
from hopfleet.store.folder import check_name, find_run
from hopfleet.store.versions.local import Versions
from hopfleet.testing.tasks import CountingTask

SOURCES = sorted(Path(hop.__file__).parent.rglob("*.py"))
BAD_NAMES = ["../x", "/etc/x", "a/b", "..", ".", "a\0b", "a" * 129, "naïve", "t\n", "-x", "~", "a\\b", "\u202ex"]


@pytest.mark.parametrize("name", BAD_NAMES, ids=ascii)
def test_no_name_leaves_the_folder_of_runs(own_home: Path, name: str) -> None:
    with pytest.raises(UsageError, match="use letters, digits"):
        check_name(name)
    with pytest.raises(UsageError, match="use letters, digits"):
        hop.Experiment(CountingTask(), train={"x": np.arange(9.0)}, space={"x": 1}, name=name)
    assert not own_home.exists() or not list(own_home.iterdir())


@pytest.mark.parametrize("name", ["a\0b", "a" * 5000, "../" * 2000 + "x"], ids=["nul", "long", "deep"])
def test_a_name_that_no_file_can_have_is_not_found(own_home: Path, name: str) -> None:
    with pytest.raises(NotFound):
        find_run(name)


def test_a_run_belongs_to_its_user_alone(own_home: Path) -> None:
    before = os.umask(0)
    try:
        data = {"x": np.arange(40.0)}
        space = {"number": hop.grid_search([1, 2])}
        asked = {"partitions": 2, "batch_size": 8, "backend": "inline", "workers": 1, "name": "mine"}
        hop.Experiment(CountingTask(), train=data, space=space, search=hop.Grid(max_epochs=1), **asked).fit(quiet=True)
    finally:
        os.umask(before)
    folder = own_home / "mine"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path in folder.iterdir():
        assert not path.is_dir() or stat.S_IMODE(path.stat().st_mode) == 0o700, path


def test_shared_memory_that_somebody_else_has_made_is_not_used(tmp_path: Path) -> None:
    versions = Versions(tmp_path / "checkpoints", tmpfs=tmp_path)
    versions.shared_folder.mkdir()
    versions.shared_folder.chmod(0o777)
    planted = versions.path(VersionRef("t0001", 1, 7), durable=False)
    planted.parent.mkdir()
    planted.write_bytes(b"planted")
    with pytest.raises(CheckpointError):
        versions.find(VersionRef("t0001", 1, 7))
    versions.write(VersionRef("t0001", 1, 7), lambda path: path.write_bytes(b"mine"), durable=False, size=4)
    assert versions.find(VersionRef("t0001", 1, 7)).read_bytes() == b"mine"
    assert versions.find(VersionRef("t0001", 1, 7)).parent.parent == tmp_path / "checkpoints"


@functools.cache
def nodes() -> list[tuple[str, ast.AST]]:
    """Every node of the package's code, with the file it is in."""
    return [(path.name, node) for path in SOURCES for node in ast.walk(ast.parse(path.read_text()))]


@functools.cache
def calls() -> list[tuple[str, str]]:
    """Every call of ``module.function`` in the package, with the file it is in."""
    return [
        (name, f"{node.func.value.id}.{node.func.attr}")
        for name, node in nodes()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name)
    ]


@pytest.mark.slow
def test_pickles_come_from_a_socket_pair_or_from_ray_alone() -> None:
    imports = {(path, alias.name) for path, node in nodes() if isinstance(node, ast.Import) for alias in node.names}
    pickles = {(file, name) for file, name in imports if name in ("pickle", "cloudpickle", "dill", "joblib", "shelve")}
    # What script.py loads has come as a part of the WorkerSpec, which process.py and worker_actor.py load. What
    # recipe.py, bundle.py, workspace.py and folds.py load lies in a folder that only this user can write to: they ask
    # check_private.
    loading = {"process.py", "worker_actor.py", "script.py", "pool.py", "recipe.py", "bundle.py", "folds.py"}
    plain = {"wire.py", "workspace.py"}
    cloud = {(file, "cloudpickle") for file in (*loading, "pickling.py", "frameworks.py", "scripts.py")}
    # whole_set.py asks whether a function can be pickled, and belongings.py whether a value changed: they load nothing.
    assert pickles == cloud | {(file, "pickle") for file in (*plain, "whole_set.py", "belongings.py")}
    assert {file for file, name in calls() if name == "cloudpickle.loads"} == loading
    assert {file for file, name in calls() if name == "pickle.loads"} == plain
    asking = {path.name for path in SOURCES if "check_private(" in path.read_text()}
    assert {"recipe.py", "bundle.py", "workspace.py", "folds.py"} <= asking
    assert "marshal.loads" not in {name for _, name in calls()}
    # An exported file is read back, without pickles.
    assert {file for file, name in calls() if name == "torch.load"} == {"formats.py"}
    (formats,) = [path.read_text() for path in SOURCES if path.name == "formats.py"]
    assert formats.count("torch.load(") == formats.count("weights_only=True)") == 1
    # NumPy refuses pickles unless it is told otherwise.
    assert not [path.name for path in SOURCES if "allow_pickle" in path.read_text()]


def test_no_socket_has_a_name_or_a_port() -> None:
    made = {name for _, name in calls() if name.startswith("socket.")}
    here = {"socket.socketpair", "socket.socket", "socket.send_fds", "socket.recv_fds", "socket.gethostname"}
    here |= {"socket.if_nameindex", "socket.inet_ntoa", "socket.getaddrinfo"}  # these ask for addresses
    # To Ray's own ports, to see whether they answer; and to other members of a team.
    assert made <= here | {"socket.create_connection", "socket.create_server"}
    ports = {
        "companion.py",  # finds a port for the page, which asks for a session
        "meeting.py",  # admits those who prove that they know a secret
        "team.py",  # for PyTorch's store: on the network between nodes, which must be private, as for Ray
        "links.py",  # sends zeros, to measure that network
    }
    assert {file for file, name in calls() if name == "socket.create_server"} <= ports
    bound = {(file, name) for file, name in calls() if not name.endswith("signature.bind")}
    listening = {file for file, name in bound if name.endswith((".bind", ".listen")) or "Listener" in name}
    # Of the page, and of teams by way of meeting.py.
    assert listening <= {"server.py", "worker_actor.py", "ps_async.py", "team.py"}
