"""The rounding of a function of JAX's is measured as that of a module of torch's is: in each of its operations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.checks.verdict import Status
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.engine.subject import Subject

jax = pytest.importorskip("jax", reason="needs JAX: the extra `jax` installs it")
torch = pytest.importorskip("torch")
jnp, P = jax.numpy, pytest.importorskip("jax.sharding").PartitionSpec

from adjointlab.adapters.jax import jax_function  # noqa: E402  # starts JAX
from adjointlab.adapters.jax_rounding import rounded_otherwise  # noqa: E402

pytestmark = pytest.mark.mpi_skip

X = np.linspace(0.5, 2.0, 6).reshape(2, 3)


@jax.custom_jvp
def squared(x: Any) -> Any:
    return x * x


squared.defjvp(lambda at, along: (squared(*at), 2 * at[0] * along[0]))


@jax.custom_vjp
def cubed(x: Any) -> Any:
    return x**3


cubed.defvjp(lambda x: (cubed(x), x), lambda x, y: (3 * x * x * y,))


def looped(x: Any) -> Any:
    return jax.lax.fori_loop(0, 3, lambda _, y: y * x, x)


FUNCTIONS = [
    jnp.tanh,
    jax.jit(jnp.sin),
    jax.checkpoint(jnp.exp),
    squared,
    cubed,
    looped,
    jax.nn.relu,
    jax.nn.softmax,
]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_step_by_step_a_function_returns_what_it_returns(function: Any, dtype: str) -> None:
    with jax.enable_x64(True):
        x = jnp.asarray(X, dtype)

        def both(x: Any, y: Any) -> Any:
            result, pullback = jax.vjp(function, x)
            return (result, *pullback(y))

        found = rounded_otherwise(both, (x, x), lambda value, *, elementwise: value)
        for got, want in zip(found, both(x, x), strict=True):
            assert got.dtype == want.dtype == x.dtype
            limit = 8 * float(jnp.finfo(x.dtype).eps)
            np.testing.assert_allclose(np.asarray(got, float), np.asarray(want, float), rtol=limit)


def test_each_operation_but_those_that_move_values_is_perturbed_before_and_after() -> None:
    seen: list[tuple[tuple[int, ...], bool]] = []

    def perturb(value: Any, *, elementwise: bool) -> Any:
        seen.append((tuple(value.shape), elementwise))
        return value * (1 + 2.0**-20)

    def function(x: Any) -> Any:
        return (jnp.flip(x).T @ (2.0 * x).reshape(2, 3),)

    with jax.enable_x64(True):
        (found,) = rounded_otherwise(function, (jnp.asarray(X),), perturb)
    assert seen == [
        ((), True),
        ((2, 3), True),
        ((2, 3), True),
        ((3, 2), False),
        ((2, 3), False),
        ((3, 3), False),
    ]
    np.testing.assert_allclose(found, np.flip(X).T @ (2 * X) * (1 + 2.0**-20) ** 6, rtol=1e-12)


def test_integers_are_left_alone() -> None:
    (found,) = rounded_otherwise(lambda x: (x + 1,), (jnp.arange(3),), lambda value, *, elementwise: 1 / 0)
    assert found.tolist() == [1, 2, 3]


# What is left of a difference of nearly equal numbers.


def saturated(mesh: Any, x: Any, w: Any, *, by: int = 1) -> Any:
    def inner(x: Any, w: Any) -> Any:
        return jax.lax.psum(jnp.tanh(x @ w).sum(-1), "x") * by

    return jax.shard_map(inner, mesh=mesh, in_specs=(P(), P(None, "x")), out_specs=P())(x, w)


def declared(by: float) -> Subject:
    @jax_function(saturated, reference=lambda x, w, by: jnp.tanh(x @ w).sum(-1), ranks=[2, 3])
    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=[(2, 2), (2, 2 * ranks)], specs=[P(), P(None, "x")], by=by)

    return cases


# Declared here, so that JAX starts with several devices, whichever test comes first.
@pytest.mark.parametrize(
    ("cases", "status"), [(declared(1.0), Status.COHERENT), (declared(1.0 + 1e-9), Status.INCOHERENT)]
)
def test_gradients_that_are_left_of_a_cancellation_are_allowed_its_rounding_and_no_more(
    world: al.SimulatedWorld, cases: Subject, status: Status
) -> None:
    result = investigate(world, cases, "gradients", Budget(60, ranks=3, seed=1, shrinking=0))
    assert result.status is status
