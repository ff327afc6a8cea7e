"""The context of a check: the memory of its values, the gain of its operator, and communicators that calls leave behind."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.checks.context import CheckContext, InputSetting
from adjointlab.checks.elements import EXACT
from adjointlab.checks.gain import Gain, GainSource
from adjointlab.checks.measured_rounding import NOTHING_MEASURED
from adjointlab.core import arrays
from adjointlab.core.layer import Layer
from adjointlab.core.operator import Direction
from adjointlab.core.program import Allocate, Deallocate, Program, buffers
from adjointlab.core.space import Space
from adjointlab.core.vectors import Draw, local_values

pytestmark = pytest.mark.mpi_skip

SHORT = al.Space(al.Layout((5, 2), (2, 1)))
LONG = al.Space(al.Layout((7, 10), (2, 1)), dtype="float32", name="y")


class Operator:
    """As far as a context asks it."""

    def __init__(self, **given: Any) -> None:
        self.domain, self.codomain, self.gain, self.fan_in, self.rounding = SHORT, LONG, None, None, None
        self.specified: Any = None
        self.comm = SimpleNamespace(Get_rank=lambda: 0)
        vars(self).update(given)

    def specification(self) -> Any:
        return self.specified


def context(of: Any = None, setting: InputSetting | None = None, rank: int = 0, **given: Any) -> CheckContext:
    comm: Any = SimpleNamespace(Get_rank=lambda: rank, **given.pop("comm", {}))
    return CheckContext(lambda: of or Operator(), setting or InputSetting(), comm, **given)


# The setting.


def test_a_setting_names_a_memory_and_the_order_of_either_side() -> None:
    setting = InputSetting(1, "numpy", "strided", "offset")
    assert (setting.order("primal"), setting.order("dual")) == ("strided", "offset")
    legal = ", ".join((*arrays.MEMORIES, *arrays.MIXTURES))
    with pytest.raises(ValueError, match="library") as raised:
        InputSetting(library="jax")
    assert str(raised.value) == f"library: 'jax' is not one of {legal}"
    for sides in ({"primal_order": "odd"}, {"dual_order": "odd"}):
        with pytest.raises(ValueError, match="order") as raised:
            InputSetting(**sides)  # type: ignore[arg-type]
        orders = "row-major, column-major, strided, offset, reversed"
        some = ", ".join(f"{order} on even ranks" for order in orders.split(", ")[1:])
        assert str(raised.value) == f"order: 'odd' is not one of {orders}, {some}"


def test_an_operator_ends_with_the_context_of_its_case_and_waits_for_no_garbage_collection() -> None:
    ended: list[str] = []

    class Ending(Operator):
        def __del__(self) -> None:
            ended.append("the operator")

    of = context(Ending(gain=1))
    assert of.arithmetic.gain.value == 1
    gc.disable()
    try:
        del of
        assert ended == ["the operator"]
    finally:
        gc.enable()


@pytest.mark.parametrize("seed", range(4))
def test_beyond_a_rank_values_are_those_of_the_next_seed(seed: int) -> None:
    assert context(setting=InputSetting(seed)).beyond is None
    for rank in (0, 1, 2):
        assert context(setting=InputSetting(seed), same_on=rank).beyond == (rank, seed + 1)


@pytest.mark.parametrize(
    ("wanted", "unsupported", "has_torch_on_device", "library"),
    [
        ("numpy", None, True, "numpy"),
        ("numpy", "float64", False, "torch"),
        ("numpy", "float64", True, "torch"),
        ("numpy", "float32", False, "torch"),
        ("cupy", None, True, "cupy"),
        ("cupy", "float64", True, "torch-cuda"),
        ("cupy", "float32", True, "torch-cuda"),
        ("cupy", "float32", False, "torch"),
        ("torch", None, False, "torch"),
    ],
)
def test_memory_is_the_settings_or_torchs_where_that_lacks_an_element_type(
    wanted: str,
    unsupported: str | None,
    has_torch_on_device: bool,
    library: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arrays, "supports", lambda memory, dtype: dtype != unsupported)
    monkeypatch.setattr(arrays, "installed", lambda memory: memory == "torch-cuda" and has_torch_on_device)
    assert context(setting=InputSetting(library=wanted)).library == library


@pytest.mark.parametrize(
    ("memory", "by_rank"),
    [
        ("numpy", ["torch", "torch"]),
        ("torch", ["torch", "torch"]),
        ("torch-cuda", ["torch-cuda", "torch-cuda"]),
        ("cupy", ["torch", "torch"]),
    ],
)
def test_tensors_of_a_layer_are_torchs(memory: str, by_rank: list[str]) -> None:
    found = [context(setting=InputSetting(library=memory), rank=rank).torch_memory for rank in (0, 1)]
    assert found == by_rank


# Values.


def test_inputs_are_drawn_by_rank_side_number_and_tensor() -> None:
    space = al.Space(
        al.Tensor(SHORT.tensors[0].layout, name="a"), al.Tensor(SHORT.tensors[0].layout, name="b")
    )
    for rank in (0, 1):
        of = context(Operator(domain=space, codomain=space), InputSetting(4), rank)
        for side, drawn in (("primal", of.primal(2, 9)), ("dual", of.dual(2, 9))):
            draw = Draw(4, 2, side, 9)  # type: ignore[arg-type]
            assert len(drawn) == 2
            for position, array in enumerate(drawn):
                np.testing.assert_array_equal(array, local_values(space, position, rank, draw))
    placed = of.placed(space, "primal", 3, 5, -2)
    np.testing.assert_array_equal(placed[1].view, local_values(space, 1, 1, Draw(4, 3, "primal", 5, -2)))


def test_inputs_lie_as_the_setting_says_unless_another_order_is_asked_for() -> None:
    of = context(setting=InputSetting(0, "numpy", "column-major", "reversed"))
    (x,), (y,) = of.primal(0, 5), of.dual(0, 5)
    assert x.strides == (8, 8 * 3)  # type: ignore[attr-defined]
    assert min(y.strides) < 0  # type: ignore[attr-defined]
    (placed,) = of.placed(SHORT, "primal", 0, 5, order="row-major")
    assert placed.view.flags.c_contiguous


def test_copies_for_the_judge_do_not_change_with_the_operators_memory() -> None:
    x = np.ones(2)
    (copied,) = context().numpy([x])
    x[0] = 5
    assert copied.tolist() == [1, 1]


# The instance.


def test_an_instance_is_made_once_and_where_user_code_ends_is_noted() -> None:
    made: list[Operator] = []
    noted: list[Any] = []

    def make() -> Any:
        made.append(Operator())
        return made[-1]

    comm: Any = SimpleNamespace(Get_rank=lambda: 2, note_return=noted.append)
    of = CheckContext(make, InputSetting(), comm)
    assert (of.rank, made) == (2, [])
    assert of.operator is of.instance is of.operator is made[0]
    assert (of.domain, of.codomain) == (SHORT, LONG)
    assert of.fresh() is made[1]
    assert len(made) == 2
    assert noted == [Operator.__init__] * 2
    with pytest.raises(AssertionError):
        of.layer  # noqa: B018


def test_of_a_layer_the_module_is_noted_and_it_is_no_operator() -> None:
    noted: list[Any] = []
    layer: Any = Layer(None, Operator(), SHORT, LONG, SHORT, SHORT)  # type: ignore[arg-type]
    of = context(layer, comm={"note_return": noted.append})
    assert of.layer is layer
    assert noted == [Operator.__init__]
    with pytest.raises(AssertionError):
        of.operator  # noqa: B018
    with pytest.raises(AssertionError):
        of.fresh()


# Communicators that calls leave behind.


def leaks(direction: Direction, *opened: list[str]) -> dict[Direction, str]:
    """The leaks told after calls of one operator, before and after each of which these communicators are open."""
    states = iter([*opened, *[opened[-1]] * 2])
    operator: Any = Operator(forward=lambda x: x, adjoint=lambda x: x, codomain=SHORT)
    of = context(operator, comm={"unfreed": lambda: next(states)})
    for _ in range(len(opened) // 2):
        x = of.primal(0, 3)
        (of.forward if direction is Direction.FORWARD else of.adjoint)(x)
    return of.leaks


@pytest.mark.parametrize("direction", Direction)
def test_a_leak_is_one_more_communicator_after_each_of_two_calls(direction: Direction) -> None:
    each = "each call leaves one more behind: "
    assert leaks(direction, [], ["a"]) == {}
    assert leaks(direction, [], ["a"], ["a"], ["a", "b"]) == {direction: f"{each}b"}
    assert leaks(direction, [], ["a"], ["a"], ["b", "a"], ["a", "b"], ["a", "b", "c"]) == {
        direction: f"{each}b"
    }
    # One that a call frees, or frees and makes anew, is none.
    assert leaks(direction, [], ["a"], ["a"], []) == {}
    assert leaks(direction, [], ["a"], ["a"], ["b"]) == {}
    assert leaks(direction, [], ["a"], ["a"], ["a"]) == {}


def test_each_instance_and_each_direction_may_keep_one() -> None:
    opened: list[str] = []

    def applied(x: Any) -> Any:
        opened.append(str(len(opened)))
        return x

    make = lambda: Operator(forward=applied, adjoint=applied, codomain=SHORT)  # noqa: E731
    comm: Any = SimpleNamespace(Get_rank=lambda: 0, unfreed=lambda: list(opened))
    of = CheckContext(make, InputSetting(), comm)  # type: ignore[arg-type]
    other: Any = of.fresh()
    x = of.primal(0, 3)
    for call in (
        lambda: of.forward(x),
        lambda: of.adjoint(x),
        lambda: of.forward(x, other),
        lambda: of.adjoint(x, other),
    ):
        call()
        assert not of.leaks
    of.adjoint(x)
    assert of.leaks == {Direction.ADJOINT: "each call leaves one more behind: 4"}


# An adjoint that needs a call of forward before it.


@pytest.mark.parametrize("goes_forward", [True, False])
def test_an_adjoint_that_raises_is_told_where_no_call_of_forward_came_before(goes_forward: bool) -> None:
    def failing(y: Any) -> Any:
        raise AttributeError("no attribute 'shape'")

    of = context(Operator(forward=lambda x: x, adjoint=failing, codomain=SHORT), comm={"unfreed": list})
    x = of.primal(0, 3)
    if goes_forward:
        of.forward(x)
    with pytest.raises(AttributeError) as raised:
        of.adjoint(x)
    notes = getattr(raised.value, "__notes__", [])
    assert [note for note in notes if "whose forward was not called before" in note] == notes
    assert bool(notes) != goes_forward


# The gain.


def program(gain: int) -> Program:
    made = Program((), ())
    vars(made)["gain"] = lambda: gain
    return made


def replacing(given: Space, returned: Space) -> Program:
    """The program that forgets what it is given, and returns zeros."""
    steps = [*map(Deallocate, buffers(given)), *map(Allocate, buffers(returned))]
    return Program(buffers(given), steps)


@pytest.mark.parametrize(
    ("given", "gain"),
    [
        # The longer side of the matrix counts where nobody says how many terms are added up: 10 elements and 70.
        ({"gain": 3}, Gain(3, 70, 3.0, GainSource.DECLARED)),
        ({"gain": 3, "domain": LONG, "codomain": SHORT}, Gain(3, 70, 3.0, GainSource.DECLARED)),
        ({"gain": 3, "fan_in": 5}, Gain(3, 5, 3.0, GainSource.DECLARED)),
        ({"gain": 3, "specified": program(9)}, Gain(3, 70, 3.0, GainSource.DECLARED)),
        ({"specified": program(4)}, Gain(4, 4, 4.0, GainSource.PROGRAM)),
        ({"specified": program(4), "fan_in": 2}, Gain(4, 2, 4.0, GainSource.PROGRAM)),
        ({"specified": (program(4), program(6))}, Gain(6, 6, 6.0, GainSource.PROGRAM)),
        ({"specified": (program(7), program(6))}, Gain(7, 7, 7.0, GainSource.PROGRAM)),
        ({}, Gain(0, 70, 0.0, GainSource.UNKNOWN)),
        ({"fan_in": 6}, Gain(0, 6, 0.0, GainSource.UNKNOWN)),
    ],
)
def test_a_gain_is_declared_or_that_of_the_specification_or_unknown(
    given: dict[str, Any], gain: Gain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adjointlab.checks.gain.measured_rounding", lambda context: NOTHING_MEASURED)
    of = context(Operator(**given))
    assert of.arithmetic.gain == gain
    assert (of.arithmetic.tolerance == EXACT) == (gain.source is not GainSource.UNKNOWN)


def test_spaces_are_not_measured_where_the_declaration_bounds_the_terms_of_a_sum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Numbering all basis vectors of both spaces takes 3% of a case, on every rank."""
    monkeypatch.setattr(Space, "dimension", property(lambda space: pytest.fail("was asked for")))
    integers = al.Space(LONG.tensors[0].layout, dtype="int32")
    assert context(Operator(gain=3, fan_in=5, codomain=integers)).arithmetic.gain.fan_in == 5


def test_a_specification_is_of_both_directions_or_transposed() -> None:
    one, other = replacing(SHORT, LONG), replacing(LONG.dual, SHORT.dual)
    assert context(Operator()).programs is None
    assert context(Operator(specified=one)).programs == (one, one.adjoint())
    assert context(Operator(specified=(one, other))).programs == (one, other)


def test_the_element_type_of_fewest_bits_counts_in_either_space() -> None:
    mixed, turned = context(Operator()), context(Operator(domain=LONG, codomain=SHORT))
    double = context(Operator(domain=SHORT, codomain=SHORT))
    assert mixed.arithmetic.precision == 24
    assert turned.arithmetic.precision == 24
    assert double.arithmetic.precision == 53
