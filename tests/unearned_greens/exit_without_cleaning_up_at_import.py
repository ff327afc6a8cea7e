"""The module ends the process with ``os._exit(0)`` when it is imported."""

import os

import adjointlab as al
from tests.unearned_greens.common import Copying, blocks

os._exit(0)


@al.subject(Copying)
def subject(draw, ranks):
    return blocks(draw, ranks)
