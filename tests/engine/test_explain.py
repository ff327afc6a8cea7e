"""An operator is explained on the smallest case that shows something: elements on every rank, and messages where there are any."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

import adjointlab as al
from adjointlab.core.program import Buffer, Program, move_to_new
from adjointlab.engine import explain as module
from adjointlab.engine.explain import explained
from adjointlab.engine.subject import Subject, SubjectError
from adjointlab.primitives.send_receive import SendReceive
from adjointlab.worlds.run import Returned, Run
from tests.samples import RingShift


def rings(draw: Any, ranks: int) -> dict[str, Any]:
    return {"layout": al.Layout((draw(st.integers(0, 5)),), (ranks,))}


def sends(draw: Any, ranks: int) -> dict[str, Any]:
    source, destination = (draw(st.integers(0, ranks - 1)) for _ in range(2))
    layout = al.Layout((draw(st.integers(0, 5)),), al.Partition((1,), [source]))
    return {"layout": layout, "destination": destination}


def spaces(subject: Any, ranks: int) -> list[str]:
    """The lines of the domain and the codomain."""
    assert isinstance(subject, Subject)
    return [line.strip() for line in explained(subject, ranks)[0].split("\n\n")[0].splitlines()[1:]]


@pytest.mark.parametrize(
    ("ranks", "cut"), [(1, "[2] cut at 0|2"), (2, "[2] cut at 0|1|2"), (3, "[3] cut at 0|1|2|3")]
)
def test_there_are_two_elements_and_something_on_every_rank(ranks: int, cut: str) -> None:
    shown = spaces(al.subject(RingShift)(rings), ranks)
    assert shown == [f"{to}  x: {cut} float64 over {ranks}" for to in ("from", "to  ")]


def test_something_is_sent_where_the_program_can_send() -> None:
    subject = al.subject(SendReceive)(sends)
    assert spaces(subject, 2) == [
        "from  x: [2] cut at 0|2 float64 over 1",
        "to    x: [2] cut at 0|2 float64 over 1",
        "to    y: [2] cut at 0|2 float64 over 1 over ranks 1",
    ]
    text, drawing = explained(subject, 2)
    assert "Forward" in text
    assert drawing
    # Of three ranks one has nothing, so any case has to do.
    assert spaces(subject, 3)[0] == "from  x: [0] cut at 0|0 float64 over 1"


def test_without_a_telling_case_the_smallest_one_is_explained() -> None:
    empty = al.subject(RingShift)(lambda draw, ranks: {"layout": al.Layout((0,), (ranks,))})
    assert "[0]" in spaces(empty, 2)[0]


def test_what_cannot_be_explained_is_told() -> None:
    def none(draw: Any, ranks: int) -> dict[str, Any]:
        hypothesis.reject()

    def no_dictionary(draw: Any, ranks: int) -> Any:
        return 3

    def raises(comm: Any, layout: al.Layout) -> Any:
        if comm.Get_rank() == 1:
            raise RuntimeError("no second rank")
        return RingShift(comm, layout)

    layer = al.subject.layer(lambda comm, layout: None, lambda layout: None, name="Layer")(rings)
    for subject, told in (
        (layer, "Layer is a layer; only linear operators have a program to explain"),
        (
            al.subject(RingShift)(none),
            "RingShift: its strategy draws no case on 2 ranks; give others with --ranks",
        ),
        (al.subject(RingShift)(no_dictionary), "the strategy returned 3, not a dictionary"),
        (
            al.subject(raises, name="Pair")(rings),
            "Pair: the operator cannot be made: rank 1 raised RuntimeError: no second rank",
        ),
    ):
        assert isinstance(subject, Subject)
        with pytest.raises((ValueError, SubjectError), match=told):
            explained(subject, 2)


# The choice of the case, from what is made in each

Held = tuple[bool, tuple[int, ...], tuple[int, ...]]


def chosen(held: Callable[[int], Held], monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """The side that is chosen where cases of a side have messages, or not, and hold so much on two ranks; and how many were tried."""
    tried: list[int] = []

    def make(world: Any, subject: Subject, parameters: Any, ranks: int) -> Run:
        tried.append(parameters["side"])
        has_messages, domain, codomain = held(parameters["side"])
        each = zip((has_messages, False), domain, codomain, strict=False)
        return Run(tuple(Returned(module._Explanation("", None, *sizes)) for sizes in each))

    monkeypatch.setattr(module, "_make", make)
    subject = al.subject(RingShift)(lambda draw, ranks: {"side": draw(st.integers(0, 10**6))})
    world: Any = None
    return module._smallest(world, subject, 2)["side"], len(tried)


@pytest.mark.parametrize(
    ("held", "side"),
    [
        (lambda side: (side > 6, (side > 2, 1), (1, side > 2)), 7),
        (lambda side: (side > 2, (side > 6, 1), (1, side > 6)), 7),
        (lambda side: (side > 6, (1, 1), (1, 1)), 7),
        (lambda side: (False, (side > 2, 1), (1, side > 2)), 3),
        (lambda side: (True, (1, side > 3), (2, 2)), 4),
        (lambda side: (True, (2, 2), (side > 3, 1)), 4),
        (lambda side: (True, (2, 2), (2 * (side > 3), 0)), 4),
        (lambda side: (True, (0, 2 * (side > 3)), (2, 2)), 4),
        (lambda side: (True, (2, side > 3), (2, 0)), 4),
        (lambda side: (True, (2, 0), (2, 1)), 0),
        (lambda side: (True, (2, 2)[: 1 + (side > 3)], (2, 2)), 4),
        (lambda side: (True, (2, 0), (2, 0)), 0),
    ],
)
def test_the_smallest_case_with_messages_or_else_with_elements_everywhere_is_chosen(
    held: Callable[[int], Held], side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert chosen(held, monkeypatch)[0] == side


def test_a_case_is_looked_for_among_three_hundred(monkeypatch: pytest.MonkeyPatch) -> None:
    # Once with messages, once without.
    assert chosen(lambda side: (True, (0, 0), (0, 0)), monkeypatch) == (0, 600)


def test_the_program_of_forward_says_whether_there_are_messages() -> None:
    given = Buffer(0, "a", (1,))
    local, sent = (Program([given], move_to_new(given, Buffer(rank, "b", (1,)))) for rank in (0, 1))
    for specification, has_messages in (((sent, local), True), ((local, sent), False), (None, False)):
        operator: Any = SimpleNamespace(specification=lambda given=specification: given)
        assert module._has_messages(operator) is has_messages


def test_an_explanation_begins_with_the_name_that_reports_have_for_the_subject() -> None:
    def kept(comm: Any, x: Any) -> Any:
        return x

    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        space = al.Space(al.Layout((2 * ranks,), (ranks,)))
        return {"domain": space, "codomain": space}

    title = {
        "kept": al.subject.pair(kept, kept)(cases),
        "RingShift": al.subject.operator(RingShift)(rings),
        "periodic: RingShift": al.subject.operator(RingShift, name="periodic")(rings),
    }
    assert [explained(subject, 2)[0].splitlines()[0] for subject in title.values()] == list(title)
