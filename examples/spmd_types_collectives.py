"""Collectives of spmd_types, checked by the types that they say.

adjointlab check examples/spmd_types_collectives.py
"""

import warnings

import spmd_types as spmd
from hypothesis import strategies as st

import adjointlab as al
from adjointlab.adapters.spmd_types import on_mesh, typed

warnings.filterwarnings(
    "ignore", module="spmd_types|torch.distributed"
)  # torch's, of names that spmd_types calls


@on_mesh
def summed(x):
    return spmd.all_reduce(x.contiguous(), "tp", dst=spmd.I)


@al.subject.autograd(summed, process_group=True)
def sums(draw, ranks):
    return typed({"tp": ranks}, draw(al.strategies.shapes(2)), src={"tp": spmd.P}, dst={"tp": spmd.I})


@on_mesh
def gathered(x):
    return spmd.all_gather(x, "tp", src=spmd.S(0), dst=spmd.R)


@al.subject.autograd(gathered, process_group=True)
def gathers(draw, ranks):
    tp = draw(st.sampled_from([k for k in range(1, ranks + 1) if ranks % k == 0]))
    mesh, shape = {"dp": ranks // tp, "tp": tp}, (2 * tp, 3)
    return typed(mesh, shape, src={"dp": spmd.P, "tp": spmd.S(0)}, dst={"dp": spmd.P, "tp": spmd.R})


TestSums = al.coherence_tests(sums)
TestGathers = al.coherence_tests(gathers)
