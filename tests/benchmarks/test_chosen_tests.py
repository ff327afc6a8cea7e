"""The tests of a mutant are those that reach the statement that it alters."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.chosen_tests import altered_lines, stages_of
from benchmarks.closest_tests import ROOT

TEXT = '''\
LIMIT = 3

@decorated
def first(x, y=2):
    """Says what it does."""
    if x > 0 and (
        y > 0
    ):
        return 1
    try:
        z = x + y
    except ValueError:
        z = LIMIT
    return z

class Second:
    side: int = 4

    def third(self):
        return [
            self.side,
            5,
        ]
'''


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        ("y > 0\n", "y < 0\n", {6, 7, 8}),
        ("return 1", "return 2", {9}),
        ("x + y", "x - y", {11}),
        ("except ValueError", "except KeyError", {12}),
        ("5,", "6,", {20, 21, 22, 23}),
        ("y=2", "y=3", set(range(5, 15))),
        ("@decorated\n", "", set(range(5, 15))),
    ],
)
def test_the_statement_that_differs_is_found_and_the_body_of_a_function_whose_header_differs(
    before: str, after: str, lines: set[int]
) -> None:
    found = altered_lines(TEXT, TEXT.replace(before, after))

    assert found is not None
    assert lines <= set(found) <= lines | {10}  # `try`


@pytest.mark.parametrize(("before", "after"), [("LIMIT = 3", "LIMIT = 4"), ("int = 4", "int = 5")])
def test_what_runs_at_the_import_of_a_file_concerns_every_test_of_the_file(before: str, after: str) -> None:
    assert altered_lines(TEXT, TEXT.replace(before, after)) is None


@pytest.mark.parametrize(
    ("before", "after", "chosen"),
    [
        ("share = 0.4", "share = 0.6", {"tests/checks/test_registry.py", "tests/x.py"}),
        (" is not None", " is None", {"tests/x.py"}),
    ],
)
def test_what_runs_at_the_import_of_a_file_concerns_its_closest_tests_too(
    before: str, after: str, chosen: set[str]
) -> None:
    names = [
        f"{file}::test"
        for file in ("tests/checks/test_registry.py", "tests/x.py", "tests/core/test_space.py")
    ]
    reached: Any = SimpleNamespace(
        seconds=dict.fromkeys(names, 0.1), tests=lambda file, lines: {"tests/x.py::test"}
    )
    file = "adjointlab/checks/purity.py"
    text = (ROOT / file).read_text(encoding="utf-8")
    assert before in text
    stages = stages_of(file, text.replace(before, after), reached, seconds=10)
    assert {test.split("::")[0] for stage in stages for test in stage if test.endswith("::test")} == chosen
