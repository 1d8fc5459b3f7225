"""NaN and infinities in what other programs read."""

from __future__ import annotations

import json
import math

from hopfleet.support.plain import named, plain


def test_numbers_that_strict_json_lacks_have_the_names_that_python_reads() -> None:
    config = {"clip": math.inf, "net": {"low": [-math.inf, 1.0], "nothing": math.nan}, "kind": "a", "n": 2, "ok": True}
    text = json.dumps(named(config), allow_nan=False)
    assert text == (
        '{"clip": "Infinity", "net": {"low": ["-Infinity", 1.0], "nothing": "NaN"}, "kind": "a", "n": 2, "ok": true}'
    )
    assert plain({"loss": math.nan}) == {"loss": None}
