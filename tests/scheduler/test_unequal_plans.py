"""What workers of unequal speed do next, decision by decision: plans, when they are made anew, and where trials go."""

from __future__ import annotations

from typing import Any

import pytest

from hopfleet.domain.trial import TrialState
from hopfleet.domain.unit import Unit, Work
from hopfleet.planner.unequal import STYLES, Style, best, place
from hopfleet.scheduler.estimates import Estimates
from hopfleet.scheduler.policies import unequal
from hopfleet.scheduler.policies.unequal import Unequal, _at_home, _Plan, _Shop, _styles
from hopfleet.scheduler.progress import Outcome
from hopfleet.scheduler.schedule import Schedule
from hopfleet.scheduler.shop_state import TICK
from tests.helpers.schedule_desk import trial
from tests.helpers.shop_floor import RNG, SPEEDS, begin, decide, end, shop_floor


class TestShop:
    def test_what_is_idle_is_free_now_and_what_trains_when_its_unit_should_end(self) -> None:
        schedule = shop_floor("slow", "fast", "quick", trials=3, onward=2)
        begin(schedule, "fast", "t2")  # 4 s
        schedule.now = 101.0
        shop = _Shop(schedule)
        assert shop.workers == ["slow", "fast", "quick"] and shop.trials == ["t1", "t2", "t3"]
        assert shop.chains.free == [[(104.0, 1), (101.0, 2)], [(101.0, 0)]]  # the fastest class first
        assert shop.chains.seconds == [[2.0, 8.0], [4.0, 16.0], [6.0, 24.0]]
        assert shop.chains.units == [4, 3, 4]
        assert shop.chains.ready == [101.0, 104.0, 101.0]
        assert shop.chains.onward == [4, 4, 4]  # epochs of two units
        assert shop.units == {"t1": 4, "t2": 3, "t3": 4}
        assert shop.seconds == {"t1": [2.0, 8.0], "t2": [4.0, 16.0], "t3": [6.0, 24.0]}

    def test_units_that_come_next_count_as_told(self) -> None:
        schedule = shop_floor("slow", "fast", partitions=3, epochs=1, trials=1)
        begin(schedule, "fast", "t1")
        begin(schedule, "fast", "t1", 1, lookahead=True)
        shop = _Shop(schedule)
        assert shop.chains.free == [[(104.0, 1)], [(100.0, 0)]]
        assert shop.chains.units == [1] and shop.chains.ready == [104.0]

    def test_units_of_other_trials_on_the_same_worker_are_not_those_of_a_trial(self) -> None:
        schedule = shop_floor("slow", "fast")
        begin(schedule, "fast", "t1", flotilla=1)
        begin(schedule, "fast", "t2", flotilla=1)
        shop = _Shop(schedule)
        assert shop.chains.units == [3, 3]
        assert shop.chains.free[0] == [(106.0, 1)]  # one after the other: 2 s and 4 s
        assert shop.chains.ready == [106.0, 106.0]

    def test_a_unit_that_is_late_ends_soon(self) -> None:
        schedule = shop_floor("slow", "fast", trials=1)
        begin(schedule, "fast", "t1")
        schedule.now = 150.0
        assert _Shop(schedule).chains.free[0] == [(150.0 + TICK, 1)]

    def test_a_trial_that_waits_for_its_last_evaluation_is_ready_after_it(self) -> None:
        schedule = shop_floor("slow", "fast", trials=1, epochs=1, partitions=1)
        begin(schedule, "fast", "t1")
        end(schedule, "fast", 2.0)
        schedule.start("fast", Unit("t1", 1, 0, Work.EVALUATE), 1)
        shop = _Shop(schedule)
        # How long an evaluation takes is not known: it may end at any moment.
        assert shop.chains.units == [0] and shop.units == {}
        assert shop.chains.ready == [schedule.now + TICK]

    def test_a_trial_that_two_workers_evaluate_is_ready_when_both_are_free(self) -> None:
        schedule = shop_floor("slow", "fast", epochs=1, partitions=1, valid=2)
        begin(schedule, "fast", "t1")
        end(schedule, "fast", 2.0)
        for partition, worker in enumerate(("fast", "slow")):
            schedule.start(worker, Unit("t1", 1, partition, Work.EVALUATE), 1)
        begin(schedule, "slow", "t2", lookahead=True)
        assert _Shop(schedule).chains.ready == [118.0, 118.0]

    def test_a_trial_that_waits_for_a_save_is_ready_soon(self) -> None:
        """It neither runs nor may start, as one that ends as soon as its last version is saved."""
        schedule = shop_floor("slow", "fast", trials=1)
        schedule.settle("t1", Outcome(TrialState.STOPPED))
        assert "t1" not in schedule.ready
        assert _Shop(schedule).chains.ready == [100.0 + TICK]

    def test_a_worker_that_is_about_to_leave_is_of_no_class(self) -> None:
        schedule = shop_floor("fast", "slow", "quick", trials=1)
        begin(schedule, "slow", "t1")
        schedule.retire("slow")
        shop = _Shop(schedule)
        assert shop.chains.free == [[(100.0, 0), (100.0, 2)]]
        # It is expected to be as fast as the fastest: nothing better is known of a worker without a class.
        assert shop.chains.ready == [102.0]

    def test_partitions_count_with_their_rows(self) -> None:
        prior = lambda number, worker, partition: (4.0, 12.0)[partition] / SPEEDS[worker]  # noqa: E731
        schedule = Schedule(2, 1, Estimates([1.0, 3.0], prior))
        for worker in ("slow", "fast"):
            schedule.join(worker, None)
        schedule.add(trial(1))
        begin(schedule, "fast", "t1", 1)
        assert _Shop(schedule).chains.free == [[(3.0, 1)], [(0.0, 0)]]  # 1.5 times the mean of 2 s


class TestPlan:
    def plan(self, schedule: Schedule, style: Style = STYLES[0], most: int = 1_000) -> _Plan:
        shop = _Shop(schedule)
        return _Plan(shop, place(shop.chains, style, most=most))

    def test_it_fits_while_what_happens_is_what_was_planned(self) -> None:
        schedule = shop_floor("slow", "fast")
        plan = self.plan(schedule)
        assert plan.fits(_Shop(schedule))
        for name, worker in plan.starts(schedule):
            begin(schedule, worker, name)
            assert not plan.fits(_Shop(schedule))
            plan.begin(name, worker)
            assert plan.fits(_Shop(schedule))

    def test_it_does_not_fit_another_trial_or_another_number_of_units(self) -> None:
        schedule = shop_floor("slow", "fast")
        plan = self.plan(schedule)
        schedule.add(trial(3))
        assert not plan.fits(_Shop(schedule))
        schedule = shop_floor("slow", "fast")
        plan = self.plan(schedule)
        schedule.resume("t1", 3)
        assert not plan.fits(_Shop(schedule))

    def test_it_does_not_fit_another_worker(self) -> None:
        schedule = shop_floor("slow", "fast")
        plan = self.plan(schedule)
        schedule.join("quick", None)
        assert not plan.fits(_Shop(schedule))

    def test_it_does_not_fit_other_classes(self) -> None:
        """A trial stayed on a worker that had turned out six times slower, since the number of classes was the same."""
        plan, shop = self.plan(schedule := shop_floor("slow", "fast", "quick")), _Shop(schedule)
        assert shop.classes == (("fast", "quick"), ("slow",)) and plan.fits(shop)
        for classes in (("fast", "quick", "slow"),), (("fast",), ("slow", "quick")):
            shop.classes = classes
            assert not plan.fits(shop)

    @pytest.mark.parametrize(
        ("factor", "fits"), [(1.0, True), (1.25, True), (0.75, True), (1.26, False), (0.74, False)]
    )
    def test_it_fits_times_that_moved_a_little(
        self, factor: float, fits: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(unequal, "DRIFT", 0.25)
        schedule = shop_floor("slow", "fast")
        plan = self.plan(schedule)
        shop = _Shop(schedule)
        shop.chains.seconds[:] = [[each * factor for each in row] for row in shop.chains.seconds]
        assert plan.fits(shop) is fits

    def test_times_of_both_signs_add_up(self) -> None:
        schedule = shop_floor("slow", "fast")
        plan = self.plan(schedule)
        shop = _Shop(schedule)
        (one, other), row = shop.chains.seconds[0], shop.chains.seconds[1]
        shop.chains.seconds[:] = [[one * 1.5, other], [row[0] - one * 0.5, row[1]]]
        assert not plan.fits(shop)

    def test_a_part_of_a_plan_fits_until_a_worker_has_nothing_left_in_it(self) -> None:
        schedule = shop_floor("fast", "quick")
        whole, part = self.plan(schedule), self.plan(schedule, most=2)
        assert whole.fits(_Shop(schedule)) and part.fits(_Shop(schedule))
        (name, worker), *_ = part.starts(schedule)
        begin(schedule, worker, name)
        for plan in (whole, part):
            plan.begin(name, worker)
        assert whole.fits(_Shop(schedule)) and not part.fits(_Shop(schedule))

    def test_all_units_are_no_part(self) -> None:
        schedule = shop_floor("slow", "fast", trials=1, epochs=1)
        plan = self.plan(schedule, most=2)
        assert plan.fits(_Shop(schedule))  # the slow worker gets none of the two units

    def test_only_what_is_first_for_worker_and_trial_starts(self) -> None:
        schedule = shop_floor("slow", "fast", trials=1)
        plan = self.plan(schedule)
        assert plan.starts(schedule) == [("t1", "fast")]
        begin(schedule, "fast", "t1")
        plan.begin("t1", "fast")
        assert plan.starts(schedule) == []
        end(schedule, "fast", 2.0)
        assert plan.starts(schedule) == [("t1", "fast")]

    def test_a_worker_that_is_busy_starts_nothing(self) -> None:
        schedule = shop_floor("slow", "fast")
        plan = self.plan(schedule)
        begin(schedule, "fast", "t1", flotilla=1)
        assert all(worker != "fast" for _, worker in plan.starts(schedule))

    def test_a_trial_waits_for_its_unit_before(self) -> None:
        """The second lane begins with a unit of the trial that the first one begins with."""
        schedule = shop_floor("fast", "quick", "slow", trials=1, epochs=1)
        shop = _Shop(schedule)
        planned = _Plan(shop, place(shop.chains, STYLES[0]))
        planned._lanes["fast"].clear()
        planned._lanes["quick"].clear()
        planned._lanes["fast"].append("t1")
        planned._lanes["quick"].append("t1")
        planned._trials["t1"].clear()
        planned._trials["t1"].extend(["quick", "fast"])
        assert planned.starts(schedule) == [("t1", "quick")]
        begin(schedule, "quick", "t1")
        planned.begin("t1", "quick")
        end(schedule, "quick", 2.0)
        assert planned.starts(schedule) == [("t1", "fast")]

    def test_workers_that_are_as_fast_exchange_their_lanes(self) -> None:
        schedule = shop_floor("fast", "quick", trials=2, epochs=1)
        plan = self.plan(schedule)
        assert plan.starts(schedule) == [("t1", "fast"), ("t2", "quick")]
        begin(schedule, "quick", "t1")
        plan.begin("t1", "quick")  # it was planned on the other
        assert plan.starts(schedule) == [("t2", "fast")]
        begin(schedule, "fast", "t2")
        plan.begin("t2", "fast")
        assert plan.fits(_Shop(schedule)) and plan.starts(schedule) == []
        end(schedule, "quick", 2.0)
        assert plan.starts(schedule) == [("t1", "quick")]

    def test_a_trial_without_units_is_forgotten(self) -> None:
        schedule = shop_floor("slow", "fast", trials=1, epochs=1)
        plan = self.plan(schedule)
        for partition in (0, 1):
            begin(schedule, "fast", "t1", partition)
            plan.begin("t1", "fast")
            end(schedule, "fast", 2.0)
        assert plan.fits(_Shop(schedule)) and plan._units == {}


class Counted:
    """``best`` and ``place``, and how often they were asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        #: The numbers of styles that were tried, and the styles in which units were placed.
        self.tried: list[int] = []
        self.placed: list[Style] = []
        monkeypatch.setattr(unequal, "best", self._best)
        monkeypatch.setattr(unequal, "place", self._place)

    def _best(self, chains: Any, styles: Any) -> Any:
        self.tried.append(len(styles))
        return best(chains, styles)

    def _place(self, chains: Any, style: Style, **options: Any) -> Any:
        self.placed.append(style)
        return place(chains, style, **options)


class TestChoices:
    def test_a_long_search_starts_the_longest_trial_anywhere(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = Counted(monkeypatch)
        monkeypatch.setattr(unequal, "MANY", 2)
        assert decide(Unequal(), shop_floor("slow", "fast", trials=5)) == [("t5", "fast"), ("t4", "slow")]
        assert asked.tried == []
        decide(Unequal(), shop_floor("slow", "fast", trials=4))
        assert asked.tried != []

    def test_the_style_is_chosen_again_after_a_fifth_of_all_units(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked, schedule, policy = Counted(monkeypatch), shop_floor("fast", "slow", trials=1, epochs=5), Unequal()
        tried = []
        for _ in range(10):
            assert decide(policy, schedule) == [("t1", "fast")]
            tried.append(len(asked.tried))
            end(schedule, "fast", 2.0)
            if schedule.trials["t1"].version % 2 == 0:
                schedule.end_epoch("t1")
        # 10 units; 8 is not less than 4/5 of them, 7 is; of 7, 5 is; of 5, 3 is; then 2, and 1.
        assert tried == [1, 1, 1, 2, 2, 3, 3, 4, 5, 6]
        assert asked.placed == []

    @pytest.mark.parametrize(("ended", "tried"), [(0, 1), (2, 1), (3, 2)])
    def test_exactly_a_fifth_is_no_reason(self, ended: int, tried: int, monkeypatch: pytest.MonkeyPatch) -> None:
        asked, schedule, policy = Counted(monkeypatch), shop_floor("fast", "slow", trials=1, epochs=5), Unequal()
        assert policy(schedule, RNG) is not None
        for _ in range(ended):
            begin(schedule, "fast", "t1", schedule.trials["t1"].version % 2)
            end(schedule, "fast", 2.0)
            if schedule.trials["t1"].version % 2 == 0:
                schedule.end_epoch("t1")
        schedule.join("quick", None)
        policy(schedule, RNG)
        assert len(asked.tried) == tried

    def test_more_units_than_before_are_planned_in_the_best_style(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked, schedule, policy = Counted(monkeypatch), shop_floor("fast", "slow", trials=1, epochs=5), Unequal()
        decide(policy, schedule)
        schedule.resume("t1", 6)
        end(schedule, "fast", 2.0)
        decide(policy, schedule)
        assert len(asked.tried) == 2 and asked.placed == []

    def test_a_plan_that_no_longer_fits_is_made_again_in_the_same_style(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked, schedule, policy = Counted(monkeypatch), shop_floor("fast", "slow", trials=1, epochs=5), Unequal()
        decide(policy, schedule)
        end(schedule, "fast", 2.0)
        schedule.join("quick", None)
        decide(policy, schedule)
        assert len(asked.tried) == 1 and asked.placed == [STYLES[0]]

    def test_more_units_than_can_be_planned_are_placed_in_the_usual_style(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = Counted(monkeypatch)
        monkeypatch.setattr(unequal, "UNITS", 8)
        decide(Unequal(), shop_floor("slow", "fast", trials=2))
        assert (len(asked.tried), len(asked.placed)) == (1, 0)
        decide(Unequal(), shop_floor("slow", "fast", trials=3))
        assert (len(asked.tried), asked.placed) == (1, [STYLES[0]])

    def test_a_kept_plan_gives_way_to_a_better_one_only(self, monkeypatch: pytest.MonkeyPatch) -> None:
        schedule, policy = shop_floor("fast", "slow", trials=1, epochs=5), Unequal()
        decide(policy, schedule)
        first = policy._plan
        shop = _Shop(schedule)
        policy._renew(shop, 9, anew=False, kept=True)
        assert policy._plan is first
        assert first is not None
        first.end += 1.0
        policy._renew(shop, 9, anew=False, kept=True)
        assert policy._plan is not first
        second = policy._plan
        policy._renew(shop, 9, anew=False, kept=False)
        assert policy._plan is not second

    @pytest.mark.parametrize(("noise", "planned"), [(0.0, True), (0.02, True), (0.03, False)])
    def test_noise_above_two_percent_places_units_at_each_event(self, noise: float, planned: bool) -> None:
        schedule, policy = shop_floor("fast", "slow"), Unequal()
        schedule.estimates.speeds._errors.append(noise)
        decide(policy, schedule)
        assert (policy._plan is not None) is planned

    def test_trials_that_share_batches_are_placed_at_each_event(self) -> None:
        schedule, policy = shop_floor("fast", "slow", trials=3), Unequal()
        begin(schedule, "fast", "t1", flotilla=1)
        decide(policy, schedule)
        assert policy._plan is None

    def test_with_noise_the_style_is_chosen_when_a_fifth_of_the_units_came_or_went(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked, schedule, policy = Counted(monkeypatch), shop_floor("fast", "slow", trials=1, epochs=5), Unequal()
        monkeypatch.setattr(unequal, "LOOSE", -1.0)
        tried = []
        for _ in range(6):
            decide(policy, schedule)
            tried.append(len(asked.tried))
            end(schedule, "fast", 2.0)
            if schedule.trials["t1"].version % 2 == 0:
                schedule.end_epoch("t1")
        assert tried == [1, 1, 1, 2, 2, 3]
        schedule.resume("t1", 8)
        decide(policy, schedule)
        assert len(asked.tried) == 4

    def test_with_noise_the_style_is_chosen_for_a_single_unit_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = Counted(monkeypatch)
        monkeypatch.setattr(unequal, "LOOSE", -1.0)
        decide(Unequal(), shop_floor("fast", "slow", trials=1, epochs=1, partitions=1))
        assert len(asked.tried) == 1

    def test_noise_ends_a_plan(self) -> None:
        schedule, policy = shop_floor("fast", "slow"), Unequal()
        decide(policy, schedule)
        schedule.estimates.speeds._errors.append(1.0)
        end(schedule, "fast", 2.0)
        decide(policy, schedule)
        assert policy._plan is None

    def test_with_noise_and_many_units_the_usual_style_is_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = Counted(monkeypatch)
        monkeypatch.setattr(unequal, "LOOSE", -1.0)
        monkeypatch.setattr(unequal, "UNITS", 8)
        decide(Unequal(), shop_floor("slow", "fast", trials=3))
        assert asked.tried == []
        decide(Unequal(), shop_floor("slow", "fast", trials=2))
        assert len(asked.tried) == 1

    def test_with_noise_only_what_idle_workers_start_is_placed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A busy worker is no reason to place more, and all idle ones are asked about."""
        asked: list[Any] = []
        monkeypatch.setattr(unequal, "LOOSE", -1.0)
        monkeypatch.setattr(
            unequal, "place", lambda *given, **options: asked.append(options) or place(*given, **options)
        )
        schedule = shop_floor("slow", "fast", "quick", trials=3)
        begin(schedule, "fast", "t3")
        decide(Unequal(), schedule)
        assert asked[0] == {"idle": {0, 2}}

    def test_nothing_is_asked_twice_between_two_events(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Several starts are one choice, and a policy that waits has nothing to think about."""
        schedule, policy, chosen = shop_floor("fast", "quick", "slow", trials=3, epochs=1), Unequal(), []
        choose = policy._choose
        monkeypatch.setattr(policy, "_choose", lambda schedule: chosen.append(1) or choose(schedule))
        assert len(decide(policy, schedule)) >= 2
        assert policy(schedule, RNG) is None
        assert len(chosen) == 1
        end(schedule, "fast", 2.0)
        policy(schedule, RNG)
        assert len(chosen) == 2

    def test_a_choice_to_wait_is_made_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        schedule, policy, chosen = shop_floor("fast", "slow", trials=1), Unequal(), []
        begin(schedule, "fast", "t1")
        choose = policy._choose
        monkeypatch.setattr(policy, "_choose", lambda schedule: chosen.append(1) or choose(schedule))
        assert policy(schedule, RNG) is None and policy(schedule, RNG) is None
        assert len(chosen) == 1

    @pytest.mark.parametrize(
        ("units", "styles"),
        [(0, 20), (1, 20), (unequal.EFFORT // 10, 10), (unequal.EFFORT // 3, 3), (unequal.EFFORT, 3)],
    )
    def test_fewer_styles_are_tried_with_more_units(self, units: int, styles: int) -> None:
        assert _styles(units) == STYLES[:styles]


class TestHome:
    def test_trials_go_on_where_their_models_are(self) -> None:
        schedule = shop_floor("fast", "quick", "slow")
        one, two = schedule.trials["t1"], schedule.trials["t2"]
        one.holder, two.holder = "fast", "quick"
        assert _at_home(schedule, [(one, "quick"), (two, "fast")]) == [(one, "fast"), (two, "quick")]

    def test_a_model_without_a_worker_leaves_the_others_theirs(self) -> None:
        schedule = shop_floor("fast", "quick", "slow")
        one, two = schedule.trials["t1"], schedule.trials["t2"]
        two.holder = "fast"
        found = _at_home(schedule, [(one, "fast"), (two, "quick")])
        assert sorted((each.trial.id, worker) for each, worker in found) == [("t1", "quick"), ("t2", "fast")]

    def test_a_worker_that_is_idle_and_was_not_chosen_may_be_home(self) -> None:
        schedule = shop_floor("fast", "quick", "slow")
        one = schedule.trials["t1"]
        one.holder = "quick"
        assert _at_home(schedule, [(one, "fast")]) == [(one, "quick")]

    def test_a_slower_worker_is_no_home(self) -> None:
        schedule = shop_floor("fast", "quick", "slow")
        one = schedule.trials["t1"]
        one.holder = "slow"
        assert _at_home(schedule, [(one, "quick")]) == [(one, "quick")]
