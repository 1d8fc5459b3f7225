"""What counts as the same moment."""

from __future__ import annotations

import pytest

from hopfleet.scheduler.shop_state import ShopState

NOW = 1_794_748_425.0
"""A time of day."""


@pytest.mark.parametrize(("now", "ends", "more"), [(NOW, NOW + 0.35, False), (NOW, NOW, True), (0.3, 0.1 + 0.2, True)])
def test_a_unit_that_ends_soon_does_not_end_now(now, ends, more):
    state = ShopState(now, [0, 1], [now, ends], [0.0, 0.0])
    state.runs = {1: 0}
    assert state.expects_more is more
