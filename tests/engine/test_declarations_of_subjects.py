"""Each form of declaration makes a subject of all that it is given."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

import adjointlab as al
from adjointlab.checks.memory_orders import ORDERS
from adjointlab.core.layer import PassHooks
from adjointlab.engine.adapters import Differentiable, FunctionPair, Ranks
from adjointlab.engine.noted import declarations
from adjointlab.engine.subject import Kind, Subject
from tests.samples import RingShift

pytestmark = pytest.mark.mpi_skip

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
    defaults: dict[str, Any] = {
        "reference": None,
        "arrays": ("numpy",),
        "orders": ORDERS,
        "ranks": (),
        "every": None,
        "twice_differentiable": False,
        "takes_steps": False,
        "process_group": False,
        "rank_local": (),
        "declared_in": "",
    }
    assert replace(operator(), declared_in="") == Subject(
        name="RingShift", kind=Kind.OPERATOR, build=RingShift, draws=cases, target=RingShift, **defaults
    )
    bare = Subject("Ring", Kind.PAIR, RingShift, cases, RingShift)
    assert bare == Subject("Ring", Kind.PAIR, RingShift, cases, RingShift, **defaults)


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
    [
        ("Ring", "Ring"),
        ("", "RingShift"),
        ("a\0b\0", "a\\x00b\\x00"),
        ("a\udc80é", "a\\udc80é"),
        ("a\nb\u2028c", "a\\nb\\u2028c"),
        (" ", "RingShift"),
    ],
)
def test_the_name_of_a_subject_can_stand_in_files(name: str, shown: str) -> None:
    assert operator(name=name).name == shown


def test_apply_of_an_autograd_function_stands_for_its_class() -> None:
    torch = pytest.importorskip("torch")

    class Doubled(torch.autograd.Function):
        pass

    assert al.subject.autograd(Doubled.apply)(cases).target is Doubled
    assert al.subject.autograd(Doubled.apply)(cases).name == "Doubled"
    assert al.subject.autograd(copied)(cases).target is copied


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
        before_backward=listed,
        after_backward=copied,
        context=nullcontext,
        prepare=listed,  # type: ignore[arg-type]
        optimizer=copied,
        steps=3,
    )(cases)
    recipe = parallel.build.__self__
    assert (recipe.sequential, recipe.parallelize, recipe.data_parallel) == (module, parallel_module, "mean")
    assert (recipe.prepare, recipe.optimizer, recipe.steps) == (listed, copied, 3)
    assert recipe.hooks == PassHooks(listed, copied, nullcontext)
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
    assert (recipe.steps, recipe.hooks) == (1, PassHooks(after_backward=listed))
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
