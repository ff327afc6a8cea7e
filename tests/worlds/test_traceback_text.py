"""Tracebacks in reports have the user's frames, and those of libraries that user code calls; never none at all."""

from __future__ import annotations

import enum
import functools

import pytest

from adjointlab.engine import run_case
from adjointlab.worlds.traceback_text import without_own_frames

pytestmark = pytest.mark.mpi_skip


def traceback_of(*files: str) -> str:
    frames = "".join(
        f'  File "{file}", line 1, in f{n}\n    call()\n    ^^^^\n' for n, file in enumerate(files)
    )
    return f"Traceback (most recent call last):\n{frames}ValueError: {len(files)}\n  of these\n"


def functions(text: str) -> list[str]:
    return [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith("  File")]


LAB, LIBRARY, USER = str(run_case.__file__), str(enum.__file__), "/home/me/mine.py"


def test_the_frames_of_the_lab_are_left_out_also_where_it_raised() -> None:
    text = without_own_frames(traceback_of(LAB, USER, LAB, LIBRARY))
    assert functions(text) == ["f1"]
    assert text.endswith("ValueError: 4\n  of these\n")


def test_a_library_that_user_code_calls_stays_and_one_that_the_lab_calls_goes() -> None:
    assert functions(without_own_frames(traceback_of(LAB, LIBRARY, USER, LIBRARY, LIBRARY))) == [
        "f2",
        "f3",
        "f4",
    ]


def test_a_library_that_is_checked_itself_stays() -> None:
    assert functions(without_own_frames(traceback_of(LAB, LIBRARY, LIBRARY))) == ["f1", "f2"]


def test_a_wrapper_of_a_function_of_the_lab_is_left_out_beside_others() -> None:
    wrapper = str(functools.__file__)
    assert functions(without_own_frames(traceback_of(LAB, wrapper, LAB, LIBRARY))) == ["f3"]
    assert functions(without_own_frames(traceback_of(LAB, wrapper, USER))) == ["f2"]
    assert functions(without_own_frames(traceback_of(LAB, LIBRARY, LAB, LIBRARY))) == ["f1", "f3"]
    assert functions(without_own_frames(traceback_of(LAB, wrapper, LAB))) == ["f2"]


def test_where_the_lab_is_alone_nothing_is_left_out() -> None:
    text = traceback_of(LAB, LAB)
    assert without_own_frames(text) == text


def test_a_traceback_within_a_traceback_is_treated_alike() -> None:
    text = (
        traceback_of(LAB, USER)
        + "\nDuring handling of the above exception:\n\n"
        + traceback_of(LAB, USER, LAB)
    )
    assert functions(without_own_frames(text)) == ["f1", "f1"]
