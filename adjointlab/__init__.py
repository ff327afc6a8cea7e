"""adjointlab: checks that distributed forward and backward passes are adjoint, on partitions nobody picked by hand.

The names below are loaded when they are first used, so that ``import adjointlab.primitives`` needs neither Hypothesis
nor torch nor MPI.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adjointlab import MPI, layers, primitives
    from adjointlab.core import strategies
    from adjointlab.core.layout import Layout
    from adjointlab.core.operator import LinearOperator
    from adjointlab.core.partition import Partition
    from adjointlab.core.program import Program, Region
    from adjointlab.core.space import LocalType, Space, Tensor
    from adjointlab.engine.dot_test import check_adjoint
    from adjointlab.engine.parallel_check import check_parallel, check_pipeline
    from adjointlab.engine.subject_check import check_subject
    from adjointlab.engine.subject_decorators import subject
    from adjointlab.pytest.coherence_tests import coherence_tests
    from adjointlab.torch_distributed.opening import device_mesh, process_group
    from adjointlab.worlds.mpi.world import MPIWorld
    from adjointlab.worlds.simulated.world import SimulatedWorld
    from adjointlab.worlds.torch.world import TorchWorld

__all__ = [
    "MPI", "Layout", "LinearOperator", "LocalType", "MPIWorld", "Partition", "Program", "Region",
    "SimulatedWorld", "Space", "Tensor", "TorchWorld", "check_adjoint", "check_parallel", "check_pipeline", "check_subject",
    "coherence_tests",
    "device_mesh", "layers", "primitives", "process_group", "strategies", "subject",
]  # fmt: skip

_MODULES = {
    "Layout": "adjointlab.core.layout",
    "LinearOperator": "adjointlab.core.operator",
    "LocalType": "adjointlab.core.space",
    "MPIWorld": "adjointlab.worlds.mpi.world",
    "Partition": "adjointlab.core.partition",
    "Program": "adjointlab.core.program",
    "Region": "adjointlab.core.program",
    "SimulatedWorld": "adjointlab.worlds.simulated.world",
    "Space": "adjointlab.core.space",
    "Tensor": "adjointlab.core.space",
    "TorchWorld": "adjointlab.worlds.torch.world",
    "check_adjoint": "adjointlab.engine.dot_test",
    "check_parallel": "adjointlab.engine.parallel_check",
    "check_pipeline": "adjointlab.engine.parallel_check",
    "check_subject": "adjointlab.engine.subject_check",
    "coherence_tests": "adjointlab.pytest.coherence_tests",
    "device_mesh": "adjointlab.torch_distributed.opening",
    "process_group": "adjointlab.torch_distributed.opening",
    "subject": "adjointlab.engine.subject_decorators",
}

_SUBMODULES = {
    "MPI": "adjointlab.MPI",
    "layers": "adjointlab.layers",
    "primitives": "adjointlab.primitives",
    "strategies": "adjointlab.core.strategies",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value = getattr(import_module(_MODULES[name]), name)
    elif name in _SUBMODULES:
        value = import_module(_SUBMODULES[name])
    else:
        raise AttributeError(f"module 'adjointlab' has no attribute {name!r}")
    # Cached as an ordinary attribute, because operators use these names in every call.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
