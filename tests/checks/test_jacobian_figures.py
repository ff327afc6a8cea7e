"""Errors of a layer's Jacobian are relative to norms that were computed by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import pytest

import adjointlab as al
from adjointlab.checks.check import Spaces
from adjointlab.checks.layers import point
from adjointlab.checks.layers.jacobian import JACOBIAN, Differences, JacobianProducts, TwinPairing
from adjointlab.checks.layers.sensitivity import Allowances
from adjointlab.checks.verdict import Inapplicable, Verdict
from adjointlab.core.pairing import Exact
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.worlds.simulated.world import SimulatedWorld

SPACES = Spaces(*[al.Space(al.Layout((2,), al.Partition((2,))))] * 2)
Squares = tuple[float, float, float, float]


def exact(number: float) -> Exact:
    return Exact(Fraction(number))


def judged(
    forward: float | None = None,
    reverse: float = 0.0,
    twin: TwinPairing | None = None,
    differences: Sequence[Differences | None] = (None, None),
    squares: Squares = (9.0, 16.0, 4.0, 25.0),
    reach: float = 0.0,
    allowed: float = 2.0**-4,
) -> Verdict:
    """The verdict on two ranks, each with half of every square of |Jv|, |w|, |v| and |J*w|, and seven parameters."""
    half: Any = tuple((square / 2) ** 0.5 for square in squares)
    one = None if forward is None else exact(forward)
    none = None if forward is None else exact(0)
    return JACOBIAN.judge(
        SPACES,
        [
            JacobianProducts(one, exact(reverse), twin, differences[0], half, allowed, 7, reach),
            JacobianProducts(none, exact(0), None, differences[1], half, allowed, 7, reach),
        ],
    )


@pytest.mark.parametrize(
    ("squares", "reach", "scale"),
    [
        ((9.0, 16.0, 4.0, 25.0), 0.0, 3 * 4),
        ((9.0, 16.0, 4.0, 49.0), 0.0, 2 * 7),
        ((9.0, 16.0, 4.0, 49.0), 3.0, 3 * 2 * 4),
    ],
)
def test_forward_mode_is_relative_to_the_larger_product_of_norms_or_to_the_reach(
    squares: Squares, reach: float, scale: float
) -> None:
    for sign in (1, -1):
        assert judged(sign * 0.999 * scale / 16, squares=squares, reach=reach).is_coherent
        wrong = judged(sign * scale * 3 / 32, squares=squares, reach=reach)
        assert wrong.headline == "reverse mode is not the adjoint of forward mode"
        assert dict(wrong.lines)["error"].startswith("0.0938 ")


@pytest.mark.parametrize(
    ("squares", "reach", "scale"),
    [
        ((9.0, 16.0, 4.0, 25.0), 0.0, 3 * 2 * 5),
        ((9.0, 16.0, 4.0, 25.0), 2.0, 3 * 2 * 2 * 4),
        ((9.0, 0.25, 4.0, 25.0), 6.0, 3 * 2 * 6),
    ],
)
def test_the_twin_is_relative_to_the_norms_and_the_root_of_the_number_of_elements(
    squares: Squares, reach: float, scale: float
) -> None:
    # Two elements and seven parameters.
    twin = TwinPairing(exact(100), None, {})
    for sign in (1, -1):
        right, wrong = (
            judged(None, 100 + sign * scale * times / 32, twin, squares=squares, reach=reach)
            for times in (2, 3)
        )
        assert right.is_coherent
        assert wrong.headline == "the Jacobian is not the sequential layer's"
        assert dict(wrong.lines)["error"].startswith("0.0938 ")


@pytest.mark.parametrize(("forward", "times"), [(None, 1), (100.0, 2)])
def test_rounding_that_is_measured_counts_by_the_sums_of_the_direction(
    forward: float | None, times: int
) -> None:
    measured: list[bool] = []

    def most() -> dict[str, list[float]]:
        measured.append(True)
        return {"inputs": [0.5, 2.0], "parameters": [4.0]}

    def within(error: float) -> bool:
        least = {"inputs": [0.75, 0.0], "parameters": [0.0]}
        weights = {"inputs": [4.0, 3.0], "parameters": [2.0]}
        allowances = Allowances(least, lambda: least, most)
        twin = TwinPairing(exact(100 + (error if forward is None else 0)), allowances, weights)
        return judged(forward, 100 + (0 if forward is None else error), twin, allowed=0.0).is_coherent

    # At least 0.75 · 4, which needs no measurement, and at most 0.5 · 4 + 2 · 3 + 4 · 2.
    assert within(3.0 * times) is True
    if forward is None:
        assert not measured
    assert within(16.0) is True
    assert measured
    assert within(16.5 * times) is False


@pytest.mark.parametrize("times", [1, 2, 3])
def test_what_is_known_to_round_adds_to_what_is_measured(times: int) -> None:
    measured: list[bool] = []

    def most() -> dict[str, list[float]]:
        measured.append(True)
        return {"inputs": [2.0]}

    allowances = Allowances({"inputs": [0.5]}, lambda: {"inputs": [1.0]}, most)
    pairing = TwinPairing(exact(0), allowances, {"inputs": [6.0]})
    least, of_one_sample, largest = 1 + 3 * times, 1 + 6 * times, 1 + 12 * times
    assert pairing.allows(least, 1.0, times)
    assert not allowances.is_measured
    assert pairing.allows(of_one_sample, 1.0, times)
    assert allowances.is_measured
    assert not measured
    assert pairing.allows(of_one_sample + 0.125, 1.0, times)
    assert measured
    assert pairing.allows(largest, 1.0, times)
    assert not pairing.allows(largest + 0.125, 1.0, times)
    unmeasured = TwinPairing(exact(0), None, {})
    assert [unmeasured.allows(error, 1.0, times) for error in (0.5, 1.0, 1.125)] == [True, True, False]


@pytest.mark.parametrize("forward", [None, 2.0])
def test_differences_are_conclusive_up_to_a_sixteenth_of_the_norms(forward: float | None) -> None:
    def verdict(error: float, wrong: float) -> Verdict:
        parts = [Differences(exact(1.5 + wrong), error, 2.0), Differences(exact(0.5), error / 2, 1.0)]
        return judged(forward, 2.0, differences=parts, allowed=2.0**-5)

    # An error of a little less than 0.25 for all of |w| = 3, and 12 / 32 of the norms, whose sixteenth is 0.75.
    for sign in (1, -1):
        assert verdict(0.2499, sign * (0.749 + 0.375)).is_coherent
        assert not verdict(0.2499, sign * (0.75 + 0.376)).is_coherent
    if forward is None:
        with pytest.raises(Inapplicable, match="not smooth"):
            verdict(0.3, 100.0)
    else:
        assert verdict(0.3, 100.0).is_coherent


@pytest.mark.parametrize("is_used", [False, True])
def test_norms_are_those_of_inputs_and_parameters_together(
    is_used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")

    class Sum(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.p = torch.nn.Parameter(torch.zeros(16, dtype=torch.float64))

        def forward(self, x: Any) -> Any:
            return x + self.p if is_used else x + 0 * self.p.sum()

    space = al.Space(al.Layout((16,), al.Partition((1,))), dtype="float64")

    @al.subject(layer=lambda comm: Sum(), sequential=Sum, ranks=(1,), name="Sum")
    def sums(draw: Any, ranks: int) -> dict[str, Any]:
        return {"domain": space, "codomain": space, "parameter_space": al.Space(al.Tensor(space.tensors[0].layout, name="p", dtype="float64"))}  # fmt: skip

    seen: list[JacobianProducts] = []
    judge = type(JACOBIAN).judge

    def kept(self: Any, spaces: Spaces, observations: Sequence[JacobianProducts]) -> Verdict:
        seen.extend(observations)
        return judge(self, spaces, observations)

    monkeypatch.setattr(type(JACOBIAN), "judge", kept)
    assert investigate(SimulatedWorld(1), sums, "jacobian", Budget(3, seed=1)).verdict.is_coherent
    assert seen
    for image, w, v, pulled in (each.norms for each in seen):
        assert pulled == pytest.approx(w * (2**0.5 if is_used else 1))
        assert v != image  # Jv is the direction of the inputs, or its sum with that of the parameters
        if not is_used:
            assert v > image


@pytest.mark.parametrize(("dtype", "unit"), [("float64", 2.0**-53), ("float32", 2.0**-24)])
@pytest.mark.parametrize("rounding", [None, 2.0**-7])
def test_products_may_be_wrong_by_64_units_and_outputs_of_differences_by_16(
    dtype: str, unit: float, rounding: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    copies = al.Layout((3,), al.Partition((2,)), axes=[None])

    @al.subject(layer=lambda comm: torch.nn.Identity(), sequential=torch.nn.Identity, ranks=(2,), name="Same")
    def own_copies(draw: Any, ranks: int) -> dict[str, Any]:
        space = al.Space(copies, dtype=dtype)
        return {"domain": space, "codomain": space, "rounding": rounding}

    seen: list[JacobianProducts] = []
    noises: set[float] = set()
    judge, by_differences = type(JACOBIAN).judge, point.derivatives

    def kept(self: Any, spaces: Spaces, observations: Sequence[JacobianProducts]) -> Verdict:
        seen.extend(observations)
        return judge(self, spaces, observations)

    def noted(evaluate: Any, at_point: Any, noise: Callable[[float], float]) -> Any:
        noises.update(noise(largest) / largest for largest in (1.0, 8.0))
        return by_differences(evaluate, at_point, noise)

    monkeypatch.setattr(type(JACOBIAN), "judge", kept)
    monkeypatch.setattr(point, "derivatives", noted)
    assert investigate(SimulatedWorld(2), own_copies, "jacobian", Budget(1, seed=1)).verdict.is_coherent

    assert {each.allowed for each in seen} == {rounding or 64 * unit}
    assert noises == {rounding or 16 * unit}
