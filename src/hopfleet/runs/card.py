"""The model card of a bundle: what the model is, how good it is, and how it is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def model_card(content: Mapping[str, Any]) -> str:
    """Return the description of a bundle as Markdown."""
    models = _trials(content["models"])
    what = f"trial {models[0]['trial']}" if len(models) == 1 else f"an ensemble of {len(models)} trials"
    folds = len(content["models"]) // len(models)
    what += f", each with a model for each of {folds} folds" if folds > 1 else ""
    first = next(iter(content["raw_columns"] or content["columns"]), "x")
    lines = [
        f"# {content['experiment']}",
        "",
        f"{content['task']}, {what}. Goal: {content['mode']} {content['metric']}.",
        "",
        "## Use",
        "",
        "```python",
        "import hopfleet as hop",
        "",
        f'predictions = hop.load_bundle("this folder").predict({{"{first}": [...]}})',
        "```",
        "",
        "The bundle has code, which runs when it is loaded: load a bundle of another person only if you trust that",
        "person. `code/` has the text of the code as its author gives it.",
        "",
        "## Metrics on validation data",
        "",
        *table(["trial", "epoch", "weight", *models[0]["metrics"]], [_metrics(each) for each in models]),
        "",
        "## Configuration",
        "",
        *table(
            ["trial", "key", "value"], [[m["trial"], key, value] for m in models for key, value in m["config"].items()]
        ),
        "",
        "## Input",
        "",
        f"Trained on {content['data']['rows']:,} rows with the fingerprint `{content['data']['fingerprint']}`.",
        "",
        *table(["column", "type"], [*(content["raw_columns"] or content["columns"]).items()]),
        "",
        "## Versions",
        "",
        *table(["package", "version"], [*content["versions"].items()]),
    ]
    if content["deviation"] is not None:
        lines += ["", f"Read back on export, predictions deviated by at most {content['deviation']:.2g}."]
    return "\n".join(lines) + "\n"


def _trials(models: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the models of trials, where those of the folds of one are one."""
    found: dict[str, Mapping[str, Any]] = {}
    for each in models:
        before = found.get(each["trial"], {"weight": 0.0})["weight"]
        found[each["trial"]] = {**each, "weight": before + each["weight"]}
    return [*found.values()]


def table(header: list[str], rows: list[Any]) -> list[str]:
    """Return the lines of a table in Markdown."""
    cells = [[str(value).replace("|", "\\|").replace("\n", " ") for value in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *cells]]


def _metrics(model: Mapping[str, Any]) -> list[str]:
    values = [f"{value:.6g}" for value in model["metrics"].values()]
    return [model["trial"], str(model["epoch"]), f"{model['weight']:.4g}", *values]
