"""Exported models: files that others load, and bundles that predict without the run, all read back and compared."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hopfleet as hop
from hopfleet.errors import TaskError, UsageError
from hopfleet.frameworks.torch import formats
from hopfleet.runs import bundle_files
from hopfleet.support.files import json_text, parsed_json
from hopfleet.testing.tasks import CountingTask

SCALE = 2.0


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(x)
        return found.squeeze(1)


class Line(hop.TorchTask):
    def build(self, config: Any) -> Any:
        model = Net()
        return model, torch.optim.Adam(model.parameters(), lr=config["lr"])

    def loss(self, model: Any, batch: Any) -> Any:
        return torch.nn.functional.mse_loss(model(batch["x"]), batch["y"])


class Predicting(Line):
    def predict(self, model: Any, batch: Any) -> Any:
        with torch.no_grad():
            return SCALE * model(torch.as_tensor(batch["x"]))


class Inferring(Line):
    def predict(self, model: Any, batch: Any) -> Any:
        with torch.inference_mode():
            return model(torch.as_tensor(batch["x"]) + 0)


class Wild(Predicting):
    """Its predictions differ each time."""

    def predict(self, model: Any, batch: Any) -> Any:
        return np.asarray(np.random.default_rng().random(len(batch["x"])))


def trained(task: hop.TorchTask, folder: Path, **options: Any) -> hop.Results:
    rows = np.linspace(0, 1, 24)
    data = {"x": np.stack([rows, rows[::-1]], axis=1).astype("f4"), "y": (rows * 2).astype("f4")}
    made = hop.partition(data, folder / "data", partitions=2)
    return hop.Experiment(
        task, train=made, valid=made, space={"lr": hop.grid_search([0.01, 0.1])}, search=hop.Grid(max_epochs=1),
        batch_size=6, name="line", backend="inline", **options,
    ).fit(quiet=True)  # fmt: skip


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOPFLEET_HOME", str(tmp_path / "home"))
    return tmp_path


ROWS = {"x": np.array([[0.5, 0.25], [1, 0], [0, 0.1]], "f4")}


def test_weights_load_elsewhere(home: Path) -> None:
    best = trained(Line(), home).best
    for kind in (None, "safetensors", "torch"):
        made = best.export(home / "weights", format=kind)
        assert made.deviation == 0
        model = Net()
        model.load_state_dict(torch.load(home / "weights") if kind == "torch" else hop.state_dict(home / "weights"))
        assert torch.equal(model(torch.as_tensor(ROWS["x"])), best.model()(torch.as_tensor(ROWS["x"])))
    assert str(made) == f"{home / 'weights'}: torch, largest deviation 0"


@pytest.mark.parametrize("task", [Line(), Predicting(), Inferring()], ids=["metrics", "predict", "inference mode"])
def test_a_program_takes_any_number_of_rows(home: Path, task: Line) -> None:
    best = trained(task, home).best
    made = best.export(home / "model.pt2", format="torch.export")
    assert made.deviation == 0
    program = torch.export.load(home / "model.pt2").module()
    assert torch.allclose(program(torch.as_tensor(ROWS["x"])), best.model()(torch.as_tensor(ROWS["x"])))
    assert sorted(path.name for path in home.iterdir()) == ["data", "home", "model.pt2"]


@pytest.mark.slow
def test_onnx_runtime_computes_the_same(home: Path) -> None:
    import onnxruntime

    best = trained(Line(), home).best
    made = best.export(home / "model.onnx", format="onnx")
    assert made.deviation is not None and made.deviation < 1e-5
    session = onnxruntime.InferenceSession(str(home / "model.onnx"), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: ROWS["x"]})
    assert np.allclose(found, best.model()(torch.as_tensor(ROWS["x"])).detach(), atol=1e-5)


@pytest.mark.slow
def test_a_bundle_predicts_in_a_process_that_has_nothing_else(home: Path) -> None:
    best = trained(Predicting(), home).best
    made = best.export(home / "bundle", format="bundle")
    assert made.deviation == 0
    wanted = best.predict(ROWS).to_pydict()
    assert hop.load_bundle(home / "bundle").predict(ROWS).to_pydict() == wanted
    code = (
        "import hopfleet as hop, numpy as np, json\n"
        f"rows = {{'x': np.array({ROWS['x'].tolist()}, 'f4')}}\n"
        f"print(json.dumps(hop.load_bundle({str(home / 'bundle')!r}).predict(rows).to_pydict()))"
    )
    (home / "data").rename(home / "gone")
    source = str(Path(hop.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=home / "home", env={**os.environ, "PYTHONPATH": source},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert np.allclose(json.loads(done.stdout)["prediction"], wanted["prediction"])


def test_a_bundle_says_what_it_is(home: Path) -> None:
    best = trained(Predicting(), home).best
    best.export(home / "bundle", format="bundle")
    names = {path.relative_to(home / "bundle").as_posix() for path in (home / "bundle").rglob("*")}
    assert {"README.md", "bundle.json", "model.safetensors", "task.pickle", "code"} <= names
    assert "class Predicting" in (home / "bundle" / "code" / f"{__name__}.py").read_text()
    content = json.loads((home / "bundle" / "bundle.json").read_text())
    assert content["models"][0]["config"] == dict(best.config) and content["models"][0]["metrics"] == best.metrics
    assert {"python", "hopfleet", "numpy", "torch"} <= content["versions"].keys()
    card = (home / "bundle" / "README.md").read_text()
    assert f"| lr | {best.config['lr']} |" in card.replace(f"| {best.id} ", "") and "deviated by at most 0" in card
    loaded = hop.load_bundle(home / "bundle")
    assert loaded.metrics == {best.id: best.metrics} and best.id in repr(loaded)
    assert loaded.predict(ROWS).to_pydict() == best.predict(ROWS).to_pydict()


def test_raw_rows_pass_through_the_recipe_of_a_bundle(home: Path) -> None:
    data = hop.prepare(
        {"a": [0.0, 5.0, 10.0, 2.0], "b": [1.0, 2.0, 3.0, 4.0], "y": [0.0, 1.0, 2.0, 3.0]},
        home / "data", Halved(), partitions=2,
    )  # fmt: skip
    results = hop.Experiment(
        Predicting(), train=data, valid=data, space={"lr": 0.1}, search=hop.Grid(max_epochs=1), batch_size=2,
        name="raw", backend="inline",
    ).fit(quiet=True)  # fmt: skip
    results.best.export(home / "bundle", format="bundle")
    new = {"a": [1.0, 3.0], "b": [2.0, 2.0]}
    found = hop.load_bundle(home / "bundle").predict(new)
    assert found.to_pydict() == results.best.predict(new).to_pydict()
    assert hop.load_bundle(home / "bundle").predict(new, to=home / "made.csv") == 2
    with pytest.raises(hop.HopfleetError, match="lack the columns 'b'"):
        hop.load_bundle(home / "bundle").predict({"a": [1.0]})


class Halved(hop.Recipe):
    labels = ("y",)

    def apply(self, batch: Any, fitted: Any) -> Any:
        made = {"x": np.stack([batch["a"], batch["b"]], axis=1).astype("f4") / 2}
        return made | ({"y": batch["y"].astype("f4")} if "y" in batch else {})


def test_code_of_others_does_not_run_unasked(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(Predicting(), home).best.export(home / "bundle", format="bundle")
    number = hashlib.sha256((home / "bundle" / "bundle.json").read_bytes()).hexdigest()
    (home / "bundle").chmod(0o777)
    with pytest.raises(UsageError, match=r"others can write to it"):
        hop.load_bundle(home / "bundle")
    (home / "bundle").chmod(0o700)
    hop.load_bundle(home / "bundle")
    monkeypatch.setenv("HOPFLEET_HOME", str(home / "another"))  # as on the machine of another person
    with pytest.raises(UsageError, match=rf"Loading it runs task\.pickle, .*pass trust='{number}'"):
        hop.load_bundle(home / "bundle")
    assert hop.load_bundle(home / "bundle", trust=number).predict(ROWS).num_rows == 3
    assert hop.load_bundle(home / "bundle", trust=True).predict(ROWS).num_rows == 3
    with pytest.raises(UsageError, match=r"trust='abc': .* is another bundle, with the SHA-256"):
        hop.load_bundle(home / "bundle", trust="abc")


def test_a_changed_bundle_is_not_the_one_that_was_exported(home: Path) -> None:
    trained(Predicting(), home).best.export(home / "bundle", format="bundle")
    (home / "bundle" / "recipe.pickle").write_bytes(b"code that was not there")
    with pytest.raises(UsageError, match=r"recipe\.pickle: is not in the list of files"):
        hop.load_bundle(home / "bundle", trust=True)
    (home / "bundle" / "recipe.pickle").unlink()
    description = home / "bundle" / "bundle.json"
    changed = description.read_text().replace('"logits": false', '"logits": true')
    description.write_text(changed)
    with pytest.raises(UsageError, match=r"bundle\.json: is damaged \(.*differs from its digest"):
        hop.load_bundle(home / "bundle", trust=True)
    content = json.loads(changed)
    del content["sha256"]
    description.write_text(json_text(content))
    with pytest.raises(UsageError, match="or it has changed since"):
        hop.load_bundle(home / "bundle")
    (home / "home" / "seal.key").chmod(0o666)
    (home / "home").chmod(0o777)  # a key that others could have written proves nothing
    trained(Predicting(), home).best.export(home / "other")
    with pytest.raises(UsageError, match="you have not exported this bundle here"):
        hop.load_bundle(home / "bundle")


def test_a_damaged_bundle_is_refused(home: Path) -> None:
    trained(Predicting(), home).best.export(home / "bundle", format="bundle")
    with (home / "bundle" / "task.pickle").open("ab") as file:
        file.write(b"x")
    with pytest.raises(UsageError, match=r"task\.pickle: differs from what was exported"):
        hop.load_bundle(home / "bundle")
    (home / "bundle" / "model.safetensors").unlink()
    with pytest.raises(UsageError, match=r"model\.safetensors: is missing"):
        hop.load_bundle(home / "bundle")
    (home / "bundle" / "bundle.json").write_text('{"format": "hopfleet-bundle", "version": 9, "files": {}}')
    with pytest.raises(UsageError, match="not a bundle of a format that Hopfleet"):
        hop.load_bundle(home / "bundle")
    with pytest.raises(UsageError, match=r"is not a bundle: it has no bundle\.json"):
        hop.load_bundle(home)


def test_a_hostile_bundle_names_no_other_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(Predicting(), home).best.export(home / "bundle", format="bundle")
    description = home / "bundle" / "bundle.json"
    content = parsed_json(description.read_text())
    os.mkfifo(home / "bundle" / "pipe")
    (home / "bundle" / "link").symlink_to(home / "data" / "manifest.json")
    (home / "bundle" / "linked").symlink_to(home / "data")
    for name in ("pipe", "link", "code", "linked/manifest.json"):
        description.write_text(json.dumps({**content, "files": {name: "0" * 64, **content["files"]}}))
        with pytest.raises(UsageError, match=f"{name}: is not a plain file"):
            hop.load_bundle(home / "bundle", trust=True)
    opened: list[object] = []
    monkeypatch.setattr(bundle_files, "open_inside", lambda place, name: opened.append(name))
    names = ("/dev/zero", "/etc/shadow", "../home/seal.key", "code/../../x", "", "code//x", "./x", "x/", "a\\b", "a\nb")
    for name in names:
        description.write_text(json.dumps({**content, "files": {**content["files"], name: "0" * 64}}))
        with pytest.raises(UsageError, match=r"bundle\.json: is damaged: 'files' has a value that no bundle has"):
            hop.load_bundle(home / "bundle", trust=True)
        models = [{**content["models"][0], "file": name}]
        description.write_text(json.dumps({**content, "models": models}))
        with pytest.raises(UsageError, match=r"'models\[0\]\.file' has a value that no bundle has"):
            hop.load_bundle(home / "bundle", trust=True)
    assert not opened, "no file is opened before all names are known to be inside of the bundle"


def test_the_description_of_a_bundle_has_a_form_and_a_size(home: Path) -> None:
    trained(Predicting(), home).best.export(home / "bundle", format="bundle")
    description = home / "bundle" / "bundle.json"
    content = parsed_json(description.read_text())
    for key in bundle_files.KEYS:
        description.write_text(json.dumps({name: value for name, value in content.items() if name != key}))
        with pytest.raises(UsageError, match=f"bundle.json: is damaged: it has no '{key}'"):
            hop.load_bundle(home / "bundle", trust=True)
        description.write_text(json.dumps({**content, key: 3.5}))
        with pytest.raises(UsageError, match=rf"bundle.json: is damaged: '{key}' has a value.*: 3\.5"):
            hop.load_bundle(home / "bundle", trust=True)
    texts = {
        "[" * 100_000: "is damaged",
        '{"format": "hopfleet-bundle", "format": "hopfleet-bundle"}': "it has 'format' twice",
        "[]": "not a bundle of a format",
        json.dumps({**content, "models": content["models"] * 2}): "two models have the same file",
        json.dumps({**content, "files": {str(number): "0" * 64 for number in range(10_001)}}): "'files' has a value",
    }
    for text, why in texts.items():
        description.write_text(text)
        with pytest.raises(UsageError, match=why):
            hop.load_bundle(home / "bundle", trust=True)
    os.truncate(description, 60 << 30)  # sparse: it takes no room on the disk
    with pytest.raises(UsageError, match=r"bundle\.json: is damaged \(.*64,424,509,440 bytes, and at most"):
        hop.load_bundle(home / "bundle", trust=True)
    with pytest.raises(UsageError, match=r"load_bundle\(3\): must be the folder of a bundle"):
        hop.load_bundle(3)  # type: ignore[arg-type]


def test_a_bundle_writes_what_is_wanted(home: Path) -> None:
    pandas = pytest.importorskip("pandas")
    trained(Predicting(), home).best.export(home / "bundle", format="bundle")
    bundle = hop.load_bundle(home / "bundle")
    wanted = bundle.predict(ROWS)["prediction"].to_pylist()
    frame = bundle.predict(ROWS, to=pandas.DataFrame)
    assert isinstance(frame, pandas.DataFrame) and frame["prediction"].tolist() == wanted
    (batch,) = bundle.predict(ROWS, to=iter)
    assert batch["prediction"].to_pylist() == wanted
    assert bundle.predict(ROWS, to=home / "out" / "parts") == 3
    assert [path.name for path in (home / "out" / "parts").iterdir()] == ["part-00000.parquet"]
    with pytest.raises(TaskError, match=r"training: x is float64\[2\], not float32\[2\]; rename"):
        bundle.predict({"x": [[0.5, 0.25]]})


def test_nothing_is_written_that_does_not_compute_the_same(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    best = trained(Wild(), home).best
    with pytest.raises(TaskError, match=r"bundle: is not written: read back, its outputs on 8 rows deviate by 0\.\d+"):
        best.export(home / "bundle", format="bundle")
    with pytest.raises(TaskError, match=r"does not call Net with tensors"):
        best.export(home / "model", format="torch.export")
    monkeypatch.setattr(formats.Inputs, "deviation", lambda *_: 0.5)
    with pytest.raises(TaskError, match=r"model: is not written: .* deviate by 0\.5"):
        best.export(home / "model", Predicting(), format="torch.export")
    assert sorted(path.name for path in home.iterdir()) == ["data", "home"]


def test_what_cannot_be_exported_is_said(home: Path) -> None:
    best = trained(Line(), home).best
    with pytest.raises(UsageError, match=r"format='h5': must be 'safetensors' or 'torch' .* or 'bundle' for a Line"):
        best.export(home / "model", format="h5")
    with pytest.raises(TaskError, match="Line has no predict hook: add one"):
        best.export(home / "bundle", format="bundle")
    with pytest.raises(UsageError, match=r"data: exists already and is no bundle; remove it"):
        best.export(home / "data", format="bundle")
    with pytest.raises(UsageError, match=r"make the folder .*none first"):
        best.export(home / "none" / "bundle", Predicting(), format="bundle")


def test_the_users_class_stays_as_it_is(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a bundle makes a class of its own; the user's class sees what its module holds by now."""
    results, predict = trained(Predicting(), home), Predicting.predict
    results["t0001"].export(home / "bundle", format="bundle")
    expected = hop.load_bundle(home / "bundle").predict(ROWS)
    assert Predicting.predict is predict
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 10 * SCALE)
    ours, theirs = (np.array(made["prediction"].to_pylist()) for made in (results["t0001"].predict(ROWS), expected))
    assert np.allclose(ours, 10 * theirs)
    assert hop.load_bundle(home / "bundle").predict(ROWS).equals(expected)


@pytest.mark.slow
def test_a_bundle_is_exported_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, path = trained(Predicting(), home), home / "bundle"
    path.mkdir()
    path.chmod(0o775)
    results["t0001"].export(path, format="bundle")
    assert path.stat().st_mode & 0o777 == 0o755
    first = hop.load_bundle(path)
    results["t0001"].export(path, format="bundle")
    assert first.predict(ROWS).to_pydict() == results["t0001"].predict(ROWS).to_pydict()
    late = hop.load_bundle(path)
    results["t0002"].export(path, format="bundle")
    again = hop.load_bundle(path)
    assert again.predict(ROWS).to_pydict() == results["t0002"].predict(ROWS).to_pydict()
    assert (
        first.predict(ROWS).to_pydict() == results["t0001"].predict(ROWS).to_pydict() != again.predict(ROWS).to_pydict()
    )
    with pytest.raises(UsageError, match=r"bundle: was exported again after this bundle was loaded; load it again"):
        late.predict(ROWS)
    for count in (2, 1):
        assert again.predict({"x": ROWS["x"][:count]}, to=home / "made") == count
    assert sorted(each.name for each in home.iterdir()) == [".made.written", "bundle", "data", "home", "made"]

    def refused(why: str) -> None:
        with pytest.raises(UsageError, match=rf"bundle: exists already and {why}.*; remove it, or give the name"):
            results["t0001"].export(path, format="bundle")

    card = (path / "README.md").read_text()
    (path / "README.md").write_text(card + "My own words.")
    refused(r"has the file README\.md, which has changed since")
    (path / "README.md").write_text(card)
    (path / "code" / "notes.txt").touch()
    refused(r"has the file code/notes\.txt, which Hopfleet did not write")
    (path / "code" / "notes.txt").unlink()
    (home / "home" / "seal.key").unlink()
    refused("is no bundle that you exported here")
    assert sorted(each.name for each in home.iterdir()) == [".made.written", "bundle", "data", "home", "made"]


class Counted(CountingTask):
    def predict(self, model: Any, batch: Any) -> Any:
        return 2 * batch["x"]


def test_other_frameworks_have_bundles_too(home: Path) -> None:
    results = hop.Experiment(
        Counted(), train={"x": np.arange(8.0)}, valid={"x": np.arange(4.0)}, space={"number": 1}, batch_size=2,
        search=hop.Grid(max_epochs=1), name="counted", backend="inline",
    ).fit(quiet=True)  # fmt: skip
    assert results.best.export(home / "bundle", format="bundle").deviation == 0
    assert hop.load_bundle(home / "bundle").predict({"x": [3.0]}).to_pydict() == {"prediction": [6.0]}
    with pytest.raises(UsageError, match=r"format='onnx': must be 'bundle' for a Counted"):
        results.best.export(home / "model", format="onnx")
