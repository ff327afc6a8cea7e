"""JAX: a function of global arrays that are sharded over a mesh of devices, in one process that controls all devices.

    def shift(mesh, x):
        ring = [(k, (k + 1) % mesh.size) for k in range(mesh.size)]
        return jax.shard_map(lambda x: jax.lax.ppermute(x, "x", ring), mesh=mesh, in_specs=P("x"), out_specs=P("x"))(x)

    @jax_function(shift, linear=True)
    def shifts(draw, ranks):
        return dict(inputs=draw(adjointlab.strategies.shapes(2, divisible_by=(ranks, 1))), specs=P("x"))

Devices are the ranks of the case: rank r holds the shards of device r, and the first rank computes. A dimension that a specification
shards is cut; along a mesh axis that shards none there are copies, which the pairing counts once (invariant).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from functools import wraps
from typing import Any, Final, Unpack

from adjointlab.adapters.jax_programs import Program, Whole, as_module, is_shape
from adjointlab.adapters.jax_shards import ShardedFunction
from adjointlab.core.layer import Prepare, elementwise
from adjointlab.engine.adapters import UserFunction, split_bounds
from adjointlab.engine.options import Options
from adjointlab.engine.subject import Declare, DrawParameters, SubjectError
from adjointlab.engine.subject_decorators import subject
from adjointlab.typing import Communicator

__all__ = ["jax_function"]

_DEVICES: Final = 8


def jax_function(
    function: UserFunction,
    *,
    linear: bool = False,
    prepare: Prepare = elementwise,
    **options: Unpack[Options],
) -> Declare:
    """Check ``function(mesh, *x, **arguments)`` of sharded global arrays, which returns one or a tuple, with the gradients of `jax.vjp`.

    Values and gradients have to be those of ``reference(*x, **arguments)``, the sequential function. A `linear` function is checked as an
    operator, and needs no reference. The dictionary of a case has

    - ``inputs``, the global shape of the argument, or a list of several; ``dtype``, one for all or a list (default: "float64");
    - ``specs``, a `PartitionSpec` or a sequence like one, or a list of several (default: copies on all devices);
    - ``mesh``, its extents, or extents by name (default: all ranks along "x"), and ``devices``, those in it, in order (default: all).

    Both functions are compiled by `jax.jit`, with 64-bit types if an argument has one. ``prepare(*inputs)`` makes legal inputs from drawn
    ones, as for a layer.
    """
    reference, devices = options.pop("reference", None), _number_of_devices()
    options.setdefault("ranks", range(1, devices + 1))

    @wraps(function)
    def operator(comm: Communicator, /, **parameters: Any) -> ShardedFunction:
        (gain, rounding), arguments = split_bounds(parameters, function)
        made = ShardedFunction(comm, function, arguments, prepare, "numpy")
        made.gain, made.rounding = gain, rounding
        return made

    @wraps(function)
    def layer(comm: Communicator, /, **parameters: Any) -> Any:
        made = ShardedFunction(comm, function, parameters, prepare, "torch")
        module = as_module(made)
        module.domain, module.codomain, module.uniform_requires_grad = made.domain, made.codomain, True
        return module

    def whole(**parameters: Any) -> Whole:
        assert reference is not None
        return Whole(Program.of(reference, parameters))

    if not linear:
        if reference is None:
            raise SubjectError(
                f"{getattr(function, '__name__', function)} is not declared linear: give the sequential function as `reference`, or say "
                "linear=True, as in @jax_function(function, linear=True)"
            )
        declare = subject.layer(layer, lambda **case: as_module(whole(**case)), prepare=prepare, **options)
    else:
        if reference is not None:
            options["reference"] = wraps(reference)(lambda *x, **case: whole(**case).forward(*x))
        declare = subject.operator(operator, **options)
    return lambda draws: declare(_as_data(draws))


def _number_of_devices() -> int:
    """The number of JAX's devices: 8 if it has not started and no other number is configured."""
    import jax

    if jax.config.jax_num_cpu_devices < 0 and "device_count" not in os.environ.get("XLA_FLAGS", ""):
        with suppress(RuntimeError):  # JAX has started already
            jax.config.update("jax_num_cpu_devices", _DEVICES)
    return len(jax.devices("cpu"))


def _as_data(draws: DrawParameters) -> DrawParameters:
    """The strategy with defaults, and plain tuples for specifications."""
    from jax.sharding import PartitionSpec

    def plain(spec: Any) -> Any:
        return tuple(map(plain, spec)) if isinstance(spec, PartitionSpec | list | tuple) else spec

    @wraps(draws)
    def drawn(draw: Any, ranks: int) -> Any:
        given: Any = draws(draw, ranks)
        if not isinstance(given, Mapping) or "inputs" not in given:
            raise SubjectError(
                f"{draws.__name__}: the strategy's dictionary needs `inputs`, the shape of each argument"
            )
        no_specs: Any = () if is_shape(given["inputs"]) else [()] * len(given["inputs"])
        specs = plain(given.get("specs", no_specs))
        return {"mesh": (ranks,), "devices": tuple(range(ranks)), **given, "specs": specs}

    return drawn
