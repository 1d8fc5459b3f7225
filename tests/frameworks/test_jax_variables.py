"""JAX: variables of Flax Linen, transformations with branches, and programs that later runs find on disk."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.errors import TaskError
from hopfleet.frameworks.base import EngineCache
from hopfleet.frameworks.jax import compiled
from tests.helpers.hopping import hopped, visited
from tests.helpers.jax_tasks import Net, data, jax, jnp, opened, optax

linen = pytest.importorskip("flax.linen")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:os.fork.. was called:RuntimeWarning"),
]


class Block(linen.Module):  # type: ignore[misc]
    @linen.compact
    def __call__(self, x: Any, train: bool) -> Any:
        x = linen.BatchNorm(use_running_average=not train)(linen.Dense(8)(x))
        x = linen.Dropout(0.2, deterministic=not train)(linen.relu(x))
        return linen.Dense(1)(x)[:, 0]


class Variables(hop.JaxTask):
    """A module of Flax Linen, whose statistics change while its parameters are trained."""

    returns = "pair"

    def init(self, config: Any, key: Any) -> Any:
        return Block().init(key, jnp.zeros((1, 4)), False)

    def optimizer(self, config: Any) -> Any:
        return optax.adamw(config["lr"], weight_decay=0.5)

    def loss(self, params: Any, batch: Any, key: Any) -> Any:
        chance = {} if key is None else {"dropout": key}
        out, updates = Block().apply(params, batch["x"], key is not None, mutable=["batch_stats"], rngs=chance)
        loss = jnp.mean((out - batch["y"]) ** 2)
        return {"pair": (loss, updates), "scalar": loss, "other": (loss, {"means": updates})}[self.returns]


def batches(count: int = 8) -> list[dict[str, Any]]:
    columns = data()
    rows = len(columns["y"]) // count
    return [{name: value[k * rows : (k + 1) * rows] for name, value in columns.items()} for k in range(count)]


def trained(task: Any, config: Any, folder: Path) -> Any:
    """Train in two halves, with a hop between them; return the session."""
    session, given = opened(task, config, seed=7), batches()
    session.train([session.prepare(batch, {}) for batch in given[:3]], last=False)
    session.save(folder / "version")
    session = opened(task, config, seed=99)
    session.load(folder / "version")
    session.train([session.prepare(batch, {}) for batch in given[3:]], last=True)
    return session


def same(one: Any, other: Any) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(np.asarray(left), np.asarray(right)) for left, right in pairs)


def plain_step(task: Any, optimizer: Any) -> Any:
    """The step of a plain loop."""

    @jax.jit
    def step(variables: Any, state: Any, batch: Any, key: Any) -> Any:
        def loss(params: Any) -> Any:
            return task.loss({**variables, "params": params}, batch, key)

        (_, updates), gradients = jax.value_and_grad(loss, has_aux=True)(variables["params"])
        change, state = optimizer.update(gradients, state, variables["params"])
        return {"params": optax.apply_updates(variables["params"], change), **updates}, state

    return step


def test_statistics_of_linen_hop_and_are_not_trained(tmp_path: Path) -> None:
    config, task = {"lr": 0.0123}, Variables()
    session = trained(task, config, tmp_path)
    first, key = jax.random.split(jax.random.key(7))
    variables, made = task.init(config, first), task.optimizer(config)
    state, step = made.init(variables["params"]), plain_step(task, made)
    for number, batch in enumerate(batches()):
        variables, state = step(variables, state, batch, jax.random.fold_in(key, number))
    session.save(tmp_path / "last")
    model = task.framework.model(config, tmp_path / "last")
    assert same(model, variables) and same(session.live.optimizer, state)
    loss = float(task.loss(variables, batches(1)[0], None)[0])
    assert session.evaluate([session.prepare(batches(1)[0], {})], seed=0)["loss"].mean == pytest.approx(loss)
    assert session.parameters == sum(leaf.size for leaf in jax.tree.leaves(variables["params"]))


@pytest.mark.parametrize(
    ("returns", "words"),
    [
        ("scalar", r"the variables have 'batch_stats', .*; return \(loss, updates\), as in logits, updates ="),
        ("other", "'means' with other variables than init"),
    ],
)
def test_statistics_are_never_left_behind(returns: str, words: str) -> None:
    task = Variables()
    task.returns = returns
    session = opened(task, {"lr": 0.1}, cache=EngineCache())
    with pytest.raises(TaskError, match=words):
        session.train([session.prepare(batches()[0], {})], last=True)


class Descending(Variables):
    """Without Adam, which makes whole steps of gradients that are nothing but rounding."""

    def optimizer(self, config: Any) -> Any:
        return optax.sgd(config["lr"])


def test_stacked_variables_train() -> None:
    sessions = [opened(Descending(), {"lr": rate}) for rate in (0.01, 0.02)]
    flotilla = sessions[0].task.framework.flotilla(sessions, fast=True)
    given = [sessions[0].prepare(batch, {}) for batch in batches()]
    flotilla.train(given, last=[True, True])
    for session, rate in zip(sessions, (0.01, 0.02), strict=True):
        alone = opened(Descending(), {"lr": rate})
        alone.train(given, last=True)
        pairs = zip(jax.tree.leaves(session.live.rest), jax.tree.leaves(alone.live.rest), strict=True)
        assert max(float(jnp.abs(one - other).max()) for one, other in pairs) < 1e-5


@pytest.mark.parametrize(
    "made",
    [
        lambda rate: optax.MultiSteps(optax.adamw(rate, weight_decay=0.017), every_k_schedule=3),
        lambda rate: optax.chain(optax.clip_by_global_norm(1.0), optax.MultiSteps(optax.adam(rate), 3)),
        lambda rate: optax.apply_if_finite(optax.adam(rate), 5),
    ],
)
def test_transformations_with_branches_have_the_bits_of_a_plain_loop(made: Any, tmp_path: Path) -> None:
    class Accumulating(Net):
        def optimizer(self, config: Any) -> Any:
            return made(config["lr"])

    config = {"lr": 0.0123, "dropout": 0.3, "optimizer": "adam"}
    session = trained(Accumulating(), config, tmp_path)
    task = Accumulating().for_trial(config)
    first, key = jax.random.split(jax.random.key(7))
    params, transformation = task.init(config, first), made(0.0123)
    state = transformation.init(params)

    @jax.jit
    def step(params: Any, state: Any, batch: Any, key: Any) -> Any:
        gradients = jax.grad(task.loss)(params, batch, key)
        updates, state = transformation.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    for number, batch in enumerate(batches()):
        params, state = step(params, state, batch, jax.random.fold_in(key, number))
    assert same(session.live.params, params) and same(session.live.optimizer, state)


SCRIPT = """
import hopfleet as hop, jax
from tests.helpers.jax_tasks import Net, data

if __name__ == "__main__":
    results = hop.Experiment(
        Net(), train=data(), valid=data(), batch_size=8, backend="local", workers=1, seed=3,
        space={"lr": 0.01, "dropout": 0.1, "optimizer": "adam"}, search=hop.Grid(max_epochs=1),
    ).fit(quiet=True)
    assert jax.config.jax_compilation_cache_dir == "", "the user's own process is left as it is"
    print(*(leaf.tobytes().hex() for leaf in map(jax.device_get, jax.tree.leaves(results.best.model()))))
"""


def test_a_later_run_finds_compiled_programs(tmp_path: Path) -> None:
    home, script = tmp_path / "home", tmp_path / "script.py"
    script.write_text(SCRIPT)
    # Set, but empty: the helpers set it otherwise. All programs are kept, however long they take to compile.
    env = {**os.environ, "HOPFLEET_HOME": str(home), "PYTHONPATH": str(Path.cwd()), "JAX_COMPILATION_CACHE_DIR": ""}
    env |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}

    def run() -> str:
        done = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, check=False)
        assert not done.returncode, done.stderr
        return done.stdout

    def programs() -> dict[str, int]:
        # The names of smaller ones differ from process to process.
        found = [
            path for path in (home / "cache" / "jax").glob("*/*-cache") if re.match("jit__(step|measure)", path.name)
        ]
        return {path.name: path.stat().st_mtime_ns for path in found}

    first = run()
    made = programs()
    assert len(made) >= 2
    assert run() == first
    assert programs() == made


def test_a_folder_that_others_can_write_to_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setenv("HOPFLEET_HOME", str(tmp_path))
    monkeypatch.setattr(compiled, "jax", SimpleNamespace(config=SimpleNamespace(
        jax_compilation_cache_dir="", update=lambda *given: told.append(given)
    )))  # fmt: skip
    folder = tmp_path / "cache" / "jax" / compiled._kind_of_machine()
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    compiled.keep_compiled()
    folder.chmod(0o700)
    if os.geteuid() == 0:
        os.chown(folder, 12345, 12345)
        compiled.keep_compiled()
        os.chown(folder, 0, 0)
    assert told == []
    compiled.keep_compiled()
    assert told[0] == ("jax_compilation_cache_dir", str(folder))


def test_trials_that_change_workers_after_every_unit_have_the_bits_of_a_plain_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = hop.grid_search([0.1, 0.03, 0.01])
    results, dataset = hopped(Variables(), data(230), {"lr": rates}, tmp_path, monkeypatch)
    for trial in results.trials:
        task = Variables()
        first, key = jax.random.split(jax.random.key(trial.seed))
        variables, made = task.init(trial.config, first), task.optimizer(trial.config)
        state, step = made.init(variables["params"]), plain_step(task, made)
        given = [batch for unit in visited(dataset, trial) for batch in unit]
        for number, batch in enumerate(given):
            variables, state = step(variables, state, batch, jax.random.fold_in(key, number))
        assert same(task.framework.model(trial.config, trial.last_checkpoint), variables)
