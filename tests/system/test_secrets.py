"""Secrets are passed to the task alone."""

from __future__ import annotations

from pathlib import Path

import pytest

import hopfleet as hop
from hopfleet.errors import UsageError
from hopfleet.worker.secrets import read
from tests.helpers.sample_tasks import Indiscreet, arrays

TOKEN = "hunter2-and-then-some"


def experiment(backend: str, name: str = "s") -> hop.Experiment:
    space = {"lr": 0.1, "hub": {"token": hop.secret(env="HOPFLEET_TEST_TOKEN")}, "fails": hop.grid_search([0, 1])}
    search = hop.Grid(max_epochs=1)
    data = {"train": arrays(), "valid": arrays(60, seed=1), "partitions": 2}
    return hop.Experiment(Indiscreet(), space=space, search=search, name=name, workers=1, backend=backend, **data)


@pytest.mark.parametrize("backend", ["local", "inline"])
def test_a_secret_is_nowhere_to_be_seen(
    backend: str, own_home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOPFLEET_TEST_TOKEN", TOKEN)
    results = experiment(backend).fit()
    good, bad = results.trials
    assert (good.state, bad.state) == (hop.TrialState.COMPLETED, hop.TrialState.FAILED)
    assert good.config["hub"] == {"token": "*** (env HOPFLEET_TEST_TOKEN)"}
    assert "403 for https://me:***@hub" in (bad.error or "")
    assert "the token is *** {" in good.log()
    results.plot()
    seen = "".join([*capfd.readouterr(), repr(results), repr(bad), results.dataframe().to_csv(), str(bad.error)])
    assert TOKEN not in seen
    files = [path for path in own_home.rglob("*") if path.is_file()]
    assert len(files) > 5
    assert not [path for path in files if TOKEN.encode() in path.read_bytes()]
    good.model()  # whose build() insists on the plain value


def test_a_secret_that_is_not_there_is_told_before_work_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOPFLEET_TEST_TOKEN", raising=False)
    with pytest.raises(UsageError, match=r"HOPFLEET_TEST_TOKEN.*is not set here; export HOPFLEET_TEST_TOKEN"):
        experiment("inline").fit(quiet=True)


def test_secrets_in_files(tmp_path: Path) -> None:
    path = tmp_path / "key"
    with pytest.raises(UsageError, match="cannot be read"):
        read(hop.secret(file=path))
    path.write_bytes(b"\xff")
    with pytest.raises(UsageError, match="it is no text"):
        read(hop.secret(file=path))
    path.write_text("\n")
    with pytest.raises(UsageError, match="is empty"):
        read(hop.secret(file=path))
    path.write_text("abc def\n")
    assert read(hop.secret(file=path)) == "abc def"
