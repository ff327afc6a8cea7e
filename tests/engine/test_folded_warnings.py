"""A warning that ranks and cases repeat is one line of the report, with a count; what filters make an error stays one."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

import adjointlab as al
from adjointlab.engine.discovery import Found
from adjointlab.engine.folded_warnings import FoldedWarning, FoldedWarnings
from adjointlab.engine.search_result import Budget
from adjointlab.report.summary import notes
from adjointlab.session import run_check

pytestmark = pytest.mark.filterwarnings("always")


class Talkative(al.LinearOperator):
    gain = fan_in = 1

    def __init__(self, comm: Any, layout: al.Layout) -> None:
        self.comm, self.domain, self.codomain = comm, al.Space(layout), al.Space(layout)

    def forward(self, x: Any) -> Any:
        warnings.warn(f"rank {self.comm.Get_rank()} would rather not", RuntimeWarning, stacklevel=1)
        return x.copy()

    adjoint = forward


@al.subject(Talkative)
def talkative(draw: Any, ranks: int) -> dict[str, Any]:
    return dict(layout=al.Layout((ranks,), (ranks,)))


def test_the_report_has_the_first_text_and_the_number_of_times(tmp_path: Path) -> None:
    world, found = al.SimulatedWorld(2), Found(talkative, "x.py:talkative", False)
    with warnings.catch_warnings(record=True) as shown:
        results = [
            run_check(world, found, check, Budget(cases=3, seed=1), tmp_path)
            for check in ("adjoint", "linearity")
        ]
    world.close()
    assert not shown
    times = [result.result.warnings[0].times for result in results]
    assert min(times) > 6  # in each case on each rank, in each direction
    (line,) = [note for note in notes(results) if "rather not" in note]
    assert line.endswith(f"RuntimeWarning: rank 0 would rather not ({sum(times)} times)")
    assert "test_folded_warnings.py:" in line


def test_a_warning_that_a_filter_makes_an_error_fails_the_check(tmp_path: Path) -> None:
    world, found = al.SimulatedWorld(1), Found(talkative, "x.py:talkative", False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = run_check(world, found, "adjoint", Budget(cases=3, seed=1), tmp_path)
    world.close()
    assert not result.result.verdict.is_coherent
    assert "RuntimeWarning" in str(result.result.verdict)
    assert result.result.warnings == ()


def test_nothing_is_lost_where_an_exception_ends_the_check_or_another_rank_reports() -> None:
    def twice() -> None:
        for number in range(2):
            warnings.warn_explicit(f"text {number}", UserWarning, "a.py", 3)

    def failing() -> None:
        with FoldedWarnings():
            twice()
            raise ZeroDivisionError

    with warnings.catch_warnings(record=True) as shown:
        with pytest.raises(ZeroDivisionError):
            failing()
        assert [str(each.message) for each in shown] == ["text 0 (2 times)"]
        with FoldedWarnings(is_leader=False) as folded:
            twice()
        assert [str(each.message) for each in shown[1:]] == ["text 0"]
        with FoldedWarnings() as folded:
            twice()
            assert folded.found == (FoldedWarning("UserWarning", "text 0", "a.py", 3, 2),)
            warnings.warn_explicit("text 2", UserWarning, "a.py", 3)
        assert folded.found == (FoldedWarning("UserWarning", "text 0", "a.py", 3, 3),)
        assert len(shown) == 2
        twice()
        assert len(shown) == 4


def test_a_warning_with_a_file_to_print_to_is_printed_there() -> None:
    passed_on: list[tuple[Any, ...]] = []
    with warnings.catch_warnings():
        warnings.showwarning = lambda *given: passed_on.append(given)
        with FoldedWarnings() as folded:
            given = (UserWarning("text"), UserWarning, "a.py", 3, object(), "line 3")
            warnings.showwarning(*given)
    assert passed_on == [given]
    assert folded.found == ()


def test_after_its_end_a_context_passes_warnings_on_though_its_function_is_put_back() -> None:
    passed_on: list[tuple[Any, ...]] = []
    with warnings.catch_warnings():
        warnings.showwarning = lambda *given: passed_on.append(given)
        with FoldedWarnings() as folded:
            inside = warnings.showwarning
        inside("text", UserWarning, "a.py", 3)
        assert passed_on == [("text", UserWarning, "a.py", 3, None, None)]
        with FoldedWarnings() as ignoring:
            ignoring.ignore_more()
            warnings.showwarning("text", UserWarning, "a.py", 3)
    assert (folded.found, ignoring.found, len(passed_on)) == ((), (), 1)


@pytest.mark.parametrize(
    ("category", "shown_as", "text"),
    [
        ("FutureWarning", FutureWarning, "no"),
        ("MyWarning", UserWarning, "MyWarning: no"),
        ("print", UserWarning, "print: no"),
        ("ValueError", UserWarning, "ValueError: no"),
    ],
)
def test_a_warning_is_shown_as_its_kind_where_python_knows_it(
    category: str, shown_as: type[Warning], text: str
) -> None:
    with warnings.catch_warnings(record=True) as shown:
        FoldedWarning(category, "no", "a.py", 3).show()
    (one,) = shown
    assert (one.category, str(one.message), one.filename, one.lineno) == (shown_as, text, "a.py", 3)


def test_warnings_of_cases_that_only_make_a_failure_smaller_are_not_shown(tmp_path: Path) -> None:
    made: list[int] = []

    class Wrong(Talkative):
        def forward(self, x: Any) -> Any:
            made.append(x.size)
            if len(set(made)) > 1:  # a case of another size than the first
                warnings.warn("smaller", RuntimeWarning, stacklevel=1)
            return 2 * x

        def adjoint(self, y: Any) -> Any:
            return 3 * y

    @al.subject(Wrong, ranks=(1,))
    def wrong(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(layout=al.Layout((draw(st.integers(3, 30)),), (1,)))

    world = al.SimulatedWorld(1)
    entry = run_check(world, Found(wrong, "x.py:wrong", False), "adjoint", Budget(cases=5, seed=2), tmp_path)
    world.close()
    assert entry.result.case is not None
    assert len(set(made)) > 1
    assert entry.result.warnings == ()
