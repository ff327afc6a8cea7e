"""Mutants that lie in functions alone are told from those that alter what runs when the file is imported."""

from __future__ import annotations

import pytest

from benchmarks.altered_functions import altered_functions

pytestmark = pytest.mark.mpi_skip

TEXT = '''\
"""Says what it is."""

LIMIT = 3

def first(x, y=2):
    def inner():
        return x > LIMIT

    return [inner() for _ in range(y)]

class Second:
    side: int = 4

    def third(self):
        return (self.side, 5.0)

    @staticmethod
    def fourth():
        return 6
'''


@pytest.mark.parametrize(
    ("before", "after", "names"),
    [
        ("x > LIMIT", "x < LIMIT", ["first"]),
        ("range(y)", "range(y + 1)", ["first"]),
        ("5.0", "5.5", ["Second.third"]),
        ("5.0", "5", ["Second.third"]),
        ("return 6", "return -6", ["Second.fourth"]),
        ("return x > LIMIT", "return  x > LIMIT", []),
    ],
)
def test_outermost_functions_whose_code_differs_are_found(before: str, after: str, names: list[str]) -> None:
    pairs = altered_functions(TEXT, TEXT.replace(before, after), "altered.py")

    assert pairs is not None
    assert [(old.co_qualname, new.co_qualname) for old, new in pairs] == [(name, name) for name in names]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("LIMIT = 3", "LIMIT = 4"),
        ("y=2", "y=3"),
        ("int = 4", "int = 5"),
        ("    @staticmethod\n", ""),
        ("def fourth", "def fifth"),
    ],
)
def test_what_runs_at_the_import_of_a_file_is_not_in_a_function(before: str, after: str) -> None:
    assert altered_functions(TEXT, TEXT.replace(before, after), "altered.py") is None
