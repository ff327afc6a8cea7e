"""What distributed layers share: parameters that lie on some workers, and the way from and to a sequential module."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, Self

import torch
from torch import nn

from adjointlab.core.arguments import check_argument
from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.core.space import Space, Tensor
from adjointlab.layers.agreement import raise_together
from adjointlab.primitives.repartition import Repartition
from adjointlab.primitives.validation import check_ranks

__all__ = ["DistributedModule", "connected", "dtype_name", "face", "local_window", "of_nothing"]


class DistributedModule(nn.Module):
    """A layer over the workers of a partition: every rank of `comm` makes its own, from the same arguments.

    `domain` and `codomain` are the spaces of its inputs and outputs; `parameter_space` and `buffer_space` say which
    worker holds which part of a parameter or buffer, which all others hold as a tensor of zero volume. Parameters have the
    names, and all of them together the values, that the sequential module has: :meth:`sequential` makes that.

    Calls are collective over `comm`, and so is ``backward``: it takes place on every rank, whatever requires a gradient
    there.

    A layer is made for one element type: ``.double()`` and the like raise `ValueError` where they would change that of a
    parameter or buffer. A deep copy has parameters and buffers of its own, and shares communicator and operators. Layers are not
    pickled: what ``torch.save`` takes is a state_dict, each rank's own, or ``sequential_state_dict()``.
    """

    domain: Space
    codomain: Space
    rounding = 0.0
    reach = 0.0

    def __init__(self, comm: Any, partition: Partition) -> None:
        super().__init__()
        check_ranks("partition", partition, comm.Get_size())
        self.comm, self.partition = comm, partition
        self.rank: int = comm.Get_rank()
        self.parameter_space, self.buffer_space = Space(), Space()

    def sequential(self) -> nn.Module:
        """A new sequential module with the arguments of this one; it draws its parameters from torch's generator."""
        raise NotImplementedError

    @classmethod
    def check_sequential(cls, module: nn.Module, torch_class: type[nn.Module]) -> None:
        """Raise `ValueError` unless `module` is of `torch_class`, and computes what that does: for `from_sequential`."""
        if not isinstance(module, torch_class):
            raise ValueError(
                f"module: {type(module).__name__}, but {cls.__name__} is made from torch.nn.{torch_class.__name__}"
            )
        if type(module).forward is not torch_class.forward:
            raise ValueError(
                f"module: {type(module).__name__} has a forward of its own, but {cls.__name__} computes what "
                f"torch.nn.{torch_class.__name__} does"
            )

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

    def own(self, whole: nn.Module, layouts: Mapping[str, Layout]) -> None:
        """Take this rank's windows of the parameters and buffers of `whole` as those of the layer.

        What `layouts` does not name is no part of the layer.
        """
        parameters, buffers = [], []
        for name, parameter in whole.named_parameters():
            tensor = Tensor(layouts[name], dtype_name(parameter.dtype), name=name)
            parameters.append(tensor)
            window = local_window(parameter.detach(), tensor.layout, self.rank)
            self.register_parameter(name, nn.Parameter(window, parameter.requires_grad))
        for name, buffer in whole.named_buffers():
            layout = layouts[name]
            types = tuple("invariant" if copied else "varying" for copied in layout.copied)
            buffers.append(Tensor(layout, dtype_name(buffer.dtype), types, name=name))  # type: ignore[arg-type]
            self.register_buffer(name, local_window(buffer, layout, self.rank))
        for name in (name for name, value in whole._parameters.items() if value is None):
            self.register_parameter(name, None)
        for name in (name for name, value in whole._buffers.items() if value is None):
            self.register_buffer(name, None)
        self.parameter_space, self.buffer_space = Space(*parameters), Space(*buffers)

    def load_sequential(self, module: nn.Module) -> None:
        """Take the values of a sequential module, which every rank has, what requires a gradient, and the mode; nothing is sent.

        Raises `ValueError` for parameters of other names or shapes.
        """
        self.load_sequential_state_dict(module.state_dict())
        for name, parameter in module.named_parameters():
            self.get_parameter(name).requires_grad_(parameter.requires_grad)
        self.train(module.training)

    def load_sequential_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take the values of a sequential module's state_dict, which every rank has; nothing is sent."""
        tensors = (*self.parameter_space.tensors, *self.buffer_space.tensors)
        shapes = {tensor.name: tensor.layout.shape for tensor in tensors}
        given = {name: tuple(value.shape) for name, value in state.items()}
        if given != shapes:
            raise ValueError(f"state: has {given}, but the layer needs {shapes}")
        with torch.no_grad():
            for tensor in tensors:
                self._mine(tensor.name).copy_(local_window(state[tensor.name], tensor.layout, self.rank))

    def to_sequential(self) -> nn.Module:
        """Collective: the sequential module with the layer's parameters and buffers gathered, on every rank."""
        state = self.sequential_state_dict()
        # The module's own initial values are of no interest, nor should they move the generator on.
        with torch.random.fork_rng(devices=[]):
            module = self.sequential()
        module.load_state_dict(state)
        for tensor in self.parameter_space.tensors:
            module.get_parameter(tensor.name).requires_grad_(self.get_parameter(tensor.name).requires_grad)
        return module.train(self.training)

    def sequential_state_dict(self) -> dict[str, torch.Tensor]:
        """Collective: the state_dict of the sequential module, on every rank."""
        state = {}
        for tensor in (*self.parameter_space.tensors, *self.buffer_space.tensors):
            everyone = Partition((self.comm.Get_size(),))
            everywhere = Layout(tensor.layout.shape, everyone, axes=(None,) * tensor.layout.order)
            types = tuple("varying" if not c else "replicated" for c in tensor.layout.copied)
            gather = Repartition(self.comm, tensor.layout, everywhere, dtype=tensor.dtype, types=types)
            state[tensor.name] = gather.forward(self._mine(tensor.name).detach())
        return state

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copies what torch knows of a module. What a layer adds to that was fixed when it was made, and is shared."""
        twin = self.__new__(type(self))
        memo[id(self)] = twin
        known = vars(nn.Module())
        for name, value in vars(self).items():
            twin.__dict__[name] = copy.deepcopy(value, memo) if name in known else value
        return twin

    def __getstate__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__}: a distributed layer cannot be pickled, as its communicator cannot; save each rank's "
            "state_dict(), or sequential_state_dict()"
        )

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        """What all of torch's conversions go through. Every rank has every parameter, so all refuse what one refuses."""
        for tensor in (*self._parameters.values(), *self._buffers.values()):
            if tensor is not None and fn(tensor.new_empty(0)).dtype != tensor.dtype:
                raise ValueError(
                    f"{type(self).__name__}: its operators are made for {dtype_name(tensor.dtype)}; make the layer with dtype=... "
                    "instead of converting it"
                )
        return super()._apply(fn, recurse)  # type: ignore[no-any-return, no-untyped-call]

    def _mine(self, name: str) -> torch.Tensor:
        return self.get_parameter(name) if name in self._parameters else self.get_buffer(name)


def face(partition: Partition, *dims: int) -> Partition:
    """The workers of `partition` whose index along `dims` is 0: a partition of the same order with sides of 1 there."""
    shape = tuple(1 if dim in dims else side for dim, side in enumerate(partition.shape))
    (first, *_) = partition.subpartitions([dim for dim in range(partition.order) if dim not in dims])
    return Partition(shape, first.ranks)


def local_window(whole: torch.Tensor, layout: Layout, rank: int) -> torch.Tensor:
    """A copy of what `rank` holds of a whole tensor; of zero volume on a rank that holds nothing."""
    window = layout.window(rank)
    if window is None:
        return whole.new_empty(layout.local_shape(rank))
    return whole[tuple(slice(start, stop) for start, stop in window)].clone()


def connected(result: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    """`result`, which as far as the graph is concerned also depends on `others`, but on none of their elements.

    So a worker that computes nothing with a tensor takes part in its backward pass. The dependence is linear; where other
    workers apply a function, :func:`of_nothing` has that function's.
    """
    for other in others:
        result = result + other.reshape(-1)[:0].sum().to(result.dtype)
    return result


def of_nothing(
    shape: Sequence[int], function: Callable[..., torch.Tensor], *tensors: torch.Tensor
) -> torch.Tensor:
    """Zeros, on a worker that has nothing to apply `function` to, where others have applied it to `tensors`.

    The function is applied all the same, to a single zero in the place of each tensor. So in passes back and forth of any
    order, and in a checkpoint's, this worker comes by the same operators as the others, and sends what they wait for.
    """
    zeros = [connected(tensor.new_zeros((1,) * tensor.ndim), tensor) for tensor in tensors]
    return connected(tensors[0].new_zeros(shape), function(*zeros))


def dtype_name(dtype: torch.dtype) -> str:
    """The name that the lab has for an element type of torch."""
    return str(dtype).removeprefix("torch.")
