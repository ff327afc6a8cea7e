"""The dot test of one instance puts together what the inner products and the entries of the matrix say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import adjointlab as al
from adjointlab.checks.check import Spaces
from adjointlab.checks.context import InputSetting
from adjointlab.checks.verdict import Figure, Verdict, coherent, incoherent
from adjointlab.engine import dot_test
from adjointlab.engine.dot_test import check_adjoint

pytestmark = pytest.mark.mpi_skip


class Ring:
    """An operator of so many dimensions, among two ranks."""

    def __init__(self, domain: int, codomain: int) -> None:
        self.domain, self.codomain = (al.Space(al.Layout((n,), (1,))) for n in (domain, codomain))
        self.comm = SimpleNamespace(
            Get_size=lambda: 2, allgather=lambda value: [value, f"{value} of the other rank"]
        )


EXACT = coherent({Figure.MISS_PROBABILITY: 3.2e-10}, is_exact=True)
ROUNDED = coherent({Figure.FLOATING_ERROR: 1e-16})
WRONG = incoherent("adjoint is not the transpose of forward", ("⟨Fx, y⟩", "3"))
WRONG_EXACT = Verdict(WRONG.status, WRONG.headline, WRONG.kind, WRONG.lines, is_exact=True)
ENTRY = incoherent("an entry is wrong", ("forward", "moves x[0]"))
NEVER = incoherent("never asked for")
HIDING = "coherent (within rounding, in which a small error may hide)"
TEXT = "Ring: adjoint is not the transpose of forward\n  ⟨Fx, y⟩  3"


@pytest.mark.parametrize(
    ("dimensions", "products", "entries", "text", "is_coherent"),
    [
        ((256, 256), EXACT, NEVER, "coherent (exact; missed with probability 3e-10)", True),
        ((257, 257), EXACT, NEVER, "coherent (exact; missed with probability 3e-10)", True),
        ((256, 256), ROUNDED, coherent(), "coherent (every entry)", True),
        ((1, 256), ROUNDED, coherent(), "coherent (every entry)", True),
        ((257, 256), ROUNDED, NEVER, HIDING, True),
        ((256, 257), ROUNDED, NEVER, HIDING, True),
        ((256, 256), ROUNDED, ENTRY, "Ring: an entry is wrong\n  forward  moves x[0]", False),
        ((256, 256), WRONG, ENTRY, f"{TEXT}\n  forward  moves x[0]", False),
        ((256, 256), WRONG_EXACT, ENTRY, f"{TEXT}\n  forward  moves x[0]", False),
        ((256, 256), WRONG, coherent(), TEXT, False),
        ((257, 1), WRONG, NEVER, TEXT, False),
        ((1, 257), WRONG_EXACT, NEVER, TEXT, False),
    ],
)
def test_the_verdict_says_what_it_rests_on(
    dimensions: tuple[int, int],
    products: Verdict,
    entries: Verdict,
    text: str,
    is_coherent: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    operator: Any = Ring(*dimensions)
    both = Spaces(operator.domain, operator.codomain)
    contexts: list[Any] = []

    def context(make: Any, setting: InputSetting, comm: Any) -> str:
        assert make() is operator
        contexts.append((setting, comm))
        return "context"

    class Products:
        def observe(self, given: str) -> str:
            return f"products in {given}"

        def judge(self, spaces: Spaces, seen: list[str]) -> Verdict:
            assert spaces == both
            assert seen == ["products in context", "products in context of the other rank"]
            return products

    class Entries:
        def __init__(self, *, limit: int) -> None:
            assert limit == 256

        def observe(self, given: str) -> str:
            return f"entries in {given}"

        def judge(self, spaces: Spaces, seen: list[str]) -> Verdict:
            assert spaces == both
            assert seen == ["entries in context", "entries in context of the other rank"]
            assert entries is not NEVER
            return entries

    monkeypatch.setattr(dot_test, "CheckContext", context)
    monkeypatch.setattr(dot_test, "AdjointCheck", Products)
    monkeypatch.setattr(dot_test, "MatrixCheck", Entries)
    if is_coherent:
        verdict = check_adjoint(operator, seed=3, library="torch")
        assert str(verdict) == text
        assert (verdict.status, verdict.figures, verdict.is_exact) == (
            products.status,
            products.figures,
            products.is_exact,
        )
    else:
        with pytest.raises(AssertionError) as wrong:
            check_adjoint(operator, seed=3, library="torch")
        assert str(wrong.value) == text
        # pytest and IPython show the line of the call.
        assert all("__tracebackhide__" in entry.locals for entry in wrong.traceback[1:])
    assert contexts == [(InputSetting(3, "torch"), operator.comm)]


def test_the_values_are_those_of_seed_0_in_numpy_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    settings: list[InputSetting] = []

    def context(make: Any, setting: InputSetting, comm: Any) -> None:
        settings.append(setting)
        raise StopIteration

    monkeypatch.setattr(dot_test, "CheckContext", context)
    operator: Any = Ring(1, 1)
    with pytest.raises(StopIteration):
        check_adjoint(operator)
    assert settings == [InputSetting(0, "numpy")]


@pytest.mark.parametrize(
    ("attributes", "missing"), [("", "comm"), ("comm", "domain"), ("comm domain", "codomain")]
)
def test_what_is_no_operator_is_told_the_first_thing_that_it_lacks(attributes: str, missing: str) -> None:
    given: Any = SimpleNamespace(**dict.fromkeys(attributes.split()))
    with pytest.raises(TypeError) as refused:
        check_adjoint(given)
    assert str(refused.value) == (
        f"operator: a SimpleNamespace has no {missing}; derive it from adjointlab.LinearOperator, or wrap it: "
        "docs/adapters.md has adapters for operators of other libraries"
    )
