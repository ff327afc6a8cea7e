"""The subjects of all primitives, one module for each kind of operation: the entry point ``adjointlab.subjects``."""

# A new primitive is added to one of these modules; only a new module needs a line here.
from adjointlab.primitives.subjects.halos import *  # noqa: F403
from adjointlab.primitives.subjects.memory import *  # noqa: F403
from adjointlab.primitives.subjects.redistribution import *  # noqa: F403
from adjointlab.primitives.subjects.reductions import *  # noqa: F403
from adjointlab.primitives.subjects.repartition import *  # noqa: F403
