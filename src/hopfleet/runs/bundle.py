"""Bundles: folders with a trained model and everything that its predictions need.

A bundle has weights, configurations, the task and the recipe as code to run and as text to read, versions of packages,
metrics and a model card. It holds one model, or the members of an ensemble.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa

from hopfleet.data.columns import NoRows
from hopfleet.data.etl.recipe import ARRAYS, PICKLE, RECIPE, Prepared, load_recipe
from hopfleet.domain.choices import RowsThatFail
from hopfleet.domain.secrets import references, revealed
from hopfleet.domain.signatures import explained
from hopfleet.errors import TaskError, UsageError, describe
from hopfleet.frameworks.base import Task
from hopfleet.phrases import shown
from hopfleet.runs.bundle_files import FILE, check_files, read_description
from hopfleet.runs.card import model_card
from hopfleet.runs.evaluation import beside_rows, naming_differences, open_data, outcomes_of, recipe_of
from hopfleet.runs.failed_rows import FailedRows, check_on_error
from hopfleet.runs.guest import Guest
from hopfleet.runs.joining import EXAMPLES, check_deviation, joined
from hopfleet.runs.opened_run import OpenedRun, as_one
from hopfleet.runs.prediction import check_hook, check_target, collected, columns_to_keep, predictions
from hopfleet.runs.replacing import check_place, difference, put_in_place
from hopfleet.runs.sealing import is_sealed, seal
from hopfleet.runs.verify import find_data
from hopfleet.safe_text import visible
from hopfleet.support.files import (
    beside,
    check_private,
    copy_file,
    create_folder,
    digest,
    json_text,
    open_plain,
    overwrite,
    sync,
    temporary_folder,
    write_text,
)
from hopfleet.support.plain import plain
from hopfleet.support.user_code import users_modules
from hopfleet.version import __version__
from hopfleet.worker.inference import predicted
from hopfleet.worker.pickling import CopyingPickler, dumps
from hopfleet.worker.secrets import read

SEAL, TASK, CARD, CODE = "bundle.seal", "task.pickle", "README.md", "code"
"""Files of a bundle, and its folder of code to read."""

SEAL_BYTES = 1024

PACKAGES = {
    "flax": "flax", "jax": "jax", "keras": "keras", "lightning": "lightning", "numpy": "numpy", "optax": "optax",
    "peft": "peft", "pyarrow": "pyarrow", "scikit-learn": "sklearn", "tensorflow": "tensorflow", "torch": "torch",
    "transformers": "transformers",
}  # fmt: skip
"""Packages whose versions a bundle records if they are in use, and the names of their modules."""


class Bundle:
    """A trained model, or an ensemble of several, that predicts without the run that trained it."""

    def __init__(self, folder: Path, content: Mapping[str, Any], task: Task, configs: list[Any], trust: bool) -> None:
        self.folder = folder
        self.content = content
        self._task = task
        self._configs = configs
        self._trust = trust
        self._guest = Guest(task)

    @property
    def metrics(self) -> dict[str, dict[str, float]]:
        """The validation metrics of each model, by trial."""
        return {each["trial"]: each["metrics"] for each in self.content["models"]}

    @functools.cached_property
    def model(self) -> Any:
        """The model on the CPU, ready to predict."""
        self._check_same()
        framework, members = self._task.framework, self.content["models"]
        with framework.applied(self.content["settings"]), self._guest.building():
            models = [
                framework.unpack(
                    revealed(config, {one: read(one) for one in references(config)}), self.folder / each["file"]
                )
                for each, config in zip(members, self._configs, strict=True)
            ]
        return as_one(self._task, models, [each["weight"] for each in members], logits=self.content["logits"])

    def predict(
        self,
        rows: Any,
        *,
        to: Any = None,
        batch_size: int = 1024,
        keep: str | Sequence[str] = (),
        on_error: RowsThatFail = "raise",
    ) -> Any:
        """Return predictions for new rows as an Arrow table, or write them and return their number.

        Rows are a data set, its folder, or any source of ``hop.partition``. Raw rows pass through the recipe of the
        bundle, if it has one. ``to``, ``keep`` and ``on_error`` are as in ``trial.predict``.
        """
        check_on_error(on_error)
        path, model, beside = check_target(to), self.model, columns_to_keep(keep)
        check_hook(self._task, lambda: model)
        if self.has_recipe:
            self._check_same()
        recipe = functools.partial(load_recipe, self.folder, trust=self._trust) if self.has_recipe else None
        with temporary_folder("hopfleet-") as folder:
            columns, skip = self.content["columns"], on_error != "raise"
            try:
                found = open_data(rows, columns, recipe, folder / "data", labelled=False, keep=beside, skip=skip)
            except NoRows as error:
                if "predictions" not in self.content:  # release 0.1 wrote none
                    raise
                failed = FailedRows(error.failures, on_error)
                failed.warn(0)
                return collected(failed.among(self._none(beside), beside), path, to)
            outcomes = outcomes_of(recipe)
            data, failed = beside_rows(found, beside, outcomes), FailedRows.of(found, on_error)
            failed.warn(found.rows)
            with naming_differences(data.rows, columns, labelled=False):
                made = predictions(self._task, model, self._guest, data, batch_size, outcomes)
                return collected(failed.among(made, beside), path, to)

    def _none(self, keep: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the predictions for no rows."""
        schema = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(self.content["predictions"])))
        yield pa.RecordBatch.from_pydict(
            {**{name: pa.nulls(0) for name in keep}, **{each.name: pa.nulls(0, each.type) for each in schema}}
        )

    def predicted(self, batch: Mapping[str, Any]) -> pa.RecordBatch:
        """Return the predictions for a batch of prepared rows."""
        model = self.model
        with self._guest.within():
            return predicted(self._task, model, dict(batch))

    @property
    def has_recipe(self) -> bool:
        """Whether raw rows pass through a recipe."""
        return (self.folder / RECIPE).is_file()

    def _check_same(self) -> None:
        """Raise UsageError if the folder holds another bundle by now, whose files do not belong to this task."""
        if read_description(self.folder)[0] != self.content:
            raise UsageError(
                f"{self.folder}: was exported again after this bundle was loaded; load it again with hop.load_bundle"
            )

    def __repr__(self) -> str:
        trials = ", ".join(self.metrics)
        return visible(f"<Bundle {str(self.folder)!r}: {trials} of {self.content['experiment']}>")


@explained
def load_bundle(path: str | os.PathLike[str], *, trust: bool | str = False) -> Bundle:
    """Return the bundle in a folder.

    A bundle has code, which runs. By default, a bundle is loaded only if this user exported it and nothing in it has
    changed since. For any other bundle, ``trust`` is its SHA-256, which the refusal names and which holds for exactly
    these files, or True.
    """
    if not isinstance(path, str | os.PathLike):
        raise UsageError(f"load_bundle({shown(path)}): must be the folder of a bundle")
    folder = Path(path).expanduser()
    content, text = read_description(folder)
    loaded = (TASK, *(name for name in (RECIPE, ARRAYS, PICKLE) if (folder / name).exists()))
    _check_trust(folder, text, trust)
    check_files(folder, content, loaded)
    try:
        task, configs = cloudpickle.loads((folder / TASK).read_bytes())
    except Exception as error:
        wanted = ", ".join(f"{name} {number}" for name, number in content["versions"].items())
        raise UsageError(
            f"{folder}: its task cannot be loaded ({describe(error)}); it was made with {wanted}"
        ) from error
    return Bundle(folder, content, task, configs, bool(trust))


def _check_trust(folder: Path, text: bytes, trust: bool | str) -> None:
    """Raise UsageError unless the code of the bundle with a description may run."""
    number = hashlib.sha256(text).hexdigest()
    if isinstance(trust, str) and trust != number:
        raise UsageError(f"trust={shown(trust)}: {folder} is another bundle, with the SHA-256 {number!r}")
    if trust:
        return
    pickles = [name for name in (TASK, PICKLE) if (folder / name).exists()]
    if is_sealed(text, _seal_of(folder)):
        for name in pickles:
            check_private(folder, folder / name)
        return
    raise UsageError(
        f"{folder}: you have not exported this bundle here, or it has changed since. Loading it runs "
        f"{' and '.join(pickles)}, which can do anything that you can do; {folder / CODE} has their text, as the "
        f"author gives it. If you trust the author, pass trust={number!r}, which holds for exactly these files"
    )


def _seal_of(folder: Path) -> str:
    """Return the text of a bundle's seal; nothing if there is none."""
    with contextlib.suppress(OSError), open_plain(folder / SEAL) as file:
        return file.read(SEAL_BYTES).decode(errors="replace")
    return ""


def write_bundle(
    results: OpenedRun[Any], members: Mapping[str, float], path: Path, task: Task, *, logits: bool
) -> float:
    """Write a bundle, load it again, and return the largest deviation of its predictions; it is complete or absent."""
    check_place(path, str(path), _objection)
    batch = find_data(results.folder, "train").head(EXAMPLES)
    model, guest = joined(results, members, task, logits=logits)
    with guest.within():
        wanted = predicted(task, model, batch)
        given = predicted(task, model, batch, outcomes=outcomes_of(recipe_of(find_data(results.folder, "train"))))
    with beside(path) as made:  # in the end, what failed is there, or the bundle that was replaced
        content = _fill(made, results, members, task, logits)
        content["predictions"] = given.schema.serialize().to_pybytes().hex()
        _describe(made, {**content, "deviation": None})
        found = deviation(wanted, load_bundle(made).predicted(batch))
        check_deviation(path, found)
        _describe(made, {**content, "deviation": found})
        sync(made)
        check_place(path, str(path), _objection)
        put_in_place(made, path, 0o755)  # code that others can write is not run
        sync(path.parent)
    return found


def _objection(folder: Path) -> str:
    """Return why a folder may not be replaced; nothing if it is a bundle as this user exported it."""
    try:
        content, text = read_description(folder)
    except UsageError:
        return "is no bundle"
    if not is_sealed(text, _seal_of(folder)):
        return "is no bundle that you exported here, or its description has changed since"
    return difference(folder, {**content["files"], CARD: content.get("card", "")}, besides=(FILE, SEAL))


def _fill(
    folder: Path, results: OpenedRun[Any], members: Mapping[str, float], task: Task, logits: bool
) -> dict[str, Any]:
    """Write the files of a bundle, and return what its description has."""
    train = find_data(results.folder, "train")
    recipe = load_recipe(train) if (Path(train.url) / RECIPE).is_file() else None
    models: list[dict[str, Any]] = []
    configs: list[Any] = []
    for name, weight in members.items():
        trial = results[name]
        about = {"config": plain(trial.config), "epoch": trial.best_epoch, "metrics": trial.metrics}
        with trial.opened(task) as (framework, config, checkpoints):
            for checkpoint in checkpoints:
                file = f"model{len(models) or ''}{trial.checkpoint.suffix}"
                framework.pack(config, checkpoint, folder / file)
                configs.append(trial.config)
                models.append({"trial": name, "file": file, "weight": weight / len(checkpoints), **about})
    _write_code(folder, task, configs, recipe)
    versions = {"python": platform.python_version(), "hopfleet": __version__}
    versions |= {name: metadata.version(name) for name, module in PACKAGES.items() if module in sys.modules}
    return {
        "format": "hopfleet-bundle",
        "version": 1,
        "experiment": results.name,
        "task": type(task).__qualname__,
        "metric": results.definition["metric"],
        "mode": results.definition["mode"],
        "models": models,
        "logits": logits,
        "columns": {name: str(column) for name, column in train.columns.items()},
        "raw_columns": {} if recipe is None else {name: str(kind) for name, kind in recipe.layout.types.items()},
        "data": {"rows": train.rows, "fingerprint": train.fingerprint},
        "settings": results.definition.get("settings", {}),
        "versions": versions,
    }


def _write_code(folder: Path, task: Task, configs: list[Any], recipe: Prepared | None) -> None:
    """Write the task and the recipe as pickles that need no file of the user's, and as text."""
    starts: list[object] = [type(task), *vars(task).values()] if hasattr(task, "__dict__") else [type(task)]
    if recipe is not None:
        starts += [type(recipe.recipe), *vars(recipe.recipe).values()]
    modules = users_modules(starts)
    try:
        with _by_value(modules):
            overwrite(folder / TASK, [dumps((task, configs), CopyingPickler)])
            if recipe is not None:
                recipe.save(folder)
    except Exception as error:
        raise TaskError(f"{type(task).__name__} cannot be stored in a bundle: {describe(error)}") from error
    create_folder(folder / CODE)
    for module in modules:
        source = Path(getattr(module, "__file__", None) or "")
        if source.is_file():
            copy_file(source, folder / CODE / f"{module.__name__.strip('_')}.py")


@contextlib.contextmanager
def _by_value(modules: list[ModuleType]) -> Iterator[None]:
    """Have classes and functions of some modules pickled whole rather than by name."""
    added = [each for each in modules if each.__name__ not in cloudpickle.list_registry_pickle_by_value()]
    for module in added:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in added:
            cloudpickle.unregister_pickle_by_value(module)


def _describe(folder: Path, content: dict[str, Any]) -> None:
    """Write the model card and the description, with a digest of every other file."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    files = {name: digest(folder / name) for name in names if name not in (FILE, SEAL, CARD)}
    card = model_card(content)
    number = hashlib.sha256(card.encode()).hexdigest()
    text = json_text({**content, "files": files, "card": number})
    write_text(folder / FILE, text, durable=True)
    write_text(folder / SEAL, seal(text.encode()) + "\n", durable=True)
    write_text(folder / CARD, card, durable=True)


def deviation(wanted: pa.RecordBatch, found: pa.RecordBatch) -> float:
    """Return the largest difference between predictions: infinite for other columns or other values than numbers."""
    if wanted.schema != found.schema:
        return np.inf
    largest = 0.0
    for one, other in zip(wanted.columns, found.columns, strict=True):
        if one.equals(other):
            continue
        flat = [part.flatten() if pa.types.is_fixed_size_list(part.type) else part for part in (one, other)]
        if not pa.types.is_floating(flat[0].type):
            return np.inf
        first, second = (np.asarray(part, np.float64) for part in flat)
        gaps = np.abs(first - second)[~(np.isnan(first) & np.isnan(second))]
        largest = max(largest, float(np.nan_to_num(gaps, nan=np.inf).max(initial=0.0)))
    return largest
