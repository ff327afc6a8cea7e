"""The subjects of all primitives, one module for each family: the entry point ``adjointlab.subjects``."""

# A new primitive is added to its family's module, and a new family to these lines.
from adjointlab.primitives.subjects.halos import *  # noqa: F403
from adjointlab.primitives.subjects.memory import *  # noqa: F403
from adjointlab.primitives.subjects.redistribution import *  # noqa: F403
from adjointlab.primitives.subjects.reductions import *  # noqa: F403
from adjointlab.primitives.subjects.repartition import *  # noqa: F403
