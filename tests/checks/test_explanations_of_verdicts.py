"""Explanations of verdicts: follow-ups, plainer settings, and the hints that are told; and the looks at small parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.checks.check import Spaces, check_named
from adjointlab.checks.context import InputSetting
from adjointlab.checks.declared import DeclaredOutputs, _same
from adjointlab.checks.elements import Tolerance
from adjointlab.checks.evidence import ComparedMatrices, Element, Evidence, Place
from adjointlab.checks.hints import FaultKind, Hint
from adjointlab.checks.layers.compared_passes import SECOND_PASS, Comparison
from adjointlab.checks.layers.own_part import _stayed
from adjointlab.checks.marked import _COMPARED, tensor_hint
from adjointlab.checks.told import hints_told
from adjointlab.checks.verdict import Verdict, coherent, incoherent
from adjointlab.core.operator import Direction
from adjointlab.pictures.model import Grid

pytestmark = pytest.mark.mpi_skip

GRID = Grid("", "", (), (), ())
VALUES, RETRIED = Hint(FaultKind.DOUBLED, "twice the expected value"), Hint(FaultKind.STRIDES, "of strides")


def matrices(names: tuple[str, ...] = ("forward", "adjoint, transposed"), **given: Any) -> ComparedMatrices:
    element = Element(GRID, "x", 0)
    return ComparedMatrices(names, (0,), (0,), (), (), ((), ()), (0, 0), element, element, **given)


def place(hint: Hint | None = None) -> Place:
    return Place(GRID, "x[0]", (("here", "2"), ("fresh", "1")), hint)


def told(**evidence: Any) -> list[tuple[FaultKind, str]]:
    return [(hint.kind, hint.text) for hint in hints_told(incoherent("wrong", evidence=Evidence(**evidence)))]


def test_hints_are_told_with_the_results_that_they_compare() -> None:
    doubled, text = FaultKind.DOUBLED, "twice the expected value"
    assert hints_told(incoherent("wrong")) == ()
    assert told(place=place()) == []
    assert told(place=place(VALUES)) == [(doubled, f"here, compared with fresh: {text}")]
    assert told(matrices=matrices(hint=VALUES)) == [(doubled, f"adjoint, compared with forward: {text}")]
    for name in ("forward", "adjoint, transposed"):
        specified = matrices((name, "specification"), hint=VALUES)
        against = f"{name.split(',')[0]}, compared with the specification: {text}"
        assert told(matrices=specified) == [(doubled, against)]
    third = matrices(("forward", "adjoint, transposed", "specification"), hint=VALUES)
    assert told(matrices=third) == [(doubled, f"adjoint, compared with forward: {text}")]
    assert told(hint=VALUES) == [(doubled, text)]
    assert told(hint=VALUES, retried=(RETRIED,)) == [(doubled, text), (RETRIED.kind, "of strides")]
    declared = matrices(declaration="y were declared invariant")
    assert told(matrices=declared, retried=(RETRIED,)) == [
        (RETRIED.kind, "of strides"),
        (FaultKind.DECLARATION, "coherent, in this case, if y were declared invariant"),
    ]


def test_a_specification_check_keeps_its_place_and_takes_the_matrices_of_its_follow_up() -> None:
    check = check_named("specification")
    assert check.follow_up() is check_named("witness")
    shown = place(VALUES)
    found, plain = incoherent("wrong", evidence=Evidence(shown)), incoherent("wrong")
    beside = matrices(("forward", "specification"))
    answer = coherent()
    assert check.explained(found, None) is found
    assert check.explained(found, answer) is found
    with_matrices = incoherent("other", evidence=Evidence(matrices=beside))
    explained = check.explained(found, with_matrices)
    assert (explained.headline, explained.evidence) == ("wrong", Evidence(shown, beside))
    assert check.explained(plain, with_matrices).evidence == Evidence(None, beside)


@pytest.mark.parametrize(
    ("answer", "of_first", "of_second"),
    [
        (None, "gradcheck does not apply", "gradcheck does not apply"),
        (coherent(), "gradcheck passes", "gradcheck passes"),
        (incoherent("gradcheck fails", ("pass 0", "no")), "no", "gradcheck passes"),
        (incoherent("gradcheck fails", ("pass 1", "no")), "gradcheck passes", "no"),
    ],
)
def test_gradcheck_tells_of_the_twin_in_the_pass_that_is_wrong(
    answer: Verdict | None, of_first: str, of_second: str
) -> None:
    check = check_named("gradients")
    assert check.follow_up() is check_named("gradcheck")
    for wrong, text in (
        (incoherent("wrong", ("a", "b")), of_first),
        (incoherent("wrong", SECOND_PASS), of_second),
    ):
        assert check.explained(wrong, answer).lines == (*wrong.lines, ("sequential twin", text))


def test_gradients_are_tried_in_plainer_memory_and_in_plainer_passes() -> None:
    check = check_named("gradients")
    found = list(check.plainer_settings(InputSetting(6, "torch", "strided")))
    assert [(hint.kind, setting) for hint, setting in found] == [
        (FaultKind.STRIDES, InputSetting(6, "torch")),
        (FaultKind.KEPT, InputSetting(9, "torch", "strided")),
        (FaultKind.ACCUMULATED, InputSetting(0, "torch", "strided")),
    ]
    assert list(check.plainer_settings(InputSetting(3, "torch"))) == []


def test_the_witness_explains_what_it_sees_and_nothing_else() -> None:
    check = check_named("adjoint")
    found = incoherent("wrong", ("a", "b"))
    assert check.follow_up() is check_named("witness")
    assert check.explained(found, None) is found
    assert check.explained(found, coherent()) is found
    answer = incoherent("other", ("c", "d"), kind="matrix", evidence=Evidence(matrices=matrices()))
    explained = check.explained(found, answer)
    assert (explained.headline, explained.lines, explained.evidence) == (
        "wrong",
        (("c", "d"),),
        answer.evidence,
    )
    too_small = incoherent("the declared gain is too small", ("declared", "2"))
    assert check.explained(found, too_small) is too_small


def test_the_identity_returns_as_many_and_the_same() -> None:
    one, other = np.array([1.0, 2.0]), np.array([1.0, 3.0])
    assert _same((one, other), (one, other))
    assert not _same((one, other), (one, one))
    assert not _same((one,), (one, one))
    assert not _same((one, one), (one,))
    assert not _same((one,), (one[None],))


def test_the_first_direction_that_is_no_identity_is_told_with_its_rank() -> None:
    nothing: Any = ((), ())
    right, wrong = (
        DeclaredOutputs(nothing, frozenset({"numpy"}), "numpy", directions)
        for directions in ((), (Direction.FORWARD, Direction.ADJOINT))
    )
    space = al.Space(al.Layout((2,), (2,)))
    found = check_named("declared").judge(Spaces(space, space), [right, wrong])
    assert found.headline == "forward is not the identity that the operator declares"
    assert found.lines == (("rank", "1"),)
    elsewhere = DeclaredOutputs(nothing, frozenset({"torch", "numpy", "cupy"}), "numpy", ())
    found = check_named("declared").judge(Spaces(space, space), [right, elsewhere])
    assert found.headline == "outputs are of another array library than inputs, or lie on another device"
    assert found.lines == (("rank", "1"), ("libraries", "numpy in, cupy, torch out"))


def test_hints_are_looked_for_in_tensors_of_equal_shapes_and_of_some_size() -> None:
    (tensor,) = al.Space(al.Layout((4,), (2,))).tensors
    due = {0: np.array([1234567.0, 2345678.0]), 1: np.array([-3456789.0, 4567891.0])}

    def hint(got: dict[int, Any], want: dict[int, Any] = due, allowed: float = 0.0, ranks: int = 2) -> str:
        found = tensor_hint(tensor, got, want, allowed, ranks)
        return "" if found is None else found.text

    assert hint({rank: 2 * part for rank, part in due.items()}) == "twice the expected value, on 2 ranks"
    assert (
        hint({rank: 3 * part for rank, part in due.items()}, ranks=3)
        == "3 times the expected value, on 3 ranks"
    )
    assert hint({rank: 2 * part + 1 for rank, part in due.items()}) == ""
    assert (
        hint({rank: 2 * part + 1 for rank, part in due.items()}, allowed=1.0)
        == "twice the expected value, on 2 ranks"
    )
    assert hint({0: due[0], 1: 0 * due[1]}) == "all is zero on rank 1, and right elsewhere"
    assert hint({0: 2 * due[0], 1: due[1][:1]}) == ""
    for size, is_told in ((_COMPARED, True), (_COMPARED + 1, False)):
        large = {0: np.arange(1.0, size) * 1001, 1: np.array([5003.0])}
        assert bool(hint({rank: 2 * part for rank, part in large.items()}, large)) == is_told


def test_only_elements_that_could_have_changed_tell_of_the_own_part() -> None:
    cut, copies = al.Layout((2,), (1,)), al.Layout((2,), (1,), axes=[None])
    elsewhere = al.Layout((2,), al.Partition((1,), ranks=(1,)))
    wrong, right, after = np.array([3.0, 4.0]), np.array([1.0, 2.0]), np.array([5.0, -7.0])
    tensors = (
        al.Tensor(copies, types=("partial",), name="summand"),
        al.Tensor(cut, name="unwanted"),
        al.Tensor(cut, "int64", name="number"),
        al.Tensor(elsewhere, name="elsewhere"),
        al.Tensor(cut, name="infinite"),
        al.Tensor(cut, name="y"),
        al.Tensor(cut, name="zero"),
    )
    space = al.Space(*tensors)
    infinite = np.array([np.inf, 1.0])

    def compared(got: Any, of_zero: Any, want: Any = None) -> Comparison:
        local = (got, got, got, got, infinite, got, of_zero)
        expected = None if want is None else ((want,) * len(tensors),)
        return Comparison("outputs", space, local, Tolerance(0.0), frozenset({"unwanted"}), expected)

    seen, leader = compared(wrong, 0 * wrong), compared(wrong, wrong, right)
    stays, leader_after = compared(wrong, 0 * wrong), compared(wrong, wrong, after)
    assert _stayed(seen, leader, stays, leader_after, 0) == [(True, True), (True, False)]
    changed = compared(np.add(wrong, [0, 1.0]), 0 * wrong)
    assert _stayed(seen, leader, changed, leader_after, 0) == [(False, True), (True, False)]
    # What is right, or should not change, tells nothing.
    correct = compared(right, right)
    assert _stayed(correct, leader, correct, leader_after, 0) == []
    assert _stayed(seen, leader, stays, leader, 0) == []
    # A 64th of the largest value is no difference yet, neither of the expected value nor of what is there.
    largest, by_one, by_two = np.array([64.0, 1.0]), np.array([64.0, 2.0]), np.array([64.0, 3.0])
    for got, before, then, found in (
        (by_two, largest, by_one, []),
        (by_one, largest, by_two, []),
        (by_two, largest, by_two, [(True, True)] * 2),
    ):
        one, other = compared(got, got), compared(got, got, before)
        assert _stayed(one, other, one, compared(got, got, then), 0) == found


def test_of_an_optimiser_the_states_of_the_shape_of_a_parameter_are_compared() -> None:
    torch = pytest.importorskip("torch")
    from adjointlab.checks.layers.training import _state_kinds

    def kinds(make: Any, shape: tuple[int, ...] = (2, 3)) -> tuple[str, ...]:
        parameters = [torch.zeros(shape, requires_grad=True), torch.zeros(3)]
        optimizer = make([parameter for parameter in parameters if parameter.requires_grad])
        parameters[0].grad = torch.ones(shape)
        optimizer.step()
        return _state_kinds(optimizer, parameters)

    assert kinds(lambda parameters: torch.optim.SGD(parameters, 0.5)) == ()
    assert kinds(lambda parameters: torch.optim.SGD(parameters, 0.5, momentum=0.5)) == ("momentum_buffer",)
    assert kinds(lambda parameters: torch.optim.Adam(parameters, 0.5)) == ("exp_avg", "exp_avg_sq")
    # A number has state too, and the count of steps is none of a parameter.
    assert kinds(lambda parameters: torch.optim.Adam(parameters, 0.5), ()) == ("exp_avg", "exp_avg_sq")


def test_a_parameter_that_a_layer_does_not_use_has_no_second_derivative() -> None:
    torch = pytest.importorskip("torch")
    from adjointlab.checks.layers.double_backward import _second_derivatives
    from adjointlab.checks.layers.drawn_values import pass_keys
    from adjointlab.checks.layers.modules import LocalModule
    from adjointlab.core.vectors import Draw, local_values
    from tests.checks.test_modules_of_layers import Scaled, context, layer

    class Square(Scaled):
        def forward(self, x: Any) -> Any:
            return x * x

    for seed in (2, 3):
        given = context(layer(module=Square(3)))
        given.setting = InputSetting(seed)
        found = _second_derivatives(given, LocalModule(given))
        keys = pass_keys(given, 0)
        x = local_values(given.layer.domain, 0, 0, keys["inputs"])
        w = local_values(given.layer.codomain.dual, 0, 0, keys["cotangents"])
        v = local_values(given.layer.domain, 0, 0, Draw(seed, 7, "primal", 4))
        by_input, by_parameter, by_cotangent = (part.tolist() for (part,) in found.values())
        assert by_input == (2 * w * v).tolist()
        assert by_parameter == [0, 0, 0]
        assert by_cotangent == ((2 * x * v).tolist() if seed % 2 else [0, 0, 0])
    assert torch.is_grad_enabled()
