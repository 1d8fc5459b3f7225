"""The base install: all that works without an extra, and what is said where an extra is missing.

A ``sitecustomize`` hides the packages of extras from a process and from all that it starts, workers included.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

MODULES = {
    "mlflow-skinny": "mlflow",
    "opentelemetry-sdk": "opentelemetry",
    "pillow": "PIL",
    "pyyaml": "yaml",
    "scikit-learn": "sklearn",
}
"""Names of packages that are imported under another name."""

TOGETHER = {"all", "bench", "cluster", "demo", "dev"}
"""Extras that stand for several others."""


def module(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9_-]+", requirement)
    assert found is not None
    return MODULES.get(found[0], found[0])


OPTIONAL = sorted(
    {
        module(requirement)
        for extra in PROJECT["optional-dependencies"].keys() - TOGETHER
        for requirement in PROJECT["optional-dependencies"][extra]
        if not requirement.startswith("hopfleet")
    }
)


def python(code: str, folder: Path, hidden: list[str]) -> str:
    """Run code where ``hidden`` cannot be imported, and return what it printed."""
    (folder / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({hidden!r}))\n")
    (folder / "script.py").write_text(textwrap.dedent(code))
    paths = (folder, ROOT / "src")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "HOPFLEET_HOME": str(folder / "home")}
    command = [sys.executable, "-W", "error", str(folder / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def test_the_base_install_is_what_it_should_be() -> None:
    base = {module(requirement) for requirement in PROJECT["dependencies"]}
    assert base == {"numpy", "pyarrow", "safetensors", "cloudpickle", "fsspec", "rich", "typer"}
    assert {"matplotlib", "pandas", "scipy", "sklearn", "torch", "optuna", "ray", "ortools"} <= set(OPTIONAL)


def test_every_extra_has_code_behind_it() -> None:
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    for extra in PROJECT["optional-dependencies"].keys() - TOGETHER:
        assert f', "{extra}"' in source, f"no MissingExtra names [{extra}]"


@pytest.mark.parametrize("backend", ["inline", "local"])
def test_an_experiment_needs_the_base_install_alone(tmp_path: Path, backend: str) -> None:
    code = f"""
        import numpy as np
        import hopfleet as hop
        from hopfleet.testing.tasks import CountingTask

        data = hop.partition({{"x": np.arange(40.0)}}, "data", partitions=2)
        results = hop.Experiment(
            CountingTask(), train=data, valid={{"x": np.arange(8.0)}}, space={{"number": hop.grid_search([1, 2])}},
            search=hop.Grid(max_epochs=2), batch_size=5, workers=2, backend={backend!r}, name="base",
        ).fit(quiet=True)
        assert results.verify().ok
        print(results.finished, len(results.trials), hop.simulate(trials=4, partitions=2).ratio >= 1)
    """
    assert python(code, tmp_path, OPTIONAL) == "True 2 True"


def test_every_command_starts_with_the_base_install_alone(tmp_path: Path) -> None:
    code = """
        import sys
        from hopfleet.cli import main

        for command in ("--help", "doctor", "ls", "simulate"):
            assert main([command]) in (0, 1), command
        import hopfleet, hopfleet.frameworks.base, pkgutil
        for found in pkgutil.walk_packages(hopfleet.__path__, "hopfleet."):
            apart = "__main__", "demo", "frameworks.", "testing.strategies"
            if not found.name.removeprefix("hopfleet.").startswith(apart):
                try:
                    __import__(found.name)
                except hopfleet.errors.MissingExtra as missing:
                    print(found.name, missing)
    """
    lines = python(code, tmp_path, OPTIONAL).splitlines()
    needy = [line.split(maxsplit=1) for line in lines if line.startswith("hopfleet.") and "pip install" in line]
    # Their classes derive from classes of the libraries; both are imported on first use.
    known = {"hopfleet.search.study", "hopfleet.monitor.charts.figure"}
    assert {name for name, _ in needy} <= known | {"hopfleet.ui.application", "hopfleet.ui.serving"}, needy


NEEDS = {
    "yaml": (
        "__import__('hopfleet.support.documents').support.documents._yaml('')",
        "this needs PyYAML, .*'hopfleet[yaml]'; JSON files need nothing",
    ),
    "PIL": ("hopfleet.Images((2, 2))._decoded(b'', None)", "this needs Pillow, .*'hopfleet[images]'"),
    "matplotlib": ("hopfleet.load('done').plot()", "this needs matplotlib, .*'hopfleet[plot]'"),
    "pandas": ("hopfleet.load('done').dataframe()", "this needs pandas, .*'hopfleet[pandas]'"),
    "scipy": (
        "hopfleet.simulate(trials=4, partitions=3, replicas=2)",
        "this needs SciPy, .*'hopfleet[scipy]'; without SciPy, give each partition one replica",
    ),
    "torch": ("hopfleet.TorchTask", "this needs PyTorch, .*'hopfleet[torch]'"),
    "jax": ("hopfleet.JaxTask", "this needs JAX with Optax, .*'hopfleet[jax]'"),
    "optax": ("hopfleet.JaxTask", "this needs JAX with Optax, .*'hopfleet[jax]'"),
    "lightning": ("hopfleet.LightningTask", "this needs Lightning, .*'hopfleet[lightning]'"),
    "transformers": ("hopfleet.TransformersTask", "this needs Transformers, .*'hopfleet[transformers]'"),
    "optuna": (
        "hopfleet.TPE().setup({'x': hopfleet.uniform(0, 1)}, seed=0, goal=None)",
        "this needs Optuna, .*'hopfleet[optuna]'",
    ),
    "cmaes": (
        "hopfleet.CMAES().setup({'x': hopfleet.uniform(0, 1)}, seed=0, goal=None)",
        "this needs cmaes, .*'hopfleet[optuna]'",
    ),
    "ray": ("hopfleet.Ray().offer('cpu', 1)", "this needs Ray, .*'hopfleet[ray]'"),
    "ortools": ("hopfleet.experiment.arguments.policy('exact')", "this needs OR-tools, .*'hopfleet[solver]'"),
    "s3fs": ("hopfleet.open_dataset('s3://bucket/data')", "this needs s3fs, .*'hopfleet[s3]'"),
    "keras": ("hopfleet.KerasTask", "this needs Keras, .*'hopfleet[keras]'"),
    "tensorboard": ("hopfleet.trackers.TensorBoard()", "this needs TensorBoard, .*'hopfleet[tensorboard]'"),
    "mlflow": ("hopfleet.trackers.MLflow()", "this needs MLflow, .*'hopfleet[mlflow]'"),
    "opentelemetry": ("hopfleet.trackers.OpenTelemetry()", "this needs OpenTelemetry, .*'hopfleet[otel]'"),
    "wandb": ("hopfleet.trackers.WandB()", "this needs wandb, .*'hopfleet[wandb]'"),
    "starlette": (
        "__import__('hopfleet.ui.companion').ui.companion.open_page(None)",
        "this needs Starlette, .*'hopfleet[ui]'",
    ),
    "uvicorn": (
        "__import__('hopfleet.ui.companion').ui.companion.open_page(None)",
        "this needs uvicorn, .*'hopfleet[ui]'",
    ),
    **dict.fromkeys(
        ("onnxruntime", "onnxscript"),
        (
            "__import__('hopfleet.frameworks.torch.formats').frameworks.torch.formats.onnx(None, None, None)",
            "this needs ONNX with ONNX Runtime, .*'hopfleet[onnx]'",
        ),
    ),
    "sklearn": ("hopfleet.SklearnTask", "this needs scikit-learn, .*'hopfleet[sklearn]'"),
}
"""For each package, an expression that needs it, and the message if the package is missing."""


@pytest.mark.parametrize("package", NEEDS)
def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, package: str) -> None:
    expression, message = NEEDS[package]
    code = f"""
        import hopfleet, hopfleet.errors, hopfleet.experiment.arguments, hopfleet.trackers
        if {package!r} in ("matplotlib", "pandas"):
            import numpy as np
            from hopfleet.testing.tasks import CountingTask
            hopfleet.Experiment(
                CountingTask(), train={{"x": np.arange(40.0)}}, space={{"number": 1}}, metric="train_units", mode="max",
                search=hopfleet.Random(trials=1, max_epochs=1), batch_size=5, backend="inline", name="done",
            ).fit(quiet=True)
        try:
            {expression}
        except hopfleet.errors.MissingExtra as missing:
            print(missing)
    """
    said = python(code, tmp_path, ["lightning", "pytorch_lightning"] if package == "lightning" else [package])
    assert re.fullmatch(message.replace("[", r"\[").replace("]", r"\]"), said), said


def test_every_optional_package_is_tested() -> None:
    # greenlet comes with Optuna, a database with MLflow; users bring Flax modules and PEFT adapters; the store of a
    # bucket first needs s3fs.
    together = {"alembic", "flax", "greenlet", "onnx", "peft", "sqlalchemy", "sqlparse"}
    assert set(OPTIONAL) - together == NEEDS.keys()
