"""JAX 0.10.2: a product of empty matrices in shard_map over several devices is not compiled; on one device, and without shard_map, it is zero."""

import jax
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

jax.config.update("jax_num_cpu_devices", 2)
x, w = np.ones((2, 0), "float32"), np.ones((0, 1), "float32")
print("without shard_map", jax.jit(jax.numpy.matmul)(x, w).tolist())
for devices in (1, 2):
    mesh = Mesh(np.array(jax.devices()[:devices]), ("x",))
    product = jax.shard_map(lambda x, w: x @ w, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"))
    print(f"on {devices} devices", jax.jit(product)(x, w).tolist(), flush=True)
