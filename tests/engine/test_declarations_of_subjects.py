"""What a declaration makes of its arguments, and each sentence with which it refuses them."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import strategies as st

import adjointlab as al
from adjointlab.checks.elements import ORDERS
from adjointlab.engine.adapters import Differentiable, FunctionPair, Ranks
from adjointlab.engine.subject import Kind, Subject, SubjectError, declarations
from tests.drawing import first_examples
from tests.samples import RingShift

SPACE = al.Space(al.Layout((4,), (2,)))


def cases(draw: Any, ranks: int) -> dict[str, Any]:
    return {"domain": SPACE, "codomain": SPACE, "ranks": ranks}


def copied(*x: Any, **arguments: Any) -> Any:
    return x[-1]


def kept(*x: Any, side: int) -> Any:
    return x[-1]


def listed() -> list[Any]:
    return []


def module(width: int) -> Any:
    return width


def parallel_module(of: Any, mesh: Any) -> Any:
    return of


def operator(**options: Any) -> Subject:
    return al.subject.operator(RingShift, **options)(cases)


# What is made


def test_a_subject_without_options_has_the_defaults() -> None:
    assert replace(operator(), declared_in="") == Subject(
        name="RingShift",
        kind=Kind.OPERATOR,
        build=RingShift,
        draws=cases,
        target=RingShift,
        reference=None,
        arrays=("numpy",),
        orders=ORDERS,
        ranks=(),
        every=None,
        twice_differentiable=False,
        takes_steps=False,
        process_group=False,
        rank_local=(),
        declared_in="",
    )
    bare = Subject("Ring", Kind.PAIR, RingShift, cases, RingShift)
    assert bare == Subject(
        "Ring",
        Kind.PAIR,
        RingShift,
        cases,
        RingShift,
        reference=None,
        arrays=("numpy",),
        orders=ORDERS,
        ranks=(),
        every=None,
        twice_differentiable=False,
        takes_steps=False,
        process_group=False,
        rank_local=(),
        declared_in="",
    )


def test_a_subject_keeps_its_options() -> None:
    options = {
        "reference": copied,
        "arrays": ["torch", "numpy"],
        "orders": ["offset", "row-major"],
        "ranks": [3, 2],
        "name": "Ring",
        "every": listed,
        "rank_local": ["mine"],
        "process_group": True,
    }
    subject = operator(**options)
    lists = ("arrays", "orders", "ranks", "rank_local")
    assert {name: getattr(subject, name) for name in options} == options | {
        name: tuple(options[name])  # type: ignore[arg-type]
        for name in lists
    }


@pytest.mark.parametrize(
    ("name", "shown"),
    [("Ring", "Ring"), ("", "RingShift"), ("a\0b\0", "a\\x00b\\x00"), ("a\udc80é", "a\\udc80é")],
)
def test_the_name_of_a_subject_can_stand_in_files(name: str, shown: str) -> None:
    assert operator(name=name).name == shown


def test_what_has_no_name_is_called_as_its_strategy() -> None:
    assert al.subject.operator(partial(RingShift, layout=3))(cases).name == "cases"


@pytest.mark.parametrize(
    ("declare", "kind", "library", "flags"),
    [
        (al.subject.operator(RingShift), Kind.OPERATOR, "numpy", ()),
        (al.subject.operator(RingShift, process_group=True), Kind.OPERATOR, "torch", ("process_group",)),
        (al.subject.pair(copied, module), Kind.PAIR, "numpy", ()),
        (al.subject.autograd(copied), Kind.AUTOGRAD, "torch", ()),
        (al.subject.autograd(copied, arrays=("torch-cuda",)), Kind.AUTOGRAD, "torch-cuda", ()),
        (al.subject.layer(module, module), Kind.LAYER, "torch", ()),
        (al.subject.layer(module, module, twice_differentiable=True), Kind.LAYER, "torch", ("twice_differentiable",)),
        (al.subject.parallel(module, parallel_module), Kind.LAYER, "torch", ("process_group",)),
        (al.subject.parallel(module, parallel_module, optimizer=copied, steps=2), Kind.LAYER, "torch", ("process_group", "takes_steps")),
        (al.subject.pipeline(module, parallel_module, loss=copied), Kind.LAYER, "torch", ("process_group",)),
        (al.subject.pipeline(module, parallel_module, loss=copied, optimizer=copied, steps=2), Kind.LAYER, "torch", ("process_group", "takes_steps")),
        (al.subject.dtensor(copied), Kind.LAYER, "torch", ("process_group",)),
        (al.subject.dtensor(copied, linear=True), Kind.AUTOGRAD, "torch", ("process_group",)),
    ],
)  # fmt: skip
def test_each_form_declares_its_kind(declare: Any, kind: Kind, library: str, flags: tuple[str, ...]) -> None:
    subject = declare(cases)
    assert (subject.kind, subject.arrays) == (kind, (library,))
    assert subject.is_layer == (kind is Kind.LAYER)
    assert (subject.draws.__module__, subject.draws.__name__) == (__name__, "cases")
    for flag in ("process_group", "takes_steps", "twice_differentiable"):
        assert getattr(subject, flag) == (flag in flags)


def test_a_recipe_has_all_that_its_declaration_says() -> None:
    parallel: Any = al.subject.parallel(
        module,
        parallel_module,
        data_parallel="mean",
        after_backward=copied,
        prepare=listed,  # type: ignore[arg-type]
        optimizer=copied,
        steps=3,
    )(cases)
    recipe = parallel.build.__self__
    assert (recipe.sequential, recipe.parallelize, recipe.data_parallel) == (module, parallel_module, "mean")
    assert (recipe.prepare, recipe.optimizer, recipe.steps) == (listed, copied, 3)
    assert recipe.after_backward is copied
    assert parallel.reference == recipe.twin
    assert parallel.target is parallel_module

    pipeline: Any = al.subject.pipeline(
        module,
        parallel_module,
        loss=copied,
        reduction="sum",
        after_backward=listed,
        prepare=listed,  # type: ignore[arg-type]
        optimizer=copied,
        steps=1,
    )(cases)
    recipe = pipeline.build.__self__
    assert (recipe.sequential, recipe.pipeline, recipe.loss) == (module, parallel_module, copied)
    assert (recipe.reduction, recipe.prepare, recipe.optimizer) == ("sum", listed, copied)
    assert (recipe.steps, recipe.after_backward) == (1, listed)
    assert pipeline.reference == recipe.twin
    assert pipeline.target is parallel_module


def test_a_function_of_dtensors_is_its_own_reference_unless_there_is_another() -> None:
    for linear, method, build in ((True, "apply", "operator"), (False, "twin", "layer")):
        for reference in (None, listed):
            options: Any = {} if reference is None else {"reference": reference}
            subject: Any = al.subject.dtensor(copied, linear=linear, **options)(cases)
            recipe = subject.build.__self__
            assert subject.target is copied
            assert subject.build == getattr(recipe, build)
            assert subject.reference == getattr(recipe, method)
            assert (recipe.function, recipe.reference) == (copied, reference or copied)


@pytest.mark.parametrize(
    ("given", "library", "expected"),
    [
        ({}, FunctionPair, (Ranks.COMMUNICATOR, ("comm",))),
        ({"process_group": True}, FunctionPair, (Ranks.PROCESS_GROUP, ())),
        ({}, Differentiable, (Ranks.COMMUNICATOR, ("comm",))),
        ({"process_group": True}, Differentiable, (Ranks.PROCESS_GROUP, ())),
    ],
)
def test_functions_get_a_communicator_unless_there_is_a_process_group(
    given: Any, library: type, expected: tuple[Ranks, tuple[str, ...]]
) -> None:
    pytest.importorskip("torch")
    declare = (
        al.subject.pair(kept, kept, **given)
        if library is FunctionPair
        else al.subject.autograd(kept, **given)
    )
    comm: Any = SimpleNamespace()
    made: Any = declare(cases).make(comm, {"domain": SPACE, "codomain": SPACE, "side": 3, "gain": 2})
    assert type(made) is library
    assert (made.comm, made.domain, made.codomain, made.gain) == (comm, SPACE, SPACE, 2)
    assert made._arguments == {"side": 3}
    assert len(made._comm) == len(expected[1])


def test_a_pair_knows_its_functions_and_other_kinds_have_none() -> None:
    assert al.subject.pair(copied, module)(cases).pair == (copied, module)
    assert al.subject.layer(module, module)(cases).pair == ()
    assert operator().pair == ()


def test_a_specification_is_that_of_the_operators_own_class() -> None:
    class Specified(RingShift):
        def specification(self) -> None:
            return None

    assert not operator().has_specification
    assert al.subject.operator(Specified)(cases).has_specification
    assert not al.subject.operator(lambda comm: None, name="made")(cases).has_specification  # type: ignore[arg-type,return-value]


def test_declarations_are_noted_while_they_are_asked_for() -> None:
    with declarations() as outer:
        one = operator()
        with declarations() as inner:
            other = operator()
        last = operator()
    operator()
    assert (outer, inner) == ([one, last], [other])


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
        ((4, 2), 1, (1,)),
        ((9, 5), 4, (4,)),
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
        "RingShift: draws no tensors in memory of cuda, but in torch, numpy; leave out --device cuda, or name a memory of "
        "cuda in @subject(..., arrays=...)"
    )
    with pytest.raises(SubjectError, match=f"^{re.escape(refused)}$"):
        operator(arrays=("torch", "numpy")).libraries("cuda")
    refused = "RingShift: none of the array libraries ('cupy', 'jax') is installed"
    with pytest.raises(SubjectError, match=f"^{re.escape(refused)}$"):
        operator(arrays=("cupy", "jax")).libraries()


@pytest.mark.parametrize(("rank_local", "separated"), [(("mine", "yours"), [("mine", "yours")]), ((), [])])
def test_modules_of_simulated_ranks_are_separated_where_that_is_asked_for(
    rank_local: tuple[str, ...], separated: list[Any]
) -> None:
    asked: list[Any] = []
    comm: Any = SimpleNamespace(separate=asked.append)
    subject = operator(rank_local=rank_local)
    with subject.surroundings(comm) as inside:
        assert inside is None
    assert asked == separated
    processes: Any = SimpleNamespace()
    with subject.surroundings(processes):
        pass


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


NEEDS = "strategy: the strategy's dictionary needs `{}`, of each input"
FROZEN = st.sampled_from((0, 0, 0, 1, 2, 3))


@pytest.mark.parametrize(
    ("declare", "given", "expected"),
    [
        (al.subject.parallel(module, parallel_module), {"inputs": (4,)}, {"mesh": (3,), "inputs": (4,), "frozen": FROZEN}),
        (al.subject.parallel(module, parallel_module), {"inputs": (4,), "frozen": 0, "mesh": (1, 3)}, {"mesh": (1, 3), "inputs": (4,), "frozen": 0}),
        (al.subject.pipeline(module, parallel_module, loss=copied), {"inputs": (4,)}, {"inputs": (4,)}),
        (al.subject.dtensor(copied), {"inputs": (4,), "placements": []}, {"mesh": (3,), "inputs": (4,), "placements": []}),
        (al.subject.dtensor(copied, linear=True), {"inputs": (4,), "placements": [], "mesh": 1}, {"mesh": 1, "inputs": (4,), "placements": []}),
        (al.subject.parallel(module, parallel_module), {"input": (4,)}, NEEDS.format("inputs")),
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
