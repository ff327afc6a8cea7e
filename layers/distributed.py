"""The base classes of the distributed layers, which are made from a sequential module and check their inputs on every rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import ClassVar, Self

import torch
from torch import nn

from adjointlab.core.agreement import check_alike, raise_together
from adjointlab.core.arguments import check_argument
from adjointlab.core.arrays import place_name
from adjointlab.core.communicators import size_of
from adjointlab.core.partition import Partition, PartitionLike
from adjointlab.core.space import Space, Tensor
from adjointlab.layers.additions import METHODS, refuse_additions, refuse_tied
from adjointlab.layers.arguments import check_layer_arguments, shape_of
from adjointlab.layers.equal_values import refuse_valueless
from adjointlab.layers.grids import grid_of
from adjointlab.layers.parameters import DistributedParameters
from adjointlab.layers.representation import arguments_that_differ, sequential_arguments, shapes_of
from adjointlab.layers.torch_modules import TorchClasses, dtype_name, parameters_of
from adjointlab.primitives.validation import partition_of
from adjointlab.spelling import described_type
from adjointlab.typing import Communicator

__all__ = ["DistributedModule", "TorchLayer"]


class DistributedModule(DistributedParameters):
    """A layer over the workers of `partition`: every rank of `comm` makes its own instance, from the same arguments.

    `domain` and `codomain` are the spaces of its inputs and outputs. `rounding` is the relative error that the lab's checks
    allow: 0 for exact arithmetic, `None` to measure it on the sequential layer. `reach` is the size of the terms that are rounded.

    Calls are collective over `comm`, and so is ``backward``: it takes place on every rank, whatever requires a gradient
    there. A call raises `ValueError`, the same on every rank, if some rank's local tensor is not in `domain`.

    A layer is made for one element type: ``.double()`` and the like raise `ValueError` if they would change that of
    a parameter or buffer. A deep copy copies parameters and buffers, and shares communicator and operators.
    Layers cannot be pickled: give ``torch.save`` a state_dict, that of each rank or ``sequential_state_dict()``.
    """

    domain: Space
    codomain: Space
    rounding: float | None = 0.0
    reach = 0.0

    given: Mapping[str, object] = MappingProxyType({})
    """The given arguments that only the layer has, not the sequential module."""

    def __init__(self, comm: Communicator, partition: PartitionLike, module: nn.Module | None = None) -> None:
        super().__init__(comm, module)
        self.partition = partition_of("partition", partition, comm)

    def extra_repr(self) -> str:
        """Return the arguments of the sequential module and of the layer, global shapes, and the partition: for ``print``."""
        arguments = sequential_arguments(self._template[0]) if self._template else {}
        arguments |= arguments_that_differ(self, self.own_arguments, self.given)
        shapes = shapes_of(*(getattr(self, name, Space()) for name in ("domain", "codomain")))
        return ", ".join([*arguments.values(), *shapes, f"partition={self.partition}"])

    @property
    def own_arguments(self) -> Callable[..., object]:
        """The function whose parameters are the arguments that the layer has beyond those of a sequential module."""
        return type(self).__init__

    @property
    def output_partition(self) -> Partition:
        """The partition of the (first) output, with a dimension for each of the output's: that of the next layer."""
        return grid_of(self.codomain.tensors[0].layout)

    def check_order(self, shape: Sequence[int]) -> None:
        """Raise `ValueError` unless the partition has as many dimensions as an input of that shape."""
        if self.partition.order != len(shape):
            raise ValueError(
                f"partition: of order {self.partition.order} ({self.partition}), but the input {list(shape)} has order "
                f"{len(shape)}: each dimension lies along one of the partition"
            )

    def check_inputs(
        self,
        *x: torch.Tensor,
        check_others: Callable[[], None] | None = None,
        flags: Mapping[str, bool] = MappingProxyType({}),
    ) -> tuple[torch.Tensor, ...]:
        """Collective, the first step of a forward pass: raise the same error on every rank unless all inputs are in `domain`.

        A rank that is idle in a tensor's layout may pass any tensor of zero volume. Returns the tensors; those of idle ranks have the
        shape and element type that operators require there, and lie on the layer's device. `check_others` checks the other arguments of
        the call; `flags` are arguments of the call, by name, that must be the same on all ranks.

        Raises `ValueError` for a local tensor of another shape or element type, `TypeError` for a value that is not a tensor; the same
        for the current parameters and buffers of the layer, which may have been replaced. Raises `ValueError` unless parameters,
        buffers and inputs of a rank lie on one device, and if the mode, training or evaluation, or a flag differs by rank.
        """

        def check() -> None:
            if check_others is not None:
                check_others()
            self._check_inputs(x)

        counts = raise_together(self.comm, check, (self.training, *flags.values()))
        if not {0, self.comm.Get_size()}.issuperset(counts):
            mode = "training, as by train()," if self.training else "evaluation, as by eval(),"
            check_alike(self.comm, {f"mode of {type(self).__name__}": mode, **flags})
        if self._is_never_idle:
            return x
        return tuple(
            local if tensor.layout.partition.is_active(self.rank) else self._idle(tensor, local, x)
            for tensor, local in zip(self.domain.tensors, x, strict=True)
        )

    @cached_property
    def _is_never_idle(self) -> bool:
        return all(tensor.layout.partition.is_active(self.rank) for tensor in self.domain.tensors)

    def _idle(self, tensor: Tensor, local: torch.Tensor, x: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Return the tensor of zero volume that operators take on an idle rank instead of the one that was given."""
        placed = self._placed(x)
        device = placed[0][1].device if placed else local.device
        return local.reshape(tensor.layout.local_shape(self.rank)).to(device, getattr(torch, tensor.dtype))

    def _placed(self, x: tuple[torch.Tensor, ...]) -> list[tuple[str, torch.Tensor]]:
        """Return this rank's parameters and buffers, and the inputs among `x` that must lie on the same device, by name."""
        owned = [(tensor.name, local) for tensor, local in self.held() if local is not None]
        inputs = zip(self.domain.tensors, x, strict=True)
        return owned + [
            (tensor.name, local) for tensor, local in inputs if tensor.layout.partition.is_active(self.rank)
        ]

    def _check_devices(self, x: tuple[torch.Tensor, ...]) -> None:
        # Reading a parameter's device must not call its class's `__torch_function__`.
        with torch._C.DisableTorchFunctionSubclass():
            placed = self._placed(x)
            for name, local in placed[1:]:
                first_name, first = placed[0]
                if local.device != first.device:
                    raise ValueError(
                        f"{name}: lies on {place_name(local)} on rank {self.rank}, but {first_name} lies on {place_name(first)}; "
                        "move one of them, or the layer, by .to(...)"
                    )

    @cached_property
    def _expected(self) -> tuple[tuple[str, tuple[int, ...], torch.dtype], ...]:
        """Name, local shape and element type of each parameter and buffer, then of each input."""
        spaces = (self.parameter_space, self.buffer_space, self.domain)
        return tuple(
            (tensor.name, tensor.layout.local_shape(self.rank), getattr(torch, tensor.dtype))
            for space in spaces
            for tensor in space.tensors
        )

    def _are_as_expected(self, x: tuple[torch.Tensor, ...]) -> bool:
        """Return True if parameters, buffers and inputs are in their spaces and on the host, as is nearly always the case."""
        # In one function, which calls no other: among other work, each Python function takes a few microseconds just to be loaded
        # into the processor's caches.
        parameters, buffers, expected = self._parameters, self._buffers, self._expected
        strided = torch.strided  # a sparse tensor has no memory to send
        if len(x) != len(self.domain.tensors):
            return False
        first_input = len(expected) - len(x)
        # Reading a parameter's shape must not call its class's `__torch_function__`.
        with torch._C.DisableTorchFunctionSubclass():
            for number, (name, shape, dtype) in enumerate(expected):
                if number >= first_input:
                    local: torch.Tensor | None = x[number - first_input]
                else:
                    local = parameters[name] if name in parameters else buffers.get(name)
                if not (isinstance(local, torch.Tensor) and local.is_cpu and local.layout is strided):
                    return False
                if local.shape != shape or local.dtype != dtype:
                    return False
        return True

    def _check_inputs(self, x: tuple[torch.Tensor, ...]) -> None:
        if self._are_as_expected(x):
            return
        self.check_owned()
        if len(x) != len(self.domain.tensors):
            names = ", ".join(tensor.name for tensor in self.domain.tensors)
            raise ValueError(
                f"arguments: {len(x)} on rank {self.rank}, but the layer takes {len(self.domain.tensors)}: {names}"
            )
        for tensor, local in zip(self.domain.tensors, x, strict=True):
            if not isinstance(local, torch.Tensor):
                raise TypeError(
                    f"{tensor.name}: {described_type(local)} on rank {self.rank} is not a torch.Tensor"
                )
            idle = not tensor.layout.partition.is_active(self.rank) and local.numel() == 0
            if not idle and self._batch_of(tensor, local):  # operators take batches, layers do not
                raise ValueError(
                    f"{tensor.name}: shape {tuple(local.shape)} on rank {self.rank}, but the layout {tensor.layout} gives it "
                    f"{tensor.layout.local_shape(self.rank)}"
                )
        self._check_devices(x)

    def _batch_of(self, tensor: Tensor, local: torch.Tensor) -> tuple[int, ...]:
        """Call :func:`check_argument`; its error for another floating-point type also says how to make a layer for that type."""
        try:
            return check_argument(tensor, local, self.rank)
        except ValueError as error:
            wanted = getattr(torch, tensor.dtype)
            if local.dtype == wanted or not (local.is_floating_point() and wanted.is_floating_point):
                raise
            raise ValueError(
                f"{error}; convert it by .to({wanted}), or make the layer, network or loss with dtype={local.dtype}, from a module of that "
                "element type if it has parameters"
            ) from None

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        """Reject another element type even if the layer has no parameter or buffer of that kind."""
        for tensor in (*self.domain.tensors, *self.codomain.tensors):
            self.refuse_conversion(fn, torch.empty(0, dtype=getattr(torch, tensor.dtype)))
        return super()._apply(fn, recurse)


class TorchLayer(DistributedModule):
    """A layer that is made from a torch module, or from that module's arguments.

    ``Conv2d(comm, partition, input_shape, nn.Conv2d(3, 8, 5))`` copies the values, the mode and the ``requires_grad`` flags of a
    module that every rank has; ``Conv2d(comm, partition, input_shape, 3, 8, 5)`` makes that module first, drawing the initial
    values that torch would draw. Either way arguments, defaults and errors are torch's own.

    `partition` may be given by its sides, ``(1, 1, 1, 2, 2)``, over the ranks 0, 1, 2, ...

    Every layer also takes `dtype`, its element type, by default that of the module's tensors, and else torch's default.
    Raises `ValueError` for a module of another class or element type, or with additions that the layer would lose, such as hooks,
    pruning or an overridden `forward`, and `TypeError` for further arguments with a module.
    """

    torch_classes: ClassVar[TorchClasses] = ()
    """The classes of the modules that the layer is made from; a single one if it also takes torch's arguments.

    Given as a keyword of the class: ``class Flatten(TorchLayer, torch_classes=(nn.Flatten,))``.
    """
    options: ClassVar[tuple[str, ...]] = ()
    """Keyword arguments beyond torch's, which :meth:`lay_out` takes."""
    lay_out: Callable[..., None]
    """Make the operators, the spaces and the parameters: the step of the constructor that each layer implements."""

    @property
    def own_arguments(self) -> Callable[..., object]:
        return self.lay_out

    def __init_subclass__(cls, torch_classes: TorchClasses | None = None) -> None:
        super().__init_subclass__()
        if torch_classes is not None:
            cls.torch_classes = torch_classes

    def __init__(
        self,
        comm: Communicator,
        partition: PartitionLike,
        input_shape: Sequence[int],
        *arguments: object,
        dtype: torch.dtype | None = None,
        **named: object,
    ) -> None:
        size_of(comm)
        options = {name: named.pop(name) for name in self.options if name in named}
        check_layer_arguments(type(self), input_shape, arguments, named, options)
        if dtype is not None:
            dtype_name(dtype)
        module = self.torch_module(dtype, *arguments, **named)
        refuse_valueless("module", module)
        refuse_additions("module", module)
        refuse_tied("module", module)
        super().__init__(comm, partition, module)
        known = {tensor.dtype for tensor in module.parameters()}
        if dtype is not None and not known <= {dtype}:
            raise ValueError(
                f"dtype: {dtype}, but the parameters of the module are of {known.pop()}; convert it before, by .to({dtype})"
            )
        buffers = (tensor.dtype for tensor in module.buffers() if tensor.is_floating_point())
        self.dtype = dtype or next(iter(known), None) or next(buffers, torch.get_default_dtype())
        self.input_shape = shape_of("input_shape", input_shape)
        self.given = options
        self.lay_out(module, **options)

    @classmethod
    def torch_module(cls, dtype: torch.dtype | None, *arguments: object, **named: object) -> nn.Module:
        """Return the sequential module that is the only argument, or a new one made from the arguments."""
        module = arguments[0] if arguments else None
        if isinstance(module, nn.Module):
            cls.check_sequential(module)
            return module
        if len(cls.torch_classes) != 1:
            raise TypeError(f"module: {cls.__name__} is made from {cls._torch_names()}, but was given none")
        (torch_class,) = cls.torch_classes
        if "dtype" in parameters_of(torch_class):
            named["dtype"] = dtype
        return torch_class(*arguments, **named)

    @classmethod
    def check_sequential(cls, module: nn.Module) -> None:
        """Raise `ValueError` unless `module` is of one of `torch_classes`, without overridden methods."""
        name = type(module).__name__
        torch_class = next((each for each in cls.torch_classes if isinstance(module, each)), None)
        if torch_class is None:
            raise ValueError(f"module: {name}, but {cls.__name__} is made from {cls._torch_names()}")
        for method in (*METHODS, "train"):
            if getattr(type(module), method, None) is not getattr(torch_class, method, None):
                raise ValueError(
                    f"module: {name} has a {method} of its own, but {cls.__name__} computes what {_qualified(torch_class)} does"
                )

    @classmethod
    def from_sequential(
        cls,
        module: nn.Module,
        comm: Communicator,
        partition: PartitionLike,
        input_shape: Sequence[int],
        dtype: torch.dtype | None = None,
        **named: object,
    ) -> Self:
        """The constructor with the module first, and without torch's arguments."""
        cls.check_sequential(module)
        return cls(comm, partition, input_shape, module, dtype=dtype, **named)

    @classmethod
    def _torch_names(cls) -> str:
        return " or ".join(map(_qualified, cls.torch_classes))


def _qualified(module: type[nn.Module]) -> str:
    """Return the name of a torch module, or of one of ours that wraps a torch function."""
    return f"torch.nn.{module.__name__}" if module.__module__.startswith("torch.") else module.__name__
