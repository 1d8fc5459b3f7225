"""Keras: trials that change workers after every unit end with the bits of its own loop."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.hopping import COLUMNS, RATES, hopped, visited
from tests.helpers.keras_tasks import Net, keras

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]


def test_keras_hops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, dataset = hopped(
        Net(), COLUMNS, {"lr": RATES, "optimizer": "adam"}, tmp_path, monkeypatch, metric="accuracy", mode="max"
    )
    for trial in results.trials:
        random.seed(trial.seed)
        if keras.backend.backend() == "torch":
            sys.modules["torch"].manual_seed(trial.seed)
        plain = Net().build(trial.config)
        for unit in visited(dataset, trial):
            for batch in unit:
                plain.train_on_batch(batch["x"], batch["y"])
        found = Net().framework.model(trial.config, trial.last_checkpoint)
        pairs = zip(found.variables, plain.variables, strict=True)
        weights = [tuple(map(keras.ops.convert_to_numpy, pair)) for pair in pairs if "seed" not in pair[0].name]
        assert len(weights) >= 8 and all(np.array_equal(one, other) for one, other in weights)
