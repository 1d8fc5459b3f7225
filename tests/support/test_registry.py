"""Packages that are not Hopfleet's add extensions by name. Each test installs a real, tiny distribution."""

from __future__ import annotations

import statistics
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import hopfleet as hop
from hopfleet.clients.replay import replay
from hopfleet.errors import UsageError
from hopfleet.support import registry
from hopfleet.testing.tasks import CountingTask

Install = Callable[..., None]

TINY = """
    import hopfleet as hop
    from hopfleet.scheduler.policies.longest_remaining import longest_remaining
    from hopfleet.testing.tasks import CountingTask

    class Tiny(CountingTask):
        pass

    class Few(hop.Random):
        def __init__(self):
            super().__init__(trials=2, max_epochs=3)

    class Second(hop.StoppingRule):
        def observe(self, trial, epoch, metrics):
            return "two are enough" if epoch == 2 else ""

        def describe(self):
            return {"rule": "Second"}

    class Mine(hop.Local):
        name = "mine"

    def patient():
        return longest_remaining
"""
POINTS = {
    "hopfleet.searches": {"few": "tiny:Few"},
    "hopfleet.stopping_rules": {"second": "tiny:Second"},
    "hopfleet.policies": {"patient": "tiny:patient"},
    "hopfleet.backends": {"mine": "tiny:Mine"},
}


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a distribution of one module into a folder on the path."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def installed(name: str, code: str, points: dict[str, dict[str, str]]) -> None:
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(code))
        info = tmp_path / f"{name}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        groups = [
            "\n".join([f"[{group}]", *(f"{key} = {value}" for key, value in entries.items())])
            for group, entries in points.items()
        ]
        (info / "entry_points.txt").write_text("\n".join(groups))
        monkeypatch.delitem(sys.modules, name, raising=False)

    return installed


@pytest.mark.slow
def test_extensions_of_another_package_work_by_name(install: Install) -> None:
    install("tiny", TINY, POINTS)
    from tiny import Few, Mine, Tiny  # type: ignore[import-not-found]

    experiment = hop.Experiment(
        Tiny(),
        train={"x": np.arange(40.0)},
        valid={"x": np.arange(8.0)},
        space={"number": hop.uniform(0, 1)},
        search="few",
        stop=["second"],
        backend="mine",
        workers=2,
        batch_size=5,
        partitions=2,
        name="extended",
        run_options=hop.RunOptions(policy="patient"),
    )
    results = experiment.fit(quiet=True)  # in workers that import the package
    assert isinstance(experiment.search.search, Few)
    assert experiment.definition.backend is Mine
    assert results.definition["policy"] == "patient" and results.definition["backend"] == "mine"
    assert [len(trial.history) for trial in results.trials] == [2, 2]
    assert hop.simulate(trials=4, partitions=2, policy="patient").ratio >= 1
    experiment.use(policy="random", backend="local")
    assert replay("extended", task=Tiny(), backend="mine", workers=1).ok
    assert ("policy", "patient", "tiny 1.2") in registry.registered()


def test_objects_are_imported_when_they_are_asked_for() -> None:
    homes = registry.Homes({"mean": "statistics:mean", "gone": "hopfleet.gone:Gone"})
    assert list(homes) == ["mean", "gone"] and len(homes) == 2 and "other" not in homes
    assert homes["mean"] is statistics.mean
    with pytest.raises(ModuleNotFoundError):
        homes["gone"]


@pytest.mark.slow
def test_an_experiment_imports_no_backend_that_it_does_not_use() -> None:
    code = (
        "import sys, hopfleet as hop; hop.Experiment; print([name for name in sys.modules if 'backends.ray' in name])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_built_in_rules_have_names_too() -> None:
    common = {"train": {"x": np.arange(40.0)}, "space": {"number": 1}}
    from hopfleet.testing.tasks import CountingTask

    for stop in ("median", ["median", hop.Patience()]):
        experiment = hop.Experiment(CountingTask(), stop=stop, **common)
        assert isinstance(experiment.search, hop.Stopping)
        assert isinstance(experiment.search.rules[0], hop.Median)
    with pytest.raises(UsageError, match=r"stop='mean': unknown; did you mean 'median'. there are median, patience"):
        hop.Experiment(CountingTask(), stop="mean", **common)


def test_an_unknown_name_lists_those_of_other_packages(install: Install) -> None:
    install("tiny", TINY, POINTS)
    with pytest.raises(
        UsageError,
        match=r"policy='patience': unknown; did you mean 'patient'. there are auto, .*, patient, portfolio, ",
    ):
        hop.simulate(policy="patience")
    assert "tiny" not in sys.modules, "names are listed without importing anything"


def test_a_name_of_hopfleet_cannot_be_taken(install: Install) -> None:
    before = hop.simulate(policy="random").makespan
    install("greedy", "", {"hopfleet.policies": {"random": "greedy:policy"}})
    assert hop.simulate(policy="random").makespan == before
    assert "greedy" not in sys.modules, "hopfleet doctor reports it"


def test_two_packages_with_one_name(install: Install) -> None:
    for name in ("one", "two"):
        install(name, "", {"hopfleet.policies": {"same": f"{name}:policy"}})
    with pytest.raises(
        UsageError, match=r"policy='same': registered more than once, by one 1.2 and two 1.2; uninstall"
    ):
        hop.simulate(policy="same")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import nowhere", "ModuleNotFoundError: No module named 'nowhere'"),
        ("", "AttributeError: module 'broken' has no attribute 'policy'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_package_that_cannot_be_loaded_is_named(install: Install, code: str, words: str) -> None:
    install("broken", code, {"hopfleet.policies": {"bad": "broken:policy"}})
    with pytest.raises(
        UsageError, match=rf"policy='bad': the package broken 1.2 cannot load broken:policy \({words}\)"
    ):
        hop.simulate(policy="bad")


def test_a_policy_in_place_of_its_maker(install: Install) -> None:
    code = "def policy(schedule, rng): return None\ndef number(): return 3\n"
    install("wrong", code, {"hopfleet.policies": {"itself": "wrong:policy", "three": "wrong:number"}})
    for name, words in (("itself", "TypeError: .*missing 2 required"), ("three", "it made 3")):
        with pytest.raises(
            UsageError, match=rf"policy='{name}': its entry point must name a class or a function.*\({words}"
        ):
            hop.Experiment(CountingTask(), train={"x": [1.0]}, space={"a": 1}, run_options=hop.RunOptions(policy=name))


def test_every_group_is_documented() -> None:
    docs = Path(__file__).parents[2] / "docs" / "extend"
    text = "\n".join(page.read_text() for page in docs.glob("*.md"))
    for group in registry.GROUPS.values():
        assert f"`{group}`" in text, group
