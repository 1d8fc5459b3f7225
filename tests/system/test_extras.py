"""The base install: all that works without an extra, and what is said where an extra is missing.

A ``sitecustomize`` hides the packages of extras from a process and from all that it starts, workers included.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

MODULES = {
    "mlflow-skinny": "mlflow",
    "myst-nb": "myst_nb",
    "opentelemetry-sdk": "opentelemetry",
    "pillow": "PIL",
    "pyyaml": "yaml",
    "scikit-learn": "sklearn",
    "typing-extensions": "typing_extensions",
}
"""Names of packages that are imported under another name."""

TOGETHER = {"all", "bench", "cluster", "demo", "dev", "site"}
"""Extras that stand for several others, or for tools of the project."""


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
    assert base == {"numpy", "pyarrow", "safetensors", "cloudpickle", "fsspec", "rich", "typer", "typing_extensions"}
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
            apart = "__main__", "demo", "frameworks.", "clients.search_cv", "testing.strategies"
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


@dataclass(frozen=True)
class Need:
    """A use of an optional package, the module below hopfleet that misses the package, and what it says."""

    package: str
    module: str
    use: str
    message: str


SCIPY = "this needs SciPy, .*'hopfleet[scipy]'"
SOLVER = "this needs OR-tools, .*'hopfleet[solver]'"
S3 = "this needs s3fs, .*'hopfleet[s3]'"
SKLEARN = "this needs scikit-learn, .*'hopfleet[sklearn]'"
JAX = "this needs JAX with Optax, .*'hopfleet[jax]'"
ONNX = "this needs ONNX with ONNX Runtime, .*'hopfleet[onnx]'"
DEMO = "this needs PyTorch, scikit-learn and matplotlib, .*'hopfleet[demo]'"
OPTUNA = "hopfleet.TPE().setup({'x': hopfleet.uniform(0, 1)}, seed=0, goal=None)"
CMAES = "hopfleet.CMAES().setup({'x': hopfleet.uniform(0, 1)}, seed=0, goal=None)"
EXPORT = "module('frameworks.torch.formats').onnx(None, None, None)"
PAGE = "module('ui.companion').open_page(None)"
NEEDS = [
    Need(
        "yaml",
        "support.documents",
        "[open('a.yaml', 'w').close(), module('support.documents').read_document('a.yaml')]",
        "this needs PyYAML, .*'hopfleet[yaml]'; JSON files need nothing",
    ),
    Need(
        "PIL",
        "data.etl.images",
        "hopfleet.Images((2, 2))._decoded(b'', None)",
        "this needs Pillow, .*'hopfleet[images]'",
    ),
    Need(
        "openpyxl",
        "data.etl.whole_files",
        "[open('a.xlsx', 'w').write('PK'), hopfleet.prepare('a.xlsx', 'set', partitions=1)]",
        "this needs openpyxl, .*'hopfleet[excel]'; or save the sheet as a CSV file",
    ),
    Need(
        "sqlalchemy",
        "data.etl.tables",
        "list(hopfleet.Query('postgresql://localhost/shop', 'select 1').tables())",
        "this needs SQLAlchemy, .*'hopfleet[sql]'; or pass a connection: .*",
    ),
    Need("matplotlib", "monitor.charts.figure", "done().plot()", "this needs matplotlib, .*'hopfleet[plot]'"),
    Need("matplotlib", "cli.training", "module('cli.training').demo()", DEMO),
    Need("pandas", "monitor.frame", "done().dataframe()", "this needs pandas, .*'hopfleet[pandas]'"),
    Need(
        "scipy",
        "planner.balance",
        "hopfleet.simulate(trials=4, partitions=3, replicas=2)",
        f"{SCIPY}; without SciPy, give each partition one replica",
    ),
    Need("scipy", "planner.nodes", "module('planner.nodes').relaxed(None)", SCIPY),
    Need("scipy", "planner.nodes_divided", "module('planner.nodes_divided').least_seconds_on_nodes([], [])", SCIPY),
    Need("torch", "frameworks.torch.task", "hopfleet.TorchTask", "this needs PyTorch, .*'hopfleet[torch]'"),
    Need("torch", "cli.training", "module('cli.training').demo()", DEMO),
    Need("jax", "frameworks.jax.task", "hopfleet.JaxTask", JAX),
    Need("optax", "frameworks.jax.task", "hopfleet.JaxTask", JAX),
    Need(
        "lightning",
        "frameworks.lightning.task",
        "hopfleet.LightningTask",
        "this needs Lightning, .*'hopfleet[lightning]'",
    ),
    Need(
        "transformers",
        "frameworks.transformers.task",
        "hopfleet.TransformersTask",
        "this needs Transformers, .*'hopfleet[transformers]'",
    ),
    Need("optuna", "search.study", OPTUNA, "this needs Optuna, .*'hopfleet[optuna]'"),
    Need("cmaes", "search.optuna", CMAES, "this needs cmaes, .*'hopfleet[optuna]'"),
    Need("ray", "backends.ray.cluster", "hopfleet.Ray().offer('cpu', 1)", "this needs Ray, .*'hopfleet[ray]'"),
    Need("ortools", "scheduler.policies.exact", "module('experiment.arguments').policy('exact')", SOLVER),
    Need("ortools", "planner.exact", "module('planner.exact').load()", SOLVER),
    Need("s3fs", "data.folders", "hopfleet.open_dataset('s3://bucket/data')", S3),
    Need("s3fs", "store.versions.remote", "module('store.versions.remote').Remote('s3://bucket/runs')", S3),
    Need("keras", "frameworks.keras.task", "hopfleet.KerasTask", "this needs Keras, .*'hopfleet[keras]'"),
    Need(
        "tensorboard",
        "trackers.tensorboard",
        "hopfleet.trackers.TensorBoard()",
        "this needs TensorBoard, .*'hopfleet[tensorboard]'",
    ),
    Need("mlflow", "trackers.mlflow", "hopfleet.trackers.MLflow()", "this needs MLflow, .*'hopfleet[mlflow]'"),
    Need(
        "opentelemetry",
        "trackers.otel",
        "hopfleet.trackers.OpenTelemetry()",
        "this needs OpenTelemetry, .*'hopfleet[otel]'",
    ),
    Need("wandb", "trackers.wandb", "hopfleet.trackers.WandB()", "this needs wandb, .*'hopfleet[wandb]'"),
    Need("starlette", "ui.companion", PAGE, "this needs Starlette, .*'hopfleet[ui]'"),
    Need("starlette", "ui.application", "module('ui.application')", "this needs Starlette, .*'hopfleet[ui]'"),
    Need("uvicorn", "ui.companion", PAGE, "this needs uvicorn, .*'hopfleet[ui]'"),
    Need("uvicorn", "ui.serving", "module('ui.serving')", "this needs uvicorn, .*'hopfleet[ui]'"),
    Need("onnxruntime", "frameworks.torch.formats", EXPORT, ONNX),
    Need("onnxscript", "frameworks.torch.formats", EXPORT, ONNX),
    Need("sklearn", "frameworks.sklearn.task", "hopfleet.SklearnTask", SKLEARN),
    Need("sklearn", "clients.search_cv", "hopfleet.HopSearchCV", SKLEARN),
    Need("sklearn", "frameworks.whole_set", "hopfleet.WholeSet('roc_auc', [], [])", SKLEARN),
    Need("sklearn", "cli.training", "module('cli.training').demo()", DEMO),
    Need("sklearn", "demo", "module('demo').data()", "this needs scikit-learn, .*'hopfleet[demo]'"),
]
PACKAGES = sorted({need.package for need in NEEDS})


@pytest.mark.parametrize("package", PACKAGES)
def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, package: str) -> None:
    needs = [need for need in NEEDS if need.package == package]
    code = f"""
        import importlib
        import hopfleet, hopfleet.errors, hopfleet.trackers

        def module(name):
            return importlib.import_module("hopfleet." + name)

        def done():
            import numpy as np
            from hopfleet.testing.tasks import CountingTask
            return hopfleet.Experiment(
                CountingTask(), train={{"x": np.arange(40.0)}}, space={{"number": 1}}, metric="train_units", mode="max",
                search=hopfleet.Random(trials=1, max_epochs=1), batch_size=5, backend="inline", name="done",
            ).fit(quiet=True)

        for use in {[need.use for need in needs]}:
            try:
                eval(use)
            except hopfleet.errors.MissingExtra as missing:
                frame = missing.__traceback__
                while frame.tb_next is not None:
                    frame = frame.tb_next
                print(frame.tb_frame.f_globals["__name__"], missing)
            else:
                print("nothing said")
    """
    said = python(code, tmp_path, ["lightning", "pytorch_lightning"] if package == "lightning" else [package])
    for need, line in zip(needs, said.splitlines(), strict=True):
        message = need.message.replace("[", r"\[").replace("]", r"\]")
        assert re.fullmatch(rf"hopfleet\.{re.escape(need.module)} {message}", line), line


def test_every_optional_package_is_tested() -> None:
    # greenlet comes with Optuna, a database with MLflow; users bring Flax modules and PEFT adapters; the store of a
    # bucket first needs s3fs.
    together = {"alembic", "flax", "greenlet", "onnx", "peft", "sqlparse"}
    assert sorted(set(OPTIONAL) - together) == PACKAGES


def test_every_module_that_needs_an_extra_is_tested() -> None:
    package = ROOT / "src" / "hopfleet"
    found = {
        ".".join(path.relative_to(package).with_suffix("").parts)
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Raise) and node.exc is not None and "MissingExtra(" in ast.unparse(node.exc)
    }
    assert found == {need.module for need in NEEDS}


def test_what_an_extra_promises_is_there_under_the_name_that_is_imported() -> None:
    """The tests of each adapter import it; importing all of them here would take a minute."""
    asked = PROJECT["optional-dependencies"].keys() - {"cluster", "bench", "dev"}
    missing = {(extra, name) for extra in asked for name in modules(extra) if find_spec(name) is None}
    assert missing == set()


def modules(extra: str) -> list[str]:
    """Return the modules of an extra, and those of the extras that it stands for."""
    found = []
    for requirement in PROJECT["optional-dependencies"][extra]:
        others = re.match(r"hopfleet\[(.*)\]$", requirement)
        found += (
            [name for other in others[1].split(",") for name in modules(other)] if others else [module(requirement)]
        )
    return sorted(set(found))
