"""An exception whose message is not a string."""

import adjointlab as al
from tests.unearned_greens.common import Copying, blocks


class Silent(Exception):
    def __str__(self):
        return 0


class Raising(Copying):
    def forward(self, x):
        raise Silent


@al.subject(Raising)
def subject(draw, ranks):
    return blocks(draw, ranks)
