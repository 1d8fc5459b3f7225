"""Tracebacks that begin where the user's code does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import hopfleet
from hopfleet.data import open_dataset
from hopfleet.errors import TaskError, UsageError
from hopfleet.experiment import arguments
from hopfleet.support.user_code import describe_with_place, format_traceback, hook, place, users_file


def test_whose_file_it_is() -> None:
    assert users_file(__file__)
    assert users_file("/home/ada/task.py")
    assert users_file("<ipython-input-3-abc>")
    assert users_file("/tmp/ipykernel_7/1234.py")
    for library in (hopfleet.__file__, json.__file__, np.__file__, "<frozen importlib._bootstrap>", "<string>"):
        assert not users_file(library), library


class Net:
    def build(self) -> None:
        np.zeros(3).reshape(2, 2)


def raised() -> BaseException:
    """Return an exception that has passed through frames of Hopfleet above and below those of the user."""
    try:
        arguments._listed("points", (Net().build() for _ in "x"), object)
    except ValueError as error:
        return error
    raise AssertionError


def test_a_traceback_begins_at_the_first_frame_of_the_user() -> None:
    error = raised()
    assert error.__traceback__ is not None
    error.__traceback__ = error.__traceback__.tb_next  # this file called Hopfleet; start there
    text = format_traceback(error)
    assert text.startswith("Traceback (most recent call last):\n")
    assert "arguments.py" not in text
    assert "reshape(2, 2)" in text and text.rstrip().endswith("into shape (2,2)")
    assert place(error).startswith(f"{__file__}:")
    assert describe_with_place(error).endswith(f"({Path(__file__).name}:{place(error).rpartition(':')[2]})")
    assert hook(error).endswith("<genexpr>")


def test_causes_begin_there_too() -> None:
    try:
        try:
            Net().build()
        except ValueError as cause:
            raise TaskError("it does not fit") from cause
    except TaskError as error:
        text = format_traceback(error)
    assert "reshape(2, 2)" in text and "direct cause" in text and "TaskError: it does not fit\n" in text


def test_errors_on_purpose_need_no_frames() -> None:
    with pytest.raises(UsageError) as caught:
        open_dataset("/no/such/folder")
    error = caught.value
    assert error.__traceback__ is not None
    error.__traceback__ = error.__traceback__.tb_next
    assert "File" not in format_traceback(error).partition("The above")[2]
    assert place(error) == hook(error) == ""
    assert describe_with_place(error).startswith("DataError: ")
    try:
        json.loads("{")
    except ValueError as other:
        other.__traceback__ = other.__traceback__.tb_next if other.__traceback__ else None
        assert "decoder.py" in format_traceback(other)
