"""Cases of a loss of logits, whose last dimension, the vocabulary, is cut over the ranks; all have the targets."""

from hypothesis import strategies as st
from torch import nn
from torch.distributed.tensor import Replicate, Shard


def logits_and_targets(draw, ranks):
    length, batch = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    return dict(
        inputs=[(length, batch, ranks * draw(st.integers(2, 3))), (length, batch)],
        input_dtypes=["float32", "int64"],
        input_placements=[[Shard(2)], [Replicate()]],
        dtype="float32",
    )


class OfCutVocabulary(nn.Module):
    """A function of logits, whose part of the vocabulary each rank has."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)
