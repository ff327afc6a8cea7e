"""torch-harmonics 0.9: the primitives of `torch_harmonics.distributed`, on polar groups of uneven latitudes, and its modules, on even grids.

adjointlab check examples/released/released_torch_harmonics.py --check adjoint --check sequential --check gradients
"""

from __future__ import annotations

from itertools import accumulate

import torch
import torch.distributed as dist
import torch_harmonics
import torch_harmonics.distributed as harmonics
from hypothesis import strategies as st
from torch import nn
from torch.distributed.tensor import Shard
from torch_harmonics.distributed import primitives, utils

import adjointlab as al

LATITUDES = {
    # (batch, channels, latitudes, longitudes), cut along the latitudes
    "whole": (None, "invariant"),
    "input": (None, "replicated"),
    "summands": (None, "partial"),
    "cut": (2, "varying"),
    "cut longitudes": (3, "varying"),
}


def space(kind, shape, ranks, sizes):
    dim, local_type = LATITUDES[kind]
    if dim is None:
        return al.Space(al.Layout(shape, al.Partition((ranks,)), axes=(None,) * 4), types=(local_type,))
    ends = [(0, *accumulate(sizes)) if k == dim else None for k in range(4)]
    return al.Space(al.Layout.cut(shape, al.Partition([ranks if k == dim else 1 for k in range(4)]), ends))


def check(name, function, domain, codomain):
    """``function(x, shape)`` of tensors of global `shape`."""

    def in_group(x, shape):
        harmonics.init(dist.group.WORLD, None)
        return function(x, shape)

    def cases(draw, ranks):
        latitudes, longitudes = draw(st.integers(ranks, 2 * ranks + 2)), draw(st.integers(ranks, 2 * ranks))
        shape = (1, draw(st.integers(1, 2)), latitudes, longitudes)

        def sizes(kind):
            return primitives.compute_split_shapes(longitudes if "longitudes" in kind else latitudes, ranks)

        return dict(
            domain=space(domain, shape, ranks, sizes(domain)),
            codomain=space(codomain, shape, ranks, sizes(codomain)),
            shape=shape,
        )

    return al.subject.autograd(
        in_group, process_group=True, name=name, rank_local=("torch_harmonics.distributed",)
    )(cases)


def sizes_of(shape, dim):
    return primitives.compute_split_shapes(shape[dim], utils.polar_group_size())


copies = check("harmonics.copy", lambda x, shape: primitives.copy_to_polar_region(x), "whole", "input")
sums = check("harmonics.reduce", lambda x, shape: primitives.reduce_from_polar_region(x), "summands", "whole")
scatters = check(
    "harmonics.scatter", lambda x, shape: primitives.scatter_to_polar_region(x, 2), "whole", "cut"
)
gathers = check(
    "harmonics.gather",
    lambda x, shape: primitives.gather_from_polar_region(x, 2, sizes_of(shape, 2)),
    "cut",
    "whole",
)
scattered_sums = check(
    "harmonics.reduce_scatter",
    lambda x, shape: primitives.reduce_from_scatter_to_polar_region(x, 2),
    "summands",
    "cut",
)
gathered_copies = check(
    "harmonics.gather_copy",
    lambda x, shape: primitives.gather_from_copy_to_polar_region(x, 2, sizes_of(shape, 2)),
    "cut",
    "input",
)
transposes = check(
    "harmonics.transpose",
    lambda x, shape: primitives.distributed_transpose_polar(x, (3, 2), sizes_of(shape, 2)),
    "cut",
    "cut longitudes",
)


# Modules, with latitudes and longitudes that the ranks of a grid share evenly, and no rank without any


class Sequential(nn.Module):
    """A module of the package by its name, with complex tensors as pairs of real ones."""

    def __init__(self, kind, arguments):
        super().__init__()
        self.kind, self.arguments = kind, arguments
        self.inner = getattr(torch_harmonics, kind)(**arguments)

    def forward(self, x):
        y = self.inner(torch.view_as_complex(x.contiguous()) if self.kind == "InverseRealSHT" else x)
        return torch.view_as_real(y) if y.is_complex() else y


class Parallel(Sequential):
    def __init__(self, module):
        nn.Module.__init__(self)
        self.kind = module.kind
        self.inner = getattr(harmonics, f"Distributed{self.kind}")(**module.arguments)
        dtype = next((p.dtype for p in module.parameters()), torch.float64)
        self.inner.to(dtype).load_state_dict(module.inner.state_dict(), strict=False)


def parallelize(module, mesh):
    harmonics.init(mesh.get_group(0), mesh.get_group(1))
    return Parallel(module)


def sum_gradients(module):
    for parameter in module.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)


CUT = [Shard(2), Shard(3)]


def check_module(name, cases):
    def with_mesh(draw, ranks):
        rows = draw(st.sampled_from([n for n in (1, 2, ranks) if ranks % n == 0]))
        batch, channels = draw(st.integers(1, 2)), ranks * draw(st.integers(1, 2))
        kind, arguments, sides = cases(draw, ranks, channels)
        return dict(
            inputs=(batch, channels, *sides),
            mesh=(rows, ranks // rows),
            kind=kind,
            arguments=arguments,
            input_placements=[CUT],
            **({} if kind == "QuadratureS2" else dict(output_placements=[CUT])),
            **(dict(dtype="float32") if kind.startswith("Discrete") else {}),
        )

    return al.subject.parallel(
        Sequential,
        parallelize,
        after_backward=sum_gradients,
        rank_local=("torch_harmonics.distributed",),
        name=f"harmonics.{name}",
    )(with_mesh)


def transform_cases(kind):
    def cases(draw, ranks, channels):
        sides = 2 * ranks, 4 * ranks
        arguments = dict(
            nlat=sides[0],
            nlon=sides[1],
            lmax=ranks,
            mmax=ranks,
            grid=draw(st.sampled_from(["equiangular", "legendre-gauss"])),
            norm=draw(st.sampled_from(["ortho", "schmidt", "unnorm"])),
        )
        return kind, arguments, sides if kind == "RealSHT" else (ranks, ranks, 2)

    return cases


def quadrature_cases(draw, ranks, channels):
    sides = tuple(2 * ranks * draw(st.integers(1, 2)) for _ in range(2))
    return "QuadratureS2", dict(img_shape=sides, normalize=draw(st.booleans())), sides


def resample_cases(draw, ranks, channels):
    names = ("nlat_in", "nlon_in", "nlat_out", "nlon_out")
    sides = {name: 2 * ranks * draw(st.integers(1, 2)) for name in names}
    mode = draw(st.sampled_from(["bilinear", "bilinear-spherical"]))
    return "ResampleS2", dict(**sides, mode=mode), (sides["nlat_in"], sides["nlon_in"])


def convolution_cases(kind):
    def cases(draw, ranks, channels):
        latitudes = 4 * ranks * draw(st.integers(1, 2))
        factor = draw(st.integers(1, 2))
        fine, coarse = (latitudes, 2 * latitudes), (latitudes // factor, 2 * latitudes // factor)
        source, target = (coarse, fine) if "Transpose" in kind else (fine, coarse)
        arguments = dict(
            in_channels=channels,
            out_channels=2 * ranks,
            in_shape=source,
            out_shape=target,
            kernel_shape=(2, 2),
            groups=1,
            optimized_kernel=False,
        )
        return kind, arguments, source

    return cases


transforms = check_module("sht", transform_cases("RealSHT"))
inverse_transforms = check_module("inverse_sht", transform_cases("InverseRealSHT"))
quadratures = check_module("quadrature", quadrature_cases)
resamplings = check_module("resample", resample_cases)
convolutions = check_module("convolution", convolution_cases("DiscreteContinuousConvS2"))
transposed_convolutions = check_module(
    "transposed_convolution", convolution_cases("DiscreteContinuousConvTransposeS2")
)
