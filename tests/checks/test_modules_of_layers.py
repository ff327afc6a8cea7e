"""A layer and its sequential twin as the checks call them: what is drawn, changed, refused, averaged and cut."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import adjointlab as al
from adjointlab.checks.context import InputSetting
from adjointlab.checks.layers.drawn_values import described_cotangents, has_small_cotangents, pass_keys
from adjointlab.checks.layers.modules import LocalModule, SequentialTwin, values
from adjointlab.checks.verdict import Inapplicable
from adjointlab.checks.whole_tensors import (
    has_copies_of_their_own,
    held,
    held_by_all,
    no_sequential_tensor,
    whole_array,
)
from adjointlab.core.declaration import SubjectError
from adjointlab.core.layer import Layer, elementwise
from adjointlab.core.operator import NotInSpace, ParameterNotInSpace
from adjointlab.core.perturbation import Perturbation
from adjointlab.core.rounding import perturbing
from adjointlab.core.space import Space, Tensor
from adjointlab.core.vectors import Draw, local_values
from adjointlab.worlds.backward import BackwardPass

pytestmark = pytest.mark.mpi_skip

CUT = al.Layout((5,), (2,))  # three elements and two
COPIES = al.Layout((3,), (2,), axes=[None])
KEY = Draw(3, 0, "primal", 4)


class Scaled(nn.Module):
    """w x, with the buffer `calls`."""

    def __init__(self, side: int, dtype: Any = torch.float64) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(side, dtype=dtype))
        self.register_buffer("calls", torch.zeros(1))
        self.passes_over = 0

    def forward(self, x: Any) -> Any:
        return self.w * x

    def after_backward(self) -> None:
        self.passes_over += 1


def layer(side: int = 3, dtype: Any = torch.float64, **given: Any) -> Layer:
    """Of rank 0 of two, with three of five elements."""
    spaces: dict[str, Any] = {
        "domain": al.Space(CUT),
        "codomain": al.Space(CUT, name="y"),
        "parameters": al.Space(al.Tensor(CUT, name="w")),
        "buffers": al.Space(al.Tensor(al.Layout((1,), (2,), axes=[None]), "float32", name="calls")),
    }
    module = given.pop("module", None) or Scaled(side, dtype)
    return Layer(None, module, **spaces | given)  # type: ignore[arg-type]


def context(of: Layer, values: str = "integers", rank: int = 0, reference: Any = lambda: Scaled(5)) -> Any:
    notes: list[Any] = []
    return SimpleNamespace(
        layer=of,
        values=values,
        rank=rank,
        reference=reference,
        torch_memory="torch",
        setting=InputSetting(3),
        beyond=None,
        note_return=lambda function: notes.append(function),
        note_backward=lambda begun: notes.append(begun),
        notes=notes,
    )


# What is drawn.


@pytest.mark.parametrize("number", range(3))
def test_each_pass_has_draws_of_its_own_two_of_them_of_cotangents(number: int) -> None:
    beyond = (1, 6)
    given: Any = SimpleNamespace(setting=InputSetting(5), values="large", beyond=beyond)
    as_drawn = pass_keys(given, number)
    given.values = "negative"
    assert as_drawn["inputs"] == Draw(5, 3 * number, "primal", 4, beyond=beyond)
    assert pass_keys(given, number) == {
        "inputs": Draw(5, 3 * number, "primal", 4, values="negative", beyond=beyond),
        "parameters": Draw(5, 3 * number + 1, "primal", 4, peaked=number == 1),
        "cotangents": Draw(5, 3 * number + 2, "dual", 4, beyond=beyond),
        "accumulated": Draw(5, 3 * number, "dual", 4),
    }


@pytest.mark.parametrize(
    ("kind", "dtype", "made"),
    [
        *(("large", dtype, lambda x: x * 2.0**14) for dtype in ("float64", "float32", "bfloat16")),
        *(("tiny", dtype, lambda x: x * 2.0**-40) for dtype in ("float64", "float32", "bfloat16")),
        ("large", "float16", lambda x: x * 64),
        ("tiny", "float16", lambda x: x / 64),
        ("subnormal", "float64", lambda x: x * 2.0**-1074),
        ("subnormal", "float32", lambda x: x * 2.0**-149),
        ("subnormal", "float16", lambda x: x * 2.0**-24),
        ("infinite", "float64", lambda x: torch.where(abs(x) < 4, x, x * float("inf"))),
        ("integers", "float64", lambda x: x),
        ("negative", "float64", lambda x: x),
        ("large", "int64", lambda x: x),
    ],
)
def test_integers_that_are_drawn_become_values_of_a_kind(kind: str, dtype: str, made: Any) -> None:
    space = al.Space(al.Layout((40,), (1,)), dtype=dtype)
    (x,) = LocalModule(context(layer(domain=space), kind)).inputs(KEY)
    drawn = torch.from_numpy(local_values(space, 0, 0, KEY)).to(x.dtype)
    assert {-4, 4} <= set(drawn.tolist())
    assert x.dtype is getattr(torch, dtype)
    assert torch.equal(x, made(drawn))


@pytest.mark.parametrize(
    ("seed", "given", "is_small"),
    [
        (7679, {}, False),
        (7680, {}, True),
        (15359, {}, True),
        (3 * 7680, {}, False),
        (30720 + 7680, {}, True),
        (7680, {"rounding": 0.0}, True),
        (7680, {"rounding": 1e-3}, False),
        (7680, {"reach": 4.0}, False),
        (7680, {"computes_in": "bfloat16"}, False),
        (7680, {"codomain": al.Space(CUT, dtype="float16", name="y")}, False),
        (7680, {"codomain": al.Space(CUT, dtype="bfloat16", name="y")}, True),
    ],
)
def test_cotangents_are_small_by_some_seeds_where_no_rounding_hides_what_they_do(
    seed: int, given: dict[str, Any], is_small: bool
) -> None:
    module = LocalModule(context(layer(**given)))
    key = replace(KEY, seed=seed, side="dual")
    (cotangent,) = module.cotangents(key)
    (integers,) = module.tensors(module.layer.codomain.dual, key)
    assert has_small_cotangents(seed, module.layer) == is_small
    assert torch.equal(cotangent, integers / 1024 if is_small else integers)


@pytest.mark.parametrize(("index", "kept"), [(0, slice(None, 3)), (3, slice(2, None))])
def test_cotangents_are_zero_but_for_one_half_by_some_seeds(index: int, kept: slice) -> None:
    module = LocalModule(context(layer(codomain=al.Space(al.Layout((5, 1, 5), (1, 1, 1)), name="y"))))
    for seed in (2 * 7680, 3 * 7680 - 1):
        key = replace(KEY, seed=seed, index=index, side="dual")
        (cotangent,) = module.cotangents(key)
        (integers,) = module.tensors(module.layer.codomain.dual, key)
        expected = torch.zeros_like(integers)
        expected[kept, :, kept] = integers[kept, :, kept]
        assert torch.equal(cotangent, expected)
        assert expected.any()
        assert described_cotangents(seed, module.layer).startswith("zero in one half")


@pytest.mark.parametrize("kind", ["large", "infinite"])
def test_inputs_that_are_prepared_otherwise_keep_their_values_and_infinities_are_no_summands(
    kind: str,
) -> None:
    free, prepared, whole = (Tensor(al.Layout((40,), (1,)), "float64", name=name) for name in "abc")
    (partial,) = al.Space(al.Layout((40,), (1,), axes=[None]), types=["partial"]).tensors
    domain = al.Space(free, prepared, whole, al.Tensor(partial.layout, "float64", ("partial",), "d"))
    for clamped, prepare in (
        (False, elementwise),
        (True, lambda a, b, c, d: (a, b.clamp(max=3), c, d)),
        (True, lambda a, b, c, d: (a, b.clamp(min=-3), c, d)),
        (True, lambda a, b, c, d: (a, b.clamp(max=10), c, d)),
        (True, lambda a, b, c, d: (a, torch.where(b == 2, -b, b), c, d)),
        (True, lambda a, b, c, d: (a, b.float(), c, d)),
    ):
        module = LocalModule(context(layer(domain=domain, prepare=prepare), kind))
        drawn = prepare(*(torch.from_numpy(local_values(domain, position, 0, KEY)) for position in range(4)))
        changed = [not torch.equal(x, y) for x, y in zip(module.inputs(KEY), drawn, strict=True)]
        assert changed == [True, not clamped, True, kind != "infinite"]


def test_a_twin_is_filled_with_the_whole_of_what_the_ranks_hold() -> None:
    of = layer()
    local, twin = LocalModule(context(of)), SequentialTwin(context(of))
    twin.fill_parameters(KEY)
    local.fill_parameters(KEY)
    assert torch.equal(twin.module.w[:3], local.module.w)  # type: ignore[index]
    assert local.parameters()[0] is local.module.w
    assert twin.buffers()[0] is twin.module.calls
    drawn = whole_array(of.parameters, 0, KEY)
    np.testing.assert_array_equal(twin.module.w.detach().numpy(), drawn)  # type: ignore[operator, union-attr]
    assert len(set(drawn.tolist())) > 1


@pytest.mark.parametrize("kind", ["integers", "thirds"])
def test_rounding_that_is_tried_out_changes_summands_and_no_input_that_all_ranks_have(kind: str) -> None:
    indices = lambda x: x.long()  # noqa: E731
    whole = al.Layout((40,), (2,), axes=[None])
    for types, prepare, is_changed in (
        ("invariant", indices, False),
        ("replicated", indices, False),
        ("invariant", elementwise, False),
        ("partial", elementwise, True),
    ):
        of = layer(domain=al.Space(al.Tensor(whole, "float64", (types,))), prepare=prepare)
        (exact,) = SequentialTwin(context(of, kind)).inputs(KEY)
        perturbation = Perturbation(0, 8.0, spares_integers=False)
        with perturbation, perturbing(perturbation.unseen):
            (tried,) = SequentialTwin(context(of, kind)).inputs(KEY)
        assert torch.equal(exact, tried) is not is_changed
        assert torch.allclose(exact, tried, rtol=1e-13, atol=1e-13)


def test_rounding_that_is_tried_out_changes_no_input_of_another_batch() -> None:
    of = layer(prepare=lambda x: ((x % 6) / 3 * 3).long())
    other = al.Space(al.Tensor(al.Layout((40,), (3,)), "float64"))
    (exact,) = SequentialTwin(context(of)).drawn_inputs(other, KEY)
    perturbation = Perturbation(0, 8.0, spares_integers=False)
    with perturbation, perturbing(perturbation.unseen):
        (tried,) = SequentialTwin(context(of)).drawn_inputs(other, KEY)
    assert torch.equal(exact, tried)


def test_a_parameter_of_zero_volume_may_have_any_such_shape() -> None:
    empty = al.Layout((0, 4), (2, 1))
    module = Scaled(3)
    module.w = nn.Parameter(torch.zeros(0, dtype=torch.float64))
    local = LocalModule(context(layer(module=module, parameters=al.Space(al.Tensor(CUT, name="w"))), rank=2))
    local.layer = layer(module=module, parameters=al.Space(al.Tensor(empty, name="w")))
    local.fill_parameters(KEY)
    assert local.module.w.shape == (0,)


# Calls.


def test_a_layer_that_writes_into_its_inputs_gets_copies() -> None:
    x = torch.ones(3)
    for overwrites in (False, True):
        (given,) = LocalModule(context(layer(overwrites_inputs=overwrites))).given([x])
        assert (given is x) == (not overwrites)
        assert torch.equal(given, x)


def test_a_call_is_noted_and_its_outputs_are_checked() -> None:
    given = context(layer())
    local = LocalModule(given)
    (y,) = local([2 * torch.ones(3, dtype=torch.float64)])
    assert y.tolist() == [2, 2, 2]
    assert given.notes == [Scaled.forward]
    with pytest.raises(NotInSpace):
        local([torch.ones(1, dtype=torch.float64).expand(2, 3)])


@pytest.mark.parametrize("has_graph", [True, False])
def test_a_backward_pass_is_told_of_before_and_the_module_after_it(has_graph: bool) -> None:
    given = context(layer())
    local = LocalModule(given)
    x = torch.ones(3, dtype=torch.float64, requires_grad=has_graph)
    local.module.w.requires_grad_(False)  # type: ignore[operator, union-attr]
    local.go_back([x], [local.module(x)], [2 * torch.ones(3, dtype=torch.float64)])
    begun = BackwardPass({"x": has_graph, "w": False}, has_graph)
    assert given.notes == ([begun, torch.autograd.backward] if has_graph else [begun])
    assert local.module.passes_over == 1
    assert (x.grad is not None) == has_graph
    if has_graph:
        assert x.grad.tolist() == [2, 2, 2]  # type: ignore[union-attr]


def test_values_are_copies() -> None:
    x = torch.ones(2, requires_grad=True)
    (copied,) = values([x])
    with torch.no_grad():
        x[0] = 5
    assert copied.tolist() == [1, 1]


@pytest.mark.parametrize("averaged", [1, 3])
def test_a_layer_that_takes_means_over_ranks_has_a_summand_of_the_mean_and_the_twin_its_share_of_the_loss(
    averaged: int,
) -> None:
    given = context(layer(averaged=averaged))
    local, twin = LocalModule(given), SequentialTwin(given)
    gradient, cotangent = np.array([3.0, 5.0]), torch.tensor([8.0, -4.0], dtype=torch.float64)
    assert local.of_means([cotangent])[0].tolist() == [8 * averaged, -4 * averaged]
    assert twin.of_means([cotangent])[0].tolist() == [8, -4]
    assert local.of_sums([gradient])[0].tolist() == [3 / averaged, 5 / averaged]
    assert twin.of_sums([gradient])[0].tolist() == [3, 5]
    assert local.as_loss([cotangent])[0].tolist() == [8, -4]
    assert twin.as_loss([cotangent])[0].tolist() == [8 / averaged, -4 / averaged]


# What is refused.


def refused(call: Any, kind: type[Exception] = NotInSpace) -> str:
    with pytest.raises(kind) as raised:
        call()
    assert type(raised.value) is kind
    return str(raised.value)


def test_outputs_are_as_many_and_as_large_as_the_codomain_says() -> None:
    y = torch.ones(3, dtype=torch.float64)
    first, last, inactive = (
        LocalModule(context(layer(side), rank=rank)) for rank, side in enumerate((3, 2, 0))
    )
    first.check_outputs([y])
    last.check_outputs([y[:2]])
    inactive.check_outputs([torch.ones(7, 0)])
    for outputs in ([], [y, y]):
        assert refused(lambda outputs=outputs: first.check_outputs(outputs)) == (
            f"the layer returned {len(outputs)} tensors, but the codomain has 1"
        )
    for shape in ((2,), (4,), (3, 1), ()):
        assert refused(lambda shape=shape: first.check_outputs([torch.ones(shape, dtype=torch.float64)])) == (
            f"the layer returned shape {shape} on rank 0, but the layout {CUT} gives it (3,)"
        )
    assert refused(lambda: inactive.check_outputs([y])) == (
        f"the layer returned shape (3,) on rank 2, which is inactive in {CUT.partition} and holds a zero-volume tensor"
    )
    assert refused(lambda: first.check_outputs([y.float()])) == (
        "the layer returned element type float32 on rank 0, but float64 is declared"
    )
    first.memory = "torch-cuda"
    assert refused(lambda: first.check_outputs([y])) == (
        "the layer returned a tensor in the memory torch on rank 0, whose tensors lie in torch-cuda"
    )


def test_of_several_outputs_the_one_that_does_not_lie_as_declared_is_named() -> None:
    both = al.Space(al.Tensor(CUT, name="y"), al.Tensor(CUT, name="y1"))
    local, y = LocalModule(context(layer(codomain=both))), torch.ones(3, dtype=torch.float64)
    local.check_outputs([y, y])
    assert refused(lambda: local.check_outputs([y, y[:2]])) == (
        f"of y1 the layer returned shape (2,) on rank 0, but the layout {CUT} gives it (3,)"
    )


def test_a_parameter_that_a_call_makes_is_refused() -> None:
    local = LocalModule(context(layer()))
    local.module.late = nn.Parameter(torch.ones(1))
    assert refused(lambda: local.check_outputs([torch.ones(3, dtype=torch.float64)]), ValueError) == (
        "after a call, the layer has the parameter late, which parameter_space does not name: make it when the layer is made, "
        "and declare it"
    )


def test_parameters_are_as_large_as_declared() -> None:
    assert refused(lambda: LocalModule(context(layer(2))), ParameterNotInSpace) == (
        f"the parameter w has shape (2,) on rank 0, but the layout {CUT} gives it (3,)"
    )
    assert refused(lambda: LocalModule(context(layer(dtype=torch.float32))), ParameterNotInSpace) == (
        "the parameter w has element type float32 on rank 0, but float64 is declared"
    )


def test_a_twin_has_the_whole_parameters_and_outputs() -> None:
    of = layer()
    for side in (4, 6):
        made = context(of, reference=lambda side=side: Scaled(side))
        assert refused(lambda made=made: SequentialTwin(made), SubjectError) == (
            f"the sequential twin's parameter w has shape ({side},), but the layer's is laid out as (5,)"
        )
    twin = SequentialTwin(context(of))
    twin.check_outputs([torch.ones(5)])
    for shapes in ([], [(4,)], [(6,)], [(5,), (5,)]):
        outputs = [torch.ones(shape) for shape in shapes]
        assert refused(lambda outputs=outputs: twin.check_outputs(outputs), SubjectError) == (
            f"the sequential twin returned shapes {shapes}, but the codomain has [(5,)]"
        )
    assert refused(lambda: SequentialTwin(context(of, reference=lambda: nn.Linear(1, 1))), SubjectError) == (
        "the sequential twin and the layer are not called alike: the twin has the parameter weight, which parameter_space does "
        "not name"
    )


# Whole tensors.


def space_of(layout: al.Layout, *types: str, name: str = "x") -> Space:
    return al.Space(al.Tensor(layout, "float64", types or (), name))  # type: ignore[arg-type]


def test_a_whole_tensor_has_the_values_of_all_ranks_and_the_sums_of_summands() -> None:
    cut = al.Space(CUT)
    parts = [local_values(cut, 0, rank, KEY) for rank in (0, 1)]
    np.testing.assert_array_equal(whole_array(cut, 0, KEY), np.concatenate(parts))
    partial = al.Space(COPIES, types=["partial"])
    summands = [local_values(partial, 0, rank, KEY) for rank in (0, 1)]
    np.testing.assert_array_equal(whole_array(partial, 0, KEY), summands[0] + summands[1])
    for kind in ("replicated", "invariant"):
        copies = al.Space(COPIES, types=[kind])
        np.testing.assert_array_equal(whole_array(copies, 0, KEY), local_values(copies, 0, 0, KEY))
    wide = al.Space(al.Layout((3,), (2,), windows=[[(-1, 2), (2, 5)]]))
    parts = [local_values(wide, 0, rank, KEY) for rank in (0, 1)]
    np.testing.assert_array_equal(whole_array(wide, 0, KEY), [*parts[0][1:], parts[1][0]])


def test_there_is_no_whole_of_copies_that_differ() -> None:
    def has_copies(layout: al.Layout, *types: str) -> bool:
        return has_copies_of_their_own(space_of(layout, *types).tensors[0])

    assert has_copies(COPIES)
    assert not has_copies(COPIES, "replicated")
    assert not has_copies(COPIES, "invariant")
    assert not has_copies(COPIES, "partial")
    assert not has_copies(CUT)
    assert not has_copies(al.Layout((0, 3), (2,), axes=[None, None]))
    both = al.Layout((4,), (2, 2), axes=[0])
    assert has_copies(both)
    advice = 'if all ranks hold the same values, declare it with types of "replicated" or "invariant" along the dimensions that copy it'
    text = f"the copies of x have values of their own, so there is no sequential tensor; {advice}"
    assert refused(lambda: whole_array(space_of(COPIES), 0, KEY), Inapplicable) == text
    unnamed = SimpleNamespace(name="")
    assert no_sequential_tensor(unnamed) == text.replace("of x", "of tensor 0")  # type: ignore[arg-type]
    assert no_sequential_tensor(unnamed, 3) == text.replace("of x", "of tensor 3")  # type: ignore[arg-type]


def test_ranks_hold_their_windows_of_whole_tensors() -> None:
    tensors = al.Space(al.Tensor(CUT, name="a"), al.Tensor(CUT, name="b"))
    whole = [np.arange(5.0), np.arange(5.0, 10.0)]
    parts = held_by_all(tensors, whole, 3)
    assert [[part.tolist() for part in rank] for rank in parts] == [
        [[0, 1, 2], [5, 6, 7]],
        [[3, 4], [8, 9]],
        [[], []],
    ]
    for shape in ((4,), (6,), (5, 1)):
        assert refused(lambda shape=shape: held(tensors.tensors[0], np.zeros(shape), 0), SubjectError) == (
            f"the reference returned shape {shape}, but the codomain is {CUT}"
        )
