"""Functions of JAX's sharded arrays are checked with their gradients: what `shard_map`, `custom_vjp` and `vmap` compute."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

import adjointlab as al
from adjointlab.checks.verdict import Status
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.engine.subject import Subject, SubjectError
from adjointlab.worlds.world import RankContext

jax = pytest.importorskip("jax", reason="needs JAX: the extra `jax` installs it")
jnp, P = jax.numpy, pytest.importorskip("jax.sharding").PartitionSpec
ROWS = P("x")

from adjointlab.adapters.jax import jax_function  # noqa: E402  # starts JAX
from adjointlab.adapters.jax_shards import ShardedFunction  # noqa: E402


def verdict(world: al.SimulatedWorld, subject: Subject, check: str, cases: int = 3) -> Status:
    return investigate(world, subject, check, Budget(cases, ranks=3, seed=1, shrinking=0)).status


def rows(mesh: Any, inner: Any, x: Any, result: Any = ROWS, check_vma: bool = True) -> Any:
    """A function of each device's rows."""
    return jax.shard_map(inner, mesh=mesh, in_specs=P("x"), out_specs=result, check_vma=check_vma)(x)


# Linear functions of rows, with what their backward pass makes of them


def moved(mesh: Any, steps: int) -> Any:
    size = mesh.size
    return partial(jax.lax.ppermute, axis_name="x", perm=[(k, (k + steps) % size) for k in range(size)])


def with_backward(forward: Any, backward: Any) -> Any:
    function = jax.custom_vjp(forward)
    function.defvjp(lambda x: (forward(x), None), lambda _, gradient: (backward(gradient),))
    return function


def shift(mesh: Any, x: Any, *, back: int) -> Any:
    return rows(mesh, with_backward(moved(mesh, 1), moved(mesh, back)), x)


def total(mesh: Any, x: Any, *, sums: int) -> Any:
    # Without the check of varying axes each device has 1/size of the cotangent of a copy, and a sum is its own transpose.
    def backward(gradient: Any) -> Any:
        for _ in range(sums):
            gradient = jax.lax.psum(gradient, "x")
        return gradient

    return rows(mesh, with_backward(lambda x: jax.lax.psum(x, "x"), backward), x, P(), check_vma=False)


def virtual_total(mesh: Any, x: Any) -> Any:
    return jax.vmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")(x)


def mapped_total(mesh: Any, x: Any) -> Any:
    return jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i", devices=list(mesh.devices.flat))(x)


@pytest.mark.parametrize(
    ("function", "arguments", "status"),
    [
        (shift, dict(back=-1), Status.COHERENT),
        (shift, dict(back=1), Status.INCOHERENT),  # on 3 devices at least
        (total, dict(sums=1), Status.COHERENT),
        (total, dict(sums=0), Status.INCOHERENT),
        (total, dict(sums=2), Status.INCOHERENT),
        (virtual_total, {}, Status.COHERENT),
        (mapped_total, {}, Status.COHERENT),
    ],
)
def test_a_linear_function_is_held_against_its_gradient(
    world: al.SimulatedWorld, function: Any, arguments: dict[str, Any], status: Status
) -> None:
    @jax_function(function, linear=True, ranks=[3])
    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=(ranks, draw(st.integers(1, 2))), specs=P("x"), **arguments)

    assert verdict(world, cases, "adjoint", 2) is status


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64", "complex128", "int32", "int64"])
def test_element_types_are_kept(world: al.SimulatedWorld, dtype: str) -> None:
    def turned(mesh: Any, x: Any) -> Any:
        assert x.dtype == jnp.dtype(dtype)
        assert (jnp.ones(1).dtype == jnp.float64) == (dtype in ("complex128", "int64")), (
            "as the user configured it"
        )
        return rows(mesh, moved(mesh, 1), x) * (3 + 2j if jnp.iscomplexobj(x) else 3)

    def sequential(x: Any) -> Any:
        return jnp.roll(x, 1, 0) * (3 + 2j if jnp.iscomplexobj(x) else 3)

    @jax_function(turned, reference=sequential, linear=True)
    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=(ranks, 1), specs=P("x"), dtype=dtype)

    assert verdict(world, cases, "adjoint", 2) is Status.COHERENT
    assert verdict(world, cases, "sequential", 2) is Status.COHERENT


@pytest.mark.parametrize(("gain", "status"), [(2, Status.COHERENT), (1, Status.INCOHERENT)])
def test_a_linear_function_is_tested_exactly_where_its_case_has_a_gain(
    world: al.SimulatedWorld, gain: int, status: Status
) -> None:
    def doubled(mesh: Any, x: Any) -> Any:
        return rows(mesh, moved(mesh, 1), 2 * x)

    @jax_function(doubled, reference=lambda x: 2 * jnp.roll(x, 1, 0), linear=True)
    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=(ranks, 1), specs=P("x"), gain=gain)

    found = investigate(world, cases, "matrix", Budget(2, ranks=3, seed=1, shrinking=0))
    assert found.status is status
    assert verdict(world, cases, "sequential", 1) is Status.COHERENT


def test_a_gain_that_functions_take_themselves_is_an_argument_of_both(world: al.SimulatedWorld) -> None:
    @jax_function(lambda mesh, x, gain: gain * x, reference=lambda x, gain: gain * x, linear=True)
    def amplifiers(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=(ranks,), specs=P("x"), gain=0.5)

    assert verdict(world, amplifiers, "adjoint", 1) is Status.COHERENT
    assert verdict(world, amplifiers, "sequential", 1) is Status.COHERENT


def test_an_argument_that_a_function_does_not_take_is_named(world: al.SimulatedWorld) -> None:
    @jax_function(lambda mesh, x: x, linear=True)
    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=(ranks,), spec=("x",))

    found = investigate(world, cases, "adjoint", Budget(1, ranks=2, seed=1, shrinking=0)).verdict
    assert (
        "the function is called as <lambda>(mesh, x, spec=…), but <lambda>(mesh, x) takes no `spec`"
        in found.headline
    )
    assert "did you mean specs" in found.headline


def test_an_argument_that_a_reference_does_not_take_is_named(world: al.SimulatedWorld) -> None:
    @jax_function(lambda mesh, x, count: x, reference=lambda x: x, linear=True)
    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=[(ranks,)], specs=[P("x")], count=ranks)

    found = investigate(world, cases, "sequential", Budget(1, ranks=2, seed=1, shrinking=0)).verdict
    assert (
        "the reference is called as <lambda>(x, count=…), but <lambda>(x) takes no `count`" in found.headline
    )


# Functions that are not linear


def block(mesh: Any, x: Any, w: Any, v: Any, classes: Any, *, sums: bool) -> Any:
    """Two layers, of which the first is cut by columns; the gradients of an argument that is no shard are summed by `shard_map`."""
    copied = with_backward(lambda x: x, lambda gradient: jax.lax.psum(gradient, "x") if sums else gradient)

    def inner(x: Any, w: Any, v: Any, classes: Any) -> tuple[Any, Any]:
        return jax.lax.psum(jnp.tanh(copied(x) @ w) @ v, "x"), classes + 1

    specs = P(), P(None, "x"), P("x"), P()
    return jax.shard_map(inner, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)(x, w, v, classes)


@pytest.mark.parametrize(("sums", "status"), [(False, Status.COHERENT), (True, Status.INCOHERENT)])
def test_any_function_is_held_against_the_sequential_one(
    world: al.SimulatedWorld, sums: bool, status: Status
) -> None:
    def sequential(x: Any, w: Any, v: Any, classes: Any, sums: bool) -> tuple[Any, Any]:
        return jnp.tanh(x @ w) @ v, classes + 1

    @jax_function(block, reference=sequential, ranks=[2])
    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(
            inputs=[(2, 2), (2, ranks), (ranks, 1), (2,)],
            specs=[P(), P(None, "x"), P("x"), P()],
            dtype=["float64"] * 3 + ["int64"],
            sums=sums,
        )

    assert verdict(world, cases, "gradients", 1) is status


def test_copies_that_differ_are_seen_on_their_devices(world: al.SimulatedWorld) -> None:
    @jax_function(
        lambda mesh, x: rows(mesh, lambda x: x, x, P(), check_vma=False),
        linear=True,
        ranks=[2],
        name="no sum",
    )
    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=(ranks,), specs=P("x"))

    assert verdict(world, cases, "declared", 1) is Status.INCOHERENT


# Layouts


@pytest.mark.parametrize(
    ("mesh", "devices", "spec"),
    [
        ({"x": 2, "y": 2}, (0, 1, 2, 3), P("x", "y")),
        ((2, 2), (3, 1, 0, 2), P(None, "x")),
        ((2, 2), (0, 2, 1, 3), P(("y", "x"))),
        ((1, 2), (3, 1), P(None, ("x", "y"))),
        ((3,), (2, 0, 3), P()),
    ],
)
def test_a_rank_holds_the_shard_of_its_device(
    world: al.SimulatedWorld, mesh: Any, devices: tuple[int, ...], spec: Any
) -> None:
    case = dict(mesh=mesh, devices=devices, inputs=(4, 8), specs=tuple(spec))
    values = np.arange(32.0).reshape(4, 8)

    def body(context: RankContext, payload: None) -> None:
        made = ShardedFunction(context.comm, lambda mesh, x: x + 0, case, lambda *x: x, "numpy")
        layout = made.domain.tensors[0].layout
        if context.rank in devices:
            window = tuple(slice(*window) for window in layout.window(context.rank))
            assert np.array_equal(made.forward(values[window])[0], values[window])
            sharding = made._given.shardings[0]
            device = jax.devices("cpu")[context.rank]
            (expected,) = [i for at, i in sharding.devices_indices_map((4, 8)).items() if at == device]
            assert np.array_equal(values[expected], values[window])
        else:
            made.forward(np.zeros(layout.local_shape(context.rank)))

    run = world.run(body, None, 4)
    assert run.completed, run


# Bad input


def test_what_cannot_be_a_case_is_refused(world: al.SimulatedWorld) -> None:
    def same(mesh: Any, x: Any) -> Any:
        return x

    with pytest.raises(SubjectError, match="give the sequential function as `reference`, or say linear=True"):
        jax_function(same)
    with pytest.raises(SubjectError, match="give the sequential function"):
        jax_function(partial(same))

    @jax_function(same, linear=True)
    def no_inputs(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(specs=P())

    @jax_function(same, linear=True, ranks=[2])
    def uneven(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=(3,), specs=P("x"))

    @jax_function(same, linear=True, ranks=[2])
    def axes_without_names(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=(2,), specs=P("x"), mesh=(ranks, 1, 1, 1))

    with pytest.raises(SubjectError, match="needs `inputs`"):
        no_inputs.drawn(lambda strategy: None, 2)  # type: ignore[arg-type,return-value]
    found = investigate(world, uneven, "adjoint", Budget(1, ranks=2, seed=1)).verdict
    assert "3 is not divisible by 2" in found.headline
    found = investigate(world, axes_without_names, "adjoint", Budget(1, ranks=2, seed=1)).verdict
    assert "more axes than x, y, z" in found.headline


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (
            dict(inputs=[(2,), (2,)], specs=P("x")),
            "specs: ('x',) is not a list of one for each of the inputs [(2,), (2,)]",
        ),
        (dict(inputs=[(2,)], specs=P("x")), "specs: ('x',) is not a list of one for each of the inputs [(2,)]"),
        (dict(inputs=[(2,)], specs=[P("x"), P()]), "specs: (('x',), ()) is not a list"),
        (dict(inputs=[(2,)], dtype=["float32", "float32"]), "dtype: ['float32', 'float32'] is not a list"),
        (dict(inputs=(2,), specs=P(None, "x")), "specs: (None, 'x') has more entries than x of shape (2,)"),
        (dict(inputs=(2,), specs=P("dp")), "specs: ('dp',) has the axis dp, and those of the mesh are x; give extents by name"),
        (dict(inputs=(2,), mesh=(2,)), "mesh: (2,) has 2 devices, and devices=(0,) are 1: name those"),
        (dict(inputs=(2,), mesh={"a": 1}, devices=[0, 1]), "mesh: {'a': 1} has 1 device, and devices=(0, 1) are 2"),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_inputs_or_the_devices_is_named(
    world: al.SimulatedWorld, case: dict[str, Any], message: str
) -> None:
    @jax_function(lambda mesh, *x: x, linear=True, ranks=[1])
    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        return case

    assert message in investigate(world, cases, "adjoint", Budget(1, ranks=1, seed=1)).verdict.headline


@pytest.mark.parametrize("returned", [(), None, 1.0, {}])
def test_a_function_that_returns_no_arrays_is_named(world: al.SimulatedWorld, returned: Any) -> None:
    def returns_no_arrays(mesh: Any, x: Any) -> Any:
        return returned

    @jax_function(returns_no_arrays, linear=True, ranks=[2])
    def cases(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(inputs=(2,))

    found = investigate(world, cases, "adjoint", Budget(1, ranks=2, seed=1, shrinking=0)).verdict
    assert f"returns_no_arrays returned {returned!r}, and has to return an array" in found.headline
