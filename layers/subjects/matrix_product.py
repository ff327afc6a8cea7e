"""Cases of matrix multiplication."""

from __future__ import annotations

import math

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from adjointlab.core import strategies
from adjointlab.core.partition import Partition
from adjointlab.layers.matrix_product import ALGORITHMS, MatrixProduct, Product
from adjointlab.layers.subjects.common import Arguments, dtypes, grids_up_to, layer_of, layer_subject, twin_of

__all__ = ["matrix_products"]


@layer_subject(layer=layer_of(MatrixProduct), sequential=twin_of(Product), name="MatrixProduct")
def matrix_products(draw: DrawFn, ranks: int) -> Arguments:
    """Matrices, at times batches of them or empty, all dimensions cut, in panels of any width; fewer rows and columns than workers."""
    lead = draw(st.sampled_from(((), (), (), (1,), (3,))))
    m, k, n = draw(strategies.shapes(3, 5))
    grid = draw(st.sampled_from(grids_up_to(ranks, len(lead) + 2)))
    return {
        "a_shape": (*lead, m, k),
        "b_shape": (*lead, k, n),
        "algorithm": draw(st.sampled_from((*ALGORITHMS, *ALGORITHMS[1:]))),
        "panel": draw(st.sampled_from((None, None, 1, 2))),
        "recompute": draw(st.booleans()),
        "dtype": draw(dtypes),
        "partition": Partition(grid, draw(strategies.rank_orders(ranks, math.prod(grid)))),
    }
