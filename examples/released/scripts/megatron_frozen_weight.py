"""Megatron-core 0.16.1: the bias of a linear layer has no gradient where its weight is frozen, as in a training of biases alone."""

import tempfile

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.model_parallel_config import ModelParallelConfig
from megatron.core.tensor_parallel import ColumnParallelLinear

dist.init_process_group("gloo", f"file://{tempfile.mktemp()}", rank=0, world_size=1)
parallel_state.initialize_model_parallel()
config = ModelParallelConfig(use_cpu_initialization=True)
layer = ColumnParallelLinear(2, 2, config=config, init_method=torch.nn.init.ones_)
for is_trained in (True, False):
    layer.weight.requires_grad_(is_trained)
    layer.bias.grad = None
    layer(torch.ones(3, 1, 2))[0].sum().backward()
    grad = None if layer.bias.grad is None else layer.bias.grad.tolist()
    print(f"weight {'trained' if is_trained else 'frozen'}: bias.grad = {grad}, should be [3.0, 3.0]")
dist.destroy_process_group()
