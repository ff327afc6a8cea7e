"""C's exit(0) in a call, as a STOP of Fortran is."""

import ctypes

import adjointlab as al
from tests.unearned_greens.common import Copying, blocks


class Stopping(Copying):
    def adjoint(self, y):
        ctypes.CDLL(None).exit(0)


@al.subject(Stopping)
def subject(draw, ranks):
    return blocks(draw, ranks)
