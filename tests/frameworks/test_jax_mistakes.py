"""Mistakes in tasks with JAX are explained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from hopfleet.errors import TaskError
from hopfleet.frameworks.base import EngineCache
from hopfleet.testing.frameworks import ROWS
from tests.helpers.jax_tasks import Net, data, jax, jnp, nnx, opened, optax, unit

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:os.fork.. was called:RuntimeWarning"),
]


def refused(kind: type[Exception], columns: Mapping[str, Any] | None = None, **hooks: Any) -> str:
    task = type("Wrong", (Net,), hooks)()
    with pytest.raises(kind) as caught:
        unit(opened(task, {"lr": 0.1, "dropout": 0.1}, cache=EngineCache()), columns)
    task.framework.explain(caught.value)
    return "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])


@pytest.mark.parametrize(
    "part",
    [
        lambda y: y[y > 0],
        lambda y: y[jnp.nonzero(y > 0)],
        lambda y: jnp.unique(y),
        lambda y: jnp.arange((y > 0).sum()),
        lambda y: jnp.repeat(y, (y > 0).astype(int)),
        lambda y: y[: (y > 0).sum()],
        lambda y: jnp.zeros((y > 0).sum()),
        lambda y: y.reshape((y > 0).sum(), -1),
        lambda y: jnp.stack([y[n] for n in range(y.argmax())]),
    ],
    ids=["mask", "nonzero", "unique", "arange", "repeat", "slice", "zeros", "reshape", "range"],
)
def test_shapes_that_depend_on_data_are_explained(part: Any) -> None:
    said = refused(Exception, loss=lambda self, p, batch, key: part(batch["y"]).mean() * p["out"].sum())
    assert "jnp.where(mask, values, 0).sum() / mask.sum()" in said and "jnp.nonzero(mask, size=10)" in said


def test_a_missing_column_is_explained_without_notes_of_jax() -> None:
    said = refused(KeyError, loss=lambda self, p, batch, key: batch["z"].sum() * p["out"].sum())
    assert said == "'z'\nthe batch has the columns x, y"


def test_branches_on_data_are_explained() -> None:
    said = refused(TypeError, loss=lambda self, p, batch, key: p["out"].sum() if batch["y"].sum() > 0 else 0.0)
    assert "jnp.where(condition, a, b)" in said


def test_values_as_text_and_missing_keys_are_explained() -> None:
    said = refused(TypeError, loss=lambda self, p, batch, key: f"{p['out'].sum():.2f}")
    assert 'jax.debug.print("{}", value)' in said
    said = refused(TypeError, loss=lambda self, p, batch, key: jax.random.normal(None) * p["out"].sum())
    assert "the key is None in evaluation" in said


@pytest.mark.parametrize(
    "part",
    [
        lambda y: np.exp(y).mean(),
        lambda y: float(y.mean()),
        lambda y: int(y.argmax()),
        lambda y: y.mean().item(),
        lambda y: y.tolist()[0],
    ],
    ids=["numpy", "float", "int", "item", "list"],
)
def test_values_in_a_loss_are_explained(part: Any) -> None:
    said = refused(TypeError, loss=lambda self, p, batch, key: part(batch["y"]) * p["out"].sum())
    assert "use jax.numpy instead of numpy" in said


@pytest.mark.parametrize(
    ("hooks", "words"),
    [
        ({"loss": lambda self, p, batch, key: None}, "return statement may be missing"),
        ({"loss": lambda self, p, batch, key: 0.5}, "returned a float"),
        ({"loss": lambda self, p, batch, key: batch["y"]}, r"shape \(8,\): must be a scalar; average it"),
        ({"init": lambda self, config, key: {"w": "text"}}, "init.. returned something that is not an array"),
        (
            {"init": lambda self, config, key: nnx.Linear},
            "such as module.init.* or a Flax NNX module",
        ),
        ({"init": lambda self, config, key: None}, "init.. returned no parameters; its return statement may be"),
        ({"optimizer": lambda self, config: 0.1}, "must be an Optax gradient transformation"),
        ({"optimizer": lambda self, config: optax.adam}, r"returned <function adam>: must be.*e.g. optax.adam\(config"),
        ({"loss": lambda self, p, batch, key: batch["words"]}, "the column 'words' has text, or rows of different"),
    ],
    ids=["none", "float", "vector", "params", "class", "nothing", "optimizer", "function", "text"],
)
def test_wrong_hooks_are_named(hooks: dict[str, Any], words: str) -> None:
    columns = {**data(), "words": np.array(["a"] * ROWS, dtype=object)}
    with pytest.raises(TaskError, match=words):
        unit(opened(type("Wrong", (Net,), hooks)(), {"lr": 0.1, "dropout": 0.1}, cache=EngineCache()), columns)
