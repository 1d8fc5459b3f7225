"""The small words: trials, units, seeds, errors."""

from __future__ import annotations

import itertools
import pickle
import traceback

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopfleet import errors
from hopfleet.domain.seeds import derive
from hopfleet.domain.trial import TRANSITIONS, TrialState
from hopfleet.domain.unit import Unit, Work

quick = settings(deadline=None, max_examples=60)


@quick
@given(st.integers(), st.lists(st.text(max_size=5) | st.integers(), max_size=4))
def test_seeds_fit_everywhere_and_stay(seed, names):
    assert derive(seed, *names) == derive(seed, *names)
    assert 0 <= derive(seed, *names) < 2**32


def test_seeds_with_other_names_differ():
    seeds = {derive(seed, name, number) for seed in range(10) for name in "ab" for number in range(50)}
    assert len(seeds) == 1000


def test_seeds_are_pinned():
    """All published results depend on these."""
    assert (derive(0), derive(7, "trial", 3)) == (872845860, 1834661181)


def test_what_has_ended_or_paused_can_only_go_on_and_what_failed_cannot():
    assert set(TRANSITIONS) == set(TrialState)
    assert not TRANSITIONS[TrialState.FAILED]
    for state in (TrialState.COMPLETED, TrialState.STOPPED):
        assert state.ended and TRANSITIONS[state] == {TrialState.RUNNING}
    assert not TrialState.PAUSED.ended


def test_every_state_can_be_reached():
    reached = {TrialState.PENDING}
    for _ in TrialState:
        reached |= set(itertools.chain.from_iterable(TRANSITIONS[state] for state in reached))
    assert reached == set(TrialState)


def test_units_read_well():
    assert str(Unit("t0001", 2, 3)) == "t0001 trains on partition 3 in epoch 2"
    assert str(Unit("t0001", 2, 3, Work.EVALUATE)) == "t0001 is evaluated on partition 3 in epoch 2"


def test_errors_are_one_tree_drawn_in_the_docstring():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    for kind in kinds:
        assert issubclass(kind, errors.HopfleetError)
        assert kind.__name__ in errors.__doc__
        for base in kind.__bases__:
            assert base in (Exception, *kinds) or f"{kind.__name__} ({base.__name__})" in errors.__doc__


def test_missing_extra_says_how_to_install():
    error = errors.MissingExtra("torch", "torch")
    assert str(error) == "this needs torch, which is not installed: pip install 'hopfleet[torch]'"


@pytest.mark.parametrize(
    ("error", "line"),
    [(ValueError("a\nb"), "ValueError: a"), (ValueError(), "ValueError"), (KeyError("k"), "KeyError: 'k'")],
)
def test_errors_in_one_line(error, line):
    assert errors.describe(error) == line


def test_a_traceback_names_the_code_of_an_error_once():
    for error in (errors.SpaceError("lr=0: no"), pickle.loads(pickle.dumps(errors.SpaceError("lr=0: no")))):
        lines = traceback.format_exception_only(error)
        assert lines == ["hopfleet.errors.SpaceError: lr=0: no\n", "See HF111 in the documentation.\n"]


def test_the_code_is_no_part_of_the_message():
    error = errors.NotFinite("the loss is nan", batch=3)
    error.add_note("epoch 1")
    assert str(error) == "the loss is nan"
    assert errors.describe(error) == "NotFinite: the loss is nan (epoch 1)"
