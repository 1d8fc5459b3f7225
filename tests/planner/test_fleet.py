"""FLEET's planner: rates, flotillas, GPUs and paradigms."""

from __future__ import annotations

import itertools
import random
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import fleet_rounds
from hopfleet.errors import UsageError
from hopfleet.planner.fleet.balance import Balance
from hopfleet.planner.fleet.ensemble import (
    DryRun,
    Ensemble,
    Network,
    as_freed,
    as_published,
    homogeneous,
    hopping,
    in_rounds,
    one_per_gpu,
)
from hopfleet.planner.fleet.flotillas import (
    assign_gpus,
    create_flotilla,
    plan_flotilla,
    preprocessors,
    scatter,
)
from hopfleet.planner.fleet.rounds import next_round
from hopfleet.planner.rates import Rates, points_to_profile


def scaled(rate: float, factor: float, points: int = 8) -> Rates:
    """Return rates whose efficiency falls by a factor with each GPU."""
    return Rates(f"at {rate:g}", tuple(count * rate * factor ** (count - 1) for count in range(1, points + 1)))


class TestRates:
    def test_profiled_rates_are_returned_as_they_are(self) -> None:
        assert Rates("a", (10.0, 19.0, 27.0)).up_to(3) == (10.0, 19.0, 27.0)

    def test_more_gpus_follow_equation_5(self) -> None:
        rates = Rates("a", (10.0, 19.0, 27.0, 34.0))
        factor = 34 / 27 * 3 / 4
        assert rates(5) == pytest.approx(5 * 34 / 4 * factor)
        assert rates(6) == pytest.approx(6 * 34 / 4 * factor**2)

    def test_the_paper_takes_two_nodes_as_the_base_though_more_points_are_profiled(self) -> None:
        rates = Rates("a", (10.0, 19.0, 27.0, 34.0), base=2)
        # Profiled rates are a lower bound of those of more GPUs.
        assert rates(5) == pytest.approx(max(34.0, 5 * 19 / 2 * (19 / 10 / 2) ** 3))

    def test_rates_never_fall(self) -> None:
        table = scaled(10, 0.9, 4).up_to(60)
        assert list(table) == sorted(table)
        assert table[-1] == table[12]

    def test_better_than_linear_profiles_are_not_extrapolated_as_such(self) -> None:
        assert Rates("a", (10.0, 25.0))(4) == pytest.approx(50.0)

    def test_one_point_says_nothing_of_more_gpus(self) -> None:
        assert Rates("a", (10.0,)).up_to(3) == (10.0, 10.0, 10.0)

    def test_points_to_profile(self) -> None:
        assert points_to_profile([21, 176], 4) == 9
        assert points_to_profile([50, 60], 4) == 8

    @pytest.mark.parametrize(
        ("profiled", "base", "said"),
        [
            ((), 0, "network a has no rates: profile it"),
            ((10.0, 0.0), 0, "network a: 0.0 rows/s on 2 GPUs: must be finite and above 0"),
            ((float("inf"),), 0, "network a: inf rows/s on 1 GPUs"),
            ((10.0, 19.0, 18.0), 0, "18 rows/s on 3 GPUs, 19 on 2: rates must grow .* up to 2 GPUs"),
            ((10.0, 19.0), 3, "base=3: must be one of the 2 profiled points"),
        ],
    )
    def test_rates_that_cannot_be(self, profiled: tuple[float, ...], base: int, said: str) -> None:
        with pytest.raises(UsageError, match=said):
            Rates("a", profiled, base)


class TestFlotillas:
    def test_the_fastest_sets_the_pace_and_others_come_close_to_it(self) -> None:
        rates = [(100.0,) * 8, tuple(50.0 * count for count in range(1, 9)), tuple(30.0 * m for m in range(1, 9))]
        # 1 × 100, 2 × 50, 3 × 30; one more goes to the slowest, and another would not make the next one faster.
        assert create_flotilla([0, 1, 2], rates, 6, 20.0) == {0: 1, 1: 2, 2: 3}
        assert create_flotilla([0, 1, 2], rates, 8, 20.0) == {0: 1, 1: 2, 2: 4}

    def test_a_network_out_of_reach_waits_for_the_next_flotilla(self) -> None:
        rates = [(100.0, 190.0), (40.0, 70.0)]
        assert create_flotilla([0, 1], rates, 2, 20.0) == {0: 2}
        assert create_flotilla([0, 1], rates, 2, 60.0) == {0: 1, 1: 1}

    def test_with_few_gpus_left_a_network_takes_fewer_than_it_would_like(self) -> None:
        rates = [(100.0, 200.0, 300.0), (45.0, 90.0, 135.0), (48.0, 96.0, 144.0)]
        assert create_flotilla([0, 1, 2], rates, 4, 60.0) == {0: 1, 2: 2, 1: 1}

    def test_no_gpu_is_wasted_where_a_rate_stops_growing(self) -> None:
        flat = (74.0, 119.0, 142.0, 152.0, 153.0, 153.0, 153.0, 153.0)
        assert create_flotilla([0], [flat], 7, 20.0) == {0: 5}
        assert next_round({0: 1000.0}, [flat], 7).gpus == {0: 5}
        # The pace is out of reach; one GPU fewer than the plateau has comes as close.
        assert create_flotilla([0, 1], [(170.0,) * 8, flat], 8, 20.0) == {0: 1, 1: 5}
        assert create_flotilla([0, 1], [(160.0,) * 8, flat[:3] + (142.0,) * 4 + (190.0,)], 8, 20.0) == {0: 1, 1: 3}

    def test_gpus_that_do_not_help_the_slowest_go_to_others_if_the_ends_are_known(self) -> None:
        rates = [(10.0,) * 6, (10.0, 19.0, 27.0, 34.0, 40.0, 45.0)]
        assert next_round({0: 100.0, 1: 90.0}, rates, 6).gpus == {0: 1, 1: 5}

    def test_one_gpu(self) -> None:
        assert create_flotilla([3], [()] * 3 + [(5.0,)], 1, 20.0) == {3: 1}

    def test_whole_nodes_first_then_pairs_then_the_rest(self) -> None:
        taken = assign_gpus({0: 3, 1: 4, 2: 1, 3: 8, 4: 2}, 4)
        assert {network: (gpus.start, gpus.stop) for network, gpus in taken.items()} == {
            1: (0, 4),
            3: (4, 12),
            2: (12, 13),
            0: (13, 16),
            4: (16, 18),
        }

    def test_the_rest_is_on_as_few_nodes_as_possible(self) -> None:
        mixed = assign_gpus({0: 2, 1: 5, 2: 6}, 4)
        assert scatter(mixed.values(), 4) == min(
            scatter(assigned, 4)
            for order in itertools.permutations([2, 5, 6])
            for assigned in [[range(sum(order[:at]), sum(order[: at + 1])) for at in range(3)]]
        )

    @settings(deadline=None, max_examples=50)
    @given(st.data())
    def test_gpus_are_exclusive_and_none_is_wasted(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, 12))
        gpus, per_node = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 8))
        singles = data.draw(st.lists(st.floats(1, 200), min_size=count, max_size=count))
        rates = [scaled(rate, data.draw(st.floats(0.8, 1.0)), 2).up_to(gpus) for rate in singles]
        flotilla = plan_flotilla(range(count), rates, gpus, per_node, data.draw(st.floats(0, 100)))
        taken = list(itertools.chain.from_iterable(flotilla.gpus.values()))
        assert len(set(taken)) == len(taken) <= gpus
        for member, held in flotilla.gpus.items():
            assert len(held) == 1 or rates[member][len(held) - 1] > rates[member][len(held) - 2]
        if len(taken) < gpus:
            # More GPUs do not make the slowest faster.
            slowest = min(flotilla.gpus, key=lambda member: rates[member][len(flotilla.gpus[member]) - 1])
            assert rates[slowest][len(flotilla.gpus[slowest]) - 1] == rates[slowest][-1]
        assert flotilla.gpus.keys() <= set(range(count))
        assert flotilla.rate(rates) == min(rates[member][len(held) - 1] for member, held in flotilla.gpus.items())

    @pytest.mark.parametrize(
        ("call", "said"),
        [
            (lambda: create_flotilla([], [], 4, 20.0), "networks=[]"),
            (lambda: create_flotilla([0], [(1.0,)], 0, 20.0), "gpus=0"),
            (lambda: assign_gpus({0: 1}, 0), "per_node=0"),
            (lambda: preprocessors(10.0, 0.0), "throughput=0 rows/s"),
        ],
        ids=["networks", "gpus", "per-node", "throughput"],
    )
    def test_what_cannot_be(self, call: object, said: str) -> None:
        with pytest.raises(UsageError, match=re.escape(said)):
            call()  # type: ignore[operator]

    def test_as_many_preprocessors_as_the_rate_needs(self) -> None:
        assert [preprocessors(rate, 100.0) for rate in (1.0, 100.0, 101.0, 250.0)] == [1, 1, 2, 3]


def ensemble(gpus: int, *, networks: int = 12, seed: int = 0, move: float = 1.0) -> Ensemble:
    rng = random.Random(seed)
    members = [Network(scaled(rng.uniform(20, 160), 0.96), rng.randint(5, 20)) for _ in range(networks)]
    return Ensemble(tuple(members), rows=10_000, gpus=gpus, gpus_per_node=4, move_seconds=move)


def everything(given: Ensemble) -> dict[str, DryRun]:
    rng = random.Random(0)
    return {
        "one per GPU": one_per_gpu(given, rng),
        "homogeneous": homogeneous(given, rng),
        "rounds": in_rounds(given),
        "published": as_published(given),
        "local": as_freed(given),
        "hopping": hopping(given),
    }


class TestParadigms:
    @settings(deadline=None, max_examples=25)
    @given(st.data())
    def test_every_network_is_trained_to_its_end_and_no_gpu_serves_two(self, data: st.DataObject) -> None:
        """GPUs are busy for as long as the networks take, and for no longer than there are GPUs."""
        loss = data.draw(st.sampled_from([1.0, 0.95, 0.8]))
        networks = data.draw(st.lists(st.tuples(st.floats(1, 200), st.integers(1, 5)), min_size=1, max_size=8))
        gpus, move = data.draw(st.integers(1, 12)), data.draw(st.sampled_from([0.0, 3.0]))
        ensemble = Ensemble(
            tuple(Network(scaled(rate, loss, 3), epochs) for rate, epochs in networks), 500, gpus, 4, move
        )
        alone = sum(ensemble.alone(network) for network in range(len(networks)))
        rng = random.Random(0)
        for paradigm in (
            in_rounds,
            as_published,
            as_freed,
            hopping,
            lambda e: one_per_gpu(e, rng),
            lambda e: homogeneous(e, rng),
        ):
            run = paradigm(ensemble)
            assert alone * (1 - 1e-9) <= run.busy <= gpus * run.seconds * (1 + 1e-9)
            if loss == 1.0 and not move:
                assert run.busy == pytest.approx(alone)

    @pytest.mark.parametrize("gpus", [1, 3, 8, 12, 20])
    def test_every_network_is_trained_within_the_gpus(self, gpus: int) -> None:
        given = ensemble(gpus)
        # Efficiency is best on one GPU, so no run can be shorter than this.
        work = sum(given.alone(network) for network in range(12))
        for name, run in everything(given).items():
            assert work * (1 - 1e-9) <= run.busy <= run.seconds * gpus * (1 + 1e-9), name
            assert run.plans >= 1

    def test_one_network_on_one_gpu_takes_the_same_time_in_all(self) -> None:
        given = ensemble(1, networks=1, move=0.0)
        alone = given.alone(0)
        for name, run in everything(given).items():
            assert run.seconds == pytest.approx(alone), name
            assert run.spans == pytest.approx((alone,)), name

    def test_equal_networks_gain_nothing_by_sharing(self) -> None:
        same = Network(scaled(50, 0.9), 4)
        given = Ensemble((same,) * 6, rows=100, gpus=3, gpus_per_node=1)
        assert [run.seconds for run in everything(given).values()] == pytest.approx([16.0] * 6)

    def test_a_round_of_equals_waits_for_the_longest(self) -> None:
        short, long = Network(Rates("short", (10.0,)), 3), Network(Rates("long", (5.0,)), 4)
        run = homogeneous(Ensemble((short, long, short), rows=10, gpus=2, gpus_per_node=1), random.Random(1))
        assert run.plans == 2 and run.seconds in (8.0 + 3.0, 3.0 + 8.0)
        assert sorted(run.spans) == [3.0, 3.0, 8.0]

    def test_the_members_of_a_flotilla_train_at_their_own_pace(self) -> None:
        fast, slow = Network(Rates("fast", (20.0, 21.0)), 4), Network(Rates("slow", (10.0, 11.0)), 3)
        run = as_published(Ensemble((fast, slow), rows=10, gpus=2, gpus_per_node=2))
        # The fast one converges after 2 s; the slow one has 10 rows left, and goes on with both GPUs.
        assert (run.seconds, run.plans) == (pytest.approx(2.0 + 10 / 11), 2)
        assert run.busy == pytest.approx(4.0 + 2 * 10 / 11)

    def test_a_round_ends_when_too_few_gpus_are_in_use(self) -> None:
        short, long = Network(Rates("short", (10.0, 11.0)), 1), Network(Rates("long", (10.0, 20.0)), 3)
        run = as_published(Ensemble((short, long), rows=10, gpus=2, gpus_per_node=2))
        # An epoch together, and two more of the longer one on both GPUs.
        assert (run.seconds, run.plans) == (pytest.approx(1.0 + 1.0), 2)

    @pytest.mark.parametrize("gpus", [4, 12, 24])
    def test_hopping_is_the_shortest_on_average(self, gpus: int) -> None:
        runs = [everything(ensemble(gpus, networks=24, seed=seed)) for seed in range(5)]
        ours = sum(run["hopping"].seconds for run in runs)
        # Rounds know the epochs of networks before.
        assert all(
            sum(run[name].seconds for run in runs) > ours for name in runs[0] if name not in ("hopping", "rounds")
        )

    def test_rounds_are_close_to_the_shortest_of_all_schedules(self) -> None:
        """The short form of ``benchmarks.fleet_rounds``, which enumerates all schedules of small instances."""
        ours, published, _ = fleet_rounds.compared(range(25))
        assert sum(ours) / len(ours) >= fleet_rounds.MEAN and min(ours) >= fleet_rounds.WORST
        assert sum(published) < sum(ours)

    def test_a_large_round_goes_on_while_another_would_cost_more(self) -> None:
        networks = tuple(Network(scaled(50, 0.9), epochs) for epochs in range(20, 60))
        given = Ensemble(networks, rows=100, gpus=16, gpus_per_node=4, move_seconds=0.0)
        free, costly = in_rounds(given), in_rounds(replace(given, move_seconds=50.0))
        assert free.plans > costly.plans

    @pytest.mark.parametrize(
        ("wrong", "said"),
        [
            ({"networks": ()}, "0 networks"),
            ({"rows": 0}, "0 rows"),
            ({"gpus": 0}, "0 GPUs"),
            ({"gpus_per_node": 0}, "0 on each node"),
            ({"networks": (Network(Rates("a", (1.0,)), 0),)}, "network a: epochs=0"),
        ],
    )
    def test_ensembles_that_cannot_be(self, wrong: dict[str, object], said: str) -> None:
        right = {"networks": (Network(Rates("a", (1.0,)), 1),), "rows": 1, "gpus": 1, "gpus_per_node": 1}
        with pytest.raises(UsageError, match=said):
            Ensemble(**right | wrong)  # type: ignore[arg-type]


class TestBalance:
    def test_what_is_left_is_learned_from_those_that_have_converged(self) -> None:
        balance = Balance([(1.0,)], 10, 1)
        assert balance.remaining(0) == 1.0
        balance.learn(8)
        balance.learn(4)
        assert (balance.remaining(0), balance.remaining(4), balance.remaining(20)) == (6.0, 4.0, 2.0)

    def test_gpus_go_where_the_end_is_far(self) -> None:
        linear = [tuple(rate * count for count in range(1, 9)) for rate in (1.0, 3.0)]
        balance = Balance(linear, 12, 4)
        plan = balance.plan([0, 1], [0, 0])
        assert [count for _, count in plan.values()] == [3, 1]
        assert list(balance.start(plan, [0, 1], 4)) == [(0, 3), (1, 1)]
        assert list(balance.start(plan, [0, 1], 2)) == [(0, 2)]

    def test_a_network_that_cannot_end_in_time_sets_the_end(self) -> None:
        # Both GPUs make the first no faster, so it decides, and the others need one each.
        balance = Balance([(1.0, 1.0), (10.0, 20.0), (10.0, 20.0)], 10, 2)
        assert {count for _, count in balance.plan([0, 1, 2], [0, 0, 0]).values()} == {1}
