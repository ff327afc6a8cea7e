"""The adjoint raises pytest's own exception for a skipped test."""

import pytest

import adjointlab as al
from tests.unearned_greens.common import Copying, blocks


class Skipping(Copying):
    def adjoint(self, y):
        pytest.skip("nothing to see here")


@al.subject(Skipping)
def subject(draw, ranks):
    return blocks(draw, ranks)
