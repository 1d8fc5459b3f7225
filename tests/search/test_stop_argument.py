"""``Experiment(stop=[...])`` puts rules around the search. It needs hopfleet.search.stopping."""

from __future__ import annotations

import numpy as np
import pytest

import hopfleet as hop

stopping = pytest.importorskip("hopfleet.search.stopping")


def test_rules_are_put_around_the_search():
    class Task(hop.TorchTask):
        pass

    data = {"x": np.zeros((8, 1), "float32")}
    rules = [stopping.Median()]
    search = hop.Random(trials=2)
    experiment = hop.Experiment(Task(), train=data, space={"lr": hop.uniform(0, 1)}, search=search, stop=rules)
    assert isinstance(experiment.search, stopping.Stopping)
    assert experiment.search.trials == 2
    plain = hop.Experiment(Task(), train=data, space={"lr": hop.uniform(0, 1)}, search=search)
    assert experiment.search.describe() != plain.search.describe()


def test_what_is_no_search_and_no_list_of_dimensions():
    with pytest.raises(hop.HopfleetError, match="search='random': must be a search"):
        hop.Stopping("random", [])
    assert [type(rule) for rule in hop.Stopping(hop.Random(), hop.Median()).rules] == [hop.Median]
    with pytest.raises(hop.HopfleetError, match="explore='lr': must be a list of dimensions"):
        hop.PBT(explore="lr")
