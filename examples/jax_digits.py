"""A JAX network on handwritten digits: which learning rate, dropout and width are best?

Run this example with `python examples/jax_digits.py`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import hopfleet as hop


class Digits(hop.JaxTask):
    def init(self, config, key):  # the parameters of a new model: any pytree of arrays
        first, second = jax.random.split(key)
        scale = jax.nn.initializers.lecun_normal()
        return {
            "hidden": {"w": scale(first, (64, config["width"])), "b": jnp.zeros(config["width"])},
            "out": {"w": scale(second, (config["width"], 10)), "b": jnp.zeros(10)},
        }

    def optimizer(self, config):
        return optax.adam(config["lr"])

    def logits(self, params, batch, key):
        hidden = jax.nn.relu(batch["x"] @ params["hidden"]["w"] + params["hidden"]["b"])
        if key is not None:  # it is None in evaluation
            kept = 1 - self.config["dropout"]
            hidden = jnp.where(jax.random.bernoulli(key, kept, hidden.shape), hidden / kept, 0)
        return hidden @ params["out"]["w"] + params["out"]["b"]

    def loss(self, params, batch, key):  # of one mini-batch; compiled once for all trials of this width
        return optax.softmax_cross_entropy_with_integer_labels(self.logits(params, batch, key), batch["y"]).mean()

    def metrics(self, params, batch):
        return {"accuracy": jnp.mean(self.logits(params, batch, None).argmax(1) == batch["y"])}


digits = load_digits()
order = np.random.default_rng(0).permutation(len(digits.data))
x, y = digits.data[order].astype("float32") / 16, digits.target[order]

results = hop.Experiment(
    Digits(),
    train={"x": x[:1408], "y": y[:1408]},
    valid={"x": x[1408:], "y": y[1408:]},
    space={
        "lr": hop.loguniform(1e-3, 1e-2),
        "dropout": hop.choice([0.0, 0.2]),
        "width": 64,
    },
    search=hop.Random(trials=4, max_epochs=4),
    metric="accuracy",
    mode="max",
    batch_size=64,
    workers=1,
    seed=7,
).fit()

print("best:", results.best.config, results.best.metrics)
print("its parameters:", jax.tree.map(jnp.shape, results.best.model()))
