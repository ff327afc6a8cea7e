"""The settings that the front ends share: what they accept, and that both offer them alike."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from adjointlab import options
from adjointlab.cli.check import check
from adjointlab.cli.main import main
from adjointlab.engine.search_result import Budget
from adjointlab.options import Option

CHECKS = {"cases": options.CASES, "schedules": options.SCHEDULES, "folder": options.FOLDER}


@pytest.mark.parametrize(
    ("option", "text", "legal"),
    [
        (options.CASES, "0", "a whole number of at least 1"),
        (options.CASES, "2.5", "a whole number of at least 1"),
        (options.SEED, "-1", "a whole number of at least 0"),
        (options.RANKS, "99999", "a whole number of at least 1 and at most 1024"),
        (options.WATCHDOG, "nan", "a number of at least 0.1"),
        (options.WATCHDOG, "inf", "a number of at least 0.1"),
        (options.STRICT, "maybe", "one of yes, no"),
    ],
)
def test_what_is_not_legal_is_refused_with_what_is(option: Option[Any], text: str, legal: str) -> None:
    with pytest.raises(ValueError, match=f"{option.name}: .* is not {legal}"):
        option.parse(text)


@pytest.mark.parametrize(
    ("option", "text", "value"),
    [
        (options.CASES, "7", 7),
        (options.STRICT, "yes", True),
        (options.STRICT, "no", False),
        (options.WATCHDOG, "0.5", 0.5),
        (options.XFAILS, "known.txt", Path("known.txt")),
    ],
)
def test_a_legal_text_is_converted(option: Option[Any], text: str, value: object) -> None:
    assert option.parse(text) == value


def test_the_help_that_both_front_ends_print_names_no_option_of_one_of_them() -> None:
    assert not [option.name for option in options.OPTIONS if "--" in option.full_help]


def test_the_command_line_and_the_budget_have_the_declared_defaults() -> None:
    parameters = inspect.signature(check).parameters
    assert {name: parameters[name].default for name in CHECKS} == {
        name: option.default for name, option in CHECKS.items()
    }
    budget = Budget()
    assert (budget.cases, budget.schedules) == (options.CASES.default, options.SCHEDULES.default)
    with pytest.raises(ValueError, match="ranks: 0 is not a whole number of at least 1"):
        Budget(ranks=0)


@pytest.mark.mpi_skip
@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["check", "--folder", ""], "Invalid value for '--folder': '' is not a path"),
        (["check", "--html="], "Invalid value for '--html': '' is not a path"),
        (["check", "--xfails="], "Invalid value for '--xfails': '' is not a path"),
        (["run", "--folder=", "--", "true"], "Invalid value for '--folder': '' is not a path"),
        (["check", "--watchdog=inf"], "Invalid value for '--watchdog': inf is not a number of at least 0.1"),
        (["check", "--max-time=inf"], "Invalid value for '--max-time': inf is not a number of at least 0"),
    ],
)
def test_the_command_line_refuses_what_no_option_may_be(
    capsys: pytest.CaptureFixture[str], words: list[str], problem: str
) -> None:
    with pytest.raises(SystemExit) as end:
        main([*words, *(["no.such:subject"] if words[0] == "check" else [])])
    assert end.value.code == 2
    assert capsys.readouterr().err == f"adjointlab: {problem}\n"
