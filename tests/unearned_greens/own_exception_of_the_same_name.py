"""An exception of the user's own that has the bare name of one of the lab's."""

import adjointlab as al
from tests.unearned_greens.common import Copying, blocks


class Inapplicable(Exception):
    pass


class Raising(Copying):
    def forward(self, x):
        raise Inapplicable("the user's own")


@al.subject(Raising)
def subject(draw, ranks):
    return blocks(draw, ranks)
