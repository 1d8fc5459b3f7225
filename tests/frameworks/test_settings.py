"""Process-wide settings: read, made again elsewhere, and returned to what they were."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import hopfleet as hop
from hopfleet.domain.placement import Placement
from hopfleet.errors import ExperimentExists, UsageError
from hopfleet.frameworks.torch import settings
from tests.helpers.sample_tasks import Plain, arrays


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    assert settings.read() == {}, "another test has left a setting"
    yield
    settings.make({})
    assert settings.read() == {}


def by_attribute(path: str, value: Any) -> None:
    owner: Any = torch
    *modules, name = path.split(".")
    for module in modules:
        owner = getattr(owner, module)
    setattr(owner, name, value)


SET: dict[str, Any] = {
    "float32_matmul_precision": lambda: torch.set_float32_matmul_precision("high"),
    "cudnn.allow_tf32": lambda: by_attribute("backends.cudnn.allow_tf32", False),
    "cudnn.benchmark": lambda: by_attribute("backends.cudnn.benchmark", True),
    "cudnn.enabled": lambda: by_attribute("backends.cudnn.enabled", False),
    "mkldnn.enabled": lambda: by_attribute("backends.mkldnn.enabled", False),
    "default_dtype": lambda: torch.set_default_dtype(torch.float64),
    "deterministic_algorithms": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "fill_uninitialized_memory": lambda: by_attribute("utils.deterministic.fill_uninitialized_memory", False),
    "flash_sdp": lambda: torch.backends.cuda.enable_flash_sdp(False),
    "mem_efficient_sdp": lambda: torch.backends.cuda.enable_mem_efficient_sdp(False),
    "math_sdp": lambda: torch.backends.cuda.enable_math_sdp(False),
    "detect_anomaly": lambda: torch.autograd.set_detect_anomaly(True),
}


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize("name", SET)
def test_what_a_script_sets_is_read_and_made_again(name: str) -> None:
    SET[name]()
    found = settings.read()
    assert list(found) == [name]
    settings.make({})
    assert settings.read() == {}
    settings.make(found)
    assert settings.read() == found


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="a setting of newer versions")
def test_the_newer_precisions() -> None:
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    found = settings.read()
    assert found.items() >= {"cuda.matmul.fp32_precision": "tf32", "cudnn.conv.fp32_precision": "ieee"}.items()
    settings.make({})
    assert settings.read() == {}
    assert torch.get_float32_matmul_precision() == "highest"
    settings.make(found)
    assert settings.read() == found


@pytest.mark.parametrize("name", [None, "float32_matmul_precision", "default_dtype"])
def test_tf32_for_a_while(name: str | None) -> None:
    if name is not None:
        SET[name]()
    before = settings.read()
    with pytest.raises(ZeroDivisionError), settings.products_in("high"):
        assert torch.get_float32_matmul_precision() == "high"
        assert torch.backends.cudnn.allow_tf32
        assert settings.read() == before | {"float32_matmul_precision": "high"}
        raise ZeroDivisionError
    assert settings.read() == before


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="a setting of newer versions")
def test_tf32_where_a_newer_setting_says_otherwise() -> None:
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    before = settings.read()
    with settings.products_in("high"):
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    assert settings.read() == before
    assert torch.backends.cuda.matmul.fp32_precision == "ieee"


def test_a_setting_that_this_version_lacks_is_skipped() -> None:
    settings.make({"cudnn.benchmark": True, "of.another.version": 3})
    assert settings.read() == {"cudnn.benchmark": True}


@pytest.mark.parametrize("value", [{"default_dtype": "nn"}, {"cudnn.benchmark": []}, {"flash_sdp": "no"}])
def test_a_value_that_makes_no_sense_is_refused_in_words(value: dict[str, Any]) -> None:
    ((name, given),) = value.items()
    with pytest.raises(UsageError, match=re.escape(f"the setting {name}={given!r} cannot be made here")):
        settings.make(value)


def test_a_benchmarking_script_benchmarks_while_a_trial_is_at_work() -> None:
    class Looking(Plain):
        def build(self, config: Any) -> Any:
            seen.append((torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic))
            return super().build(config)

    seen: list[Any] = []
    torch.backends.cudnn.benchmark = True
    experiment(Looking()).fit(quiet=True)
    assert set(seen) == {(True, True)}


def experiment(task: hop.TorchTask, epochs: int = 1, **options: Any) -> hop.Experiment:
    return hop.Experiment(
        task,
        train=arrays(60),
        space={"lr": 0.1},
        search=hop.Random(trials=1, max_epochs=epochs),
        name="settings",
        backend="inline",
        **options,
    )


def test_a_run_records_its_settings_and_its_models_follow_them() -> None:
    torch.set_default_dtype(torch.float64)

    class Wide(Plain):
        def loss(self, model: Any, batch: Any) -> Any:
            return super().loss(model, {**batch, "x": batch["x"].double()})

    results = experiment(Wide()).fit(quiet=True)
    assert results.definition["settings"] == {"default_dtype": "float64"}
    settings.make({})
    assert next(results.best.model().parameters()).dtype == torch.float64
    assert torch.get_default_dtype() == torch.float32


class Interrupted(Plain):
    left = 20  # batches, more than the check before the run trains

    def loss(self, model: Any, batch: Any) -> Any:
        self.left -= 1
        if not self.left:
            signal.raise_signal(signal.SIGINT)
        return super().loss(model, batch)


def test_a_run_does_not_continue_with_other_settings() -> None:
    with pytest.raises(KeyboardInterrupt):
        experiment(Interrupted(), epochs=20).fit(quiet=True)
    torch.set_float32_matmul_precision("high")
    with pytest.raises(ExperimentExists, match="settings"):
        experiment(Interrupted(), epochs=20).fit(quiet=True)


@pytest.mark.parametrize("given", [None, "8"])
def test_workers_have_a_queue_for_each_stream_unless_told_otherwise(given, monkeypatch):
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", given or "")
    if given is None:
        monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS")
    framework = hop.TorchTask().framework
    framework.apply(framework.settings())
    assert os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == (given or "32")


def test_the_device_of_a_worker_is_the_current_one(monkeypatch):
    """Engines use streams of the current device; torch itself would guard each operation alone."""
    made: list[str] = []

    def make(device: str) -> None:
        made.append(device)
        raise RuntimeError("there is no such device")

    monkeypatch.setattr(torch.cuda, "set_device", make)
    with pytest.raises(RuntimeError, match="no such device"):
        Plain().framework.open({"lr": 0.1}, seed=0, placement=Placement.on("cuda:1"), threads=1)
    Plain().framework.open({"lr": 0.1}, seed=0, placement=Placement.on("cpu"), threads=1)
    assert made == ["cuda:1"]
