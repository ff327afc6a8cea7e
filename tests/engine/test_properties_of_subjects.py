"""A subject has a place, numbers of ranks, array libraries and parameters that follow from its declaration."""

from __future__ import annotations

import re
import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import strategies as st

import adjointlab as al
from adjointlab.engine.subject import Kind, Subject, SubjectError
from tests.drawing import first_examples
from tests.engine.test_declarations_of_subjects import copied, module, operator, parallel_module
from tests.samples import RingShift

pytestmark = pytest.mark.mpi_skip

# Names


def test_a_subject_is_placed_by_the_module_of_its_strategy_or_the_one_that_declared_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def strategy(draw: Any, ranks: int) -> Any:
        return {}

    strategy.__module__ = "of_the_strategy"
    subject = Subject("Ring", Kind.PAIR, RingShift, strategy, RingShift, declared_in="declaring")
    assert (subject.place, subject.location) == (None, "of_the_strategy:strategy")
    assert (subject.distinction, subject.label) == ("", "Ring")
    declaring, of_strategy = ModuleType("declaring"), ModuleType("of_the_strategy")
    monkeypatch.setitem(sys.modules, "declaring", declaring)
    monkeypatch.setitem(sys.modules, "of_the_strategy", of_strategy)
    declaring.first = declaring.second = subject  # type: ignore[attr-defined]
    assert (subject.place, subject.location) == (("declaring", "first"), "declaring:first")
    # Two names of one subject tell nothing apart, and neither does another kind of object.
    declaring.third = SimpleNamespace(name="Ring")  # type: ignore[attr-defined]
    assert subject.label == "Ring"
    declaring.other = Subject("Other", Kind.PAIR, RingShift, strategy, RingShift)  # type: ignore[attr-defined]
    assert subject.label == "Ring"
    declaring.namesake = Subject("Ring", Kind.PAIR, RingShift, strategy, RingShift)  # type: ignore[attr-defined]
    assert (subject.distinction, subject.label) == ("[first]", "Ring[first]")
    of_strategy.own = subject  # type: ignore[attr-defined]
    assert (subject.place, subject.label) == (("of_the_strategy", "own"), "Ring")


# Ranks and libraries


@pytest.mark.parametrize(
    ("ranks", "most", "drawn"),
    [
        ((), 1, (1,)),
        ((), 2, (1, 2)),
        ((), 7, (1, 2, 3, 4, 5, 6, 7)),
        ((), 9, (1, 2, 3, 4, 5, 6, 7, 8, 9)),
        ((), 16, (1, 2, 3, 4, 5, 6, 7, 8, 16)),
        ((), 33, (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 33)),
        ((4, 2, 3), 3, (2, 3)),
        ((4, 2, 3), 4, (2, 3, 4)),
        ((4, 2), 1, ()),
        ((9, 5), 5, (5,)),
    ],
)
def test_the_numbers_of_ranks_of_a_subject(ranks: tuple[int, ...], most: int, drawn: tuple[int, ...]) -> None:
    assert operator(ranks=ranks).ranks_up_to(most) == drawn


def test_arrays_are_drawn_from_the_libraries_that_are_there_and_on_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    present = {"numpy", "torch", "torch-cuda"}
    monkeypatch.setattr("adjointlab.core.arrays.installed", present.__contains__)
    subject = operator(arrays=("torch", "cupy", "torch-cuda", "numpy"))
    assert subject.libraries() == ("torch", "torch-cuda", "numpy")
    assert subject.libraries("cpu") == ("torch", "numpy")
    assert subject.libraries("cuda") == ("torch-cuda",)
    refused = (
        "RingShift: draws no tensors in cuda memory, but in torch, numpy; leave out --device cuda, or name a memory of "
        "cuda in arrays=... of its decorator"
    )
    with pytest.raises(SubjectError, match=f"^{re.escape(refused)}$"):
        operator(arrays=("torch", "numpy")).libraries("cuda")
    refused = "RingShift: none of the array libraries ('cupy',) is installed"
    with pytest.raises(SubjectError, match=f"^{re.escape(refused)}$"):
        operator(arrays=("cupy",)).libraries()


@pytest.mark.parametrize(("rank_local", "separated"), [(("sys", "re"), [("sys", "re")]), ((), [])])
def test_modules_of_simulated_ranks_are_separated_where_that_is_asked_for(
    rank_local: tuple[str, ...], separated: list[Any]
) -> None:
    asked: list[Any] = []
    state = SimpleNamespace(put_back=nullcontext)
    comm: Any = SimpleNamespace(separate=lambda packages: asked.append(packages) or state)
    with operator(rank_local=rank_local).surroundings(comm) as before:
        assert before is nullcontext
    assert asked == separated


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("nowhere", ""),
        ("hypothesi", "; did you mean hypothesis?"),
        ("adjointlab.engine.subject.Subject", "; name the module adjointlab.engine.subject"),
    ],
)
def test_a_name_in_rank_local_that_no_imported_module_has_is_refused(name: str, advice: str) -> None:
    refused = f"rank_local: '{name}' is none of the modules that are imported when a case begins: import it with the subject{advice}"
    comm: Any = SimpleNamespace()
    with pytest.raises(SubjectError, match=f"^{re.escape(refused)}$"):
        operator(rank_local=(name,)).surroundings(comm).__enter__()


def test_the_next_case_of_a_process_finds_variables_as_they_were_before_this_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module: Any = ModuleType("mine")
    module.size = 1
    monkeypatch.setitem(sys.modules, "mine", module)
    process: Any = SimpleNamespace()
    with operator(rank_local=("mine",)).surroundings(process) as before:
        module.size = 2
        with before():
            assert module.size == 1
        assert module.size == 2
    assert module.size == 1


# The parameters


def test_a_strategy_has_the_number_of_ranks_and_draws_a_dictionary_of_its_own() -> None:
    given = {"side": 3}
    subject = al.subject.operator(RingShift)(lambda draw, ranks: given)
    assert first_examples(subject.parameters(5), 1)[0] == given
    assert first_examples(operator().parameters(5), 1)[0]["ranks"] == 5
    drawn = first_examples(subject.parameters(5), 1)[0]
    assert drawn is not given
    no_dictionary = al.subject.operator(RingShift)(lambda draw, ranks: [1])
    refused = (
        "RingShift: the strategy returned [1], not a dictionary of arguments; write it as "
        "`def cases(draw, ranks): return dict(...)`, the arguments of one case"
    )
    with pytest.raises(SubjectError, match=f"^{re.escape(refused)}$"):
        no_dictionary.drawn(lambda strategy: strategy, 2)  # type: ignore[arg-type]
    undrawn = al.subject.operator(RingShift)(lambda draw, ranks: st.just({}))
    told = re.escape(
        "RingShift: the strategy returned just({}), not a dictionary of arguments; is a `draw(...)` around it missing?"
    )
    with pytest.raises(SubjectError, match=f"^{told}$"):
        undrawn.drawn(lambda strategy: strategy, 2)  # type: ignore[arg-type]


NEEDS = "strategy: the strategy's dictionary needs `{}`, of each input"
FROZEN = st.sampled_from((*(0,) * 200, *range(1, 201)))


@pytest.mark.parametrize(
    ("declare", "given", "expected"),
    [
        (al.subject.parallel(module, parallel_module), {"inputs": (4,)}, {"mesh": (3,), "inputs": (4,), "frozen": FROZEN}),
        (al.subject.parallel(module, parallel_module), {"inputs": (4,), "frozen": 0, "mesh": (1, 3)}, {"mesh": (1, 3), "inputs": (4,), "frozen": 0}),
        (al.subject.parallel(module, parallel_module), {"inputs": (4,), "frozen": 0, "training": True}, {"mesh": (3,), "inputs": (4,), "frozen": 0, "training": True}),
        (al.subject.pipeline(module, parallel_module, loss=copied), {"inputs": (4,)}, {"inputs": (4,)}),
        (al.subject.dtensor(copied), {"inputs": (4,), "placements": []}, {"mesh": (3,), "inputs": (4,), "placements": []}),
        (al.subject.dtensor(copied, linear=True), {"inputs": (4,), "placements": [], "mesh": 1}, {"mesh": 1, "inputs": (4,), "placements": []}),
        (al.subject.parallel(module, parallel_module), {"input": (4,)}, NEEDS.format("inputs") + ": it is perhaps what is called input"),
        (al.subject.parallel(module, parallel_module), {"of": (4,)}, NEEDS.format("inputs")),
        (al.subject.pipeline(module, parallel_module, loss=copied), {}, NEEDS.format("inputs")),
        (al.subject.dtensor(copied), {}, NEEDS.format("inputs")),
        (al.subject.dtensor(copied), {"inputs": 3}, NEEDS.format("placements")),
        (al.subject.dtensor(copied), [3], "returned [3], not a dictionary"),
    ],
)  # fmt: skip
def test_code_of_torch_distributed_has_a_mesh_of_all_ranks_and_frozen_parameters_by_default(
    declare: Any, given: Any, expected: Any
) -> None:
    def strategy(draw: Any, ranks: int) -> Any:
        return given

    subject = declare(strategy)
    if isinstance(expected, dict):
        drawn = subject.drawn(lambda strategy: strategy, 3)
        # Each is drawn as often as it stands there.
        assert repr(drawn) == repr(expected)
        assert given.keys() <= expected.keys()
        return
    with pytest.raises(SubjectError) as refused:
        subject.drawn(lambda strategy: strategy, 3)
    assert expected in str(refused.value)
