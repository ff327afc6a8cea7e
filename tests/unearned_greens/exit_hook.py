"""A hook for the end of the process ends it with 0, and sys.exit leads nowhere; the operator is wrong."""

import atexit
import os
import sys

import adjointlab as al
from tests.unearned_greens.common import Copying, blocks


class Wrong(Copying):
    def adjoint(self, y):
        sys.exit = lambda *_: None
        return 2 * super().adjoint(y)


@al.subject(Wrong)
def subject(draw, ranks):
    return blocks(draw, ranks)


atexit.register(os._exit, 0)
