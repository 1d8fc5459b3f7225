"""The tutorial about clusters runs on the cluster that tests share, in place of one that it would start."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.cluster.joined import Clusters
from tests.helpers.pages import ROOT, run_page

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


def test_the_tutorial_runs_on_a_cluster(
    clusters: Clusters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with clusters.joined(*[{"num_cpus": 2}] * 3):
        run_page(ROOT / "docs" / "tutorials" / "cluster.md", tmp_path, monkeypatch)
    assert capsys.readouterr().out.count("same bits") == 4
