"""Suites run few experiments in ``make test``, and as many as for third parties in ``make test-all``."""

from __future__ import annotations

import pytest

FEW = 10


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if getattr(metafunc.cls, "experiments", 0) > FEW:
        many = pytest.param(metafunc.cls.experiments, marks=pytest.mark.slow, id="many")
        metafunc.parametrize("number_of_experiments", [pytest.param(FEW, id="few"), many], indirect=True)


@pytest.fixture(autouse=True)
def number_of_experiments(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if hasattr(request, "param"):
        monkeypatch.setattr(request.cls, "experiments", request.param)
