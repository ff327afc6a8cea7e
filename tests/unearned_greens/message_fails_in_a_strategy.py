"""An error that the user can mend, whose message ends the process with 0."""

import adjointlab as al
from adjointlab.engine.subject import SubjectError
from tests.unearned_greens.common import Copying


class Silent(SubjectError):
    def __str__(self):
        raise SystemExit(0)


@al.subject(Copying)
def subject(draw, ranks):
    raise Silent
