"""Parameters and buffers that lie on some workers, and transfers of them from and to a sequential module."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import NoReturn, Self, TypeVar, cast

import torch
from torch import nn

from adjointlab.core.arguments import check_argument
from adjointlab.core.communicators import size_of
from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.core.space import LocalType, Space, Tensor
from adjointlab.layers.local_parameters import LocalParameter, takes_the_whole
from adjointlab.layers.state_checks import check_on, check_shapes, check_tensors, state_of
from adjointlab.layers.torch_modules import device_of, dtype_name, uninitialised_copy
from adjointlab.layers.windows import local_window
from adjointlab.primitives.repartition import Repartition
from adjointlab.primitives.validation import single_worker
from adjointlab.spelling import described_type
from adjointlab.typing import Communicator

__all__ = ["DistributedParameters", "deepcopy_sharing"]

_Module = TypeVar("_Module", bound=nn.Module)


class DistributedParameters(nn.Module):
    """A module whose parameters and buffers lie on some ranks of `comm`, and have zero volume elsewhere.

    `parameter_space` and `buffer_space` declare where. Names, mode, and all ranks' values together are those of the
    sequential `module` that it is made from.
    """

    def __init__(self, comm: Communicator, module: nn.Module | None = None) -> None:
        # Not `super()`, which may be a torch class with arguments: a subclass may inherit from one for `isinstance`.
        nn.Module.__init__(self)
        size_of(comm)
        self.comm = comm
        self.rank = comm.Get_rank()
        self.parameter_space, self.buffer_space = Space(), Space()
        self._template: tuple[nn.Module, ...] = ()
        if module is not None:
            # In a tuple: otherwise torch would register it as a submodule, and list its parameters as the layer's.
            # On the device "meta", which has shapes but no memory: no rank keeps global parameters.
            self._template = (uninitialised_copy(module, torch.device("meta")),)
            self.train(module.training)

    def sequential(self) -> nn.Module:
        """Return a new sequential module like the layer's, on its device; its parameters are drawn from torch's generator."""
        if not self._template:
            raise NotImplementedError(f"{type(self).__name__} is not made from a sequential module")
        module = uninitialised_copy(self._template[0], device_of(self))
        if callable(reset := getattr(module, "reset_parameters", None)):
            reset()
        return module

    def own(self, whole: nn.Module, layouts: Mapping[str, Layout]) -> None:
        """Register this rank's windows of the parameters and buffers of `whole` as those of the layer.

        Raises `ValueError` for a parameter or buffer that has no entry in `layouts`.
        """
        named = [*whole.named_parameters(), *whole.named_buffers()]
        if unknown := [name for name, _ in named if name not in layouts]:
            raise ValueError(
                f"module: {type(whole).__name__} has {', '.join(unknown)}, unlike torch's own class"
            )
        parameters, buffers = [], []
        for name, value in named:
            layout, is_parameter = layouts[name], isinstance(value, nn.Parameter)
            window = local_window(value.detach(), layout, self.rank)
            # A parameter has no copies. Copies of a buffer are one value, which every worker updates in the same way: if
            # they were declared varying, the lab would compare their sum with the sequential module's buffer.
            types = [LocalType.INVARIANT if copied else LocalType.VARYING for copied in layout.copied]
            tensor = Tensor(layout, dtype_name(value.dtype), () if is_parameter else tuple(types), name=name)
            if is_parameter:
                parameters.append(tensor)
                self.register_parameter(name, LocalParameter(window, value.requires_grad))
            else:
                buffers.append(tensor)
                self.register_buffer(name, window)
        # A parameter or buffer that torch's module could have but does not (bias=False) is an attribute, too: None.
        for name in [name for name, value in whole._parameters.items() if value is None]:
            self.register_parameter(name, None)
        for name in [name for name, value in whole._buffers.items() if value is None]:
            self.register_buffer(name, None)
        self.parameter_space, self.buffer_space = Space(*parameters), Space(*buffers)
        owned, self._parameters = self._parameters, _Owned()
        for name, parameter in owned.items():
            self._parameters[name] = parameter

    def initialise(
        self, name: str, function: Callable[..., object], *arguments: object, **named: object
    ) -> None:
        """Set this rank's part of a parameter to that of a global one, which ``function(whole, *arguments, **named)`` fills.

        For the functions of `torch.nn.init`: with equal seeds on all ranks, the values are those of the sequential module.
        Nothing is sent; every rank holds the global parameter for the time of the call.

        Raises `ValueError` for a name that no parameter has, and the errors of `function`.
        """
        tensor = next((tensor for tensor in self.parameter_space.tensors if tensor.name == name), None)
        if tensor is None:
            names = ", ".join(tensor.name for tensor in self.parameter_space.tensors)
            raise ValueError(
                f"name: {name!r} is not one of the parameters of {type(self).__name__} ({names})"
            )
        own = self._local(name)
        whole = torch.zeros(tensor.layout.shape, dtype=own.dtype, device=own.device)
        function(whole, *arguments, **named)
        with torch.no_grad():
            own.copy_(local_window(whole, tensor.layout, self.rank))

    def reset_parameters(self) -> None:
        """Collective: draw new parameters, and reset buffers, as the sequential module does; equal seeds on all ranks give its values."""
        self.load_sequential_state_dict(self.sequential().state_dict())

    def load_sequential(self, module: nn.Module) -> None:
        """Collective: copy the values, the ``requires_grad`` flags and the mode of a sequential module, which every rank has.

        No values are sent. Raises `ValueError` for parameters of other names or shapes, and `TypeError` if it is not a module, the same
        on every rank.
        """
        check_on(self.comm, None, lambda: self.check_sequential_state(state_of(module)))
        self.take_sequential_state(module.state_dict(), None)
        for tensor in self.parameter_space.tensors:
            whole = module.get_parameter(self.sequential_name(tensor.name))
            self.get_parameter(tensor.name).requires_grad_(whole.requires_grad)
        self.train(module.training)

    def load_sequential_state_dict(
        self, state: Mapping[str, torch.Tensor] | None, root: int | None = None
    ) -> None:
        """Collective: copy the values of a sequential module's state_dict, which every rank has; none is sent.

        With a `root` the state_dict is that of this rank. The arguments of the others, such as `None`, are ignored.

        Raises `ValueError` for tensors of other names or shapes, and for a `root` that is not a rank or differs by rank, and `TypeError`
        if it is not a state_dict of tensors: the same on every rank, and before any values are sent.
        """
        check_on(self.comm, root, lambda: self.check_sequential_state(check_tensors(state)))
        self.take_sequential_state(state or {}, root)

    def check_sequential_state(self, state: Mapping[str, torch.Tensor], path: str = "") -> None:
        """Raise `ValueError` unless a sequential module's state_dict has the names and shapes of this layer's module.

        Errors prefix the names of the tensors by `path`, that of the layer in a model.
        """
        own = {tensor.name: torch.empty(tensor.layout.shape, device="meta") for tensor in self._tensors()}
        check_shapes(state, self.sequential_names(own), path)

    def take_sequential_state(self, state: Mapping[str, torch.Tensor], root: int | None) -> None:
        """Do the work of :meth:`load_sequential_state_dict`, for a state_dict that has been checked."""
        whole = self.own_names(state) if root in (None, self.rank) else {}
        with torch.no_grad():
            for tensor in self._tensors():
                window = (
                    local_window(whole[tensor.name], tensor.layout, self.rank)
                    if root is None
                    else self._scattered(tensor, whole.get(tensor.name), root)
                )
                self._local(tensor.name).copy_(window)

    def own_names(self, state: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Return the tensors of a sequential module's state_dict by the layer's names for them."""
        return state

    def to_sequential(self) -> nn.Module:
        """Collective: return the sequential module with the layer's parameters and buffers gathered, on every rank."""
        state = self.sequential_state_dict()
        # The module's initial values are overwritten, so drawing them should not advance the generator.
        with torch.random.fork_rng(devices=[]):
            module = self.sequential()
        module.requires_grad_(False).load_state_dict(state)
        for tensor in self.parameter_space.tensors:
            if self.get_parameter(tensor.name).requires_grad:
                module.get_parameter(self.sequential_name(tensor.name)).requires_grad_()
        return module.train(self.training)

    def sequential_name(self, name: str) -> str:
        """Return the name of the sequential module's parameter that contains the layer's parameter `name`."""
        return name

    def sequential_state_dict(self, root: int | None = None) -> dict[str, torch.Tensor]:
        """Collective: return the state_dict of the sequential module on every rank; with a `root`, only on that one, and {} elsewhere.

        Raises `ValueError` for a `root` that is not a rank.
        """
        gathered = {tensor.name: self.gathered(tensor, root) for tensor in self._tensors()}
        return self.sequential_names(gathered) if root in (None, self.rank) else {}

    def sequential_names(self, own: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return global tensors of the layer by the sequential module's names for them: the inverse of :meth:`own_names`."""
        return dict(own)

    def gathered(
        self, tensor: Tensor, root: int | None = None, local: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Collective: return one of the layer's parameters or buffers as a global tensor, on every rank or only on `root`.

        If `local` is given, gather these local tensors instead, which have the same layout.
        """
        workers = (
            Partition((self.comm.Get_size(),)) if root is None else single_worker("root", root, 1, self.comm)
        )
        everywhere = Layout(tensor.layout.shape, workers, axes=(None,) * tensor.layout.order)
        # Copies are equal: declared replicated, any one of them is read, whereas varying ones would be summed.
        types = tuple("replicated" if copied else "varying" for copied in tensor.layout.copied)
        gather = Repartition(self.comm, tensor.layout, everywhere, dtype=tensor.dtype, types=types)
        return cast(
            "torch.Tensor", gather.forward((self._local(tensor.name) if local is None else local).detach())
        )

    def _scattered(self, tensor: Tensor, whole: torch.Tensor | None, root: int) -> torch.Tensor:
        """Collective: return this rank's part of a tensor that `root` has."""
        one = single_worker("root", root, 1, self.comm)
        source = Layout(tensor.layout.shape, one, axes=(None,) * tensor.layout.order)
        dtype = getattr(torch, tensor.dtype)
        local = torch.empty(source.local_shape(self.rank)) if whole is None else whole.detach()
        move = Repartition(self.comm, source, tensor.layout, dtype=tensor.dtype)
        return cast("torch.Tensor", move.forward(local.to(self._local(tensor.name).device, dtype)))

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """Copy parameters, buffers and hooks; share communicator, spaces and operators."""
        return deepcopy_sharing(self, memo)

    def __getstate__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__}: a distributed layer cannot be pickled, as its communicator cannot; save each rank's "
            "state_dict(), or sequential_state_dict()"
        )

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        """Convert the tensors as all of torch's conversions do; raise `ValueError` for another element type.

        Every rank has every parameter, even if it has no elements, so all ranks raise if one does.
        """
        for tensor in (*self._parameters.values(), *self._buffers.values()):
            if tensor is not None:
                self.refuse_conversion(fn, tensor.new_empty(0))
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, parameter in list(self._parameters.items()):  # torch may have made new ones
            self.register_parameter(name, parameter)
        return self

    def refuse_conversion(self, fn: Callable[[torch.Tensor], torch.Tensor], example: torch.Tensor) -> None:
        """Raise `ValueError` if `fn` gives a tensor like `example` another element type."""
        if fn(example).dtype != example.dtype:
            raise ValueError(
                f"{type(self).__name__}: its operators are made for {dtype_name(example.dtype)}; make the layer with dtype=..., or of a "
                "module that was converted before, instead of converting it"
            )

    def held(self) -> list[tuple[Tensor, torch.Tensor | None]]:
        """Return each parameter and buffer with its current tensor: within ``functional_call`` that is not a parameter."""
        by_name = {**self._buffers, **self._parameters}
        return [(tensor, by_name.get(tensor.name)) for tensor in self._tensors()]

    def check_owned(self) -> None:
        """Raise `ValueError` or `TypeError` unless this rank's parameters and buffers are those that their spaces declare."""
        for tensor, local in self.held():
            if not isinstance(local, torch.Tensor):
                raise TypeError(
                    f"{tensor.name}: {described_type(local)} on rank {self.rank} is not a torch.Tensor"
                )
            # Reading its shape must not call its class's `__torch_function__`.
            with torch._C.DisableTorchFunctionSubclass():
                batch = check_argument(tensor, local, self.rank)
            if batch:
                raise ValueError(
                    f"{tensor.name}: shape {tuple(local.shape)} on rank {self.rank}, but the layout {tensor.layout} gives it "
                    f"{tensor.layout.local_shape(self.rank)}"
                )

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Add a parameter while the layer is made; reject further ones after that, such as those of pruning."""
        if isinstance(self._parameters, _Owned):
            if name not in self._parameters:
                raise ValueError(_replaced(name))
            if type(param) is nn.Parameter:  # it belongs to the layer from now on
                param.__class__ = LocalParameter
        super().register_parameter(name, param)

    def _tensors(self) -> tuple[Tensor, ...]:
        return (*self.parameter_space.tensors, *self.buffer_space.tensors)

    def _local(self, name: str) -> torch.Tensor:
        return self.get_parameter(name) if name in self._parameters else self.get_buffer(name)


class _Owned(dict[str, nn.Parameter | None]):
    """The parameters of a complete layer: one may be replaced, but none may be deleted."""

    def __setitem__(self, name: str, parameter: nn.Parameter | None) -> None:
        # A tensor that functional_call puts here belongs to its caller, and is not changed.
        if isinstance(parameter, LocalParameter):
            parameter.local_name = name
        super().__setitem__(name, parameter)

    def __delitem__(self, name: str) -> None:
        raise ValueError(_replaced(name))


def deepcopy_sharing(module: _Module, memo: dict[int, object]) -> _Module:
    """Return a copy of a module: torch's attributes are copied deeply, those that the layer's constructor has added are shared."""
    twin = module.__new__(type(module))
    memo[id(module)] = twin
    # The state of a module is in the attributes that torch's constructor sets, which differ between versions
    # of torch. Attributes that a layer adds do not change later; a communicator could not be copied anyway.
    copied = vars(nn.Module()).keys()
    for name, value in vars(module).items():
        twin.__dict__[name] = copy.deepcopy(value, memo) if name in copied else value
    return twin


def _replaced(name: str) -> str:
    return takes_the_whole(
        name,
        "a parametrization (such as weight_norm, spectral_norm, pruning)",
        "apply it to the sequential module and load its values (load_sequential)",
    )
