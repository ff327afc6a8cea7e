"""The copies of the input are declared to have values of their own, so that nothing sequential can be held beside them."""

import numpy as np

import adjointlab as al
from tests.unearned_greens.common import Copying


@al.subject(Copying, reference=lambda x, **parameters: np.array(x))
def subject(draw, ranks):
    return {"layout": al.Layout((2,), al.Partition((ranks,)), axes=(None,))}
