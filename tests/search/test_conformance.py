"""Every search passes the suite that third parties use, and keeps its own promises in all its experiments."""

from __future__ import annotations

import hopfleet as hop
from hopfleet.testing.searches import SearchSuite


class TestRandom(SearchSuite):
    def make(self):
        return hop.Random(trials=5, max_epochs=3)


class TestASHA(SearchSuite):
    def make(self):
        return hop.ASHA(trials=12, max_epochs=9)


class TestSuccessiveHalving(SearchSuite):
    def make(self):
        return hop.SuccessiveHalving(trials=10, max_epochs=9)


class TestHyperband(SearchSuite):
    def make(self):
        return hop.Hyperband(max_epochs=4, eta=2)


class TestPBT(SearchSuite):
    def make(self):
        return hop.PBT(population=5, max_epochs=5)


class TestStopping(SearchSuite):
    def make(self):
        return hop.Stopping(hop.Random(trials=8, max_epochs=4), [hop.Median(), hop.Patience(2), hop.Budget(epochs=20)])
