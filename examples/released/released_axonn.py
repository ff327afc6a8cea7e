"""AxoNN 0.2: a linear layer that gathers the batch of its ranks, on grids of two dimensions.

adjointlab check examples/released/released_axonn.py --check sequential --check gradients
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from axonn import axonn
from axonn import communication as groups
from axonn.intra_layer import Linear, asym_communication, fully_connected, sync_gradients
from hypothesis import strategies as st
from torch import nn
from torch.distributed.tensor import Replicate, Shard

import adjointlab as al


def on_the_host(function):
    return lambda *arguments, device=None, **options: function(*arguments, **options)


# It asks for devices.
host = SimpleNamespace(**vars(torch) | dict(empty=on_the_host(torch.empty), tensor=on_the_host(torch.tensor)))
asym_communication.torch = fully_connected.torch = host
groups.torch = SimpleNamespace(distributed=torch.distributed, cuda=SimpleNamespace(set_device=lambda _: None))


class Whole(nn.Module):
    """The layer, which holds a flat weight, with the part of the weight that it is."""

    def __init__(self, layer):
        super().__init__()
        self.layer = [layer]  # its parameters are not of this module
        sides = layer.local_out_features, layer.local_in_features
        self.weight = nn.Parameter(layer.weight.detach().reshape(sides).clone())
        if layer.bias is not None:
            self.bias = nn.Parameter(layer.bias.detach().clone())
        for name, parameter in self.named_parameters():
            vars(parameter).update(vars(getattr(layer, name)))  # what `sync_gradients` looks at

    def forward(self, x):
        parameters = {name: p.flatten() for name, p in self.named_parameters()}
        return torch.func.functional_call(self.layer[0], parameters, x)


def parallelize(module, mesh):
    axonn.init(G_intra_r=mesh.shape[0], G_intra_c=mesh.shape[1], gpus_per_node=1)
    layer = Linear(module.in_features, module.out_features, bias=module.bias is not None)
    layer.to(module.weight.dtype).load_state_dict(module.state_dict())
    return Whole(layer)


def check(name, **options):
    has_bias = "bias" in name

    def cases(draw, ranks):
        rows = draw(st.sampled_from([n for n in (1, 2, ranks) if ranks % n == 0]))
        columns = ranks // rows
        placements = {"weight": [Shard(0), Shard(1)], "bias": [Shard(0), Replicate()]}
        inner, outer = columns * draw(st.integers(1, 2)), rows * draw(st.integers(1, 2))
        return dict(
            inputs=(ranks * draw(st.integers(1, 2)), inner),
            in_features=inner,
            out_features=outer,
            bias=has_bias,
            mesh=(rows, columns),
            input_placements=[[Shard(0), Shard(0)]],
            output_placements=[[Shard(0), Shard(0)]],
            parameter_placements=placements if has_bias else {"weight": placements["weight"]},
        )

    return al.subject.parallel(
        nn.Linear,
        parallelize,
        after_backward=sync_gradients,
        rank_local=("axonn",),
        name=f"axonn.{name}",
        **options,
    )(cases)


linear_layers = check("linear")
biased_layers = check("linear.bias", ranks=(2,))
