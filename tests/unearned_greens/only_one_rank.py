"""A subject that rejects every case of several ranks."""

import hypothesis

import adjointlab as al
from tests.unearned_greens.common import Copying, blocks


@al.subject(Copying)
def subject(draw, ranks):
    hypothesis.assume(ranks == 1)
    return blocks(draw, ranks)
