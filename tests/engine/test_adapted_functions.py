"""Functions become operators and layers: what they are called with, what they return, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import adjointlab as al
from adjointlab.core.declaration import SubjectError
from adjointlab.core.layer import elementwise
from adjointlab.core.operator import Direction, NotInSpace
from adjointlab.engine.adapters import Differentiable, FunctionPair, Ranks, _local_parts, split_bounds
from adjointlab.engine.user_layers import make_layer, make_twin
from adjointlab.worlds.backward import BackwardPass

pytestmark = pytest.mark.mpi_skip


class OneRank:
    """A communicator of one rank, or of another one that has no part of any tensor."""

    def __init__(self, rank: int = 0) -> None:
        self.rank = rank

    def Get_rank(self) -> int:
        return self.rank


class Noting(OneRank):
    def __init__(self) -> None:
        super().__init__()
        self.noted: list[BackwardPass] = []

    def note_backward(self, backward: BackwardPass) -> None:
        self.noted.append(backward)


COMM: Any = OneRank()
LAYOUT = al.Layout((2, 3), (1, 1))
ONE = al.Space(LAYOUT)
TWO = al.Space(al.Tensor(LAYOUT, name="u"), al.Tensor(LAYOUT, name="v"))
X, Y = torch.arange(6.0, dtype=torch.float64).reshape(2, 3), torch.ones(2, 3, dtype=torch.float64)


def with_comm(comm: Any, x: Any, by: int) -> Any:
    return ("forward", comm, x, by)


def with_comm_back(comm: Any, y: Any, by: int) -> Any:
    return ("adjoint", comm, y, by)


def alone(x: Any, by: int) -> Any:
    return ["forward", x, by]


def alone_back(y: Any, by: int) -> Any:
    return ["adjoint", y, by]


# Pairs


def test_a_pair_is_called_with_the_communicator_the_tensors_and_the_arguments() -> None:
    pair = FunctionPair(COMM, with_comm, with_comm_back, ONE, al.Space(LAYOUT, name="y"), {"by": 3})
    assert (pair.comm, pair.domain, pair.codomain, pair.gain) == (COMM, ONE, al.Space(LAYOUT, name="y"), None)
    assert pair.forward("x") == ("forward", COMM, "x", 3)  # type: ignore[arg-type]
    assert pair.adjoint("y") == ("adjoint", COMM, "y", 3)  # type: ignore[arg-type]
    assert pair.function(Direction.FORWARD) is with_comm
    assert pair.function(Direction.ADJOINT) is with_comm_back


def test_a_pair_that_uses_a_process_group_is_called_without_a_communicator() -> None:
    pair = FunctionPair(COMM, alone, alone_back, ONE, ONE, {"by": 3, "gain": 5}, Ranks.PROCESS_GROUP)
    assert pair.gain == 5
    assert pair.forward("x") == ["forward", "x", 3]  # type: ignore[arg-type]
    assert pair.adjoint("y") == ["adjoint", "y", 3]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("forward", "adjoint", "arguments", "domain", "codomain", "ranks", "told"),
    [
        (with_comm, with_comm_back, {}, ONE, ONE, Ranks.COMMUNICATOR, "forward"),
        (
            with_comm,
            alone_back,
            {"by": 1},
            ONE,
            ONE,
            Ranks.COMMUNICATOR,
            "adjoint is called as .* takes no communicator",
        ),
        (with_comm, with_comm_back, {"by": 1}, ONE, TWO, Ranks.COMMUNICATOR, "adjoint"),
        (with_comm, with_comm_back, {"by": 1}, TWO, ONE, Ranks.COMMUNICATOR, "forward"),
        (alone, with_comm_back, {"by": 1}, ONE, ONE, Ranks.PROCESS_GROUP, "adjoint"),
    ],
)
def test_a_function_that_cannot_be_called_so_is_named(
    forward: Any, adjoint: Any, arguments: Any, domain: Any, codomain: Any, ranks: Ranks, told: str
) -> None:
    with pytest.raises(SubjectError, match=told):
        FunctionPair(COMM, forward, adjoint, domain, codomain, arguments, ranks)


def test_ranks_have_a_communicator_for_their_first_argument_or_nothing() -> None:
    assert [each.arguments(COMM) for each in Ranks] == [(COMM,), ()]
    assert [each.names for each in Ranks] == [("comm",), ()]


def takes_gain(x: Any, gain: int) -> Any: ...
def takes_none(x: Any) -> Any: ...


@pytest.mark.parametrize(
    ("arguments", "functions", "gain", "others"),
    [
        ({"by": 2}, (takes_none,), None, {"by": 2}),
        ({"by": 2, "gain": 1, "width": 3}, (takes_none, takes_none), 1, {"by": 2, "width": 3}),
        ({"gain": 7}, (takes_none,), 7, {}),
        ({"by": 2, "gain": 0}, (takes_none, takes_gain), None, {"by": 2, "gain": 0}),
        ({"gain": -1}, (takes_gain, takes_none), None, {"gain": -1}),
    ],
)
def test_a_gain_is_declared_where_no_function_takes_it(
    arguments: Any, functions: Any, gain: int | None, others: Any
) -> None:
    assert split_bounds(arguments, *functions) == ((gain, None), others)


def takes_rounding(comm: Any, x: Any, rounding: float) -> Any:
    return x


def test_a_rounding_is_declared_where_no_function_takes_it() -> None:
    assert split_bounds({"rounding": 1e-8, "gain": 2}, takes_none) == ((2, 1e-8), {})
    assert split_bounds({"rounding": 1e-8}, takes_none, takes_rounding) == ((None, None), {"rounding": 1e-8})


def test_what_a_function_returns_is_taken_as_it_is_but_for_dtensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adjointlab.engine.adapters.is_dtensor", lambda value: value == "dtensor")
    monkeypatch.setattr(
        "adjointlab.engine.adapters.local_part", lambda value: "local" if value == "dtensor" else value
    )
    for returned, taken in (
        ("dtensor", "local"),
        ("plain", "plain"),
        (("dtensor", "plain"), ("local", "plain")),
        (["plain", "dtensor"], ("plain", "local")),
        (["plain", "plain"], ["plain", "plain"]),
        ((), ()),
    ):
        assert _local_parts(returned) == taken
        assert type(_local_parts(returned)) is type(taken)


# Functions that torch differentiates


class Scaled(torch.autograd.Function):
    seen: Any = ()

    @staticmethod
    def forward(ctx: Any, x: Any, *others: Any) -> Any:
        Scaled.seen = others
        return 3 * x

    @staticmethod
    def backward(ctx: Any, y: Any) -> Any:
        return 3 * y, *(None for _ in Scaled.seen)


def twice(comm: Any, x: Any, by: int = 2) -> Any:
    return by * x


def both(u: Any, v: Any) -> Any:
    return u + 2 * v, torch.zeros_like(u)


def test_a_function_is_called_with_tensors_that_require_a_gradient_and_returns_plain_ones() -> None:
    seen: list[Any] = []

    def function(comm: Any, x: Any, by: int) -> Any:
        seen.append((comm, x.requires_grad, by))
        return by * x

    operator = Differentiable(COMM, function, ONE, ONE, {"by": 4, "gain": 4})
    assert (operator.comm, operator.domain, operator.codomain, operator.gain) == (COMM, ONE, ONE, 4)
    result = operator.forward(X)
    assert torch.equal(result, 4 * X)
    assert not result.requires_grad
    assert not X.requires_grad
    assert seen == [(COMM, True, 4)]
    (gradient,) = operator.adjoint(Y)
    assert torch.equal(gradient, 4 * Y)
    assert operator.without_graph == frozenset()


def test_an_autograd_function_is_applied_with_positional_arguments() -> None:
    operator = Differentiable(COMM, Scaled, ONE, ONE, {"by": 4, "other": "o"})
    assert torch.equal(operator.forward(X), 3 * X)
    assert Scaled.seen == (COMM, 4, "o")
    assert torch.equal(operator.adjoint(Y)[0], 3 * Y)
    alone = Differentiable(COMM, Scaled, ONE, ONE, {}, Ranks.PROCESS_GROUP)
    assert torch.equal(alone.adjoint(Y)[0], 3 * Y)
    assert not Scaled.seen
    assert operator.function(Direction.FORWARD) is Scaled.forward
    assert operator.function(Direction.ADJOINT) is Scaled.backward


def test_reports_name_the_function_that_was_given() -> None:
    assert Differentiable(COMM, twice, ONE, ONE, {}).function(Direction.ADJOINT) is twice
    named = Differentiable(COMM, twice, ONE, ONE, {}, named=with_comm)
    assert [named.function(each) for each in Direction] == [with_comm] * 2


def test_outputs_without_a_graph_are_noted_and_have_no_gradient() -> None:
    comm: Any = Noting()
    operator = Differentiable(comm, both, TWO, TWO, {}, Ranks.PROCESS_GROUP)
    assert [x.tolist() for x in operator.forward(X, Y)] == [(X + 2 * Y).tolist(), (0 * X).tolist()]
    by_u, by_v = operator.adjoint(Y, X)
    assert torch.equal(by_u, Y)
    assert torch.equal(by_v, 2 * Y)
    assert operator.without_graph == {1}
    assert comm.noted == [BackwardPass({"u": True, "v": True}, True)]

    constant = Differentiable(comm, lambda u, v: (0 * u.detach(), Y), TWO, TWO, {}, Ranks.PROCESS_GROUP)
    assert [x.tolist() for x in constant.adjoint(Y, X)] == [(0 * X).tolist()] * 2
    assert constant.without_graph == {0, 1}
    assert comm.noted[1:] == [BackwardPass({"u": True, "v": True}, False)]


def test_an_inactive_rank_differentiates_tensors_without_elements() -> None:
    comm: Any = OneRank(1)
    operator = Differentiable(comm, twice, ONE, ONE, {})
    empty = torch.zeros(operator.domain.tensors[0].layout.local_shape(1), dtype=torch.float64)
    (gradient,) = operator.adjoint(empty)
    assert (gradient.shape, gradient.dtype) == (empty.shape, torch.float64)


@pytest.mark.parametrize("role", ["domain", "codomain"])
def test_tensors_of_integers_are_not_differentiated(role: str) -> None:
    spaces = {"domain": ONE, "codomain": ONE, role: al.Space(LAYOUT, dtype="int32")}
    with pytest.raises(SubjectError, match=f"^the {role} has a tensor of int32, and torch differentiates"):
        Differentiable(COMM, twice, spaces["domain"], spaces["codomain"], {})


def test_a_function_that_does_not_take_the_tensors_is_refused_and_a_class_is_not_asked() -> None:
    with pytest.raises(SubjectError, match=r"^the function"):
        Differentiable(COMM, with_comm, TWO, ONE, {"by": 1})
    with pytest.raises(SubjectError, match=r"^the function"):
        Differentiable(COMM, twice, ONE, ONE, {"more": 1})
    Differentiable(COMM, Scaled, TWO, ONE, {"more": 1})


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (None, "None (is a `return` missing?), but the codomain wants a torch.Tensor of shape (2, 3) and"),
        (3, "an object of the type builtins.int, but the codomain wants"),
        ((X, "no"), "an object of the type builtins.str as result 1, but the codomain wants"),
    ],
)
def test_what_is_no_tensor_of_torch_is_told(returned: Any, told: str) -> None:
    def returns(x: Any) -> Any:
        return returned

    operator = Differentiable(COMM, returns, ONE, TWO, {}, Ranks.PROCESS_GROUP)
    with pytest.raises(NotInSpace) as error:
        operator.forward(X)
    assert str(error.value).startswith(f"{returns.__qualname__} returned {told}")
    assert str(error.value).endswith(" and type float64 on this rank")


# Layers


class Module(nn.Module):
    """A module that declares some of its spaces and arithmetic."""

    def __init__(self, comm: Any, size: int) -> None:
        super().__init__()
        self.given, self.size = comm, size
        self.domain = self.codomain = ONE


class Declaring(Module):
    rounding, reach, forward_mode, overwrites_inputs, uniform_requires_grad = 2, 3, False, True, True

    def __init__(self, comm: Any, size: int) -> None:
        super().__init__(comm, size)
        self.parameter_space, self.buffer_space = al.Space(LAYOUT, name="w"), al.Space(LAYOUT, name="b")
        self.w = nn.Parameter(torch.zeros(2, 3))


def fields(layer: Any) -> dict[str, Any]:
    names = (
        "domain codomain parameters buffers rounding reach overwrites_inputs uniform_requires_grad "
        "trained has_forward_mode"
    )
    return {name: getattr(layer, name) for name in names.split()}


PLAIN: dict[str, Any] = {
    "domain": ONE,
    "codomain": ONE,
    "parameters": al.Space(),
    "buffers": al.Space(),
    "rounding": None,
    "reach": 0.0,
    "overwrites_inputs": False,
    "uniform_requires_grad": False,
    "trained": frozenset(),
    "has_forward_mode": True,
}


def test_a_layer_is_as_its_module_or_the_case_declares_it() -> None:
    layer = make_layer(Module, elementwise, Ranks.COMMUNICATOR, COMM, size=5)
    module: Any = layer.module
    assert fields(layer) == PLAIN
    assert (module.given, module.size, layer.comm, layer.prepare) == (COMM, 5, COMM, elementwise)
    declared = {
        "parameters": al.Space(LAYOUT, name="w"),
        "buffers": al.Space(LAYOUT, name="b"),
        "rounding": 2.0,
        "reach": 3.0,
        "overwrites_inputs": True,
        "uniform_requires_grad": True,
        "trained": frozenset({"w"}),
        "has_forward_mode": False,
    }
    layer = make_layer(Declaring, elementwise, Ranks.COMMUNICATOR, COMM, size=5)
    assert fields(layer) == PLAIN | declared
    assert all(type(layer.__getattribute__(name)) is float for name in ("rounding", "reach"))
    given: dict[str, Any] = {
        "domain": TWO,
        "codomain": TWO,
        "rounding": 4.0,
        "reach": 0.5,
        "forward_mode": True,
    }
    layer = make_layer(Declaring, elementwise, Ranks.COMMUNICATOR, COMM, size=5, **given)
    given["has_forward_mode"] = given.pop("forward_mode")
    assert fields(layer) == PLAIN | declared | given


@pytest.mark.parametrize("space", ["domain", "codomain"])
def test_a_layer_without_its_spaces_is_told_of_them(space: str) -> None:
    given: dict[str, Any] = {"domain": ONE, "codomain": ONE} | {space: None}
    with pytest.raises(SubjectError) as error:
        make_layer(lambda size: nn.Identity(), elementwise, Ranks.PROCESS_GROUP, COMM, size=5, **given)
    assert str(error.value) == (
        f"the module has no `{space}`; set self.{space} = adjointlab.Space(layout), or give `{space}` in the "
        "strategy's dictionary"
    )


@pytest.mark.parametrize("training", [None, True, False])
def test_layers_and_twins_are_put_into_the_mode_of_the_case(training: bool | None) -> None:
    given = {} if training is None else {"training": training}

    def build(size: int) -> nn.Module:
        module = Module(None, size)
        return module.eval() if size else module

    made: list[Callable[[int], Any]] = [
        lambda size: make_twin(build, size=size, domain=ONE, rounding=1, **given),
        lambda size: make_layer(build, elementwise, Ranks.PROCESS_GROUP, COMM, size=size, **given).module,
    ]
    for make in made:
        for size in (0, 1):
            assert make(size).training is (not size if training is None else training)
            assert make(size).size == size


def test_a_layer_and_a_twin_that_do_not_take_the_arguments_are_told_apart() -> None:
    with pytest.raises(SubjectError, match=r"^the layer"):
        make_layer(Module, elementwise, Ranks.COMMUNICATOR, COMM, wrong=5)
    with pytest.raises(SubjectError, match=r"^the layer is called as .* takes no communicator"):
        make_layer(lambda size: None, elementwise, Ranks.COMMUNICATOR, COMM, size=5)
    with pytest.raises(SubjectError, match=r"^the sequential twin"):
        make_twin(Module, size=5)
