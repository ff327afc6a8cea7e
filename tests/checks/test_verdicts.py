"""Verdicts are equal where they say the same; what shows them is neither compared nor printed."""

from __future__ import annotations

from types import SimpleNamespace

from adjointlab.checks.evidence import Evidence, Wait
from adjointlab.checks.verdict import MatrixEntry, coherent, incoherent, unjudged


def test_verdicts_are_equal_whatever_entry_and_evidence_show_them() -> None:
    plain = incoherent("wrong", ("error", "1"))
    shown = incoherent(
        "wrong", ("error", "1"), entry=MatrixEntry(0, 1), evidence=Evidence(waits=(Wait(0, "a", "b:1", ()),))
    )
    assert shown == plain
    assert shown.entry != plain.entry
    assert "Wait" not in repr(shown)
    assert plain != incoherent("wrong", ("error", "2"))


def test_a_verdict_is_neither_exact_nor_a_hang_nor_a_death_unless_it_says_so() -> None:
    for verdict in (coherent(), incoherent("wrong"), unjudged("cause")):
        assert [verdict.is_exact, verdict.is_hang, verdict.is_death] == [False] * 3
    assert coherent(is_exact=True).is_exact


def test_notebooks_print_a_verdict_as_its_text() -> None:
    printed: list[str] = []
    incoherent("wrong", ("error", "1"))._repr_pretty_(SimpleNamespace(text=printed.append), cycle=False)
    assert printed == ["wrong\n  error  1"]
