"""Each sentence with which a declaration, or an operator that is made, is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

import adjointlab as al
from adjointlab.checks.memory_orders import MIXED_ORDERS, ORDERS
from adjointlab.core.operator import LinearOperator
from adjointlab.engine.subject import Kind, Subject, SubjectError
from adjointlab.worlds.simulated.world import SimulatedWorld
from tests.engine.test_declarations_of_subjects import SPACE, cases, copied, module, operator, parallel_module
from tests.samples import RingShift

pytestmark = pytest.mark.mpi_skip


class Made:
    """Whatever is given as the operator of a subject."""

    def __init__(self, comm: Any, given: dict[str, Any]) -> None:
        vars(self).update(given)


@pytest.mark.parametrize(
    ("attributes", "told"),
    [
        ({"codomain": SPACE, "comm": 1}, "Made: the operator has no `domain`; set self.domain = adjointlab.Space(layout) when it is made"),
        ({"domain": SPACE, "codomain": 3, "comm": 1}, "Made: the operator has an int for its `codomain`; set self.codomain = adjointlab.Space(layout) when it is made"),
        ({"domain": al.Space(), "codomain": al.Space(), "comm": 1}, "Made: the spaces of the operator have no tensors, so there is nothing to check"),
        ({"domain": SPACE, "codomain": SPACE, "comm": 1, "gain": -3}, "Made: gain = -3 is not an integer of at least 1; it bounds the largest absolute row sum of any intermediate in both directions, and is 1 where each element goes to one place; an attribute of another meaning needs another name"),
        ({"domain": SPACE, "codomain": SPACE, "comm": 1, "fan_in": 0.5}, "Made: fan_in = 0.5 is not an integer of at least 1; it bounds the number of terms that are added up for an output; an attribute of another meaning needs another name"),
        ({"domain": SPACE, "codomain": SPACE}, "Made: the operator has no `comm`; set self.comm = comm when it is made"),
    ],
)  # fmt: skip
def test_an_operator_that_lacks_something_is_told_what(attributes: dict[str, Any], told: str) -> None:
    subject = Subject("Made", Kind.OPERATOR, Made, cases, Made)  # type: ignore[arg-type]
    comm: Any = SimpleNamespace()
    with pytest.raises(SubjectError, match=f"^{re.escape(told)}$"):
        subject.make(comm, {"given": attributes})
    right: Any = subject.make(comm, {"given": {"domain": SPACE, "codomain": SPACE, "comm": 1}})
    assert isinstance(right, Made)


def test_an_operator_is_told_of_arguments_that_it_does_not_take() -> None:
    comm: Any = SimpleNamespace()
    with pytest.raises(SubjectError, match=r"^the operator is called as RingShift\(comm, layot=…\), but"):
        operator().make(comm, {"layot": 3})


def test_a_layer_on_whose_second_rank_something_is_undeclared_is_refused_on_all() -> None:
    torch = pytest.importorskip("torch")

    def layer(comm: Any, layout: al.Layout) -> Any:
        return torch.nn.Linear(2, 2) if comm.Get_rank() == 1 else torch.nn.Identity()

    layout = al.Layout((2,), (2,))
    subject = al.subject.layer(layer, module, name="Net")(cases)
    parameters = {"layout": layout, "domain": al.Space(layout), "codomain": al.Space(layout)}
    run = SimulatedWorld(2).run(lambda context, _: subject.make(context.comm, parameters), None, 2)
    told = (
        "Net: on rank 1, the module has the parameter weight, which parameter_space does not name; it has the parameter bias, "
        "which parameter_space does not name. Declare all of them, as named_parameters() and named_buffers() call them: "
        "parameter_space = adjointlab.Space(adjointlab.Tensor(layout, name=...), ...), and buffer_space likewise, of the module "
        "or in the strategy's dictionary. A rank that holds nothing of a tensor has one of zero volume; a buffer that is "
        "constant is registered with persistent=False"
    )
    assert [(outcome.kind, outcome.message) for outcome in run.outcomes] == [("SubjectError", told)] * 2  # type: ignore[union-attr]


# Refusals of declarations

WHAT = (
    "@subject needs to know what to check: @subject.operator(MyOperator), @subject.pair(forward=..., adjoint=...), "
    "@subject.autograd(function) or @subject.layer(layer, sequential=...)"
)
LACKS = "@subject(forward=..., adjoint=...) lacks `{}`; the lab checks one against the other"
BOTH = "@subject(layer=..., sequential=...) takes both, and no other kind of subject"
ONE = "@subject takes one kind of subject, not {} together"
NO_GROUP = "process_group: False, and @subject.{} is for torch.distributed code: leave it out"
NAMELESS = partial(cases)
STEPS = "@subject.{} takes `steps` of at least 1 together with an `optimizer`"
OF_A_CASE = ". What belongs to a case, such as placements, is returned by the decorated function"
OPTIONS = "reference, arrays, orders, ranks, name, every, rank_local, process_group"
EXAMPLE = "write it as `def cases(draw, ranks): return dict(...)`, the arguments of one case"


class Abstract(LinearOperator):
    """Neither forward nor adjoint."""


class OnlyForward:
    def forward(self, x: Any) -> Any:
        return x


class OnlyAdjoint:
    def adjoint(self, x: Any) -> Any:
        return x


class OfSciPy:
    def rmatvec(self, y: Any) -> Any:
        return y


class BothOfThem(OnlyForward, OnlyAdjoint):
    pass


@pytest.mark.parametrize(
    ("declare", "told"),
    [
        (lambda: al.subject.operator(3), WHAT),
        (lambda: al.subject.operator(cases), WHAT),
        (lambda: al.subject.operator(lambda draw: None), WHAT),
        (lambda: al.subject(), WHAT),
        (lambda: al.subject.operator(OnlyForward), "OnlyForward has no method `adjoint`; the lab checks forward against adjoint"),
        (lambda: al.subject.operator(OnlyAdjoint), "OnlyAdjoint has no method `forward`; the lab checks forward against adjoint"),
        (lambda: al.subject.operator(OfSciPy), "OfSciPy has no method `forward`; the lab checks forward against adjoint: give functions that call its `matvec` and `rmatvec` to @subject.pair; docs/adapters.md has an adapter for those of PyLops-MPI"),
        (lambda: al.subject.operator(BothOfThem), "BothOfThem is not an adjointlab.LinearOperator; derive it from that class, or give its methods as @subject.pair(forward=..., adjoint=...)"),
        (lambda: al.subject.operator(Abstract), "Abstract does not define adjoint, forward"),
        (lambda: al.subject.operator(RingShift, order="x"), f"@subject has no option `order`; did you mean orders?; its options are {OPTIONS}{OF_A_CASE}"),
        (lambda: al.subject.operator(RingShift, ranks=(2,), zzzzz=1, qqqqq=2), f"@subject has no option `zzzzz`; its options are {OPTIONS}{OF_A_CASE}"),
        (lambda: al.subject.operator(RingShift, process_group=1), "process_group: 1 is not True or False"),
        (lambda: al.subject.operator(RingShift, name=3), "name: an int is not a string"),
        (lambda: al.subject.operator(RingShift, every=3), "every: an int is not a function"),
        (lambda: al.subject.operator(RingShift, orders=("up", "row-major", "down")), f"orders: 'up' is not among {', '.join((*ORDERS, *MIXED_ORDERS))}"),
        (lambda: al.subject.operator(RingShift, orders="row-major"), "orders: 'row-major' is not a list of names, such as ['row-major']"),
        (lambda: al.subject.operator(RingShift, arrays=["nunpy"]), "arrays: 'nunpy' is not among numpy, torch, cupy, torch-cuda, numpy+cupy, torch+torch-cuda; did you mean numpy?"),
        (lambda: al.subject.operator(RingShift, rank_local="package"), "rank_local: 'package' is not a list of names, such as ['package']"),
        (lambda: al.subject.operator(RingShift, rank_local=[al]), f"rank_local: {al!r} in the list is not a string; give names, such as 'numpy'"),
        (lambda: al.subject.operator(RingShift, ranks=4), "ranks: 4 is not a list of numbers of ranks, each at least 1, such as (1, 2, 4)"),
        (lambda: al.subject.operator(RingShift, ranks=(0, 2)), "ranks: (0, 2) is not a list of numbers of ranks, each at least 1, such as (1, 2, 4)"),
        (lambda: al.subject.parallel(module, parallel_module, data_parallel={"dp": "avg"}), "data_parallel: {'dp': 'avg'}: gradients are reduced by \"mean\" or \"sum\", not by 'avg'; for one dimension of the mesh say which, as in {\"dp\": \"mean\"}"),
        (lambda: al.subject.parallel(module, parallel_module, data_parallel="avg"), "data_parallel: 'avg': gradients are reduced by \"mean\" or \"sum\", not by 'avg'; for one dimension of the mesh say which, as in {\"dp\": \"mean\"}"),
        (lambda: al.subject.operator(RingShift)(3), f"@subject decorates a function, not 3; {EXAMPLE}"),
        (lambda: al.subject.operator(RingShift)(module), f"module(width: 'int') -> 'Any' takes (draw, ranks); {EXAMPLE}"),
        (lambda: al.subject.operator(RingShift)(lambda ranks, draw: {}), f"<lambda>(ranks, draw) takes (draw, ranks); {EXAMPLE}"),
        (lambda: al.subject.operator(RingShift)(lambda draw, ranks, more: {}), f"<lambda>(draw, ranks, more) takes (draw, ranks); {EXAMPLE}"),
        (lambda: al.subject.operator(RingShift, reference="x")(cases), "reference: a str is not a function"),
        (lambda: al.subject.pair(copied, 3), "adjoint: an int is not a function"),
        (lambda: al.subject.autograd("x"), "function: a str is not a function"),
        (lambda: al.subject.parallel(module, parallel_module, optimiser=copied), f"@subject has no option `optimiser`; did you mean optimizer?; its options are data_parallel, before_backward, after_backward, context, prepare, optimizer, steps, accumulates, one_batch_size, twice_differentiable, {OPTIONS}{OF_A_CASE}"),
        (lambda: al.subject.layer(module, module, preparer=copied), f"@subject has no option `preparer`; did you mean prepare?; its options are prepare, twice_differentiable, {OPTIONS}{OF_A_CASE}"),
        (lambda: al.subject.dtensor(copied, lineer=True), f"@subject has no option `lineer`; did you mean linear?; its options are linear, prepare, {OPTIONS}{OF_A_CASE}"),
        (lambda: al.subject.pipeline(module, parallel_module, loss=copied, reductions="sum"), f"@subject has no option `reductions`; did you mean reduction?; its options are loss, reduction, after_backward, prepare, optimizer, steps, {OPTIONS}{OF_A_CASE}"),
        (lambda: al.subject.pipeline(module, parallel_module, loss=RingShift), "loss: RingShift is a class; give an instance, such as RingShift()"),
        (lambda: al.subject.operator(RingShift, orders=[]), "orders: there is none to draw from; name one, or leave the option out for all"),
        (lambda: al.subject.layer(module, None), "sequential: None is not a function"),
        (lambda: al.subject.layer(module, module, reference=copied), "@subject.layer takes no `reference`: that of a layer is its sequential twin"),
        (lambda: al.subject.parallel(module, parallel_module, steps=1), STEPS.format("parallel")),
        (lambda: al.subject.parallel(module, parallel_module, optimizer=copied), STEPS.format("parallel")),
        (lambda: al.subject.parallel(module, parallel_module, optimizer=copied, steps=-1), STEPS.format("parallel")),
        (lambda: al.subject.pipeline(module, parallel_module, loss=copied, steps=1), STEPS.format("pipeline")),
        (lambda: al.subject.pipeline(module, parallel_module, loss=copied, optimizer=copied), STEPS.format("pipeline")),
        (lambda: al.subject.pipeline(module, parallel_module, loss=copied, optimizer=copied, steps=-1), STEPS.format("pipeline")),
        (lambda: al.subject.pipeline(module, parallel_module, loss=copied, reduction="none"), "@subject.pipeline: the reduction is \"mean\" or \"sum\", not 'none'"),
        (lambda: al.subject.parallel(module, parallel_module, reference=copied), "@subject.parallel takes no `reference`: the sequential module is what it is compared with"),
        (lambda: al.subject.pipeline(module, parallel_module, loss=copied, reference=copied), "@subject.pipeline takes no `reference`: the sequential module is what it is compared with"),
        (lambda: al.subject.parallel(module, parallel_module, process_group=False), NO_GROUP.format("parallel")),
        (lambda: al.subject.pipeline(module, parallel_module, loss=copied, process_group=False), NO_GROUP.format("pipeline")),
        (lambda: al.subject.dtensor(copied, process_group=False), NO_GROUP.format("dtensor")),
        (lambda: al.subject.dtensor(copied, linear=True, prepare=copied), "@subject.dtensor takes no `prepare` of a linear function: it is applied to any numbers"),
        (lambda: al.subject.operator(RingShift)(NAMELESS), f"@subject decorates a function, not {NAMELESS!r}; {EXAMPLE}"),
        (lambda: al.subject.parallel(module, parallel_module)(NAMELESS), f"@subject decorates a function, not {NAMELESS!r}; {EXAMPLE}"),
        # The older spelling
        (lambda: al.subject(layer=module), BOTH),
        (lambda: al.subject(sequential=module), BOTH),
        (lambda: al.subject(RingShift, layer=module, sequential=module), BOTH),
        (lambda: al.subject(forward=copied, layer=module, sequential=module), BOTH),
        (lambda: al.subject(adjoint=copied, layer=module, sequential=module), BOTH),
        (lambda: al.subject(autograd=copied, layer=module, sequential=module), BOTH),
        (lambda: al.subject(reference=copied, layer=module, sequential=module), BOTH),
        (lambda: al.subject(RingShift, forward=copied), ONE.format("operator and forward")),
        (lambda: al.subject(RingShift, adjoint=copied), ONE.format("operator and forward")),
        (lambda: al.subject(RingShift, autograd=copied), ONE.format("operator and autograd")),
        (lambda: al.subject(RingShift, autograd=copied, adjoint=copied), ONE.format("operator and forward and autograd")),
        (lambda: al.subject(autograd=copied, forward=copied), ONE.format("forward and autograd")),
        (lambda: al.subject(forward=copied), LACKS.format("adjoint")),
        (lambda: al.subject(adjoint=copied), LACKS.format("forward")),
    ],
)  # fmt: skip
def test_a_wrong_declaration_is_refused_with_what_is_legal(declare: Callable[[], Any], told: str) -> None:
    with pytest.raises(SubjectError) as refused:
        declare()
    assert str(refused.value) == told


def test_a_module_in_the_place_of_what_makes_one_is_refused() -> None:
    torch = pytest.importorskip("torch")
    made = torch.nn.Identity()
    told = "an Identity is a module, and each case needs a new one: give a function that makes it, or a class"
    for role, declare in {
        "layer": lambda: al.subject.layer(made, module),
        "sequential": lambda: al.subject.layer(module, made),
        "sequential ": lambda: al.subject.parallel(made, parallel_module),
        "sequential  ": lambda: al.subject.pipeline(made, parallel_module, loss=made),
        "parallelize": lambda: al.subject.parallel(module, made),
        "pipeline": lambda: al.subject.pipeline(module, made, loss=made),
    }.items():
        with pytest.raises(SubjectError, match=f"^{role.strip()}: {told}$"):
            declare()


def test_missing_arguments_are_those_of_a_method_as_users_call_it() -> None:
    declare: Any = al.subject.parallel
    with pytest.raises(TypeError, match=r"^subject\.parallel\(\) missing 2 required"):
        declare()


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({}, "domain is missing and codomain is missing"),
        ({"domain": SPACE}, "codomain is missing"),
        ({"domain": SPACE, "codomian": SPACE}, "codomain is missing: it is perhaps what is called codomian"),
        ({"domain": 3, "codomain": SPACE}, "domain is an int"),
        ({"domain": SPACE.tensors[0], "codomain": None}, "domain is a Tensor and codomain is missing"),
    ],
)
def test_functions_need_both_spaces(parameters: dict[str, Any], told: str) -> None:
    comm: Any = SimpleNamespace()
    for subject in (al.subject.pair(copied, copied)(cases), al.subject.autograd(copied)(cases)):
        with pytest.raises(SubjectError) as refused:
            subject.make(comm, parameters)
        assert str(refused.value) == (
            "the strategy's dictionary needs `domain` and `codomain` to be adjointlab.Space(layout), but "
            f"{told}"
        )
