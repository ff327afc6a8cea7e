"""Cases of the multi-head attention."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from torch import nn

from adjointlab.core import strategies
from adjointlab.layers.attention import ALGORITHMS
from adjointlab.layers.multihead_attention import MultiheadAttention
from adjointlab.layers.separate_projections import SeparateProjections
from adjointlab.layers.subjects.common import Arguments, dtypes, layer_of, layer_subject, twin_of

__all__ = ["multihead_attentions"]


def multihead_attention(
    comm: Any, *, call: dict[str, bool], kind: type[MultiheadAttention] = MultiheadAttention, **case: Any
) -> nn.Module:
    """Return the layer of a case, which is called with the arguments `call`."""
    layer = layer_of(kind)(comm, **case)
    assert isinstance(layer, MultiheadAttention)
    layer.codomain = layer.results(call["need_weights"], call["average_attn_weights"])
    return _called_with(layer, call)


def sequential_multihead_attention(*, call: dict[str, bool], **case: Any) -> nn.Module:
    """Return the sequential twin of a case."""
    module = twin_of(nn.MultiheadAttention)(**case)
    assert isinstance(module, nn.MultiheadAttention)
    return _called_with(SeparateProjections(module), call)


def _called_with(module: nn.Module, call: dict[str, bool]) -> nn.Module:
    """Return the module, made to get these arguments and small inputs in each call, and to return no `None`.

    With integers, scores would be so large that a softmax has one weight of 1: gradients would vanish, except for terms that cancel in
    the ring.
    """
    module.register_forward_pre_hook(
        lambda _, x, named: (tuple(each / 64 for each in x), {**named, **call}), with_kwargs=True
    )
    module.register_forward_hook(lambda _, __, y: y if call["need_weights"] else y[0])
    return module


@layer_subject(
    layer=multihead_attention, sequential=sequential_multihead_attention, name="MultiheadAttention"
)
def multihead_attentions(draw: DrawFn, ranks: int) -> Arguments:
    """Batch, heads and sequence cut; both algorithms; causal or not; keys and values of other lengths; the weights if they are not cut."""
    heads = draw(st.integers(1, 3))
    features = heads * draw(st.integers(1, 2))
    # At least two keys: the weight of a single one is 1, so torch's gradients are exactly 0, and a ring's only rounding errors.
    queries, batch = draw(st.integers(2, 5)), draw(st.integers(1, 2))
    batch_first = draw(st.booleans())
    arguments: Arguments = {
        "input_shape": (batch, queries, features) if batch_first else (queries, batch, features),
        "embed_dim": features,
        "num_heads": heads,
        "bias": draw(st.booleans()),
        "kdim": draw(st.one_of(st.none(), st.integers(1, 3))),
        "vdim": draw(st.one_of(st.none(), st.integers(1, 3))),
        "batch_first": batch_first,
        "keys": draw(st.one_of(st.just(queries), st.integers(2, 5))),
        "algorithm": draw(st.sampled_from(ALGORITHMS)),
        "dtype": draw(dtypes),
    }
    call = {name: draw(st.booleans()) for name in ("need_weights", "average_attn_weights", "is_causal")}
    # Last, since the number of draws depends on the number of ranks: so cases shrink to fewer ranks.
    partition = draw(strategies.partitions(ranks, 3, whole=False))
    call["need_weights"] &= partition.shape[2] == 1
    return {**arguments, "partition": partition, "call": call}
