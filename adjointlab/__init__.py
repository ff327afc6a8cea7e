"""adjointlab: checks that a distributed forward and backward pass are adjoint, on partitions nobody picked by hand.

The names below are loaded when they are first used, so that ``import adjointlab.primitives`` needs neither Hypothesis
nor torch nor MPI.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adjointlab import MPI, strategies
    from adjointlab.harness.dot_test import check_adjoint
    from adjointlab.harness.pytest_class import coherence_tests
    from adjointlab.harness.subject import subject
    from adjointlab.layout import Layout
    from adjointlab.operator import LinearOperator
    from adjointlab.partition import Partition
    from adjointlab.program import Program, Region
    from adjointlab.space import LocalType, Space, Tensor
    from adjointlab.worlds.mpi import MPIWorld
    from adjointlab.worlds.simulated import SimulatedWorld

__all__ = [
    "MPI",
    "Layout",
    "LinearOperator",
    "LocalType",
    "MPIWorld",
    "Partition",
    "Program",
    "Region",
    "SimulatedWorld",
    "Space",
    "Tensor",
    "check_adjoint",
    "coherence_tests",
    "strategies",
    "subject",
]

_MODULES = {
    "Layout": "adjointlab.layout",
    "LinearOperator": "adjointlab.operator",
    "LocalType": "adjointlab.space",
    "MPIWorld": "adjointlab.worlds.mpi",
    "Partition": "adjointlab.partition",
    "Program": "adjointlab.program",
    "Region": "adjointlab.program",
    "SimulatedWorld": "adjointlab.worlds.simulated",
    "Space": "adjointlab.space",
    "Tensor": "adjointlab.space",
    "check_adjoint": "adjointlab.harness.dot_test",
    "coherence_tests": "adjointlab.harness.pytest_class",
    "subject": "adjointlab.harness.subject",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    if name in __all__:
        return import_module(f"adjointlab.{name}")
    raise AttributeError(f"module 'adjointlab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
