"""pylate 1.6.0: the gradients of `CachedContrastive` with `size_average`, which is the default, are those of the sum over the batch.

They are kept before the loss is divided by the number of rows. The loss is that of `Contrastive`.
"""

import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn

sys.path.append(str(Path(__file__).parents[1]))

from parts_of_packages import without_init

without_init("pylate", "pylate.losses", "pylate.utils")
import pylate.utils.distributed as functions  # noqa: E402

vars(sys.modules["pylate.utils"]).update(vars(functions))


class ColBERT:
    @staticmethod
    def skiplist_mask(input_ids, skiplist):
        return torch.ones_like(input_ids, dtype=torch.bool)


sys.modules["pylate.models"] = SimpleNamespace(ColBERT=ColBERT)
from pylate.losses.cached_contrastive import CachedContrastive  # noqa: E402
from pylate.losses.contrastive import Contrastive  # noqa: E402


class Model(nn.Module):
    skiplist, do_query_expansion = (), False

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4)

    def forward(self, features):
        return {"token_embeddings": self.embed(features["input_ids"])}


if __name__ == "__main__":
    torch.manual_seed(0)
    model = Model()
    texts = [torch.randint(7, (6, 3)) for _ in range(2)]
    features = [dict(input_ids=x, attention_mask=torch.ones_like(x)) for x in texts]
    for loss in (
        Contrastive(model),
        CachedContrastive(model, mini_batch_size=2),
        CachedContrastive(model, mini_batch_size=6),
    ):
        model.zero_grad()
        value = loss(features)
        value.backward()
        print(
            f"{type(loss).__name__}: loss {value.item():.4f}, norm of its gradient {model.embed.weight.grad.norm().item():.4f}"
        )
