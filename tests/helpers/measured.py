"""A plugin of pytest: notes which lines of the decision core the tests of each process reach, for ``make test-all``.

``coverage combine`` puts the notes together.
"""

from __future__ import annotations

import coverage

PURE = ("controller", "domain", "planner", "scheduler", "search")

# It begins before anything imports the package, or lines that run at an import would be missed.
measured = coverage.Coverage(source=[f"hopfleet.{name}" for name in PURE], branch=True, data_suffix=True)
# The process that hands out tests imports none of it.
measured.set_option("run:disable_warnings", ["module-not-imported", "no-data-collected"])
measured.start()


def pytest_unconfigure() -> None:
    measured.stop()
    measured.save()
