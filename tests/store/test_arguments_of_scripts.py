"""A script that shows two inner products makes the arguments of the case and names what it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import adjointlab as al
from adjointlab.checks.check import Spaces
from adjointlab.checks.context import InputSetting
from adjointlab.checks.verdict import MatrixEntry, Status, Verdict
from adjointlab.engine.case import Case
from adjointlab.engine.search_result import SearchResult
from adjointlab.engine.subject import Subject
from adjointlab.store.script import script

LAYOUT = al.Layout((2,), al.Partition((2,)))
SPACE = al.Space(LAYOUT)
WITHOUT_SPACES = "if k not in ('domain', 'codomain', 'gain', 'rounding')"


class Scaled(al.LinearOperator):
    def __init__(self, comm: Any, domain: al.Space, by: Any) -> None:
        self.comm, self.domain, self.codomain, self.by = comm, domain, domain, by

    def forward(self, x: Any) -> Any:
        return self.by * x

    def adjoint(self, y: Any) -> Any:
        return y


def scaled(comm: Any, x: Any, by: Any) -> Any:
    return by * x


@al.subject(Scaled)
def operators(draw: Any, ranks: int) -> dict[str, Any]:
    return {}


@al.subject.pair(scaled, scaled)
def pairs(draw: Any, ranks: int) -> dict[str, Any]:
    return {}


def text_of(subject: Subject, parameters: dict[str, Any], library: str = "numpy") -> str:
    verdict = Verdict(Status.INCOHERENT, "wrong", "wrong", (), entry=MatrixEntry(0, 1))
    case = Case("scaled", "adjoint", 2, parameters, InputSetting(0, library), 0)
    result = SearchResult("scaled", "adjoint", "mpi", verdict, 1, 0, 0.0, case, Spaces(SPACE, SPACE))
    text = script(case, result, subject, Path("name.json"))
    assert text is not None
    return text


@pytest.mark.parametrize(
    ("subject", "by", "arguments", "leaves_out"),
    [
        (operators, 2, "dict(read(", False),
        (operators, LAYOUT, "dict(read(", False),
        (pairs, 2, "{'by': 2}", False),
        (pairs, LAYOUT, "dict(read(", True),
    ],
)
def test_an_operator_gets_all_arguments_and_a_pair_all_but_its_spaces(
    subject: Subject, by: Any, arguments: str, leaves_out: bool
) -> None:
    text = text_of(subject, {"domain": SPACE, "codomain": SPACE, "by": by})

    assert f"arguments = {arguments}" in text
    assert (WITHOUT_SPACES in text) is leaves_out
    assert ("the JSON file beside it" in text) is (arguments == "dict(read(")


@pytest.mark.parametrize(
    ("library", "needs"), [("numpy", "mpi4py, NumPy, "), ("torch", "mpi4py, NumPy, torch, ")]
)
def test_the_library_of_the_case_is_needed_and_imported_and_no_other(library: str, needs: str) -> None:
    text = text_of(pairs, {"domain": SPACE, "codomain": SPACE, "by": 2}, library)

    assert f"It needs {needs}adjointlab, and what " in text
    assert ("import torch" in text) is (library == "torch")
    assert ("torch.from_numpy(array)" in text) is (library == "torch")
