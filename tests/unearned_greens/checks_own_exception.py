"""The operator raises what the checks raise where they have nothing to say."""

import numpy as np

import adjointlab as al
from adjointlab.checks.verdict import Inapplicable
from tests.unearned_greens.common import Copying, blocks


class Summing(Copying):
    def forward(self, x):
        if self.comm.Get_size() > 1:
            raise Inapplicable("a hard case")
        return np.array(x)


@al.subject(Summing)
def subject(draw, ranks):
    return blocks(draw, ranks)
