"""A thread that the operator starts ends the process with 0."""

import os
import threading
import time

import adjointlab as al
from tests.unearned_greens.common import Copying, blocks


class Leaving(Copying):
    def forward(self, x):
        thread = threading.Thread(target=os._exit, args=(0,))
        thread.start()
        time.sleep(1.0)
        return super().forward(x)


@al.subject(Leaving)
def subject(draw, ranks):
    return blocks(draw, ranks)
