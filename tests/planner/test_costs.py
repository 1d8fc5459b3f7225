from __future__ import annotations

import math
import random
from statistics import median

from hopfleet.planner import costs


def test_homogeneous_units_take_one_second():
    assert costs.homogeneous(2, 3) == [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]


def test_cnns_are_costs_by_speeds():
    times = costs.cnns(20, 6, random.Random(0))
    assert [len(row) for row in times] == [6] * 20
    for row in times:
        for column in range(6):
            assert math.isclose(row[column] * times[0][0], row[0] * times[0][column])
    assert times == costs.cnns(20, 6, random.Random(0)) != costs.cnns(20, 6, random.Random(1))
    assert 360 / 18.7 <= min(map(min, times)) <= max(map(max, times)) <= 21_000 / 5.6


def test_lognormal_units_take_a_second_or_so():
    times = costs.lognormal(50, 40, random.Random(0), sigma=0.5)
    flat = [x for row in times for x in row]
    assert 0.95 < median(flat) < 1.05
    assert costs.lognormal(2, 2, random.Random(0), sigma=0.0) == costs.homogeneous(2, 2)
