"""An error of a strategy is told without Hypothesis's notes, and a refusal of the lab with the user's line that it is of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import find
from hypothesis import strategies as st

import adjointlab as al
from adjointlab.engine.drawing_errors import advice_on, formatted, is_of_strategy, refusal
from tests.samples import wrong

pytestmark = pytest.mark.mpi_skip

LAB = al.__path__[0] + "/core/layout.py"
USER, OTHER = "/home/user/rings.py", "/home/user/grids.py"
LIBRARY = np.__file__


def raised(error: BaseException, *files: str) -> BaseException:
    """The error with the traceback of functions in these files, each of which calls the next one, on lines 1, 2, 3 ..."""
    names = {"error": error}
    last = len(files) - 1
    for number, file in reversed(list(enumerate(files))):
        body = "raise error" if number == last else f"f{number + 1}()"
        exec(compile("\n" * number + f"def f{number}(): {body}", file, "exec"), names)  # noqa: S102
    with pytest.raises(type(error)) as caught:
        names["f0"]()  # type: ignore[operator]
    assert caught.tb is not None
    return error.with_traceback(caught.tb.tb_next)


@pytest.mark.parametrize("kind", [ValueError, TypeError, UnicodeError])
@pytest.mark.parametrize(
    ("files", "where"),
    [
        ((USER, LAB), f"{USER}:1"),
        ((USER, LAB, LIBRARY), f"{USER}:1"),
        ((USER, LIBRARY, LAB), f"{USER}:1"),
        ((LIBRARY, USER, LAB), f"{USER}:2"),
        ((USER, LAB, OTHER, LAB), f"{OTHER}:3"),
        ((USER, OTHER, LAB, LAB), f"{OTHER}:2"),
        ((USER,), None),
        ((LAB, USER), None),
        ((USER, LAB, OTHER), None),
        ((USER, LIBRARY), None),
        ((LAB,), None),
        ((LIBRARY, LAB), None),
    ],
)
def test_a_refusal_is_of_the_line_of_user_code_that_calls_the_lab(
    files: tuple[str, ...], where: str | None, kind: type[Exception]
) -> None:
    told = refusal(raised(kind("no such dim"), *files))
    assert told == (where and f"no such dim ({where})")


def test_other_errors_of_the_lab_are_no_refusals() -> None:
    for kind in (RuntimeError, KeyError, KeyboardInterrupt):
        assert refusal(raised(kind("no such dim"), USER, LAB)) is None


def test_the_notes_of_hypothesis_are_left_out_and_all_others_stay() -> None:
    cause, error = KeyError("key"), ValueError("value")
    error.__cause__ = cause
    for each in (cause, error):
        for note in ("while generating 'case' from ...", "my own\nwhile generating it", "Explicit"):
            each.add_note(note)
    error.add_note("last\n\n")
    text = formatted(error)
    assert "from ..." not in text
    assert text.count("my own\nwhile generating it\nExplicit") == 2
    assert text.index("KeyError") < text.index("ValueError: value")
    assert text.endswith("Explicit\nlast")
    assert formatted(ZeroDivisionError("x")) == "ZeroDivisionError: x"
    assert error.__notes__ == ["my own\nwhile generating it", "Explicit", "last\n\n"]


@pytest.mark.parametrize("given", [st.integers(0, 3), (2, st.integers(0, 3))])
def test_a_refusal_of_what_is_not_drawn_asks_for_the_missing_draw(given: object) -> None:
    with pytest.raises(TypeError) as caught:
        al.Layout(given, (2,))  # type: ignore[arg-type]
    assert "; is a `draw(...)` around it missing? (" in str(refusal(caught.value))
    with pytest.raises(TypeError) as caught:
        al.Layout((2, 3), given, "x")  # type: ignore[arg-type, call-overload]
    assert "around it missing" in str(refusal(caught.value))


@pytest.mark.parametrize(
    ("misused", "is_so"),
    [
        (lambda: st.integers() + 1, True),
        (lambda: al.strategies.shapes(1)[0], True),
        (lambda: st.integers().upper(), True),
        (lambda: 3 + "x", False),
        (lambda: int("Strategy"), False),
    ],
)
def test_an_error_of_python_on_a_strategy_is_known_by_its_type(misused: Any, is_so: bool) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        misused()
    assert is_of_strategy(caught.value) == is_so


@pytest.mark.parametrize(
    ("misused", "told"),
    [
        (st.integers, "and was given a function"),
        (4, "and was given an int"),
        (
            al.strategies.shapes(1).map(lambda shape: shape[0] + st.none()),
            "a `draw(...)` around a strategy is missing",
        ),
        (st.builds(lambda: int("Strategy")), ""),
    ],
)
def test_an_error_of_a_draw_comes_with_advice(misused: Any, told: str) -> None:
    @st.composite
    def strategy(draw: Any) -> Any:
        return draw(misused)

    with pytest.raises(Exception) as caught:  # noqa: PT011
        find(strategy(), lambda drawn: True)
    advice = advice_on(caught.value)
    assert advice.endswith(told)
    assert bool(advice) == bool(told)


def test_a_refusal_of_what_a_strategy_was_given_asks_for_no_draw_where_none_is_missing() -> None:
    @st.composite
    def strategy(draw: Any) -> Any:
        return draw(al.strategies.layouts(al.Partition((2,))))  # type: ignore[arg-type]

    with pytest.raises(TypeError) as caught:
        find(strategy(), lambda drawn: True)
    told = str(refusal(caught.value))
    assert told.startswith("ranks: Partition(")
    assert "missing" not in told


def test_a_warning_of_hypothesis_names_the_subject_without_its_fields() -> None:
    assert repr(wrong) == f"<subject {wrong.name}>"
