"""spmd_types 0.3: every collective and conversion, with the types that it says, on meshes of one and two dimensions.

adjointlab check examples/released/released_spmd_types.py --check adjoint
"""

from __future__ import annotations

import warnings
from itertools import accumulate

import spmd_types as spmd
from hypothesis import strategies as st
from spmd_types import I, P, R, S, V

import adjointlab as al
from adjointlab.adapters.spmd_types import on_mesh, typed

warnings.filterwarnings(
    "ignore", module="spmd_types|torch.distributed"
)  # torch's, of names that spmd_types calls

CONTIGUOUS = ("row-major",)


def meshes(draw, ranks, types):
    """A mesh in which the axis "tp" has neighbours, and the types along all axes: a neighbour's is any, alike before and after."""
    tp = draw(st.sampled_from([size for size in range(1, ranks + 1) if ranks % size == 0]))
    beside = draw(st.sampled_from([V, P, R, I]))
    mesh = {"tp": tp, "dp": ranks // tp} if draw(st.booleans()) else {"dp": ranks // tp, "tp": tp}
    return mesh, [{"dp": beside, "tp": along} for along in types]


def check(name, function, src, dst, stacks=0, by=None, **options):
    """Check ``function(x, "tp", src=src, dst=dst, **options)``.

    `stacks` is 1 where the result has a dimension of all ranks more than the argument, at `by`, and -1 where it has one less.
    """
    subject_options = {key: options.pop(key) for key in ("orders",) if key in options}

    @on_mesh
    def apply(x):
        return function(x, "tp", src=src, dst=dst, **options)

    def cases(draw, ranks):
        mesh, (given, returned) = meshes(draw, ranks, (src, dst))
        shape = [draw(st.integers(1, 3)) for _ in range(3)]
        for type_ in (src, dst):
            if isinstance(type_, S):
                shape[type_.dim] *= mesh["tp"]
        result = list(shape)
        if stacks:
            (result if stacks > 0 else shape).insert(by or 0, mesh["tp"])
        return typed(mesh, shape, src=given, dst=returned, result=result)

    return al.subject.autograd(apply, process_group=True, name=f"spmd.{name}", **subject_options)(cases)


# Collectives

sums_to_replicate = check("all_reduce.R", spmd.all_reduce, P, R, orders=CONTIGUOUS)
sums_to_invariant = check("all_reduce.I", spmd.all_reduce, P, I, orders=CONTIGUOUS)
sums_of_varying = check("all_reduce.V", spmd.all_reduce, V, R, orders=CONTIGUOUS)
gathers_to_replicate = check("all_gather.S.R", spmd.all_gather, S(0), R)
gathers_to_invariant = check("all_gather.S.I", spmd.all_gather, S(1), I)
stacks_to_replicate = check("all_gather.V.R", spmd.all_gather, V, R, 1)
stacks_to_invariant = check("all_gather.V.I", spmd.all_gather, V, I, 1)
stacks_inside = check("all_gather.V.R.inside", spmd.all_gather, V, R, 1, 2, gather_dim=2)
stacks_inside_invariant = check("all_gather.V.I.inside", spmd.all_gather, V, I, 1, 1, gather_dim=1)
scattered_sums = check("reduce_scatter.S", spmd.reduce_scatter, P, S(1))
unbound_sums = check("reduce_scatter.V", spmd.reduce_scatter, P, V, -1)
unbound_sums_inside = check("reduce_scatter.V.inside", spmd.reduce_scatter, P, V, -1, 1, scatter_dim=1)
exchanges = check("all_to_all.S.S", spmd.all_to_all, S(0), S(2))


@on_mesh
def transposed(x, split_dim, concat_dim):
    return spmd.all_to_all(x, "tp", src=V, dst=V, split_dim=split_dim, concat_dim=concat_dim)


@al.subject.autograd(transposed, process_group=True, name="spmd.all_to_all.V.V")
def transposes(draw, ranks):
    mesh, (types,) = meshes(draw, ranks, (V,))
    sides = [draw(st.integers(1, 3)) for _ in range(2)]
    split_dim, concat_dim = draw(st.integers(0, 2)), draw(st.integers(0, 2))

    def with_ranks(dim):
        return [*sides[:dim], mesh["tp"], *sides[dim:]]

    case = typed(mesh, with_ranks(split_dim), src=types, dst=types, result=with_ranks(concat_dim))
    return {**case, "split_dim": split_dim, "concat_dim": concat_dim}


# Uneven parts


def cut(sizes, shape, dim, name):
    """The space of a tensor that is cut into parts of these sizes along `dim`."""
    ranks = len(sizes)
    grid = [ranks if k == dim else 1 for k in range(len(shape))]
    ends = [(0, *accumulate(sizes)) if k == dim else None for k in range(len(shape))]
    return al.Space(al.Layout.cut(shape, al.Partition(grid), ends), name=name)


def check_uneven(name, function, src, dst):
    part = src if isinstance(src, S) else dst

    @on_mesh
    def apply(x, sizes):
        return function(x, "tp", src=src, dst=dst, split_sizes=sizes)

    def cases(draw, ranks):
        sizes = [draw(st.integers(0, 3)) for _ in range(ranks)]
        sizes[draw(st.integers(0, ranks - 1))] += 1
        shape = [2, 2, 2]
        shape[part.dim] = sum(sizes)
        whole = src if part is dst else dst
        case = typed({"tp": ranks}, shape, src={"tp": whole}, dst={"tp": whole})
        side = "domain" if part is src else "codomain"
        return {**case, side: cut(sizes, shape, part.dim, "x" if part is src else "y"), "sizes": sizes}

    # Parts that are not contiguous go to `reduce_scatter` as they lie, from which gloo has wrong numbers.
    return al.subject.autograd(apply, process_group=True, name=f"spmd.{name}", orders=CONTIGUOUS)(cases)


uneven_gathers = check_uneven("all_gather.uneven.R", spmd.all_gather, S(1), R)
uneven_gathers_to_invariant = check_uneven("all_gather.uneven.I", spmd.all_gather, S(0), I)
uneven_sums = check_uneven("reduce_scatter.uneven", spmd.reduce_scatter, P, S(0))
uneven_sums_inside = check_uneven("reduce_scatter.uneven.inside", spmd.reduce_scatter, P, S(1))

# Conversions, which keep the meaning

EXPERT = dict(expert_mode=True)
invariant_to_replicate = check("convert.I.R", spmd.convert, I, R, orders=CONTIGUOUS)
replicate_to_invariant = check("convert.R.I", spmd.convert, R, I, **EXPERT)
replicate_to_shard = check("convert.R.S", spmd.convert, R, S(1))
replicate_to_varying = check("convert.R.V", spmd.convert, R, V, -1)
invariant_to_shard = check("convert.I.S", spmd.convert, I, S(1))
invariant_to_varying = check("convert.I.V", spmd.convert, I, V, -1)
replicate_to_partial = check("convert.R.P", spmd.convert, R, P)
invariant_to_partial = check("convert.I.P", spmd.convert, I, P, **EXPERT)
varying_to_partial = check("convert.V.P", spmd.convert, V, P, 1, **EXPERT)
shard_to_partial = check("convert.S.P", spmd.convert, S(2), P, **EXPERT)

# Reinterpretations, which keep the values

as_varying = check("reinterpret.R.V", spmd.reinterpret, R, V, **EXPERT)
as_summands = check("reinterpret.V.P", spmd.reinterpret, V, P)
replicas_as_summands = check("reinterpret.R.P", spmd.reinterpret, R, P, **EXPERT)
invariant_as_varying = check("reinterpret.I.V", spmd.reinterpret, I, V, orders=CONTIGUOUS)
invariant_as_summands = check("reinterpret.I.P", spmd.reinterpret, I, P, orders=CONTIGUOUS)

# All-reduces ask for contiguous tensors, and do so in backward passes too, where the user does not choose


@on_mesh
def to_replicate(x):
    return spmd.convert(x, "tp", src=I, dst=R)


@al.subject.autograd(
    to_replicate, process_group=True, name="spmd.convert.I.R.strided", orders=("column-major",)
)
def strided_gradients(draw, ranks):
    return typed({"tp": ranks}, (2, 2), src={"tp": I}, dst={"tp": R})
