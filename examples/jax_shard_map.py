"""JAX's shard_map: a shift along a ring of devices, and two layers that the devices share, against the sequential function.

adjointlab check examples/jax_shard_map.py --cases 10
"""

import jax
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import adjointlab as al
from adjointlab.adapters.jax import jax_function


def ring_shift(mesh, x):
    ring = [(k, (k + 1) % mesh.size) for k in range(mesh.size)]
    shift = jax.shard_map(
        lambda x: jax.lax.ppermute(x, "x", ring), mesh=mesh, in_specs=P("x"), out_specs=P("x")
    )
    return shift(x)


def tensor_parallel(mesh, x, w, v):
    def block(x, w, v):
        return jax.lax.psum(jax.numpy.tanh(x @ w) @ v, "tp")

    specs = P("dp"), P(None, "tp"), P("tp")
    return jax.shard_map(block, mesh=mesh, in_specs=specs, out_specs=P("dp"))(x, w, v)


def sequential(x, w, v):
    return jax.numpy.tanh(x @ w) @ v


# That was the code. What the lab has to know of it:
@jax_function(ring_shift, linear=True)
def shifts(draw, ranks):
    return dict(inputs=draw(al.strategies.shapes(2, divisible_by=(ranks, 1))), specs=P("x"))


@jax_function(tensor_parallel, reference=sequential)
def blocks(draw, ranks):
    dp, tp = draw(st.sampled_from([(n, ranks // n) for n in range(1, ranks + 1) if ranks % n == 0]))
    batch, inner, hidden, outer = (draw(st.integers(1, 3)) * parts for parts in (dp, 1, tp, 1))
    inputs, specs = [(batch, inner), (inner, hidden), (hidden, outer)], [P("dp"), P(None, "tp"), P("tp")]
    return dict(mesh={"dp": dp, "tp": tp}, inputs=inputs, specs=specs)


TestShifts = al.coherence_tests(shifts)
TestBlocks = al.coherence_tests(blocks)
