"""The rounding of a sequential module, measured on itself: of what it writes, too."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.checks.verdict import Inapplicable, Measurement, NotMeasured, Status
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.worlds.simulated.world import SimulatedWorld

pytest.importorskip("torch")

import torch
from torch import nn

from adjointlab.checks.layers.sensitivity import (
    _difference,
    _epsilon,
    _is_kink,
    _is_small,
    _least_difference,
    measured,
)
from adjointlab.core import perturbation
from adjointlab.core.perturbation import Perturbation
from adjointlab.core.rounding import perturb_of_now
from tests.checks.applied import Applied


def in_place(x: Any) -> Any:
    y = torch.zeros_like(x)
    y += x / 3
    torch.div(y, 7, out=y)
    return y


def of_several_tensors(x: Any) -> Any:
    y = torch.zeros_like(x)
    torch._foreach_add_([y], [x / 3])
    return y


def running_statistics(x: Any) -> Any:
    module = nn.BatchNorm1d(x.shape[1], dtype=x.dtype)
    module(x)
    return module.running_var


@pytest.mark.parametrize("function", [in_place, of_several_tensors, running_statistics])
def test_what_is_written_in_place_is_as_uncertain_as_it_is_rounded(function: Callable[[Any], Any]) -> None:
    x = torch.arange(12, dtype=torch.float64).reshape(4, 3)
    results, allowances = measured(lambda: {"y": (function(x).numpy(),)})
    (result,), (allowed,) = results["y"], allowances.most["y"]
    assert 0 < allowed < 1e-12 * abs(result).max()


def allowed(function: Callable[[Any], Any], x: Any) -> float:
    """The difference from `function` of `x` that rounding may make."""
    _, allowances = measured(lambda: {"y": (function(x).numpy(),)})
    return allowances.most["y"][0]


class Doubled(torch.Tensor):
    """A tensor of twice the number that it holds, as of a quantised weight, which knows one product and nothing else."""

    @staticmethod
    def __new__(cls, half: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, half.shape, dtype=half.dtype)  # type: ignore[attr-defined]

    def __init__(self, half: torch.Tensor) -> None:
        self.half_of_it = half

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.ops.aten.mul.Tensor:
            return NotImplemented
        x, y = args
        return x * (2 * y.half_of_it)


def test_a_product_with_a_tensor_that_wraps_another_is_as_uncertain_as_one_with_that() -> None:
    x = torch.arange(12, dtype=torch.float64)
    wrapped = allowed(lambda x: x * Doubled(torch.ones_like(x) / 7), x)
    plain = allowed(lambda x: x * (2 * (torch.ones_like(x) / 7)), x)
    assert 0.3 * plain < wrapped < 3 * plain


@pytest.mark.parametrize("numerator", [4.0, 5.0, -4.0, -5.0])
def test_a_fraction_is_uncertain_whichever_integer_is_next(numerator: float) -> None:
    assert allowed(lambda x: x / 3, torch.tensor([numerator], dtype=torch.float64)) > 0


def test_a_result_that_cancels_to_zero_is_as_uncertain_as_its_terms() -> None:
    x = torch.tensor([2e3, 1e3], dtype=torch.float32)
    assert allowed(lambda x: x.sum() - x.flip(0).sum(), x) >= 1e-4


def test_a_normalisation_of_equal_values_is_as_uncertain_as_the_values_times_its_factor() -> None:
    x = torch.full((2, 1), 2.0**14 + 1)
    assert torch.finfo(torch.float32).eps * x.max() / 1e-5**0.5 <= allowed(nn.BatchNorm1d(1, affine=False), x)


@pytest.mark.parametrize("operations_before", range(24))  # other errors each
def test_errors_of_one_value_do_not_cancel_in_all_samples(operations_before: int) -> None:
    """The weight of nearly 1 is wrong as a result of softmax and as an argument of its backward pass, and nothing else matters."""

    def gradient(keys: Any) -> Any:
        for _ in range(operations_before):
            keys.sum()
        q = torch.tensor([[3.0]], dtype=torch.float64, requires_grad=True)
        torch.softmax(q @ keys, -1).backward(torch.tensor([[-6.0, 6.0, 8.0]], dtype=torch.float64))
        return q.grad

    assert allowed(gradient, torch.tensor([[3.0, -4.0, -3.0]], dtype=torch.float64)) > 1e-14


def test_a_difference_inside_an_operation_is_as_uncertain_as_its_terms() -> None:
    def derivative(logarithms: Any) -> Any:
        gradient = torch.tensor([-0.005, -3.0])
        return torch.ops.aten._log_softmax_backward_data(gradient, logarithms, 0, torch.float32)

    # -3 + 3.005 · 0.9975
    assert allowed(derivative, torch.log_softmax(torch.tensor([-3.0, 3.0]), 0)) >= 1e-6


def test_a_mean_inside_an_operation_is_as_uncertain_as_its_terms_where_integers_are_spared() -> None:
    x, target = torch.tensor([30.0, -30.0, 2.0], dtype=torch.float64), torch.tensor([-1.0, 3.0, 1.0])
    exact = torch.nn.functional.binary_cross_entropy_with_logits(x, target.double())
    differences = []
    for sample in range(6):
        with Perturbation(sample, 8.0, spares_integers=True):
            y = torch.nn.functional.binary_cross_entropy_with_logits(x, target.double())
        differences.append(float((y - exact).abs()))
    # 60 - 60 + 0.13, divided by 3
    assert max(differences) > 8 * 2.0**-52 * float(exact)


def test_a_sum_is_as_uncertain_as_its_largest_term_also_where_integers_are_spared() -> None:
    def beside_a_kink(x: Any) -> Any:
        return x.sum() + torch.remainder(x[0], 2.0)

    x = torch.tensor([2.0**35, -(2.0**35), 0.3], dtype=torch.float64)
    assert 2.0**35 * 2.0**-53 <= allowed(beside_a_kink, x) < 0.01
    assert allowed(beside_a_kink, x.round()) < 1e-12


LARGE = 2.0**31
"""Two scores of this size have a softmax of a half each; with the logarithm of their sum it is wrong by some units in the last place of them."""


def attention(shape: tuple[int, ...]) -> Any:
    def value(scores: torch.Tensor) -> torch.Tensor:
        keys = scores.reshape(shape).detach().requires_grad_()
        query = torch.ones_like(keys[..., :1, :])
        outputs = torch.nn.functional.scaled_dot_product_attention(query, keys, keys / LARGE, scale=1.0)
        (gradient,) = torch.autograd.grad(outputs.sum(), keys)
        return torch.cat([outputs.flatten(), gradient.flatten()])

    return value


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.softmax(x, -1),
        lambda x: torch.ops.aten._safe_softmax(x, -1),
        lambda x: torch.log_softmax(x, -1),
        attention((1, 2, 1)),
        attention((1, 1, 2, 1)),
    ],
)
def test_a_softmax_of_large_numbers_is_as_uncertain_as_the_logarithm_of_their_sum(
    function: Callable[[Any], Any],
) -> None:
    scores = torch.tensor([[LARGE, LARGE]], dtype=torch.float64)
    with torch.enable_grad():
        _, allowances = measured(lambda: {"y": (function(scores).detach().numpy(),)})
    (allowed,) = allowances.most["y"]
    assert 2.0**-22 < allowed < 2.0**-8
    with torch.enable_grad():
        _, allowances = measured(lambda: {"y": (function(scores / LARGE).detach().numpy(),)})
    (allowed,) = allowances.most["y"]
    assert allowed < 2.0**-42


def test_nothing_is_said_of_a_number_that_the_least_error_makes_a_nan_of() -> None:
    x = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    assert allowed(lambda x: torch.sqrt(x.sum() - x.sum()), x) == torch.inf


def test_subnormal_numbers_are_uncertain_by_units_in_their_last_place() -> None:
    unit = torch.finfo(torch.float32).smallest_normal * torch.finfo(torch.float32).eps
    x = torch.tensor([4.0, 1.0, -2.0, 0.0]) * unit
    # The mean is 0.75 units: 0 or 1 in another order of the same sums and quotients.
    assert allowed(lambda x: x.mean(), x) >= unit
    assert allowed(lambda x: (x - x.mean() > 0).float(), x) >= 1
    # Zeros are exact.
    assert allowed(lambda x: (x * 2 > 0).float(), x[3:]) < 1e-6


def test_a_second_derivative_through_a_sum_with_a_gradient_that_is_zero_is_measured() -> None:
    """Torch finds the shape of such a sum by tensors without memory."""

    def second_derivative(x: Any) -> Any:
        x = x.clone().requires_grad_()
        y = nn.functional.lp_pool1d(x, 3.0, 1)  # (x³)^(1/3), whose second derivative is 0 in exact arithmetic
        (first,) = torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)
        first.backward(torch.ones_like(first))
        return x.grad

    assert 1e-7 < allowed(second_derivative, torch.tensor([[6.3, 7.1]])) < 1e-2


def test_a_case_is_not_judged_where_no_measurement_comes_to_its_end() -> None:
    def exact(x: Any) -> Any:
        if float((x * 1.0)[0]) != 0.1:
            raise ValueError("the last digit matters")
        return x

    with pytest.raises(
        Inapplicable, match=r"^the sequential layer raises ValueError if its operations have errors"
    ):
        allowed(exact, torch.tensor([0.1, 0.2], dtype=torch.float64))


@pytest.mark.parametrize("function", [lambda x: torch.softmax(x, 0), lambda x: torch.exp(x - x.max())])
def test_what_is_masked_is_as_certain_as_the_rest(function: Callable[[Any], Any]) -> None:
    assert allowed(function, torch.tensor([-torch.inf, 0.1, 0.2], dtype=torch.float64)) < 1e-13


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.reshape(2, 2).t()[1:],
        lambda x: x.flip(0),
        lambda x: torch.cat([x, x]),
        lambda x: torch.relu(x),
        lambda x: x.max(),
        lambda x: -x.clone(),
    ],
)
def test_what_is_moved_or_selected_is_certain_but_for_the_least_difference(
    function: Callable[[Any], Any],
) -> None:
    x = torch.tensor([0.1, -0.3, 0.7, 0.9], dtype=torch.float64)
    _, allowances = measured(lambda: {"y": (function(x).numpy(),)})

    assert allowances.most == allowances.least
    assert allowances.least["y"][0] > 0


IN_STEPS: dict[str, Callable[[Any], Any]] = {
    "binary cross-entropy": lambda x: torch.nn.functional.binary_cross_entropy(x / 2, x.detach() / 4),
    "binary cross-entropy of logits": lambda x: torch.nn.functional.binary_cross_entropy_with_logits(x, x),
    "soft margin": lambda x: torch.nn.functional.soft_margin_loss(x, x.detach()),
    "gelu": torch.nn.functional.gelu,
    "mish": torch.nn.functional.mish,
    "softmax": lambda x: torch.softmax(x, -1),
    "softmax of no elements": lambda x: torch.softmax(x[:, :0], -1),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "attention of order 3": lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x),
    "attention of order 4": lambda x: torch.nn.functional.scaled_dot_product_attention(
        x[None], x[None], x[None]
    ),
    "attention with a mask": lambda x: torch.nn.functional.scaled_dot_product_attention(
        x[None], x[None], x[None], is_causal=True
    ),
}


@pytest.mark.parametrize("name", IN_STEPS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_operations_that_are_perturbed_in_steps_come_to_their_end(name: str, dtype: torch.dtype) -> None:
    # By itself: where a module raises under the perturbation nothing is measured, and nothing said of it.
    x = torch.arange(1.0, 13.0, dtype=dtype).reshape(2, 3, 2) / 7
    with torch.enable_grad():
        exact = IN_STEPS[name](leaf := x.clone().requires_grad_())
        exact.sum().backward()
    with torch.enable_grad(), Perturbation(0, 8.0, spares_integers=False):
        y = IN_STEPS[name](wrong := x.clone().requires_grad_())
        y.sum().backward()
    for one, other in ((exact, y), (leaf.grad, wrong.grad)):
        assert one.shape == other.shape
        # Of errors of one unit of bfloat16 (1/128) the mean largest sum is 0.06.
        assert torch.allclose(one, other, rtol=0.05, atol=0.15 if dtype is torch.bfloat16 else 0.05)
    # One unit in the last place of bfloat16 may be rounded away.
    assert not y.numel() or dtype is torch.bfloat16 or not torch.equal(exact, y)


def test_a_measurement_that_does_not_come_to_its_end_matters_to_those_who_ask() -> None:
    def run() -> dict[str, Any]:
        if perturb_of_now() is not None:
            raise ArithmeticError
        return {"y": (torch.ones(3).numpy(),)}

    allowances = measured(run)[1].measured_now(Measurement.ALL)
    assert not allowances.is_measured
    assert allowances.of_one_sample == allowances.least
    with pytest.raises(Inapplicable, match="raises ArithmeticError if its operations have errors"):
        _ = allowances.most


@pytest.mark.parametrize("unit", [1.0, 0.25, 2.0**-30, 2.0])
def test_integers_at_a_kink_are_exact_and_multiples_of_a_power_of_two(unit: float) -> None:
    def of_a_tie(x: Any) -> Any:
        return torch.relu(x.sum()) * 1e4 + (x.sum() > 0)

    x = torch.tensor([3.0, -1.0, -2.0], dtype=torch.float32)
    assert allowed(of_a_tie, x * unit) < 1e-6
    assert allowed(of_a_tie, x * unit / 3) > 1


def test_numbers_that_fill_their_significands_are_not_taken_for_exact() -> None:
    values = 1 + torch.rand(1000, generator=torch.Generator().manual_seed(1))
    errors = Perturbation(0, 8.0, spares_integers=True).relative_errors(
        values, elementwise=False, spares_integers=True
    )
    assert (errors == 0).sum() < 20


def test_wrong_running_statistics_are_found_where_no_rounding_is_declared() -> None:
    def norm(momentum: float) -> Any:
        return nn.BatchNorm1d(3, momentum=momentum, affine=False, dtype=torch.float64)

    @al.subject.layer(lambda comm: norm(0.2), lambda: norm(0.1), ranks=(1,), name="Statistics")
    def subject(draw: Any, ranks: int) -> dict[str, Any]:
        one = al.Partition((1,))
        space = al.Space(al.Layout((4, 3), one, axes=(None, 0)))
        statistics = [al.Tensor(al.Layout((3,), one), name=name) for name in ("running_mean", "running_var")]
        count = al.Tensor(al.Layout((), one, axes=()), "int64", name="num_batches_tracked")
        return {"domain": space, "codomain": space, "buffer_space": al.Space(*statistics, count)}

    report = investigate(
        SimulatedWorld(ranks=1), subject, "sequential", Budget(cases=10, seed=1, shrinking=0)
    )
    assert report.verdict.headline == "the layer's buffers are not the sequential ones", report.verdict


def beside(sequential: Callable[[Any], Any], layer: Callable[[Any], Any], made: list[str]) -> Any:
    """Return a subject of two functions of nine numbers; `made` notes each twin."""

    def twin() -> nn.Module:
        made.append("twin")
        return Applied(sequential)

    @al.subject.layer(lambda comm: Applied(layer), twin, ranks=(1,), name="Function")
    def subject(draw: Any, ranks: int) -> dict[str, Any]:
        one = al.Partition((1,))
        tensors = [
            al.Space(al.Layout((9,), one), dtype="float32"),
            al.Space(al.Layout((), one, axes=()), dtype="float32"),
        ]
        return dict(zip(("domain", "codomain"), tensors, strict=True))

    return subject


CHECKS = ("sequential", "gradients", "jacobian", "double_backward")


def sum_of_squares(x: Any) -> Any:
    return (x * x / 3).sum(0)


@pytest.mark.parametrize("check", CHECKS)
def test_rounding_is_not_measured_where_results_hardly_differ(check: str) -> None:
    made: list[str] = []
    subject = beside(sum_of_squares, lambda x: sum_of_squares(x.flip(0)), made)
    report = investigate(SimulatedWorld(ranks=1), subject, check, Budget(cases=20, seed=1))
    assert report.verdict.is_coherent
    assert len(made) == report.tried


@pytest.mark.parametrize("check", ["sequential", "gradients"])
def test_a_difference_that_rounding_explains_is_measured_and_passes(check: str) -> None:
    """The twin loses as many digits as the layer."""
    made: list[str] = []
    subject = beside(
        lambda x: sum_of_squares(x) + 1e5 - 1e5, lambda x: sum_of_squares(x / 1e2) * 1e4 + 1e4 - 1e4, made
    )
    report = investigate(SimulatedWorld(ranks=1), subject, check, Budget(cases=20, seed=1))
    assert report.verdict.is_coherent, report.verdict
    assert len(made) > report.tried


@pytest.mark.parametrize("check", CHECKS)
def test_a_difference_that_rounding_does_not_explain_is_found(check: str) -> None:
    wrong = beside(sum_of_squares, lambda x: sum_of_squares(x) * (1 + 1e-4), [])
    report = investigate(SimulatedWorld(ranks=1), wrong, check, Budget(cases=20, seed=1, shrinking=0))
    assert report.verdict.status is Status.INCOHERENT, report.verdict


def test_a_measurement_takes_the_same_random_numbers_and_none_of_its_callers() -> None:
    drawn: list[tuple[bytes, float, float]] = []

    def run() -> dict[str, Any]:
        drawn.append((torch.get_rng_state().numpy().tobytes(), np.random.random(), random.random()))
        torch.rand(())
        return {"y": (torch.ones(3).numpy(),)}

    _, allowances = measured(run)
    before = random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state()
    assert allowances.most["y"]
    assert len(set(drawn)) == 1
    assert len(drawn) == 1 + 4
    assert random.getstate() == before[0]
    assert np.random.get_state()[1].tobytes() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])


@pytest.mark.parametrize("is_small", [True, False])
def test_operations_are_wrong_by_eight_units_and_by_more_where_that_makes_a_large_difference(
    is_small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First in one sample, and in others where these are asked for."""

    class Nothing(nullcontext[None]):
        unseen = None

    errors: list[tuple[int, float, bool, float]] = []
    results = iter(range(20))

    def recorded(*given: Any) -> Any:
        errors.append(given)
        return Nothing()

    monkeypatch.setattr(perturbation, "Perturbation", recorded)
    _, allowances = measured(lambda: {"y": (np.array([1.0 if is_small else float(next(results))]),)})

    def of_runs(units: float, spares_integers: bool = False) -> list[tuple[int, float, bool, float]]:
        samples = ((0, units), (1, units), (2, units), (0, -units))
        return [(sample, error, spares_integers, 0.0) for sample, error in samples]

    _ = allowances.of_one_sample
    every, grown, spared = of_runs(8.0), of_runs(64 * 8.0), of_runs(8.0, True)
    assert errors == every[:1] + ([] if is_small else grown[:1] + spared[:1])
    errors.clear()
    _ = allowances.most
    assert errors == every[1:] + ([] if is_small else grown[1:] + spared[1:])


@pytest.mark.parametrize("asked", Measurement)
def test_so_much_is_measured_at_once_and_who_asks_for_more_is_told_so(asked: Measurement) -> None:
    runs: list[bool] = []

    def run() -> dict[str, Any]:
        runs.append(True)
        return {"y": (torch.ones(3).numpy(),)}

    allowances = measured(run)[1].measured_now(asked)
    assert len(runs) == 1 + {Measurement.NONE: 0, Measurement.ONE_SAMPLE: 1, Measurement.ALL: 4}[asked]
    for name, needed in (("of_one_sample", Measurement.ONE_SAMPLE), ("most", Measurement.ALL)):
        with nullcontext() if asked >= needed else pytest.raises(NotMeasured):
            assert getattr(allowances, name) == allowances.least
    assert len(runs) <= 5


def test_what_lies_at_a_kink_lies_on_both_sides_of_it_in_some_runs() -> None:
    """A gate of a sum that is zero but for rounding: with errors of one sign alone it would be open, or closed, in a quarter of all cases."""

    def lies_on_both_sides(seed: int) -> bool:
        drawn = torch.randn(3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        weights = torch.cat([drawn, -drawn.sum().reshape(1)])

        def run() -> dict[str, Any]:
            x = torch.ones(4, dtype=torch.float64, requires_grad=True)
            (gradient,) = torch.autograd.grad(torch.relu(weights @ x), x)
            return {"g": (gradient.numpy(),)}

        _, allowances = measured(run)
        (allowed,) = allowances.most["g"]
        return allowed >= float(abs(weights).max())

    # In one of a hundred cases even opposite errors of so few units are rounded to the same side.
    assert sum(map(lies_on_both_sides, range(100))) >= 95


@pytest.mark.parametrize(
    ("function", "runs"),
    [
        (lambda x: x * 3, 2),  # well-conditioned: the module itself, and one sample
        (lambda x: (x + 2.0**40 - 2.0**40) * 1.5, 3),  # ill-conditioned: the difference grows with the errors
        (lambda x: torch.sign(x.cumsum(0) - x.cumsum(0)), 4),  # at a kink: it does not
    ],
    ids=["well-conditioned", "ill-conditioned", "at a kink"],
)
def test_no_more_runs_are_made_than_tell_rounding_from_a_kink(
    function: Callable[[torch.Tensor], torch.Tensor], runs: int
) -> None:
    made = 0

    def run() -> dict[str, Any]:
        nonlocal made
        made += 1
        return {"y": (function(torch.linspace(0.1, 1.7, 9, dtype=torch.float64)).numpy(),)}

    _, allowances = measured(run)
    assert allowances.of_one_sample
    assert made == runs


ROOT_OF_EPSILON = 2.0**-26


@pytest.mark.parametrize(
    ("value", "every", "growth", "counts"),
    [
        (2.0**-10, ROOT_OF_EPSILON, 1.0, True),
        (2.0**-10, 2 * ROOT_OF_EPSILON, 1.0, False),
        (8.0, 8 * ROOT_OF_EPSILON, 1.0, True),
        (-8.0, 8 * ROOT_OF_EPSILON, 1.0, True),
        (8.0, 16 * ROOT_OF_EPSILON, 1.0, False),
        (8.0, 16 * ROOT_OF_EPSILON, 64.0, True),
        (8.0, 16 * ROOT_OF_EPSILON, 8.0, True),
        (8.0, 16 * ROOT_OF_EPSILON, 7.97, False),
        (8.0, np.inf, 1.0, False),
    ],
)
def test_a_large_difference_that_hardly_grows_with_the_errors_is_a_kink_and_no_rounding(
    value: float, every: float, growth: float, counts: bool
) -> None:
    assert _is_kink(every, growth * every, np.array([0.0, value])) is not counts


def test_the_least_difference_is_of_units_in_the_last_place_of_the_largest_value() -> None:
    one = _least_difference(np.array([1.0, -0.5]), False)
    assert one == 8 * 2.0**-52
    assert _least_difference(np.array([1.0, -8.0]), False) == 8 * one
    assert _least_difference(np.array([1.0], np.float32), False) == one * 2.0**29
    assert _least_difference(np.array([0.0]), True) == np.finfo(float).tiny
    assert _least_difference(np.array([0.0]), False) == 0.0


@pytest.mark.parametrize(
    ("result", "perturbed", "difference"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.0], [1.5, 1.75], 0.5),
        ([1.0, 2.0], [1.125, 1.5], 0.5),
        ([1.0, np.inf], [1.25, 3.0], 0.25),
        ([1.0, np.nan], [1.25, 3.0], 0.25),
        ([1.0, 2.0], [np.nan, 2.0], np.inf),
        ([1.0, 2.0], [1.0, np.inf], np.inf),
        ([np.nan], [1.0], 0.0),
        ([1.0, 2.0], [5.0], 0.0),
        ([1.0], [5.0, 6.0], 0.0),
        ([], [], 0.0),
        ([1, 2], [5, 6], np.inf),  # an index that rounding decides
        ([1, 2], [1, 2], 0.0),
        ([True], [False], np.inf),
        ([1j, 3 + 4j], [2j, 0.0], 5.0),
    ],
)
def test_differences_are_of_finite_fractions_of_equal_shapes(
    result: list[Any], perturbed: list[Any], difference: float
) -> None:
    assert _difference(np.array(result), np.array(perturbed)) == difference


def test_a_difference_is_small_up_to_the_root_of_epsilon_times_the_largest_value_or_one() -> None:
    for largest, scale in ((0.5, 1.0), (1.0, 1.0), (8.0, 8.0), (-8.0, 8.0)):
        array = np.array([0.25, largest, np.inf])
        assert _is_small(ROOT_OF_EPSILON * scale, array)
        assert not _is_small(1.01 * ROOT_OF_EPSILON * scale, array)
    assert _is_small(0.0, np.array([1, 2]))
    assert not _is_small(2.0**-1000, np.array([1, 2]))
    kinds = (np.float64, np.float32, np.float16, np.int64, np.complex128, np.bool_)
    assert [_epsilon(np.zeros(1, kind)) for kind in kinds] == [2.0**-52, 2.0**-23, 2.0**-10, 0, 2.0**-52, 0]


@pytest.mark.parametrize("elementwise", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_errors_fill_their_interval_on_both_sides_and_no_two_samples_have_the_same(
    elementwise: bool, dtype: torch.dtype
) -> None:
    value, eps, error = torch.linspace(0.1, 7.0, 2000, dtype=dtype), torch.finfo(dtype).eps, 1e4
    samples = []
    for sample in range(3):
        perturbation: Any = Perturbation(sample, error, False)
        units = perturbation.relative_errors(value, elementwise, False) / (error * eps)
        assert -1.001 <= units.min() < -0.98
        assert 0.98 < units.max() <= 1.001
        assert abs(units.mean()) < 0.1
        again: Any = Perturbation(sample, error, False)
        assert torch.equal(units, again.relative_errors(value, elementwise, False) / (error * eps))
        samples.append(units)
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert (samples[one] != samples[other]).double().mean() > 0.9
        correlation = torch.corrcoef(torch.stack([samples[one], samples[other]]))[0, 1]
        assert abs(correlation) < 0.2


def test_equal_values_have_equal_errors_element_by_element_and_integers_may_be_spared() -> None:
    value = torch.tensor(
        [0.3, 0.3, 2.0, 0.3, 5.5, -4.0, torch.inf, 2.0**48 - 1, 2.0**49 + 1], dtype=torch.float64
    )
    perturbation: Any = Perturbation(1, 1e4, True)
    every = perturbation.relative_errors(value, True, False)
    assert every[0] == every[1] == every[3]
    assert len(set(every.tolist())) > 3
    assert torch.isfinite(every).all()
    spared = perturbation.relative_errors(value, True, True)
    assert (spared == 0).tolist() == [False] * 2 + [True, False, True, True, True, True, False]
    alone = perturbation.relative_errors(value, False, False)
    assert len({float(each) for each in alone[[0, 1, 3]]}) == 3
