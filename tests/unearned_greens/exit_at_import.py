"""Importing the file ends the process with 0."""

import sys

import adjointlab as al
from tests.unearned_greens.common import Copying, blocks


@al.subject(Copying)
def subject(draw, ranks):
    return blocks(draw, ranks)


sys.exit(0)
