"""transformers 5.24: the plans for tensor and expert parallelism that its models bring, on small ones without weights from elsewhere.

adjointlab check examples/released/released_transformers.py --check gradients
"""

from __future__ import annotations

import logging

from torch import nn
from torch.distributed.tensor import Shard
from transformers import AutoModelForCausalLM, LlamaConfig, MixtralConfig
from transformers.distributed.expert_parallel import apply_expert_parallelism
from transformers.distributed.tensor_parallel import ReplicatedWithGradAllReduce, apply_tensor_parallelism

import adjointlab as al

logging.getLogger("transformers").setLevel(logging.ERROR)

VOCABULARY = 24
SIZES = dict(
    vocab_size=VOCABULARY, hidden_size=24, intermediate_size=24, num_hidden_layers=1, num_attention_heads=12
)


class Logits(nn.Module):
    """A model that returns its logits alone."""

    def __init__(self, config):
        super().__init__()
        # Experts are multiplied by a function of torch that takes no float64, unless they are "eager".
        experts = {"experts_implementation": "eager"} if hasattr(config, "num_local_experts") else {}
        self.model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", **experts)

    def forward(self, tokens):
        return self.model(input_ids=tokens, use_cache=False).logits


def tensor_parallel(module, mesh):
    apply_tensor_parallelism(module.model, mesh, module.model._expand_parallel_plan(module.model.tp_plan))


def expert_parallel(implementation):
    def parallelize(module, mesh):
        model = module.model
        dense = {name: style for name, style in model.tp_plan.items() if ".experts" not in name}
        apply_tensor_parallelism(model, mesh, model._expand_parallel_plan(dense))
        experts = model._expand_parallel_plan(model.ep_plan)
        apply_expert_parallelism(model, mesh, mesh, experts, ep_implementation=implementation)

    return parallelize


def check(name, config, parallelize):
    def cases(draw, ranks):
        return dict(mesh=(ranks,), inputs=[(2, 3)])

    return al.subject.parallel(
        lambda: Logits(config),
        parallelize,
        prepare=lambda tokens: tokens.long() * 5 % VOCABULARY,
        ranks=(1, 2, 3, 4),
        name=f"transformers.{name}",
    )(cases)


mixtral = MixtralConfig(**SIZES, num_key_value_heads=12, num_local_experts=12, num_experts_per_tok=2)
llama_layers = check("llama", LlamaConfig(**SIZES, num_key_value_heads=12), tensor_parallel)
mixtral_layers = check("mixtral", mixtral, tensor_parallel)
exchanged_experts = check("mixtral.all_to_all", mixtral, expert_parallel("all_to_all"))
reduced_experts = check("mixtral.all_reduce", mixtral, expert_parallel("all_reduce"))


class Heads(nn.Module):
    """A norm of each head, as Qwen3 has it of queries and keys."""

    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(2)

    def forward(self, heads):
        return self.norm(heads)


def of_own_heads(module, mesh):
    ReplicatedWithGradAllReduce().install_forward(module.norm, mesh)


@al.subject.parallel(Heads, of_own_heads, name="transformers.norm_of_heads", ranks=(2,))
def norms_of_heads(draw, ranks):
    heads = [[Shard(1)]]
    return dict(
        inputs=(3, 2 * ranks, 2), mesh=(ranks,), input_placements=heads, output_placements=heads, frozen=0
    )
