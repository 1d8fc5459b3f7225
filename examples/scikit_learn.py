"""A scikit-learn pipeline whose classifier trains in batches: which loss and penalty read handwritten digits best?

Run this example with `python examples/scikit_learn.py`.
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import hopfleet as hop


class Digits(hop.SklearnTask):
    classes = range(10)  # a batch may not have all of them
    scoring = ("accuracy", "f1_macro")  # scikit-learn's scorers, by name

    def __init__(self, sample):
        self.scaler = StandardScaler().fit(sample)  # the same for all trials

    def build(self, config):  # only the last step of a pipeline is trained
        return make_pipeline(self.scaler, SGDClassifier(loss=config["loss"], alpha=config["alpha"]))


digits = load_digits()
order = np.random.default_rng(0).permutation(len(digits.data))
x, y = digits.data[order], digits.target[order]

results = hop.Experiment(
    Digits(x[:1400]),
    train={"x": x[:1400], "y": y[:1400]},
    valid=hop.partition({"x": x[1400:], "y": y[1400:]}, "digits-valid", partitions=1),  # f1 needs all rows at once
    space={"loss": hop.choice(["hinge", "log_loss"]), "alpha": hop.loguniform(1e-6, 1e-1)},
    search=hop.Random(trials=6, max_epochs=3),
    metric="accuracy",
    mode="max",
    batch_size=100,
).fit()

print("best:", results.best.config, results.best.metrics)
print("its model:", results.best.model())
