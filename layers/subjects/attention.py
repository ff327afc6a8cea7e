"""Cases of the attention."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from adjointlab.core import strategies
from adjointlab.layers.attention import ALGORITHMS, Attention, ScaledDotProductAttention
from adjointlab.layers.subjects.common import Arguments, dtypes, layer_of, layer_subject, twin_of

__all__ = ["attentions"]


@layer_subject(layer=layer_of(Attention), sequential=twin_of(ScaledDotProductAttention), name="Attention")
def attentions(draw: DrawFn, ranks: int) -> Arguments:
    """Batch, heads and sequence cut; both algorithms; causal or not; as many keys as queries, fewer, and more."""
    queries = draw(st.integers(1, 6))
    shape = (draw(st.integers(1, 2)), draw(st.integers(1, 3)), queries, draw(st.integers(1, 3)))
    return {
        "partition": draw(strategies.partitions(ranks, 3, whole=False)),
        "input_shape": shape,
        "keys": draw(st.one_of(st.just(queries), st.integers(1, 6))),
        "value_features": draw(st.integers(1, 3)),
        "is_causal": draw(st.booleans()),
        "scale": draw(st.sampled_from((None, 0.25))),
        "algorithm": draw(st.sampled_from(ALGORITHMS)),
        "dtype": draw(dtypes),
    }
