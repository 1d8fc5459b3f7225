"""JAX: the suite of all adapters, bits against a plain loop, programs that trials share, and stacks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from safetensors.numpy import load_file

import hopfleet as hop
from hopfleet.domain.placement import CPU
from hopfleet.errors import NotFinite
from hopfleet.frameworks.base import EngineCache
from hopfleet.frameworks.jax import flotilla
from hopfleet.testing.frameworks import BATCH, ROWS, FrameworkSuite, _Batches
from tests.helpers import warm
from tests.helpers.jax_tasks import CACHES, Net, data, jax, jnp, nnx, opened, optax, unit
from tests.helpers.marks import long

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:os.fork.. was called:RuntimeWarning"),
]


class Module(nnx.Module):
    def __init__(self, width: int, dropout: float, rngs: Any) -> None:
        self.hidden = nnx.Linear(4, width, rngs=rngs)
        self.norm = nnx.BatchNorm(width, rngs=rngs)
        self.dropout = nnx.Dropout(dropout, rngs=rngs)
        self.out = nnx.Linear(width, 1, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.out(self.dropout(nnx.relu(self.norm(self.hidden(x)))))[:, 0]


class Flax(hop.JaxTask):
    """A Flax NNX module with batch statistics and random keys of its own."""

    def init(self, config: Mapping[str, Any], key: Any) -> Any:
        return Module(8, config["dropout"], nnx.Rngs(key))

    def optimizer(self, config: Mapping[str, Any]) -> Any:
        return optax.inject_hyperparams(optax.adam)(learning_rate=config["lr"])

    def loss(self, params: Any, batch: Any, key: Any) -> Any:
        return jnp.mean((params(batch["x"]) - batch["y"]) ** 2)


class Suite(FrameworkSuite):
    config: ClassVar[dict[str, Any]] = {"lr": 0.01, "dropout": 0.3}
    other: ClassVar[dict[str, Any]] = {"lr": 0.1, "dropout": 0.1}
    _run = staticmethod(warm.run)

    def _open(self, config: Mapping[str, Any] | None = None, seed: int = 7) -> Any:
        return opened(self.make(), self.config if config is None else config, seed=seed)


class TestJax(Suite):
    module = "jax"
    bad: ClassVar[dict[str, Any]] = {"lr": "fast", "dropout": 0.1}

    def make(self):
        return Net()


class Modules(Suite):
    def make(self):
        return Flax()


@pytest.mark.parametrize(
    "test",
    [
        "test_a_version_loads_and_saves_to_the_same_bytes",
        "test_a_loaded_version_continues_to_the_same_bytes",
        "test_evaluation_changes_nothing",
        "test_a_snapshot_keeps_the_state_of_its_moment",
    ],
)
def test_modules_pass_the_suite_where_they_differ(test: str, tmp_path: Path) -> None:
    getattr(Modules(), test)(tmp_path)


# ----------------------------------------------------------------------------------------------- bits of a plain loop


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_bits_are_those_of_a_plain_loop(optimizer: str) -> None:
    config = {"lr": 0.05, "dropout": 0.3, "optimizer": optimizer}
    session = opened(Net(), config)
    unit(session)

    task = Net().for_trial(config)
    first, key = jax.random.split(jax.random.key(7))
    params = task.init(config, first)
    transformation = task.optimizer(config)
    state = transformation.init(params)

    @jax.jit
    def step(params: Any, state: Any, batch: Any, key: Any) -> Any:
        loss, gradients = jax.value_and_grad(task.loss)(params, batch, key)
        updates, state = transformation.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    for number in range(ROWS // BATCH):
        batch = {name: column[number * BATCH : (number + 1) * BATCH] for name, column in data().items()}
        params, state, _ = step(params, state, batch, jax.random.fold_in(key, number))
    assert equal(session.live.params, params)
    assert equal(session.live.optimizer, state)


def test_bits_of_a_module_are_those_of_a_plain_loop() -> None:
    config = {"lr": 0.05, "dropout": 0.3}
    session = opened(Flax(), config)
    unit(session)

    model = Module(8, 0.3, nnx.Rngs(jax.random.split(jax.random.key(7))[0]))
    optimizer = nnx.Optimizer(model, Flax().optimizer(config), wrt=nnx.Param)

    @nnx.jit
    def step(model: Any, optimizer: Any, batch: Any) -> None:
        gradients = nnx.grad(lambda model: jnp.mean((model(batch["x"]) - batch["y"]) ** 2))(model)
        optimizer.update(model, gradients)

    for number in range(ROWS // BATCH):
        step(model, optimizer, {k: v[number * BATCH : (number + 1) * BATCH] for k, v in data().items()})
    assert equal(session.live.params, nnx.state(model, nnx.Param))
    assert equal(session.live.rest.norm, nnx.state(model, nnx.BatchStat).norm)


def equal(one: Any, other: Any) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(plain(a).tobytes() == plain(b).tobytes() for a, b in pairs)


def plain(leaf: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)


# -------------------------------------------------------------------------------------------------- shared programs


def test_trials_share_compiled_programs() -> None:
    cache, traced = EngineCache(), []

    class Counted(Net):
        def loss(self, params: Any, batch: Any, key: Any) -> Any:
            traced.append(1)
            return super().loss(params, batch, key)

    sessions = [opened(Counted(), {"lr": lr, "dropout": 0.1}, cache=cache) for lr in (0.1, 0.01, 0.001)]
    for session in sessions:
        unit(session)
    assert len(traced) == 1
    assert all(session.unused() == () and session.absent() for session in sessions)


@pytest.mark.parametrize(
    "transformation",
    [
        lambda lr: optax.adam(optax.warmup_cosine_decay_schedule(0.0, lr, 2, 8, end_value=lr / 10)),
        pytest.param(lambda lr: optax.sgd(optax.exponential_decay(lr, 2, lr)), marks=long),
        lambda lr: optax.chain(optax.clip_by_global_norm(lr), optax.adamw(lr, weight_decay=lr)),
        lambda lr: optax.lbfgs(lr),
    ],
    ids=["warm-up", "decay", "chain", "line search"],
)
def test_schedules_and_line_searches_hop(transformation: Any, tmp_path: Path) -> None:
    class Scheduled(Net):
        def optimizer(self, config: Mapping[str, Any]) -> Any:
            return transformation(config["lr"])

    cache, config = EngineCache(), {"lr": 0.1, "dropout": 0.1}
    stayed, left = (opened(Scheduled(), config, cache=cache) for _ in range(2))
    first = unit(stayed)
    assert unit(left) == first
    left.save(tmp_path / "version")
    hopped = opened(Scheduled(), config, seed=8, cache=cache)
    hopped.load(tmp_path / "version")
    assert unit(hopped) == unit(stayed) != first
    assert equal(hopped.live, stayed.live)


def test_numbers_that_the_code_needs_are_constants() -> None:
    class Needs(Net):
        def optimizer(self, config: Mapping[str, Any]) -> Any:
            return optax.sgd(config["lr"] if config["lr"] > 0.05 else 0.0)

    cache, configs = (
        EngineCache(),
        [{"lr": 0.1, "dropout": 0.3}, {"lr": 0.01, "dropout": 0.3}, {"lr": 0.1, "dropout": 0.0}],
    )
    sessions = [opened(Needs(), config, cache=cache) for config in configs]
    for session in sessions:
        unit(session)
    for session in sessions[1:]:
        alone = opened(Needs(), dict(session.config))
        assert equal(session.live.params, alone.live.params) == (session.config["lr"] == 0.01)
        unit(alone)
        assert equal(session.live, alone.live)


# ------------------------------------------------------------------------------------------------------- flotillas


def members(count: int = 3) -> list[Any]:
    return [opened(Net(), {"lr": 0.1 / 2**n, "dropout": 0.1 * (n % 2)}, seed=n) for n in range(count)]


def test_members_in_turn_have_the_bits_of_alone() -> None:
    together, alone = members(), members()
    flotilla = Net().framework.flotilla(together)
    results = flotilla.train(_Batches(together[0], data()), last=[True] * 3)
    assert results == [unit(session) for session in alone]
    for one, other in zip(together, alone, strict=True):
        assert equal(one.live, other.live)
    measured = flotilla.evaluate(_Batches(together[0], data()), seed=1)
    assert measured == [session.evaluate(_Batches(session, data()), seed=1) for session in alone]


def test_a_stack_computes_what_its_members_compute_alone(tmp_path: Path) -> None:
    together, alone = [*members(), opened(Net(), {"lr": 0.1, "dropout": 0.0, "width": 5})], members()
    for _ in range(2):
        flotilla = Net().framework.flotilla(together, fast=True)
        results = flotilla.train(_Batches(together[0], data()), last=[True] * 4)
        sums = [unit(session) for session in alone]
        for result, expected in zip(results, sums, strict=False):
            assert result["train_loss"].mean == pytest.approx(expected["train_loss"].mean, rel=1e-5)
    for one, other in zip(together, alone, strict=False):
        for a, b in zip(jax.tree.leaves(one.live.params), jax.tree.leaves(other.live.params), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5)
    together[1].save(tmp_path / "version")
    restored = opened(Net(), {"lr": 0.05, "dropout": 0.1})
    restored.load(tmp_path / "version")
    assert equal(restored.live, together[1].live)


@pytest.mark.parametrize("fails", [False, True], ids=["stacked", "failing"])
def test_stacks_in_threads_take_several_batches_at_once(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four trials in two stacks, eight batches in chunks of three and one smaller; one stack may fail on the way."""
    monkeypatch.setattr(flotilla, "CHUNK", 3)
    monkeypatch.setattr(flotilla, "BLOCK", 2)
    take, calls = flotilla.Stack.take, []

    def taken(stack: Any, chunk: Any) -> None:
        call = stack.numbers[0], len(chunk.batches)
        calls.append(call)
        if fails and call == (2, 3) and calls.count(call) == 2:
            raise RuntimeError("not this one")
        take(stack, chunk)

    monkeypatch.setattr(flotilla.Stack, "take", taken)
    columns = data(ROWS + 4)
    configs = [{"lr": 0.1 / 2**n, "dropout": 0.1} for n in range(4)]
    where: dict[str, Any] = {"placement": CPU, "threads": 2, "cache": CACHES[Net]}
    together = [Net().framework.open(config, seed=n, **where) for n, config in enumerate(configs)]
    alone = [opened(Net(), config, seed=n) for n, config in enumerate(configs)]
    rows = Rest(together[0], columns)
    results = Net().framework.flotilla(together, fast=True).train(rows, last=[True] * 4)
    scores = Net().framework.flotilla(together, fast=True).evaluate(rows, seed=0)
    for session, result, score in zip(alone, results, scores, strict=True):
        expected = session.train(rows, last=True)["train_loss"]
        assert result["train_loss"].rows == expected.rows == ROWS + 4
        assert result["train_loss"].mean == pytest.approx(expected.mean, rel=1e-5)
        assert score["loss"].mean == pytest.approx(session.evaluate(rows, seed=0)["loss"].mean, rel=1e-4)
    assert [batches for first, batches in calls if first == 0][:4] == [3, 3, 2, 1]
    assert [batches for first, batches in calls if first == 2][:4] == ([3, 3, 3, 3] if fails else [3, 3, 2, 1])


def trials(task: Any, rates: list[float], cache: EngineCache) -> list[Any]:
    return [opened(task, {"lr": rate, "dropout": 0.1}, seed=n, cache=cache) for n, rate in enumerate(rates)]


@pytest.mark.parametrize(("small", "expected"), [(True, [4, 4, 4, 4, 4]), (False, [4, 4, 4, 4, 2])])
def test_few_sizes_of_stacks_are_compiled(small: bool, expected: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Small models are compiled for one size, others for at most three; equal rates need no other program."""
    monkeypatch.setattr(flotilla, "SMALL", flotilla.SMALL if small else 0)
    taken: list[tuple[int, Any]] = []
    take = flotilla.Stack.take

    def record(stack: Any, chunk: Any) -> None:
        taken.append((stack._size, stack._program))
        take(stack, chunk)

    monkeypatch.setattr(flotilla.Stack, "take", record)
    rates = [0.1, 0.02, 0.02, 0.05, 0.01, 0.005, 0.002]
    alone, cache = [unit(session)["train_loss"].mean for session in trials(Net(), rates, CACHES[Net])], EngineCache()
    for members in (range(4), range(3), range(7), range(1, 3)):
        some = [session for n, session in enumerate(trials(Net(), rates, cache)) if n in members]
        results = Net().framework.flotilla(some, fast=True).train(_Batches(some[0], data()), last=[True] * len(some))
        for number, result in zip(members, results, strict=True):
            assert result["train_loss"].mean == pytest.approx(alone[number], rel=1e-4)
    assert [size for size, _ in taken] == expected
    assert len({program for _, program in taken}) == 1


def test_rows_beyond_the_members_change_no_bit_of_theirs() -> None:
    cache, rates = EngineCache(), [0.1, 0.05, 0.02, 0.01]
    four, two = (trials(Net(), rates[:count], cache) for count in (4, 2))
    for some in (four, two):
        for _ in range(2):  # the second unit starts from states that are stacked already
            Net().framework.flotilla(some, fast=True).train(_Batches(some[0], data()), last=[True] * len(some))
    assert two[0].place.states is two[1].place.states and len(two[0].place.states.count) == flotilla.BLOCK
    assert [equal(one.live, other.live) for one, other in zip(two, four, strict=False)] == [True, True]


class Rest(_Batches):
    """Batches, and the rows that are left."""

    def __iter__(self) -> Any:
        for start in range(0, self.rows, BATCH):
            yield self._session.prepare({k: v[start : start + BATCH].copy() for k, v in self._columns.items()}, {})


@pytest.mark.parametrize("fast", [False, True])
def test_a_member_that_fails_leaves_the_others_alone(fast: bool) -> None:
    sessions = members()
    sessions[1] = opened(Net(), {"lr": 1e30, "dropout": 0.1})
    results = Net().framework.flotilla(sessions, fast=fast).train(_Batches(sessions[0], data()), last=[True] * 3)
    assert isinstance(results[1], NotFinite)
    assert isinstance(results[0], dict) and isinstance(results[2], dict)


# ---------------------------------------------------------------------------------------------- whole experiments


def test_an_experiment_with_a_stack(tmp_path: Path) -> None:
    results = hop.Experiment(
        Net(),
        train=hop.partition(data(256), tmp_path / "data", partitions=2),
        valid=data(),
        space={"lr": hop.grid_search([0.1, 0.01]), "dropout": 0.1},
        search=hop.Grid(max_epochs=2),
        backend="inline",
        batch_size=32,
        worker_options=hop.WorkerOptions(fuse="fast"),
        run_options=hop.RunOptions(folder=tmp_path / "run"),
    ).fit(quiet=True)
    assert results.finished and len(results.trials) == 2
    assert set(results.best.model()) == {"hidden", "out"}


def test_a_clone_keeps_its_own_settings(tmp_path: Path) -> None:
    parent = opened(Flax(), {"lr": 0.1, "dropout": 0.3})
    unit(parent)
    parent.save(tmp_path / "parent")
    child = opened(Flax(), {"lr": 0.001, "dropout": 0.3}, seed=8)
    child.inherit(tmp_path / "parent", opened(Flax(), {"lr": 0.1, "dropout": 0.3}, seed=9))
    assert equal(child.live.params, parent.live.params)
    assert float(child.live.optimizer.hyperparams["learning_rate"]) == pytest.approx(0.001)


# -------------------------------------------------------------------------------------------------- exported models


class Predicting(Flax):
    def predict(self, model: Any, batch: Any) -> Any:
        return model(batch["x"])


def test_exported_weights_are_complete_and_bundles_predict(tmp_path: Path) -> None:
    best = hop.Experiment(
        Predicting(), train=data(), valid=data(), space={"lr": 0.1, "dropout": 0.1}, search=hop.Grid(max_epochs=1),
        backend="inline", batch_size=16, partitions=1, run_options=hop.RunOptions(folder=tmp_path / "run"),
    ).fit(quiet=True).best  # fmt: skip
    assert best.export(tmp_path / "weights").deviation == 0
    found, module = load_file(tmp_path / "weights"), best.model()
    assert not [name for name in found if "rngs" in name]
    for name, wanted in {
        "hidden.kernel": module.hidden.kernel, "norm.mean": module.norm.mean, "norm.var": module.norm.var,
        "out.bias": module.out.bias,
    }.items():  # fmt: skip
        assert np.array_equal(found[name], wanted[...]), name
    rows = {"x": data()["x"][:3]}
    assert best.export(tmp_path / "bundle", format="bundle").deviation == 0
    assert hop.load_bundle(tmp_path / "bundle").predict(rows).equals(best.predict(rows))


class Gathering(Net):
    def metrics(self, params: Any, batch: Any) -> Any:
        hidden = jax.nn.relu(batch["x"] @ params["hidden"]["kernel"] + params["hidden"]["bias"])
        return {"loss": self.loss(params, batch, None), "r2": hop.WholeSet("r2", hidden @ params["out"], batch["y"])}


@pytest.mark.parametrize("fast", [False, True])
def test_metrics_over_the_whole_set(fast: bool) -> None:
    from sklearn.metrics import r2_score

    sessions = [opened(Gathering(), {"lr": 0.1 / 2**n, "dropout": 0.0}, seed=n) for n in range(3)]
    found = Gathering().framework.flotilla(sessions, fast=fast).evaluate(_Batches(sessions[0], data()), seed=1)
    for session, sums in zip(sessions, found, strict=True):
        params, batch = session.live.params, data()
        hidden = np.maximum(batch["x"] @ np.asarray(params["hidden"]["kernel"]), 0)
        assert sums["r2"].rows == ROWS
        assert sums["r2"].mean == pytest.approx(r2_score(batch["y"], hidden @ np.asarray(params["out"])), rel=1e-4)
        if not fast:
            assert sums == session.evaluate(_Batches(session, data()), seed=1)
