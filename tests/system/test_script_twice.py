"""A script from raw rows to predictions can be run again: nothing is trained twice, and its outputs are replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import hopfleet as hop


class Price(hop.TorchTask):
    def build(self, config: Any) -> Any:
        model = torch.nn.Linear(1, 1)
        return model, torch.optim.SGD(model.parameters(), lr=config["lr"])

    def loss(self, model: Any, batch: Any) -> Any:
        return torch.nn.functional.mse_loss(model(batch["size"][:, None])[:, 0], batch["price"])

    def predict(self, model: Any, batch: Any) -> Any:
        with torch.inference_mode():
            return model(torch.as_tensor(batch["size"])[:, None])[:, 0]


def script(folder: Path) -> list[Any]:
    """Run all steps, and return what they return."""
    recipe = hop.Tabular({"size": hop.Number(), "price": hop.Number()}, labels="price")
    split = {"train": 0.5, "valid": 0.25, "test": 0.25}
    sets = hop.prepare(folder / "raw.csv", folder / "data", recipe, partitions=1, split=split, quiet=True)
    results = hop.Experiment(
        Price(), train=sets["train"], valid=sets["valid"], space={"lr": hop.grid_search([0.01, 0.1])}, batch_size=2,
        search=hop.Grid(max_epochs=1), name="price", backend="inline",
    ).fit(quiet=True)  # fmt: skip
    best, ensemble = results.best, hop.Ensemble(results, top=2)
    final = results.refit(backend="inline", quiet=True)
    new = folder / "new.csv"
    return [
        {name: data.fingerprint for name, data in sets.items()},
        best.test(sets["test"], backend="inline"),
        best.predict(new, to=folder / "predictions"),
        best.predict(new, to=folder / "predictions.parquet"),
        ensemble.test(sets["test"], backend="inline"),
        ensemble.predict(new, to=folder / "of_ensemble"),
        ensemble.export(folder / "ensemble"),
        final.best.export(folder / "weights.safetensors"),
        final.best.export(folder / "bundle", format="bundle"),
        hop.load_bundle(folder / "bundle").predict(new).to_pydict(),
        hop.load_bundle(folder / "bundle").predict(new, to=folder / "of_bundle"),
    ]


@pytest.mark.slow
def test_a_script_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPFLEET_HOME", str(tmp_path / "home"))
    (tmp_path / "raw.csv").write_text("size,price\n" + "".join(f"{row},{2 * row}\n" for row in range(16)))
    (tmp_path / "new.csv").write_text("size\n3\n4\n")

    def state() -> list[Any]:
        units = [hop.load(name).history.trained for name in ("price", "price-refit")]
        return [units, sorted(path.name for path in tmp_path.iterdir())]

    first = script(tmp_path)
    before = state()
    assert script(tmp_path) == first
    assert state() == before
    assert not [name for name in before[1] if name.startswith(".") and not name.endswith(".written")]
