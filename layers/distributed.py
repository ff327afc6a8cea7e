"""The base of the distributed layers: made from a sequential module, with inputs that are checked on every rank."""

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
    """A layer over the workers of `partition`: every rank of `comm` makes its own, from the same arguments.

    `domain` and `codomain` are the spaces of its inputs and outputs. Of the lab's checks, `rounding` is the relative error
    that they allow, 0 for exact arithmetic and `None` for what the sequential layer shows, and `reach` the size of the terms whose rounding it counts.

    Calls are collective over `comm`, and so is ``backward``: it takes place on every rank, whatever requires a gradient
    there. A call raises `ValueError`, the same on every rank, if some rank's local tensor is not what `domain` says.

    A layer is made for one element type: ``.double()`` and the like raise `ValueError` where they would change that of
    a parameter or buffer. A deep copy has parameters and buffers of its own, and shares communicator and operators.
    Layers are not pickled: ``torch.save`` takes a state_dict, each rank's own, or ``sequential_state_dict()``.
    """

    domain: Space
    codomain: Space
    rounding: float | None = 0.0
    reach = 0.0

    given: Mapping[str, object] = MappingProxyType({})
    """Arguments of the layer alone, as they were given."""

    def __init__(self, comm: Communicator, partition: PartitionLike, module: nn.Module | None = None) -> None:
        super().__init__(comm, module)
        self.partition = partition_of("partition", partition, comm)

    def extra_repr(self) -> str:
        """The arguments of the sequential module and of the layer, global shapes, and the partition: for ``print``."""
        arguments = sequential_arguments(self._template[0]) if self._template else {}
        arguments |= arguments_that_differ(self, self.own_arguments, self.given)
        shapes = shapes_of(*(getattr(self, name, Space()) for name in ("domain", "codomain")))
        return ", ".join([*arguments.values(), *shapes, f"partition={self.partition}"])

    @property
    def own_arguments(self) -> Callable[..., object]:
        """The function whose arguments are those that the layer has beyond a sequential module's."""
        return type(self).__init__

    @property
    def output_partition(self) -> Partition:
        """The partition of the (first) output, with a dimension for each of its own: what the next layer is made over."""
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
        """Collective, the first thing of a forward pass: raise the same error on every rank unless each got what `domain` says.

        A rank that is idle in a tensor's layout may have any tensor of zero volume. Returns the tensors, those of idle ranks
        in the shape and element type that operators take there, where the layer lies. `check_others` checks what else the call was given;
        `flags` are arguments of the call that every rank must give alike, by name, and the same names on all.

        Raises `ValueError` for a local tensor of another shape or element type, `TypeError` for what is no tensor; so for
        the parameters and buffers that the layer has now, as others may have been put in their place. Raises `ValueError` unless
        parameters, buffers and inputs of a rank lie on one device, and for a mode, training or evaluation, or a flag that differs by rank.
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
        """The tensor of zero volume that operators take on an idle rank for the one that it was given."""
        placed = self._placed(x)
        device = placed[0][1].device if placed else local.device
        return local.reshape(tensor.layout.local_shape(self.rank)).to(device, getattr(torch, tensor.dtype))

    def _placed(self, x: tuple[torch.Tensor, ...]) -> list[tuple[str, torch.Tensor]]:
        """This rank's parameters, buffers and those of the inputs `x` that must lie beside them, by name."""
        owned = [(tensor.name, local) for tensor, local in self.held() if local is not None]
        inputs = zip(self.domain.tensors, x, strict=True)
        return owned + [
            (tensor.name, local) for tensor, local in inputs if tensor.layout.partition.is_active(self.rank)
        ]

    def _check_devices(self, x: tuple[torch.Tensor, ...]) -> None:
        # A parameter's class need not see that it is asked for its device.
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
        """Return True if parameters, buffers and inputs are what their spaces say, and on the host: as they nearly always are."""
        # In one function, which calls none: among other work each function of Python takes a few microseconds, only to be read into
        # the processor's caches.
        parameters, buffers, expected = self._parameters, self._buffers, self._expected
        strided = torch.strided  # a sparse tensor has no memory to send
        if len(x) != len(self.domain.tensors):
            return False
        first_input = len(expected) - len(x)
        # A parameter's class need not see that it is asked for its shape.
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
        """:func:`check_argument`, whose error for another floating-point type says how a layer is made for that."""
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
        """Refuse another element type too where no parameter or buffer shows it."""
        for tensor in (*self.domain.tensors, *self.codomain.tensors):
            self.refuse_conversion(fn, torch.empty(0, dtype=getattr(torch, tensor.dtype)))
        return super()._apply(fn, recurse)


class TorchLayer(DistributedModule):
    """A layer that is made from a module of torch's, or from that module's arguments.

    ``Conv2d(comm, partition, input_shape, nn.Conv2d(3, 8, 5))`` takes the values of a module that every rank has, its
    mode, and what of it is frozen; ``Conv2d(comm, partition, input_shape, 3, 8, 5)`` makes that module first, drawing
    the initial values that torch would. Either way arguments, defaults and errors are torch's own.

    `partition` may be given by its sides, ``(1, 1, 1, 2, 2)``, over the ranks 0, 1, 2, ...

    Every layer also takes `dtype`, its element type, by default that of the module's tensors, and else torch's default.
    Raises `ValueError` for a module of another class or element type, or with what the layer would not have, such as hooks, pruning
    and a `forward` of its own, and `TypeError` for further arguments with a module.
    """

    torch_classes: ClassVar[TorchClasses] = ()
    """The modules that the layer is made from; a single one where it also takes torch's arguments.

    Given as a keyword of the class: ``class Flatten(TorchLayer, torch_classes=(nn.Flatten,))``.
    """
    options: ClassVar[tuple[str, ...]] = ()
    """Keyword arguments beyond torch's, which :meth:`lay_out` takes."""
    lay_out: Callable[..., None]
    """Make the operators, the spaces and the parameters: the step of the constructor that each layer has of its own."""

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
        """The sequential module that is the only argument, or a new one made from the arguments."""
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
        """Raise `ValueError` unless `module` is of one of `torch_classes`, and computes what that does."""
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
        """The constructor with the module first, and no arguments of torch's."""
        cls.check_sequential(module)
        return cls(comm, partition, input_shape, module, dtype=dtype, **named)

    @classmethod
    def _torch_names(cls) -> str:
        return " or ".join(map(_qualified, cls.torch_classes))


def _qualified(module: type[nn.Module]) -> str:
    """The name of a module of torch's, or of one of ours that is a function of torch's."""
    return f"torch.nn.{module.__name__}" if module.__module__.startswith("torch.") else module.__name__
