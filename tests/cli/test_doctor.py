"""The command doctor."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest

from hopfleet.version import __version__
from tests.helpers.cli import Cli


def test_doctor(cli: Cli, own_home: Path) -> None:
    outcome = cli("doctor")
    assert outcome.code == 0
    assert outcome.err == ""
    assert re.search(rf"^hopfleet +{re.escape(__version__)}$", outcome.out, re.MULTILINE)
    for fact in ("pyarrow", "[torch]", "[sklearn]", "cores", "memory", "'auto' means"):
        assert fact in outcome.out
    assert f"{own_home}, writable" in outcome.out
    assert not own_home.exists(), "looking must not make it"


def test_what_is_missing(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    known = importlib.metadata.version

    def version(package: str) -> str:
        if package in ("pyarrow", "scikit-learn"):
            raise importlib.metadata.PackageNotFoundError(package)
        return known(package)

    monkeypatch.setattr(importlib.metadata, "version", version)
    outcome = cli("doctor")
    assert outcome.code == 1
    assert "Problems: pyarrow is missing" in outcome.out
    assert "scikit-learn is not installed: pip install 'hopfleet[sklearn]'" in outcome.out


def test_a_home_that_cannot_be(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOPFLEET_HOME", str(tmp_path / "file"))
    outcome = cli("doctor")
    assert outcome.code == 1
    assert "set HOPFLEET_HOME" in outcome.out


def test_extensions_of_other_packages_are_listed(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "tiny-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[hopfleet.policies]\npatient = tiny:patient\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "policy patient  from the package tiny 1.2" in cli("doctor").out


def test_names_that_clash_are_problems(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package, names in (("tiny", ["same", "random"]), ("small", ["same"])):
        info = tmp_path / f"{package}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
        lines = [f"{name} = {package}:{name}" for name in names]
        (info / "entry_points.txt").write_text("\n".join(["[hopfleet.policies]", *lines]))
    monkeypatch.syspath_prepend(str(tmp_path))
    outcome = cli("doctor")
    assert outcome.code == 1
    said = " ".join(outcome.out.split())
    assert "the policy random of tiny 1.2 has a name of Hopfleet's own; rename its entry point" in said
    assert "the policy same is registered by small 1.2 and tiny 1.2; uninstall all but one of them" in said
