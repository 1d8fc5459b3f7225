"""The balance: its bound against every schedule there is, its shares, its rounding, and dispatch that follows it."""

from __future__ import annotations

import itertools
import math
import random
import sys
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopfleet.errors import MissingExtra, UsageError
from hopfleet.planner.balance import Balance, Cell, Outlook, balance, choose, installed, relax

quick = settings(max_examples=40, deadline=None)
TOLERANCE = 1e-6


@st.composite
def problems(draw, configs=4, partitions=3, workers=4):
    """Cells with seconds at some workers, and ready times."""
    fleet = [f"w{number}" for number in range(draw(st.integers(1, workers)))]
    seconds = st.floats(0, 10) | st.sampled_from([0.0, 1.0, 2.0])
    cells = {
        (f"c{config}", partition): {
            worker: draw(seconds) for worker in draw(st.lists(st.sampled_from(fleet), min_size=1, unique=True))
        }
        for config in range(draw(st.integers(1, configs)))
        for partition in range(draw(st.integers(1, partitions)))
    }
    ready = draw(st.dictionaries(st.sampled_from(fleet), st.floats(0, 5)))
    config_ready = draw(st.dictionaries(st.sampled_from(sorted({config for config, _ in cells})), st.floats(0, 5)))
    return cells, ready, config_ready


def shortest(cells, ready, config_ready) -> float:
    """The best makespan of all: every assignment, every order, each unit as early as it can."""
    best = math.inf
    for order in itertools.permutations(cells):
        for workers in itertools.product(*(cells[cell] for cell in order)):
            free, config_free = dict(ready), dict(config_ready)
            for cell, worker in zip(order, workers, strict=True):
                end = max(free.get(worker, 0), config_free.get(cell[0], 0)) + cells[cell][worker]
                free[worker] = config_free[cell[0]] = end
            best = min(best, max(0.0, *free.values(), *config_free.values()))
    return best


class TestBalance:
    @quick
    @given(problems())
    def test_every_cell_has_one_worker_that_holds_its_partition(self, problem):
        cells, ready, config_ready = problem
        found = balance(cells, worker_ready=ready, config_ready=config_ready)
        assert found.worker.keys() == cells.keys()
        assert all(worker in cells[cell] for cell, worker in found.worker.items())
        for cell, shares in found.share.items():
            assert shares.keys() <= cells[cell].keys()
            assert sum(shares.values()) == pytest.approx(1, abs=1e-5)

    @quick
    @given(problems())
    def test_the_peak_is_the_highest_load_and_never_below_the_bound(self, problem):
        cells, ready, config_ready = problem
        found = balance(cells, worker_ready=ready, config_ready=config_ready)
        workers, configs = dict(ready), dict(config_ready)
        for cell, worker in found.worker.items():
            workers[worker] = workers.get(worker, 0) + cells[cell][worker]
            configs[cell[0]] = configs.get(cell[0], 0) + cells[cell][worker]
        assert found.peak == pytest.approx(max(*workers.values(), *configs.values()))
        assert found.peak >= found.bound * (1 - TOLERANCE) - TOLERANCE

    @settings(max_examples=25, deadline=None)
    @given(problems(configs=2, partitions=2, workers=3))
    def test_no_schedule_ends_before_the_bound(self, problem):
        found = balance(problem[0], worker_ready=problem[1], config_ready=problem[2])
        assert found.bound <= shortest(*problem) * (1 + TOLERANCE) + TOLERANCE

    @quick
    @given(problems(), st.sampled_from([1e-6, 1e6]))
    def test_the_bound_scales_with_the_times(self, problem, factor):
        cells, _, _ = problem
        scaled = {cell: {w: s * factor for w, s in row.items()} for cell, row in cells.items()}
        assert balance(scaled).bound == pytest.approx(factor * balance(cells).bound, rel=1e-5, abs=factor * 1e-6)

    def test_work_goes_to_workers_by_their_speed(self):
        cells = {(f"c{n}", 0): {"fast": 1.0, "slow": 3.0} for n in range(8)}
        found = balance(cells)
        assert found.bound == pytest.approx(6)
        assert found.peak == pytest.approx(6)
        assert list(found.worker.values()).count("fast") == 6

    def test_a_long_config_is_given_its_fastest_workers(self):
        cells = {("long", p): {"fast": 4.0, "slow": 8.0} for p in range(2)}
        cells |= {(f"c{n}", 0): {"fast": 1.0, "slow": 2.0} for n in range(4)}
        found = balance(cells)
        assert found.bound == pytest.approx(8)
        assert {found.worker["long", p] for p in range(2)} == {"fast"}
        assert found.peak == pytest.approx(8)

    def test_work_under_way_counts(self):
        cells = {(f"c{n}", 0): {"a": 1.0, "b": 1.0} for n in range(4)}
        found = balance(cells, worker_ready={"a": 4.0})
        assert found.bound == pytest.approx(4)
        assert set(found.worker.values()) == {"b"}
        assert balance(cells, config_ready={"c0": 9.0}).bound == pytest.approx(10)

    def test_an_exchange_evens_out_what_no_single_move_can(self):
        # 5 + 4 against 3 + 3 + 3: whatever the program splits, whole cells fit exactly.
        cells = {(f"c{n}", 0): {"a": s, "b": s} for n, s in enumerate([5.0, 4.0, 3.0, 3.0, 3.0])}
        found = balance(cells)
        assert found.bound == pytest.approx(9)
        assert found.peak == pytest.approx(9)

    def test_nothing_to_do(self):
        assert balance({}) == Balance(0.0, {}, {}, 0.0)
        assert balance({}, worker_ready={"a": 3.0}).bound == 3.0

    def test_rounding_stays_close_to_the_bound(self):
        for seed in range(5):
            rng = random.Random(seed)
            cells = replicated(rng, configs=16, workers=8, replicas=3)
            found = balance(cells)
            assert found.peak <= 1.05 * found.bound


class TestRelax:
    def test_a_worker_that_leaves_does_what_it_can_until_then(self):
        cells = {(f"c{n}", 0): {"a": 1.0, "b": 1.0} for n in range(6)}
        assert relax(cells)[0] == pytest.approx(3)
        bound, share = relax(cells, worker_until={"a": 1.0})
        assert bound == pytest.approx(5)
        assert sum(shares.get("a", 0.0) for shares in share.values()) == pytest.approx(1)

    def test_a_worker_that_leaves_too_soon(self):
        with pytest.raises(UsageError, match=r"worker_until=\{'a': 1.0\}.*copy their partitions"):
            relax({("c", 0): {"a": 2.0}}, worker_until={"a": 1.0})


class TestErrors:
    def test_scipy_is_missing(self, monkeypatch):
        assert installed()
        monkeypatch.setitem(sys.modules, "scipy", None)
        monkeypatch.setitem(sys.modules, "scipy.optimize", None)
        assert not installed()
        with pytest.raises(MissingExtra, match=r"hopfleet\[scipy\].*one replica"):
            relax({("c", 0): {"w": 1.0}})

    @pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf])
    def test_seconds(self, seconds):
        with pytest.raises(UsageError, match=r"config c on partition 3 at worker w.*must be finite and at least 0"):
            balance({("c", 3): {"w": seconds}})

    @pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf])
    @pytest.mark.parametrize("name", ["worker_ready", "config_ready"])
    def test_ready_times(self, name, seconds):
        with pytest.raises(UsageError, match=rf"{name}\['x'\]=.*must be finite"):
            balance({("c", 0): {"w": 1.0}}, **{name: {"x": seconds}})

    def test_a_partition_on_no_worker(self):
        with pytest.raises(UsageError, match=r"partition 3, needed by config c, is on no worker: .*copy it"):
            balance({("c", 3): {}})


def replicated(rng: random.Random, configs: int, workers: int, replicas: int) -> dict[Cell, dict[str, float]]:
    speeds = [rng.choice((1.0, 2.0, 3.3)) for _ in range(workers)]
    costs = [rng.lognormvariate(0, 1) for _ in range(configs)]
    return {
        (f"c{config}", partition): {
            f"w{(partition + copy) % workers}": cost / speeds[(partition + copy) % workers] for copy in range(replicas)
        }
        for config, cost in enumerate(costs)
        for partition in range(workers)
    }


def pick(worker: str, held: Iterable[Cell], cells: dict[Cell, dict[str, float]], found: Balance, outlook: Outlook):
    own = [cell for cell in held if found.worker[cell] == worker]
    others = (cell for cell in held if found.worker[cell] != worker)
    return choose(worker, own, others, cells, found, outlook)


def run(cells: dict[Cell, dict[str, float]], seconds: dict[Cell, dict[str, float]]) -> tuple[float, Balance]:
    """Dispatch all cells with ``choose``, which believes in ``cells`` while units take ``seconds``. The makespan."""
    found = balance(cells)
    workers = sorted({worker for row in cells.values() for worker in row})
    waiting = dict.fromkeys(cells)
    running: dict[str, tuple[float, Cell]] = {}
    worker_free: dict[str, float] = {}
    config_free: dict[str, float] = {}
    now = 0.0
    while waiting or running:
        worker_left, config_left = dict.fromkeys(workers, 0.0), {config: 0.0 for config, _ in cells}
        for cell in waiting:
            worker_left[found.worker[cell]] += cells[cell][found.worker[cell]]
            config_left[cell[0]] += cells[cell][found.worker[cell]]
        outlook = Outlook(now, worker_free, config_free, worker_left, config_left)
        for worker in sorted(set(workers) - set(running), key=lambda worker: -worker_left[worker]):
            held = [cell for cell in waiting if worker in cells[cell]]
            chosen = pick(worker, held, cells, found, outlook)
            if chosen is not None:
                assert chosen in held
                assert chosen[0] not in config_free
                del waiting[chosen]
                running[worker] = (now + seconds[chosen][worker], chosen)
                worker_free[worker] = config_free[chosen[0]] = now + cells[chosen][worker]
                break
        else:
            assert running, "every worker waits, and none runs"
            worker = min(running, key=lambda worker: running[worker])
            now, cell = running.pop(worker)
            del worker_free[worker], config_free[cell[0]]
    return now, found


class TestChoose:
    @quick
    @given(problems())
    def test_every_cell_is_trained_whatever_the_problem(self, problem):
        cells, _, _ = problem
        makespan, found = run(cells, cells)
        assert makespan >= found.bound * (1 - TOLERANCE) - TOLERANCE

    @quick
    @given(problems(), st.randoms(use_true_random=False))
    def test_every_cell_is_trained_however_wrong_the_estimates(self, problem, rng):
        cells, _, _ = problem
        run(cells, {cell: {w: s * rng.lognormvariate(0, 1) for w, s in row.items()} for cell, row in cells.items()})

    @pytest.mark.parametrize("replicas", [1, 2, 3])
    def test_the_makespan_is_near_the_bound(self, replicas):
        ratios = []
        for seed in range(6):
            cells = replicated(random.Random(seed), configs=12, workers=6, replicas=replicas)
            makespan, found = run(cells, cells)
            ratios.append(makespan / found.bound)
        assert sum(ratios) / len(ratios) < 1.08

    def outlook(self, now=0.0, worker_free=(), config_free=(), worker_left=(), config_left=()):
        return Outlook(now, dict(worker_free), dict(config_free), dict(worker_left), dict(config_left))

    def test_own_cells_come_first_and_the_longest_config_first_of_all(self):
        cells = {("x", 0): {"a": 1.0, "b": 1.0}, ("y", 0): {"a": 1.0}, ("z", 0): {"a": 1.0}}
        found = Balance(9.0, {}, {("x", 0): "b", ("y", 0): "a", ("z", 0): "a"}, 9.0)
        left = {"x": 9.0, "y": 7.0, "z": 8.0}
        assert pick("a", cells, cells, found, self.outlook(config_left=left)) == ("z", 0)

    def test_with_time_to_spare_it_takes_what_others_would_be_slowest_at(self):
        cells = {("x", 0): {"a": 1.0, "b": 2.0}, ("y", 0): {"a": 3.0, "b": 6.0}, ("z", 0): {"a": 1.0, "b": 3.0}}
        found = Balance(9.0, {}, dict.fromkeys(cells, "a"), 9.0)
        left = {"x": 6.0, "y": 3.0, "z": 4.0}
        assert pick("a", cells, cells, found, self.outlook(config_left=left)) == ("y", 0)
        assert pick("a", cells, cells, found, self.outlook(config_left=left | {"x": 6.5})) == ("x", 0)

    def test_of_one_config_the_cell_that_others_are_slowest_at(self):
        cells = {("x", 0): {"a": 1.0, "b": 2.0}, ("x", 1): {"a": 1.0, "b": 5.0}, ("x", 2): {"a": 1.0}}
        found = Balance(9.0, {}, dict.fromkeys(cells, "a"), 9.0)
        assert pick("a", cells, cells, found, self.outlook(config_left={"x": 3.0})) == ("x", 1)

    def test_it_steals_where_that_ends_sooner(self):
        cells = {("x", 0): {"a": 2.0, "b": 1.0}, ("y", 0): {"a": 2.0, "c": 1.0}}
        found = Balance(3.0, {}, {("x", 0): "b", ("y", 0): "c"}, 3.0)
        outlook = self.outlook(worker_left={"b": 3.0, "c": 9.0}, config_left={"x": 1.0, "y": 1.0})
        assert pick("a", cells, cells, found, outlook) == ("y", 0)

    @pytest.mark.parametrize("left", [{"a": 2.0, "b": 1.0}, {"b": 1.0}])
    def test_it_does_not_steal_what_would_end_late(self, left):
        cells = {("x", 0): {"a": 8.0, "b": 1.0}}
        found = Balance(6.0, {}, {("x", 0): "b"}, 6.0)
        assert pick("a", cells, cells, found, self.outlook(worker_left=left, config_left={"x": 1.0})) is None

    @pytest.mark.parametrize(
        ("now", "short_left", "expected"),
        [
            (0.0, 5.0, None),  # "long" is free at 1 and has no time to lose; "short" has
            (0.0, 10.0, ("short", 0)),  # neither has time to lose, and "short" has more left
            (1.5, 5.0, ("short", 0)),  # overdue: the time when it will be free is unknown
        ],
    )
    def test_it_waits_for_a_config_that_would_end_late(self, now, short_left, expected):
        cells = {("long", 0): {"a": 3.0}, ("short", 0): {"a": 4.0}}
        found = Balance(10.0, {}, dict.fromkeys(cells, "a"), 10.0)
        outlook = self.outlook(
            now, config_free={"long": 1.0}, worker_left={"a": 7.0}, config_left={"long": 9.0, "short": short_left}
        )
        assert pick("a", cells, cells, found, outlook) == expected

    def test_it_does_not_wait_when_it_is_late_itself(self):
        cells = {("long", 0): {"a": 3.0}, ("short", 0): {"a": 4.0}}
        found = Balance(10.0, {}, dict.fromkeys(cells, "a"), 10.0)
        outlook = self.outlook(
            config_free={"long": 1.0}, worker_left={"a": 10.0}, config_left={"long": 9.0, "short": 5.0}
        )
        assert pick("a", cells, cells, found, outlook) == ("short", 0)

    def test_nothing_can_start(self):
        cells = {("x", 0): {"a": 1.0, "b": 1.0}}
        found = Balance(1.0, {}, {("x", 0): "b"}, 1.0)
        assert pick("a", cells, cells, found, self.outlook(config_free={"x": 1.0}, config_left={"x": 1.0})) is None
