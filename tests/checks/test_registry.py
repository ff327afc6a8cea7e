"""Checks are found where they are defined, and the lab's exceptions are recognised by their type."""

from __future__ import annotations

import inspect
import math
import pickle
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import adjointlab as al
import adjointlab.checks
from adjointlab.checks.check import Check, all_checks, check_named, checks_of
from adjointlab.checks.context import InputSetting
from adjointlab.checks.verdict import Status
from adjointlab.engine.case import Case
from adjointlab.engine.case_body import body
from adjointlab.engine.run_case import judge
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.layers.subjects.linear import linears
from adjointlab.worlds.simulated.world import SimulatedWorld
from tests.samples import RingShift, equal_blocks

A_CHECK = """
from adjointlab.checks.check import Check, all_checks, check_named, checks_of
from adjointlab.checks.verdict import coherent

class AnotherCheck(Check):
    name = "another"
    order = 15

    def observe(self, context):
        return None

    def judge(self, spaces, observations):
        return coherent()

ANOTHER = AnotherCheck()
"""


def test_a_check_in_a_file_of_its_own_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "another.py").write_text(A_CHECK)
    monkeypatch.setattr(adjointlab.checks, "__path__", [*adjointlab.checks.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "adjointlab.checks.another", raising=False)

    found = all_checks.__wrapped__()
    monkeypatch.delitem(sys.modules, "adjointlab.checks.another")

    assert list(found)[:3] == ["adjoint", "another", "matrix"]
    assert set(found) == {"another", *all_checks()}


def test_two_checks_of_one_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "another.py").write_text(A_CHECK.replace('"another"', '"adjoint"'))
    monkeypatch.setattr(adjointlab.checks, "__path__", [*adjointlab.checks.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "adjointlab.checks.another", raising=False)

    with pytest.raises(TypeError, match="two checks are called 'adjoint'"):
        all_checks.__wrapped__()
    monkeypatch.delitem(sys.modules, "adjointlab.checks.another")


def test_no_class_of_checks_is_left_without_an_instance() -> None:
    def concrete(kind: type[Check[Any]]) -> set[type[Check[Any]]]:
        below = {each for sub in kind.__subclasses__() for each in concrete(sub)}
        return below if inspect.isabstract(kind) else {kind, *below}

    of_tests = ("adjointlab.checks.another", "tests.")
    defined = {kind for kind in concrete(Check) if not kind.__module__.startswith(of_tests)}
    assert {type(check) for check in all_checks().values()} == defined


def test_users_are_told_the_checks_that_they_may_ask_for() -> None:
    with pytest.raises(
        ValueError,
        match=r"'adjont' is not one of adjoint, matrix, .*, double_backward; did you mean adjoint\?$",
    ):
        check_named("adjont")


def test_follow_ups_and_the_proof_belong_to_no_subject() -> None:
    on_request = {check.name for check in all_checks().values() if check.order is None}
    assert on_request == {"gradcheck", "proof", "witness"}


def test_checks_come_in_the_order_in_which_the_documentation_lists_them() -> None:
    text = (Path(__file__).parents[2] / "docs" / "design.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \| (?:is|are|do|does) ", text, re.MULTILINE)
    assert listed == [check.name for check in all_checks().values() if check.order is not None]


def test_checks_that_see_early_draw_a_part_of_the_cases() -> None:
    # As docs/power.md says, with the reasons.
    parts = dict.fromkeys(("matrix", "specification"), 0.5)
    parts |= dict.fromkeys(("linearity", "declared", "purity"), 0.4)
    parts |= dict.fromkeys(("sequential", "jacobian", "double_backward"), 0.4)
    parts |= {"gradients": 0.7, "reentrancy": 0.3}
    for name, check in all_checks().items():
        if check.order is None:
            continue
        part = parts.get(name, 1)
        assert check.share == part, name
        assert [check.cases_of(asked, linears) for asked in (1, 10, 11)] == [
            math.ceil(part * asked) for asked in (1, 10, 11)
        ]


def test_inputs_of_other_kinds_and_communicators_left_behind_are_matters_of_few_checks() -> None:
    # As docs/layers.md says; the others' verdicts stand beside the one on what is left behind.
    checks = all_checks().values()
    assert {check.name for check in checks if check.varies_values} == {"sequential", "gradients", "training"}
    assert {check.name for check in checks if check.finds_leaks} == {"purity"}


@pytest.mark.parametrize("name", [*checks_of(al.subject(RingShift)(equal_blocks)), "proof"])
def test_observations_are_judged_alike_after_pickling(name: str) -> None:
    parameters = {"layout": al.Layout((4,), al.Partition((2,)))}
    case = Case("RingShift", name, 2, parameters, InputSetting(), 0)
    with check_named(name).surroundings():
        run = SimulatedWorld(2).run(body(al.subject(RingShift)(equal_blocks)), case, 2)
    # Each rank's on its own, as between processes: what the ranks share, such as one NaN, is not shared then.
    pickled = replace(run, outcomes=tuple(pickle.loads(pickle.dumps(outcome)) for outcome in run.outcomes))  # noqa: S301

    assert judge(case, pickled).is_coherent


class Inapplicable(Exception):
    """A user's own exception, which is called as the lab's is."""


class NotInSpace(Inapplicable):
    pass


class Overdue(Inapplicable):
    pass


class SubjectError(Inapplicable):
    pass


@pytest.mark.parametrize("kind", [Inapplicable, NotInSpace, Overdue, SubjectError])
def test_a_users_exception_of_the_same_name_is_the_users(kind: type[Exception]) -> None:
    class Raises(RingShift):
        def forward(self, x: Any) -> Any:
            raise kind("not today")

    report = investigate(SimulatedWorld(2), al.subject(Raises)(equal_blocks), "adjoint", Budget(5, seed=1))

    assert report.verdict.status is Status.UNJUDGED
    assert report.verdict.kind == f"raised {kind.__name__}"
    assert report.case is not None
