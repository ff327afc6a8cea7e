"""The forward pass rejects its case by Hypothesis's own means, on every case."""

import hypothesis

import adjointlab as al
from tests.unearned_greens.common import Copying, blocks


class Rejecting(Copying):
    def forward(self, x):
        hypothesis.assume(False)


@al.subject(Rejecting)
def subject(draw, ranks):
    return blocks(draw, ranks)
