"""Balanced shares, decision by decision: when they are made, whose they are, and what an idle worker starts."""

from __future__ import annotations

import math

import pytest

from hopfleet.domain.trial import TrialState
from hopfleet.domain.unit import Unit, Work
from hopfleet.domain.version_ref import VersionRef
from hopfleet.planner.balance import installed
from hopfleet.scheduler.policies import balanced
from hopfleet.scheduler.policies.balanced import Balanced
from tests.helpers.schedule_desk import trial
from tests.helpers.shop_floor import RNG, begin, end, shop_floor

pytestmark = pytest.mark.skipif(not installed(), reason="needs SciPy")


class Counted(Balanced):
    """How often shares were made."""

    made = 0

    def _rebalance(self, schedule):
        self.made += 1
        super()._rebalance(schedule)


class TestWhenSharesAreMade:
    def test_the_first_unit_that_took_another_time_changes_them(self):
        schedule, policy = shop_floor("slow", "fast"), Counted()
        policy(schedule, RNG)
        begin(schedule, "fast", "t1")
        end(schedule, "fast", 40.0)
        policy(schedule, RNG)
        assert policy.made == 2

    @pytest.mark.parametrize(("measured", "later"), [(1, 2), (8, 16), (9, 17), (100, 108)])
    def test_times_are_compared_again_after_as_many_units_or_four_of_each_trial(self, measured, later):
        schedule, policy = shop_floor("slow", "fast", trials=2), Balanced()
        policy(schedule, RNG)
        schedule.measured = measured
        policy._learned(schedule)
        assert policy._next_refresh == later

    @pytest.mark.parametrize(("drift", "learned"), [(0.03, False), (-0.03, False), (0.05, True), (-0.05, True)])
    def test_the_mean_of_all_changes_counts(self, drift, learned):
        schedule, policy = shop_floor("slow", "fast", trials=1, partitions=1), Balanced()
        policy(schedule, RNG)
        policy._cells["t1", 0]["slow"] *= math.exp(drift)  # of two times, to a limit of 2%
        assert policy._learned(schedule) is learned

    @pytest.mark.parametrize(("trials", "made"), [(9, 1), (8, 2)])
    def test_more_than_a_tenth_of_all_trials_is_no_small_addition(self, trials, made):
        schedule, policy = shop_floor("slow", "fast", trials=trials), Counted()
        policy(schedule, RNG)
        schedule.add(trial(trials + 1))
        policy(schedule, RNG)
        assert policy.made == made

    def test_nothing_is_kept_of_trials_that_ended_and_of_partitions_that_nobody_reads(self):
        schedule = shop_floor("slow", "fast", reads={"slow": (0, 1), "fast": (0,)})
        policy = Balanced()
        schedule.measured = 1
        policy(schedule, RNG)
        assert policy._cells.keys() == {("t1", 0), ("t1", 1), ("t2", 0), ("t2", 1)}
        schedule.park("t2", TrialState.STOPPED)
        schedule.leave("slow")
        policy(schedule, RNG)
        assert policy._cells == {("t1", 0): {"fast": 2.0}}


class TestShares:
    def test_units_that_are_owed_again_after_a_fault_go_to_the_fastest_worker(self):
        schedule, policy = shop_floor("slow", "fast", trials=1, epochs=1), Balanced()
        begin(schedule, "slow", "t1")
        end(schedule, "slow", 8.0)
        policy(schedule, RNG)
        schedule.roll_back("t1", 0)
        assert policy._balance.worker["t1", 0] == "fast"

    def test_units_of_a_new_trial_go_where_they_end_first(self):
        schedule, policy = shop_floor("slow", "fast", partitions=3, trials=1), Balanced()
        policy(schedule, RNG)
        schedule.add(trial(2, 1))
        policy._left.workers.update(slow=1.0, fast=10.0)
        policy._assign_new(schedule, {"t2"})
        # 16 s or 4 s each: the fast worker ends at 14 s, the slow one at 17 s, the fast one at 18 s.
        assert [policy._balance.worker["t2", partition] for partition in range(3)] == ["fast", "slow", "fast"]

    def test_new_trials_put_off_the_end(self):
        schedule, policy = shop_floor("fast", trials=10, epochs=1), Counted()
        policy(schedule, RNG)
        assert policy._balance.peak == 100.0 + 2 * 2.0 * sum(range(1, 11))
        schedule.add(trial(11, 1))
        policy(schedule, RNG)
        assert policy.made == 1
        assert policy._balance.peak == 100.0 + 2 * 2.0 * sum(range(1, 12))


class TestWhatIsLeft:
    def test_a_trial_that_ended_is_taken_off_once(self):
        schedule, policy = shop_floor("fast", epochs=1), Balanced()
        policy(schedule, RNG)
        assert policy._left.workers == {"fast": 12.0} and policy._left.trials == {"t1": 4.0, "t2": 8.0}
        schedule.park("t2", TrialState.STOPPED)
        for _ in range(3):
            policy(schedule, RNG)
            assert policy._left.workers == {"fast": 4.0} and policy._left.trials == {"t1": 4.0}

    def test_a_trial_with_a_fixed_order_has_one_unit_that_comes_next(self):
        schedule, policy = shop_floor("fast", trials=0), Balanced()
        schedule.add(trial(1), order=(1, 0, 0, 1))
        found = policy(schedule, RNG)
        assert found is not None and found.unit == Unit("t1", 1, 1)
        assert [*policy._left.own["fast"]] == [("t1", 1)]

    def test_a_running_unit_is_not_left(self):
        schedule, policy = shop_floor("fast", trials=1, epochs=1), Balanced()
        begin(schedule, "fast", "t1")
        policy(schedule, RNG)
        assert policy._left.workers == {"fast": 2.0} and [*policy._left.own["fast"]] == [("t1", 1)]


class TestOutlook:
    def test_workers_and_trials_are_free_when_their_units_should_end(self):
        schedule, policy = shop_floor("slow", "fast", "quick", trials=3), Balanced()
        policy(schedule, RNG)
        begin(schedule, "fast", "t1")
        begin(schedule, "fast", "t2", lookahead=True)
        outlook = policy._outlook(schedule)
        assert outlook.worker_free == {"fast": 106.0} and outlook.config_free == {"t1": 102.0, "t2": 106.0}

    def test_an_evaluation_may_end_at_any_moment(self):
        schedule, policy = shop_floor("slow", "fast", epochs=1, partitions=1), Balanced()
        policy(schedule, RNG)
        begin(schedule, "fast", "t1")
        end(schedule, "fast", 2.0)
        schedule.start("fast", Unit("t1", 1, 0, Work.EVALUATE), 1)
        outlook = policy._outlook(schedule)
        assert outlook.worker_free == {"fast": 102.0} and outlook.config_free == {}

    def test_a_worker_that_is_asked_for_its_next_unit_in_advance_is_free_now(self):
        schedule, policy = shop_floor("slow", "fast"), Balanced()
        policy(schedule, RNG)
        begin(schedule, "fast", "t1")
        with schedule.supposing({"fast": schedule.slots["fast"]}):
            assert policy._outlook(schedule).worker_free == {}


class TestWhatStarts:
    def test_a_model_that_is_being_saved_is_waited_for(self):
        """t1 was trained on the slow worker, which is busy; the fast one can start nothing but t1."""
        schedule, policy = shop_floor("slow", "fast", trials=2, epochs=1), Balanced()
        begin(schedule, "slow", "t1")
        end(schedule, "slow", 8.0)
        begin(schedule, "slow", "t2")
        assert policy(schedule, RNG) is None
        schedule.saved(VersionRef("t1", 1, 1), durable=False)
        found = policy(schedule, RNG)
        assert found is not None and (found.worker, found.unit.trial) == ("fast", "t1")

    def test_a_trial_that_waits_for_its_evaluation_starts_nothing(self):
        """It has the most work left, in its next two epochs."""
        schedule, policy = shop_floor("fast", partitions=1, epochs=3), Balanced()
        begin(schedule, "fast", "t2")
        end(schedule, "fast", 4.0)
        found = policy(schedule, RNG)
        assert found is not None and found.unit.trial == "t1"

    def test_the_share_of_a_worker_that_is_about_to_leave_is_left_to_the_others(self):
        """Nothing runs that the others could wait for, and they may be slower."""
        schedule, policy = shop_floor("slow", "fast", trials=1, epochs=1), Balanced()
        schedule.retire("fast")
        for _ in range(2):
            found = policy(schedule, RNG)
            assert found is not None and found.worker == "slow"
            begin(schedule, "slow", "t1", found.unit.partition)
            end(schedule, "slow", 8.0)

    def test_no_order_of_shares_holds_while_workers_join(self, monkeypatch):
        """Until a unit has ended, workers with partitions that others lack start what is short."""
        monkeypatch.setattr(balanced, "balance", lambda *_, **__: pytest.fail("shares"))
        schedule = shop_floor("slow", "fast", reads={"slow": (0, 1), "fast": (0,)})
        found = Balanced()(schedule, RNG)
        assert found is not None and (found.worker, found.unit) == ("fast", Unit("t1", 1, 0))
