"""The kinds of values of a layer's inputs: bugs that small integers do not show, and right layers beside their twins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import adjointlab as al
from adjointlab.checks.context import FRACTIONS, INPUT_VALUES, InputSetting
from adjointlab.checks.hints import FaultKind
from adjointlab.checks.layers.drawn_values import change_of, pass_keys
from adjointlab.checks.layers.passes import PassPlan, plainer_seeds
from adjointlab.core.vectors import VALUES, Draw, local_values
from adjointlab.engine.case import Case
from adjointlab.engine.case_body import body
from adjointlab.engine.run_case import run_case
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.engine.subject import Subject
from adjointlab.worlds.simulated.world import SimulatedWorld

pytest.importorskip("torch")

import torch
from torch.nn import functional

from tests.checks.applied import Applied

ROWS, COLUMNS = 12, 6
EPS = 2.0**-80


def test_data_are_integers_from_minus_four_to_four() -> None:
    keys: dict[str, Draw] = pass_keys(
        SimpleNamespace(setting=InputSetting(), values="integers", beyond=None), 0
    )  # type: ignore[arg-type]
    assert {key.bound for key in keys.values()} == {4}


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_large_and_tiny_inputs_are_integers_times_a_power_of_two(dtype: str) -> None:
    # As docs/layers.md says.
    drawn = torch.tensor([-4.0, 0.0, 1.0, 3.0], dtype=getattr(torch, dtype))
    exponents = {"large": 6, "tiny": -6} if dtype == "float16" else {"large": 14, "tiny": -40}
    for values, exponent in exponents.items():
        change = change_of(values)
        assert change is not None
        changed = change(drawn)
        assert changed.dtype is drawn.dtype
        assert changed.tolist() == [2.0**exponent * each for each in (-4.0, 0.0, 1.0, 3.0)]


@pytest.mark.parametrize(("values", "exponent"), [("large", 6), ("tiny", -6)])
def test_inputs_of_a_layer_that_computes_in_half_precision_overflow_no_more_than_those_that_are_in_it(
    values: str, exponent: int
) -> None:
    change = change_of(values, "float16")
    assert change is not None
    assert change(torch.tensor([-4.0, 3.0])).tolist() == [-4 * 2.0**exponent, 3 * 2.0**exponent]


def rows(function: Callable[[Any], Any], twin: Callable[[Any], Any], dtype: str = "float64") -> Subject:
    """A function of each row, of rows that are cut: the subject declares no rounding."""

    @al.subject(
        layer=lambda comm: Applied(function), sequential=lambda: Applied(twin), ranks=(1, 2), name="Rows"
    )
    def draws(draw: Any, ranks: int) -> dict[str, Any]:
        ends = [draw(al.strategies.cuts(ROWS, ranks)), None]
        space = al.Space(al.Layout.cut((ROWS, COLUMNS), al.Partition((ranks, 1)), ends), dtype=dtype)
        return {"domain": space, "codomain": space}

    return draws


def maxima(neutral: float) -> Subject:
    """The largest of all elements on every rank; one without elements contributes `neutral`."""

    def layer(comm: Any) -> Any:
        def largest(x: Any) -> Any:
            mine = float(x.max()) if x.numel() else neutral
            return torch.full((1,), max(comm.allgather(mine)), dtype=x.dtype)

        return Applied(largest)

    def twin() -> Any:
        return Applied(lambda x: x.max().reshape(1))

    @al.subject(layer=layer, sequential=twin, ranks=(2, 3), name="Maximum")
    def draws(draw: Any, ranks: int) -> dict[str, Any]:
        everyone = al.Partition((ranks,))
        layout = al.Layout.cut((ROWS,), everyone, [draw(al.strategies.cuts(ROWS, ranks))])
        copies = al.Layout((1,), everyone, axes=(None,))
        return {
            "domain": al.Space(layout),
            "codomain": al.Space(al.Tensor(copies, types=("invariant",), name="y")),
        }

    return draws


def pooled(padding: float) -> Subject:
    """The maximum of three neighbours, where `padding` lies beyond either end; the rows are cut."""

    def layer(comm: Any) -> Any:
        return Applied(
            lambda x: functional.max_pool1d(functional.pad(x, (1, 1), value=padding)[:, None], 3, 1)[:, 0]
        )

    @al.subject(
        layer=layer,
        sequential=lambda: Applied(lambda x: functional.max_pool1d(x[:, None], 3, 1, 1)[:, 0]),
        ranks=(1, 2),
        name="Pooled",
    )
    def draws(draw: Any, ranks: int) -> dict[str, Any]:
        ends = [draw(al.strategies.cuts(ROWS, ranks)), None]
        space = al.Space(al.Layout.cut((ROWS, COLUMNS), al.Partition((ranks, 1)), ends))
        return {"domain": space, "codomain": space}

    return draws


def exponentials(x: Any) -> Any:
    return x.exp() / x.exp().sum(-1, keepdim=True)


def root_mean_square(x: Any) -> Any:
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt()


def one_norm(x: Any) -> Any:
    return (
        x.abs()
        .sum(-1, keepdim=True)
        .clamp(min=torch.finfo(x.dtype).smallest_normal * torch.finfo(x.dtype).eps)
    )


def from_zero_to_one(x: Any) -> Any:
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    return (x - low) / (high - low)


def from_zero_to_one_guarded(x: Any) -> Any:
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    return (x - low) / torch.where(high > low, high - low, torch.ones_like(high))


def softmax(x: Any) -> Any:
    return x.softmax(-1)


WRONG: dict[str, tuple[str, Subject]] = {
    "a maximum whose neutral element is zero": ("negative", maxima(0.0)),
    "max pooling padded with zeros": ("negative", pooled(0.0)),
    "softmax without subtraction of the maximum": ("large", rows(exponentials, softmax)),
    "small numbers taken for zero": (
        "tiny",
        rows(lambda x: root_mean_square(torch.where(x.abs() < 1e-6, 0 * x, x)), root_mean_square),
    ),
    "a mask that multiplies": ("infinite", rows(lambda x: x * (x > 0), torch.relu)),
    "a reciprocal that overflows": (
        "subnormal",
        rows(lambda x: x * (1 / one_norm(x)), lambda x: x / one_norm(x)),
    ),
    "a range of zero": ("equal", rows(from_zero_to_one, from_zero_to_one_guarded)),
}


def found(subject: Subject, values: str, check: str = "sequential", cases: int = 15) -> bool:
    """Return True if any of so many drawn cases fails, all with inputs of one kind."""
    world, strategy = SimulatedWorld(ranks=3), subject.parameters(2)
    runner = world_runner(world, subject)
    for seed in range(cases):
        parameters = drawn(strategy, seed)
        case = Case(subject.name, check, 2, parameters, InputSetting(seed, "torch"), 0, values=values)
        judgement = run_case(runner, case)
        if judgement is not None and not judgement.verdict.is_coherent:
            return True
    return False


def world_runner(world: SimulatedWorld, subject: Subject) -> Any:
    def run(case: Any, ranks: int, **schedule: Any) -> Any:
        return world.run(body(subject), case, ranks, **schedule)

    return run


def drawn(strategy: Any, seed: int) -> Any:
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as seeded

    results: list[Any] = []

    @seeded(seed)
    @settings(max_examples=2, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(strategy)
    def collect(parameters: Any) -> None:
        results.append(parameters)

    collect()
    return results[-1]


@pytest.mark.parametrize("bug", WRONG)
def test_a_bug_that_shows_for_values_of_one_kind_is_found(bug: str) -> None:
    _, subject = WRONG[bug]
    report = investigate(
        SimulatedWorld(ranks=3), subject, "sequential", Budget(cases=100, seed=1, shrinking=0)
    )
    assert not report.verdict.is_coherent
    assert report.case is not None


@pytest.mark.parametrize(
    "bug", ["softmax without subtraction of the maximum", "small numbers taken for zero"]
)
def test_small_integers_do_not_show_it(bug: str) -> None:
    kind, subject = WRONG[bug]
    assert not found(subject, "integers")
    assert found(subject, kind)


RIGHT: dict[str, Callable[[Any], Any]] = {
    "softmax": softmax,
    "log-softmax": lambda x: x.log_softmax(-1),
    "layer norm": lambda x: functional.layer_norm(x, (COLUMNS,)),
    "RMS norm": root_mean_square,
    "a range": from_zero_to_one_guarded,
    "tanh": torch.tanh,
    "gelu": functional.gelu,
    "gelu by tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "mish": functional.mish,
    "exponential": torch.exp,
    "variance": lambda x: x / ((x - x.mean(-1, keepdim=True)).square().mean(-1, keepdim=True) + 1),
}


def backwards(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The function of the reversed row, reversed: other orders of summation, and so another rounding."""
    return lambda x: function(x.flip(-1)).flip(-1)


@pytest.mark.parametrize("check", ["gradients", "jacobian"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", RIGHT)
def test_a_layer_that_declares_no_rounding_is_not_accused_of_it(name: str, dtype: str, check: str) -> None:
    subject = rows(backwards(RIGHT[name]), RIGHT[name], dtype)
    report = investigate(SimulatedWorld(ranks=2), subject, check, Budget(cases=15, seed=1, shrinking=0))
    assert report.verdict.is_coherent, f"{report.case}\n{report.verdict}"


@pytest.mark.parametrize("name", RIGHT)
def test_and_a_wrong_one_is_found_all_the_same(name: str) -> None:
    subject = rows(lambda x: RIGHT[name](x) * (1 + 1e-9), RIGHT[name])
    report = investigate(SimulatedWorld(ranks=2), subject, "gradients", Budget(cases=10, seed=1, shrinking=0))
    assert not report.verdict.is_coherent


def test_values_that_are_too_large_for_the_sequential_layer_are_not_for_the_layer() -> None:
    def exponential(x: Any) -> Any:
        if not torch.isfinite(x.exp()).all():
            raise OverflowError
        return x.exp()

    assert not found(rows(exponential, torch.exp), "large", cases=3)


def test_summands_are_finite() -> None:
    """Infinities of one rank alone would not be the sequential layer's, which has the sum of the integers."""

    def total(comm: Any) -> Any:
        def summed(x: Any) -> Any:
            return torch.from_numpy(sum(comm.allgather(x.numpy())))

        return Applied(summed)

    @al.subject.layer(total, lambda: Applied(torch.clone), ranks=(2,), name="Sum")
    def subject(draw: Any, ranks: int) -> dict[str, Any]:
        copies = al.Layout((ROWS,), al.Partition((ranks,)), axes=(None,))
        return {
            "domain": al.Space(copies, types=["partial"]),
            "codomain": al.Space(copies, types=["replicated"], name="y"),
        }

    assert not found(subject, "infinite", cases=3)


def test_a_gradient_may_have_products_of_zero_and_infinity_that_the_sequential_one_has_not() -> None:
    class Identity(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            return g + 0 * x

    assert not found(rows(Identity.apply, torch.clone), "infinite", "gradients", cases=3)


class Rectifier(torch.autograd.Function):
    """Stops a gradient unless its output is positive: where it is NaN too, of which torch's rectifier stops none."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        y = x.relu()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (y,) = ctx.saved_tensors
        return g * (y > 0)


def rectified(rectify: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Of infinite numbers in a row nothing is left but NaN."""
    return lambda x: rectify(x - x.mean(-1, keepdim=True))


def test_a_gradient_through_an_output_that_is_nan_may_be_any() -> None:
    subject = rows(rectified(Rectifier.apply), rectified(torch.relu))
    assert not found(subject, "infinite", "gradients", cases=3)


class OfFirst(Applied):
    """Applies a function to the first of two tensors."""

    def forward(self, x: Any, index: Any) -> Any:  # type: ignore[override]
        return self.function(x)


def test_integers_beside_infinite_inputs_have_no_gradient_to_judge() -> None:
    layout = al.Layout((ROWS, COLUMNS), al.Partition((2, 1)))

    @al.subject.layer(
        lambda comm: OfFirst(rectified(torch.relu)),
        lambda: OfFirst(rectified(torch.relu)),
        ranks=(2,),
        name="Centred",
    )
    def subject(draw: Any, ranks: int) -> dict[str, Any]:
        inputs = al.Space(al.Tensor(layout), al.Tensor(layout, "int64", name="index"))
        return {"domain": inputs, "codomain": al.Space(layout, name="y")}

    assert not found(subject, "infinite", "gradients", cases=3)


class Bounded(torch.autograd.Function):
    """Forgets in its backward pass that it has bounds."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clamp(-5, 5)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g


def test_a_gradient_at_infinite_inputs_is_judged_where_no_output_is_nan() -> None:
    subject = rows(Bounded.apply, lambda x: x.clamp(-5, 5))
    assert not found(subject, "integers", "gradients", cases=3)
    assert found(subject, "infinite", "gradients", cases=3)


# The values.


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_values_are_of_the_kind_that_was_asked_for(values: str, dtype: str) -> None:
    space = al.Space(al.Layout((50,), al.Partition((2,))), dtype=dtype)
    drawn = [
        number
        for rank in (0, 1)
        for number in local_values(space, 0, rank, Draw(1, 0, "primal", 4, values=values))
    ]
    assert all(-4 <= number < 5 for number in drawn)
    assert all(number == round(float(number)) for number in drawn) or values in ("fractions", "thirds")
    assert all(abs(3 * number - round(float(3 * number))) < 0.01 for number in drawn) or values == "fractions"
    assert all(number < 0 for number in drawn) == (values == "negative") or values == "equal"
    assert (len(set(drawn)) == 1) == (values == "equal")


def test_a_case_of_small_integers_is_stored_as_it_always_was() -> None:
    case = Case("Rows", "sequential", 2, {}, InputSetting(), 0)
    assert "values" not in case.data()
    assert msgspec.convert(case.data(), Case).values == INPUT_VALUES[0]
    large = Case("Rows", "sequential", 2, {}, InputSetting(), 0, values="large")
    assert msgspec.convert(large.data(), Case) == large
    with pytest.raises(ValueError, match="values: 'huge' is not one of"):
        Case("Rows", "sequential", 2, {}, InputSetting(), 0, values="huge")


# Fresh memory.


def summed_up(x: Any) -> Any:
    total = x.new_empty(x.shape)
    total += x
    return total


def indices_left_out(x: Any) -> Any:
    y = torch.empty_like(x)
    y[:, :-1] = x[:, :-1]
    return y


def without_last(x: Any) -> Any:
    return torch.cat([x[:, :-1], 0 * x[:, -1:]], -1)


@pytest.mark.parametrize("check", ["sequential", "gradients"])
@pytest.mark.parametrize(("wrong", "right"), [(summed_up, torch.clone), (indices_left_out, without_last)])
def test_a_layer_that_takes_fresh_memory_for_zeros_is_found(check: str, wrong: Any, right: Any) -> None:
    report = investigate(
        SimulatedWorld(ranks=2), rows(wrong, right), check, Budget(cases=10, seed=1, shrinking=0)
    )
    assert not report.verdict.is_coherent


@pytest.mark.parametrize("values", [*INPUT_VALUES, FRACTIONS])
def test_no_two_passes_and_no_two_roles_have_the_same_values(values: str) -> None:
    context: Any = SimpleNamespace(setting=InputSetting(5), values=values, beyond=None)
    passes = [pass_keys(context, number) for number in range(4)]
    keys = [(draw.index, draw.side) for keys in passes for draw in keys.values()]
    assert len(set(keys)) == len(keys) == 16
    assert {draw.seed for keys in passes for draw in keys.values()} == {5}
    assert {draw.index for draw in passes[0].values()} == {
        0,
        1,
        2,
    }  # the directions of derivatives are 7 and 8
    kinds = {name: draw.values for name, draw in passes[0].items()}
    drawn = values if values in VALUES and values != "thirds" else "integers"
    others = values if values in (FRACTIONS, "thirds") else "integers"
    assert kinds == {"inputs": drawn, "parameters": others, "cotangents": others, "accumulated": "integers"}


@pytest.mark.parametrize("seed", range(24))
def test_a_plainer_plan_differs_in_the_one_thing_that_its_hint_tells(seed: int) -> None:
    plan = PassPlan.of(seed, backward=True)
    plainer = {hint.kind: PassPlan.of(other, backward=True) for hint, other in plainer_seeds(seed)}
    expected = {}
    if plan.together:
        expected[FaultKind.KEPT] = replace(plan, together=False)
    if plan.accumulated:
        expected[FaultKind.ACCUMULATED] = replace(plan, accumulated=False)
    assert plainer == expected
    assert all(other >= 0 for _, other in plainer_seeds(seed))
