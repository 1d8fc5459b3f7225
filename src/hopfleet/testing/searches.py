"""What every search must do. Derive ``SearchSuite`` in a test file and override ``make``:

    class TestMySearch(SearchSuite):
        def make(self):
            return MySearch(trials=9, max_epochs=4)

The suite runs hundreds of whole experiments in virtual time, with the controller of real experiments: curves that
cross, tie or end in NaN, trials that fail, workers that are lost, requests of users, restarts. Each experiment must end
within the bounds that the search gives, and the same seed must give the same experiment.
"""

from __future__ import annotations

import json
import time

from hopfleet.domain import space as spaces
from hopfleet.extend import Goal, Search, Trial
from hopfleet.testing.virtual import Run, VirtualExperiment

EXPERIMENTS = 40
"""Experiments for each test of the suite."""

SPACE = {
    "lr": spaces.loguniform(1e-4, 1e-1),
    "net": {"width": spaces.randint(1, 9), "rate": spaces.quniform(0.0, 0.5, 0.1)},
    "kind": spaces.choice(["a", "b", "c"]),
    "twice": spaces.sample_from(lambda config: 2 * config["net"]["width"]),
    "fixed": 1,
}
CHEAP_SECONDS = 0.1
"""Most seconds of processor time that a suggestion may take on average."""


class SearchSuite:
    """The tests. ``space`` must be a space that the search accepts."""

    experiments = EXPERIMENTS
    space: spaces.Space = SPACE

    def make(self) -> Search:
        raise AssertionError("override make()")

    def check(self, run: Run) -> None:
        """Check what this search in particular promises of a finished experiment. Overriding it is optional."""

    def run(self, setting: VirtualExperiment) -> Run:
        """Run one experiment and check every step."""
        run = Run(self, setting).go()
        self.check(run)
        return run

    def test_calm_experiments_end_within_their_bounds(self) -> None:
        for seed in range(self.experiments):
            self.run(VirtualExperiment.made(seed, troubles=0))

    def test_troubled_experiments_end_within_their_bounds(self) -> None:
        for seed in range(self.experiments):
            self.run(VirtualExperiment.made(seed, troubles=6))

    def test_one_worker_and_one_trial_at_a_time_are_enough(self) -> None:
        for seed in range(self.experiments // 4):
            self.run(VirtualExperiment.made(seed, troubles=seed % 4, workers=1, max_live=1))

    def test_the_same_seed_gives_the_same_experiment(self) -> None:
        for seed in range(self.experiments // 4):
            setting = VirtualExperiment.made(seed, troubles=4)
            assert self.run(setting).journal() == self.run(setting).journal(), f"another experiment with seed {seed}"

    def test_setup_starts_afresh(self) -> None:
        """Nothing is left of an earlier experiment with another seed and another goal."""
        search, (setting, other) = self.make(), [VirtualExperiment.made(seed, troubles=0) for seed in (1, 2)]
        assert setting.goal != other.goal
        Run(self, other, search).go()
        found, expected = (Run(self, setting, which).go().journal() for which in (search, None))
        assert found == expected, "another experiment after another setup()"

    def test_its_description_is_json_and_says_the_same_each_time(self) -> None:
        described = [Run(self, VirtualExperiment()).search.describe() for _ in range(2)]
        assert json.loads(json.dumps(described[0])) == described[1], f"{described[0]}: differs from {described[1]}"

    def test_suggestions_are_cheap(self) -> None:
        search = self.make()
        search.setup(self.space, seed=0, goal=Goal("loss", "min"))
        began, count = time.process_time(), 0
        while count < 200 and search.suggest(count) is not None:
            search.added(Trial(f"t{count}", count, {}, 0, 1))
            count += 1
        spent = time.process_time() - began
        assert spent <= CHEAP_SECONDS * max(count, 1), f"{spent:.3g} seconds for {count} suggestions"
