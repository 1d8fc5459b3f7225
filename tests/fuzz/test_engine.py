"""The fuzzing engine itself: the same seeds cause the same damage, and no finding escapes."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from tests.helpers.fuzzing import fuzz
from tests.helpers.mutation import Mutator

SAMPLES = "tests.helpers.fuzz_targets.samples"


def test_refused_and_harmless_inputs_are_counted() -> None:
    outcome = fuzz(f"{SAMPLES}:wary", range(60))
    assert outcome.refused > 10 and outcome.harmless > 10


def test_raw_tracebacks_and_crashes_are_findings() -> None:
    with pytest.raises(AssertionError, match=r"3 of 3 inputs, seeds \[7, 8, 9\](.|\n)*KeyError: 'raw'"):
        fuzz(f"{SAMPLES}:careless", range(7, 10))
    with pytest.raises(AssertionError, match="ended with -9 at seed 7"):
        fuzz(f"{SAMPLES}:crashing", range(7, 10))


def test_a_seed_causes_the_same_damage_each_time(tmp_path: Path) -> None:
    content, value = bytes(range(200)), {"a": [1, 2.5, "x"], "b": {"c": None}}
    assert [Mutator(seed).bytes(content) for seed in range(50)] == [Mutator(seed).bytes(content) for seed in range(50)]
    mutated = [json.dumps(Mutator(seed).json(value)) for seed in range(200)]
    assert mutated == [json.dumps(Mutator(seed).json(value)) for seed in range(200)]
    assert len(set(mutated)) > 100
    found = set()
    for seed in range(40):
        path = tmp_path / f"{seed}.sqlite"
        database = sqlite3.connect(path)
        with database:
            database.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, body TEXT)")
            database.executemany("INSERT INTO rows (body) VALUES (?)", [('{"a": 1}',), ('{"b": [2]}',), ("x",)])
        Mutator(seed).database(path)
        found.add(repr(database.execute("SELECT * FROM rows").fetchall()))
        database.close()
    assert len(found) > 20
