"""The sequential reference ends the process with 0."""

import sys

import adjointlab as al
from tests.unearned_greens.common import Copying, blocks


def reference(x, layout):
    sys.exit(0)


@al.subject(Copying, reference=reference)
def subject(draw, ranks):
    return blocks(draw, ranks)
