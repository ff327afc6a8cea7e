"""The forward pass raises what a test runner takes for a skipped test."""

import unittest

import adjointlab as al
from tests.unearned_greens.common import Copying, blocks


class Skipping(Copying):
    def forward(self, x):
        raise unittest.SkipTest("nothing to see here")


@al.subject(Skipping)
def subject(draw, ranks):
    return blocks(draw, ranks)
