"""The demands that the checks of layers make on a module: what it must declare, what it may do, and what it may not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import adjointlab as al
from adjointlab.checks.check import checks_of
from adjointlab.checks.memory_orders import RESTORED
from adjointlab.checks.verdict import Status, Verdict
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.engine.subject import Subject
from adjointlab.worlds.simulated.world import SimulatedWorld

pytest.importorskip("torch")

import torch
from torch import nn

from tests.faults.torch_modules import Scaled, scaled_case


def scaled(
    change: Callable[[Any, int], None] = lambda module, rank: None,
    kind: type[Scaled] = Scaled,
    twin: Callable[[], Any] = lambda: Scaled(6),
    **declared: Any,
) -> Subject:
    """A subject of `kind`, where `change` has done something to the module of each rank; `declared` goes to the lab."""

    def layer(comm: Any, layout: al.Layout) -> Any:
        rank = comm.Get_rank()
        module = kind(layout.local_shape(rank)[0])
        change(module, rank)
        return module

    given = {name: declared.pop(name) for name in ("twice_differentiable", "prepare") if name in declared}

    @al.subject(layer=layer, sequential=lambda layout: twin(), ranks=(2, 3), name="Scaled", **given)
    def draws(draw: Any, ranks: int) -> dict[str, Any]:
        return scaled_case(draw, ranks) | declared

    return draws


def verdict(subject: Subject, check: str, cases: int = 30) -> Verdict:
    world = SimulatedWorld(ranks=3)
    return investigate(world, subject, check, Budget(cases=cases, seed=1, shrinking=0)).verdict


def assert_coherent(subject: Subject) -> None:
    verdicts = {check: verdict(subject, check, cases=12) for check in checks_of(subject)}
    assert {check: str(each) for check, each in verdicts.items() if not each.is_coherent} == {}


@pytest.mark.parametrize("check", ["sequential", "gradients"])
def test_a_module_is_applied_twice_in_a_case(check: str) -> None:
    applied: list[object] = []

    class Applied(Scaled):
        def forward(self, x: Any) -> Any:
            applied.append(self)
            return super().forward(x)

    assert verdict(scaled(kind=Applied), check, cases=2).is_coherent
    assert {applied.count(module) for module in applied} == {2}


# What is declared.


def test_a_layer_that_declares_what_it_has_is_coherent() -> None:
    assert_coherent(scaled(twice_differentiable=True))


@pytest.mark.parametrize(
    ("space", "named"), [("parameter_space", "the parameter weight"), ("buffer_space", "the buffer calls")]
)
def test_a_tensor_that_no_space_names_is_refused_by_every_check(space: str, named: str) -> None:
    subject = scaled(**{space: al.Space()})
    for check in checks_of(subject):
        headline = verdict(subject, check).headline
        assert f"has {named}, which {space} does not name" in headline
        assert f"{space} = adjointlab.Space(" in headline or "and buffer_space likewise" in headline


def test_a_parameter_that_one_rank_alone_has_is_refused_on_all_of_them() -> None:
    def change(module: Any, rank: int) -> None:
        if rank == 1:
            module.extra = nn.Parameter(torch.zeros(1))

    subject, everyone = scaled(change), SimulatedWorld(ranks=2)
    layout = al.Layout((6,), al.Partition((2,)))
    parameters = {
        "layout": layout,
        "domain": al.Space(layout),
        "codomain": al.Space(layout),
        "parameter_space": al.Space(al.Tensor(layout, name="weight")),
        "buffer_space": al.Space(al.Tensor(al.Layout((), al.Partition((2,)), [], ()), name="calls")),
    }
    run = everyone.run(lambda context, _: subject.make(context.comm, parameters), None, 2)
    messages = {outcome.message for outcome in run.outcomes}
    assert len(messages) == 1
    assert "on rank 1, the module has the parameter extra" in messages.pop()


def test_a_parameter_that_one_rank_lacks_is_refused() -> None:
    def change(module: Any, rank: int) -> None:
        if rank == 1:
            del module.weight
            module.weight = 1.0

    headline = verdict(scaled(change), "sequential").headline
    assert "on rank 1, the module has no parameter weight, which parameter_space names" in headline
    assert "A rank that holds nothing of a tensor has one of zero volume" in headline


def test_a_buffer_that_is_not_persistent_needs_no_declaration() -> None:
    assert_coherent(
        scaled(lambda module, rank: module.register_buffer("place", torch.tensor(rank), persistent=False))
    )


def test_of_a_parameter_with_two_names_one_is_declared() -> None:
    def change(module: Any, rank: int) -> None:
        module.also = module.weight

    assert_coherent(scaled(change))


def test_a_twin_with_a_parameter_that_the_layer_has_not_is_refused() -> None:
    def twin() -> Any:
        module = Scaled(6)
        module.shift = nn.Parameter(torch.zeros(6))
        return module

    for check in ("sequential", "gradients"):
        headline = verdict(scaled(twin=twin), check).headline
        assert "the twin has the parameter shift, which parameter_space does not name" in headline


def test_a_twin_without_a_buffer_of_the_layer_is_refused() -> None:
    def twin() -> Any:
        module = Scaled(6)
        del module.calls
        module.calls = 0
        return module

    headline = verdict(scaled(twin=twin), "sequential").headline
    assert "the twin has no buffer calls, which buffer_space names" in headline


def test_a_parameter_of_another_shape_is_named_in_the_headline() -> None:
    def change(module: Any, rank: int) -> None:
        module.weight = nn.Parameter(torch.zeros(7, dtype=torch.float64))

    assert verdict(scaled(change), "sequential", 1).headline == "a parameter is not in its declared space"


@pytest.mark.parametrize("side", [5, 7])
def test_a_parameter_of_a_twin_has_the_shape_of_the_layers(side: int) -> None:
    found = verdict(scaled(twin=lambda: Scaled(side)), "sequential", 1)
    assert (
        f"the sequential twin's parameter weight has shape ({side},), but the layer's is laid out as (6,)"
        in str(found)
    )


def frozen(module: Any) -> Any:
    module.weight.requires_grad_(False)
    return module


def test_a_parameter_that_the_twin_alone_trains_is_a_finding() -> None:
    found = verdict(scaled(lambda module, rank: frozen(module)), "gradients", 2)
    assert found.headline == (
        "the layer's parameter weight does not require a gradient as it is made, the sequential one's does"
    )
    assert found.status is Status.INCOHERENT


def test_a_parameter_that_the_layer_alone_trains_is_a_finding() -> None:
    found = verdict(scaled(twin=lambda: frozen(Scaled(6))), "gradients", 2)
    assert found.headline == (
        "the sequential layer's parameter weight does not require a gradient as it is made, the distributed one's does"
    )


def test_a_parameter_that_neither_trains_is_none() -> None:
    both = scaled(lambda module, rank: frozen(module), twin=lambda: frozen(Scaled(6)))
    assert verdict(both, "gradients", 4).is_coherent


def test_a_rank_may_freeze_a_parameter_of_which_it_holds_nothing() -> None:
    def change(module: Any, rank: int) -> None:
        if not module.weight.numel():
            frozen(module)

    assert verdict(scaled(change), "gradients", 12).is_coherent


# What a layer may do.


class Kept(Scaled):
    """Zero where the input is false."""

    def forward(self, x: Any) -> Any:
        return super().forward(torch.where(x, torch.ones(x.shape, dtype=torch.float64), 0))


def test_a_layer_may_have_inputs_that_are_no_numbers() -> None:
    assert_coherent(scaled(kind=Kept, twin=lambda: Kept(6), prepare=lambda x: (x > 0,)))


class InPlace(Scaled):
    """Works in the memory of its input."""

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return x.mul_(self.weight.detach()) if not torch.is_grad_enabled() else x.mul_(self.weight)


def test_a_layer_that_overwrites_its_input_is_found() -> None:
    found = verdict(scaled(kind=InPlace), "sequential")
    assert found.headline == "the layer writes into an input"
    assert ("to allow it", "declare overwrites_inputs = True") in found.lines


class NegatedTwice(torch.autograd.Function):
    """A product whose backward pass works in the memory of x, and leaves there what there was."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, weight = ctx.saved_tensors
        of_weight = -gradients[0] * x.neg_()
        x.neg_()
        return gradients[0] * weight, of_weight


class Restored(Scaled):
    def forward(self, x: Any) -> Any:
        self.calls += 1
        return NegatedTwice.apply(x, self.weight)


def test_a_layer_that_restores_what_it_has_overwritten_is_found() -> None:
    found = verdict(scaled(kind=Restored), "gradients")
    assert found.headline == "the layer writes into an input"
    assert RESTORED in found.lines


def test_a_layer_that_says_that_it_overwrites_its_input_is_coherent() -> None:
    assert_coherent(scaled(kind=InPlace, overwrites_inputs=True, twice_differentiable=True))


def test_so_is_one_whose_twin_does_too() -> None:
    assert_coherent(scaled(kind=InPlace, twin=lambda: InPlace(6), overwrites_inputs=True))


class Halved(Scaled):
    """Changes its weight in every pass, as an embedding with `max_norm` does."""

    def forward(self, x: Any) -> Any:
        self.calls += 1
        with torch.no_grad():
            # Not by clamp: at its bounds, where the parameters of the later passes lie, torch 2.14 has another derivative than before.
            self.weight.copy_(torch.where(self.weight.abs() > 2, 2 * self.weight.sign(), self.weight))
        # A copy: the second pass may change the parameter before the first goes backward.
        return self.weight.clone() * x


def test_a_layer_may_change_its_parameters_as_the_twin_does() -> None:
    assert_coherent(scaled(kind=Halved, twin=lambda: Halved(6)))


def test_but_not_otherwise() -> None:
    class Changed(Scaled):
        def forward(self, x: Any) -> Any:
            y = super().forward(x)
            with torch.no_grad():
                self.weight += 1
            return y.detach() if not torch.is_grad_enabled() else y

    found = verdict(scaled(kind=Changed), "sequential")
    assert found.headline == "the layer's parameters are not the sequential ones"


class Square(torch.autograd.Function):
    """x², whose second derivative nobody has thought of."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return 2 * x * g


class Squared(Scaled):
    forward_mode = False

    def forward(self, x: Any) -> Any:
        return super().forward(Square.apply(x))


class SquaredTwin(Scaled):
    def forward(self, x: Any) -> Any:
        return super().forward(x * x)


def test_second_derivatives_are_asked_only_of_a_layer_that_says_that_it_has_them() -> None:
    assert checks_of(scaled()) == ("sequential", "gradients", "jacobian")
    assert_coherent(scaled(kind=Squared, twin=lambda: SquaredTwin(6)))
    declared = scaled(kind=Squared, twin=lambda: SquaredTwin(6), twice_differentiable=True)
    assert checks_of(declared)[-1] == "double_backward"
    assert "once_differentiable" in verdict(declared, "double_backward").headline


class SquaredInSilence(Scaled):
    def forward(self, x: Any) -> Any:
        return super().forward(Square.apply(x))


def test_that_there_is_no_forward_mode_may_be_said_in_the_dictionary() -> None:
    made = dict(kind=SquaredInSilence, twin=lambda: SquaredTwin(6))
    assert verdict(scaled(**made, forward_mode=False), "jacobian").is_coherent
    assert not verdict(scaled(**made), "jacobian").is_coherent


# What a rank that holds nothing may have, and what requires a gradient.


class Columns(nn.Module):
    """y = w x, where a rank without elements has tensors of other shapes without elements."""

    def __init__(self, side: int, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.weight = nn.Parameter(
            torch.ones(side, dtype=dtype) if side else torch.ones(2, 0, 3, dtype=dtype)
        )

    def forward(self, x: Any) -> Any:
        return self.weight * x if x.numel() else self.weight.reshape(0, 5) + x.reshape(0, 1)


def columns(forward_mode: bool) -> Subject:
    def layer(comm: Any, layout: al.Layout) -> Any:
        rank = comm.Get_rank()
        module = Columns(layout.local_shape(rank)[0] if layout.partition.is_active(rank) else 0)
        module.forward_mode = forward_mode
        return module

    @al.subject(
        layer=layer,
        sequential=lambda layout: Columns(6),
        ranks=(2, 3),
        name="Columns",
        twice_differentiable=True,
    )
    def draws(draw: Any, ranks: int) -> dict[str, Any]:
        layout = al.Layout((6,), al.Partition((ranks - 1,)))
        tensor = al.Tensor(layout, name="weight")
        space = al.Space(layout)
        return {"layout": layout, "domain": space, "codomain": space, "parameter_space": al.Space(tensor)}

    return draws


@pytest.mark.parametrize("forward_mode", [True, False])
def test_a_rank_that_is_inactive_may_hold_any_tensors_of_zero_volume(forward_mode: bool) -> None:
    assert_coherent(columns(forward_mode))


class SumsItsGradients(nn.Module):
    """y = w x with one invariant w, whose hook sums the gradients of all ranks: collective where w requires one."""

    def __init__(self, comm: Any = None) -> None:
        super().__init__()
        self.comm, self.hooked = comm, False
        self.weight = nn.Parameter(torch.ones(1, dtype=torch.float64))
        self.weight.is_copied = True  # type: ignore[attr-defined]

    def summed(self, gradient: Any) -> Any:
        total = torch.empty_like(gradient)
        self.comm.Allreduce(gradient.contiguous().numpy(), total.numpy())
        return total

    def forward(self, x: Any) -> Any:
        assert self.weight.is_copied
        if self.comm is not None and self.weight.requires_grad and not self.hooked:
            self.weight.register_hook(self.summed)
            self.hooked = True
        return self.weight * x


def shared_weight_case(ranks: int, local_type: str = "invariant") -> dict[str, Any]:
    """A case of a module from 6 entries to 6, with a weight of which each rank has a copy."""
    everyone = al.Partition((ranks,))
    layout = al.Layout((6,), everyone)
    weight = al.Tensor(al.Layout((1,), everyone, axes=(None,)), types=(local_type,), name="weight")
    space = al.Space(layout)
    return {"layout": layout, "domain": space, "codomain": space, "parameter_space": al.Space(weight)}


def hooked(local_type: str, **declared: Any) -> Subject:
    @al.subject(
        layer=lambda comm, layout: SumsItsGradients(comm),
        sequential=lambda layout: SumsItsGradients(),
        ranks=(2, 3),
        name="Hooked",
    )
    def draws(draw: Any, ranks: int) -> dict[str, Any]:
        return shared_weight_case(ranks, local_type) | declared

    return draws


def test_all_copies_of_a_parameter_require_a_gradient_or_none_does_and_keep_hooks_and_attributes() -> None:
    assert_coherent(hooked("invariant"))


class FirstOfTwo(nn.Module):
    """y = x z, whose backward pass is collective where x requires a gradient."""

    def __init__(self, comm: Any = None) -> None:
        super().__init__()
        self.comm = comm

    def forward(self, x: Any, z: Any) -> Any:
        y = x * z
        if self.comm is not None and x.requires_grad and y.requires_grad:
            y.register_hook(lambda gradient: self.comm.Barrier())
        return y


def first_of_two(**declared: Any) -> Subject:
    @al.subject(
        layer=lambda comm, layout: FirstOfTwo(comm),
        sequential=lambda layout: FirstOfTwo(),
        ranks=(2, 3),
        name="FirstOfTwo",
    )
    def draws(draw: Any, ranks: int) -> dict[str, Any]:
        layout = al.Layout((6,), al.Partition((ranks,)))
        domain = al.Space(al.Tensor(layout), al.Tensor(layout, name="z"))
        return {"layout": layout, "domain": domain, "codomain": al.Space(layout), **declared}

    return draws


def test_what_requires_a_gradient_is_the_same_on_all_ranks_where_the_subject_says_so() -> None:
    assert_coherent(first_of_two(uniform_requires_grad=True))
    assert not verdict(first_of_two(), "gradients").is_coherent


class ScaledThen(nn.Module):
    """y = w x, and what `change` does after it."""

    def __init__(self, change: Any = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, dtype=torch.float64))
        self.change = change

    def forward(self, x: Any) -> Any:
        y = self.weight * x
        return y if self.change is None else self.change(self, y)


def changed(change: Any) -> Subject:
    @al.subject.layer(lambda comm, layout: ScaledThen(change), lambda layout: ScaledThen(), ranks=(2,))
    def draws(draw: Any, ranks: int) -> dict[str, Any]:
        return shared_weight_case(ranks)

    return draws


def with_parameter(module: Any, y: Any) -> Any:
    module.late = nn.Parameter(torch.ones(1))
    return y


def with_buffer(module: Any, y: Any) -> Any:
    module.register_buffer("late", torch.ones(1))
    return y


def with_a_cache(module: Any, y: Any) -> Any:
    module.register_buffer("late", torch.ones(1), persistent=False)
    return y


@pytest.mark.parametrize("check", ["sequential", "gradients"])
@pytest.mark.parametrize("change", [with_parameter, with_buffer])
def test_what_a_call_makes_has_to_be_declared(change: Any, check: str) -> None:
    found = verdict(changed(change), check)
    assert found.kind == "raised ValueError"
    assert "late, which" in found.headline


def test_a_cache_that_a_call_makes_need_not_be_declared() -> None:
    assert verdict(changed(with_a_cache), "sequential").is_coherent


@pytest.mark.parametrize("check", ["sequential", "gradients", "jacobian"])
def test_outputs_have_the_declared_element_type(check: str) -> None:
    found = verdict(changed(lambda module, y: y.float()), check)
    assert found.headline == "an output is not in its declared space"
