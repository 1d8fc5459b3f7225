"""Fixtures for tests of worker."""

from __future__ import annotations

import pytest

import hopfleet as hop
from hopfleet.worker.spec import WorkerSpec
from tests.helpers.feeding import Noisy, arrays


@pytest.fixture
def data(tmp_path):
    return hop.partition(arrays(), tmp_path / "data", partitions=2)


@pytest.fixture
def spec(tmp_path, data):
    checkpoints, logs = tmp_path / "checkpoints", tmp_path / "logs"
    logs.mkdir()
    return WorkerSpec(
        Noisy(), data, data, checkpoints, logs, 7, "cpu", 1, 4, False, run="r", transform_workers=2, shared_bytes=10**8
    )
