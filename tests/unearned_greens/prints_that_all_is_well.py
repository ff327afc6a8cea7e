"""An operator that is wrong, and prints what the lab prints when all is well."""

import adjointlab as al
from tests.unearned_greens.common import Copying, blocks


class Boasting(Copying):
    def adjoint(self, y):
        print("all 7 coherent", flush=True)
        return 2 * super().adjoint(y)


@al.subject(Boasting)
def subject(draw, ranks):
    return blocks(draw, ranks)
