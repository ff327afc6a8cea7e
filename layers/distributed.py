"""The base of the distributed layers: made from a sequential module, with inputs that are checked on every rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import nn

from adjointlab.core.arguments import check_argument
from adjointlab.core.partition import Partition
from adjointlab.core.space import Space
from adjointlab.layers.differentiable import connected, of_nothing
from adjointlab.layers.parameters import DistributedParameters, local_window
from adjointlab.layers.torch_modules import TorchClasses, dtype_name
from adjointlab.primitives.validation import check_ranks
from adjointlab.typing import Communicator

__all__ = [
    "DistributedModule",
    "connected",
    "dtype_name",
    "face",
    "local_window",
    "of_nothing",
    "raise_together",
]


class DistributedModule(DistributedParameters):
    """A layer over the workers of `partition`: every rank of `comm` makes its own, from the same arguments.

    `domain` and `codomain` are the spaces of its inputs and outputs; `parameter_space` and `buffer_space` say which
    worker holds which part of a parameter or buffer, which all others hold as a tensor of zero volume. Parameters have
    the names, and all of them together the values, of the sequential `module` that the layer is made from.

    Calls are collective over `comm`, and so is ``backward``: it takes place on every rank, whatever requires a gradient
    there.

    A layer is made for one element type: ``.double()`` and the like raise `ValueError` where they would change that of
    a parameter or buffer. A deep copy has parameters and buffers of its own, and shares communicator and operators.
    Layers are not pickled: ``torch.save`` takes a state_dict, each rank's own, or ``sequential_state_dict()``.
    """

    torch_classes: ClassVar[TorchClasses] = ()
    """The sequential modules that the layer is made from; one of them where it also takes torch's arguments."""
    domain: Space
    codomain: Space
    rounding = 0.0
    reach = 0.0

    def __init__(self, comm: Communicator, partition: Partition, module: nn.Module | None = None) -> None:
        super().__init__(comm, module)
        check_ranks("partition", partition, comm.Get_size())
        self.partition = partition

    @classmethod
    def torch_module(cls, *arguments: object, **named: object) -> nn.Module:
        """The sequential module that is the only argument, or a new one made from the arguments, which are torch's.

        Raises `ValueError` for a module of another class, and `TypeError` for further arguments beside a module.
        """
        names = " or ".join(f"torch.nn.{torch_class.__name__}" for torch_class in cls.torch_classes)
        module = arguments[0] if arguments else None
        if isinstance(module, nn.Module):
            if len(arguments) > 1 or named:
                raise TypeError(
                    f"module: {cls.__name__} takes either a module or the arguments of one, not both"
                )
            cls.check_sequential(module)
            return module
        if len(cls.torch_classes) != 1:
            raise TypeError(f"module: {cls.__name__} is made from {names}, but was given none")
        return cls.torch_classes[0](*arguments, **named)

    @classmethod
    def check_sequential(cls, module: nn.Module) -> None:
        """Raise `ValueError` unless `module` is of one of `torch_classes`, and computes what that does."""
        name = type(module).__name__
        torch_class = next((each for each in cls.torch_classes if isinstance(module, each)), None)
        if torch_class is None:
            names = " or ".join(f"torch.nn.{each.__name__}" for each in cls.torch_classes)
            raise ValueError(f"module: {name}, but {cls.__name__} is made from {names}")
        if type(module).forward is not torch_class.forward:
            raise ValueError(
                f"module: {name} has a forward of its own, but {cls.__name__} computes what "
                f"torch.nn.{torch_class.__name__} does"
            )

    @classmethod
    def from_sequential(
        cls,
        module: nn.Module,
        comm: Communicator,
        partition: Partition,
        input_shape: Sequence[int],
        dtype: torch.dtype | None = None,
        **named: Any,
    ) -> Self:
        """The constructor with the module first: the layer has the module's values, its mode, and what is frozen.

        `dtype` is for modules that have no element type, `named` for arguments that are the distributed layer's alone.
        """
        if dtype is not None:
            named["dtype"] = dtype
        return cls(comm, partition, input_shape, module, **named)  # type: ignore[arg-type, call-arg]

    def check_order(self, shape: Sequence[int]) -> None:
        """Raise `ValueError` unless the partition has as many dimensions as an input of that shape."""
        if self.partition.order != len(shape):
            raise ValueError(
                f"partition: of order {self.partition.order} ({self.partition}), but the input {list(shape)} has order "
                f"{len(shape)}: each dimension lies along one of the partition"
            )

    def check_inputs(self, *x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Collective, the first thing of a forward pass: raise the same error on every rank unless each got what `domain` says.

        A rank that is idle in a tensor's layout may have any tensor of zero volume. Returns the tensors, those of idle ranks
        in the shape and element type that operators take there.

        Raises `ValueError` for a local tensor of another shape or element type, `TypeError` for what is no tensor.
        """
        raise_together(self.comm, lambda: self._check_inputs(x))
        return tuple(
            local
            if tensor.layout.partition.is_active(self.rank)
            else local.reshape(tensor.layout.local_shape(self.rank)).to(getattr(torch, tensor.dtype))
            for tensor, local in zip(self.domain.tensors, x, strict=True)
        )

    def _check_inputs(self, x: tuple[Any, ...]) -> None:
        for tensor, local in zip(self.domain.tensors, x, strict=True):
            if not isinstance(local, torch.Tensor):
                raise TypeError(
                    f"{tensor.name}: a {type(local).__name__} on rank {self.rank} is no torch.Tensor"
                )
            idle = not tensor.layout.partition.is_active(self.rank) and local.numel() == 0
            if not idle and check_argument(tensor, local, self.rank):  # operators take batches, layers do not
                raise ValueError(
                    f"{tensor.name}: shape {tuple(local.shape)} on rank {self.rank}, but the layout {tensor.layout} gives it "
                    f"{tensor.layout.local_shape(self.rank)}"
                )


def face(partition: Partition, *dims: int) -> Partition:
    """The workers of `partition` whose index along `dims` is 0: a partition of the same order with sides of 1 there."""
    shape = tuple(1 if dim in dims else side for dim, side in enumerate(partition.shape))
    (first, *_) = partition.subpartitions([dim for dim in range(partition.order) if dim not in dims])
    return Partition(shape, first.ranks)


def raise_together(comm: Communicator, check: Callable[[], None]) -> None:
    """Collective: run `check` on every rank, and where it raises `TypeError` or `ValueError` on some, raise that on all.

    Of several errors, that of the lowest rank. Costs an all-reduction of one number.
    """
    error: TypeError | ValueError | None = None
    try:
        check()
    except (TypeError, ValueError) as raised:
        error = raised
    # The text has a length that other ranks do not know: only where there is one does a second collective follow, and
    # every rank knows from the first whether there is.
    failed, failures = np.array([error is not None], np.int64), np.zeros(1, np.int64)
    comm.Allreduce(failed, failures)
    if not failures[0]:
        return
    reported = comm.allgather(None if error is None else (isinstance(error, TypeError), str(error)))
    is_type, text = next(report for report in reported if report is not None)
    raise (TypeError if is_type else ValueError)(text) from None
