"""Shops for the tests of this folder."""

from __future__ import annotations

from hypothesis import strategies as st

from hopfleet.planner.shop import Shop, ShopUnit

whole = st.integers(0, 9).map(float)
seconds = whole | st.floats(0, 100) | st.floats(0.9, 1.1)


@st.composite
def shops(draw: st.DrawFn, times=seconds, most: int = 5, ready: bool = True) -> Shop:
    """Up to ``most`` configurations and workers; a pair has no unit, one or several."""
    configs, workers = draw(st.integers(1, most)), draw(st.integers(1, most))
    unit = st.builds(ShopUnit, st.integers(0, configs - 1), st.integers(0, workers - 1), times)
    units = draw(st.lists(unit, max_size=most * most))
    if not ready or draw(st.booleans()):
        return Shop(configs, workers, tuple(units))
    late = [draw(st.lists(times, min_size=count, max_size=count)) for count in (configs, workers)]
    return Shop(configs, workers, tuple(units), tuple(late[0]), tuple(late[1]))


@st.composite
def squares(draw: st.DrawFn, times=seconds, most: int = 4) -> Shop:
    """One unit for each pair, all ready at 0."""
    configs, workers = draw(st.integers(1, most)), draw(st.integers(1, most))
    row = st.lists(times, min_size=workers, max_size=workers)
    return Shop.of_times(draw(st.lists(row, min_size=configs, max_size=configs)))
