"""Parameters and buffers that lie on some workers, and their way from and to a sequential module."""

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

    `parameter_space` and `buffer_space` say where. Names, and all ranks' values together, are those of the sequential
    `module` that it is made from; the mode is that of `module` too.
    """

    def __init__(self, comm: Communicator, module: nn.Module | None = None) -> None:
        # Not `super()`, which may be a class of torch's with arguments: a subclass can be one to be known as such.
        nn.Module.__init__(self)
        size_of(comm)
        self.comm = comm
        self.rank = comm.Get_rank()
        self.parameter_space, self.buffer_space = Space(), Space()
        self._template: tuple[nn.Module, ...] = ()
        if module is not None:
            # In a tuple: torch would register a module as a submodule, whose parameters were listed as the layer's.
            # On the device "meta", which has shapes but no memory: no rank keeps whole parameters.
            self._template = (uninitialised_copy(module, torch.device("meta")),)
            self.train(module.training)

    def sequential(self) -> nn.Module:
        """A new sequential module with the arguments of the layer's, and on its device; it draws its parameters from torch's generator."""
        if not self._template:
            raise NotImplementedError(f"{type(self).__name__} is not made from a sequential module")
        module = uninitialised_copy(self._template[0], device_of(self))
        if callable(reset := getattr(module, "reset_parameters", None)):
            reset()
        return module

    def own(self, whole: nn.Module, layouts: Mapping[str, Layout]) -> None:
        """Take this rank's windows of the parameters and buffers of `whole` as those of the layer.

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
            # A parameter has no copies. Copies of a buffer are one value, which every worker updates alike: were
            # they declared varying, the lab would compare their sum with the sequential module's one.
            types = [LocalType.INVARIANT if copied else LocalType.VARYING for copied in layout.copied]
            tensor = Tensor(layout, dtype_name(value.dtype), () if is_parameter else tuple(types), name=name)
            if is_parameter:
                parameters.append(tensor)
                self.register_parameter(name, LocalParameter(window, value.requires_grad))
            else:
                buffers.append(tensor)
                self.register_buffer(name, window)
        # What torch's module could have and has not (bias=False) is an attribute all the same, and None.
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
        """Take as this rank's part of a parameter that of a whole one, which ``function(whole, *arguments, **named)`` fills.

        For the functions of `torch.nn.init`: with equal seeds on all ranks, the values are those of the sequential module.
        Nothing is sent; every rank makes the whole parameter for the time of the call.

        Raises `ValueError` for a name that no parameter has, and what `function` raises.
        """
        tensor = next((tensor for tensor in self.parameter_space.tensors if tensor.name == name), None)
        if tensor is None:
            names = ", ".join(tensor.name for tensor in self.parameter_space.tensors)
            raise ValueError(f"name: {name!r} is none of the parameters of {type(self).__name__} ({names})")
        own = self._local(name)
        whole = torch.zeros(tensor.layout.shape, dtype=own.dtype, device=own.device)
        function(whole, *arguments, **named)
        with torch.no_grad():
            own.copy_(local_window(whole, tensor.layout, self.rank))

    def reset_parameters(self) -> None:
        """Collective: draw new parameters, and reset buffers, as the sequential module does; with equal seeds on all ranks, to its values."""
        self.load_sequential_state_dict(self.sequential().state_dict())

    def load_sequential(self, module: nn.Module) -> None:
        """Collective: take the values of a sequential module, which every rank has, what requires a gradient, and the mode; no values are sent.

        Raises `ValueError` for parameters of other names or shapes, and `TypeError` for what is no module, the same on every rank.
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
        """Collective: take the values of a sequential module's state_dict, which every rank has; none is sent.

        With a `root` the state_dict is that of this rank. What the others give, such as `None`, is not looked at.

        Raises `ValueError` for tensors of other names or shapes, and a `root` that is no rank or differs by rank, and `TypeError`
        for what is not a state_dict of tensors: the same on every rank, and before any values move.
        """
        check_on(self.comm, root, lambda: self.check_sequential_state(check_tensors(state)))
        self.take_sequential_state(state or {}, root)

    def check_sequential_state(self, state: Mapping[str, torch.Tensor], path: str = "") -> None:
        """Raise `ValueError` unless a sequential module's state_dict has the names and shapes of this layer's module.

        Errors name the tensors by `path`, where the layer stands in a model.
        """
        own = {tensor.name: torch.empty(tensor.layout.shape, device="meta") for tensor in self._tensors()}
        check_shapes(state, self.sequential_names(own), path)

    def take_sequential_state(self, state: Mapping[str, torch.Tensor], root: int | None) -> None:
        """:meth:`load_sequential_state_dict` of a state_dict that has been checked."""
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
        """The tensors of a sequential module's state_dict, by the names that the layer has for them."""
        return state

    def to_sequential(self) -> nn.Module:
        """Collective: the sequential module with the layer's parameters and buffers gathered, on every rank."""
        state = self.sequential_state_dict()
        # The module's own initial values are of no interest, nor should they move the generator on.
        with torch.random.fork_rng(devices=[]):
            module = self.sequential()
        module.requires_grad_(False).load_state_dict(state)
        for tensor in self.parameter_space.tensors:
            if self.get_parameter(tensor.name).requires_grad:
                module.get_parameter(self.sequential_name(tensor.name)).requires_grad_()
        return module.train(self.training)

    def sequential_name(self, name: str) -> str:
        """The name that the sequential module has for the parameter that holds the layer's parameter `name`."""
        return name

    def sequential_state_dict(self, root: int | None = None) -> dict[str, torch.Tensor]:
        """Collective: the state_dict of the sequential module, on every rank; with a `root`, on that one, and empty elsewhere.

        Raises `ValueError` for a `root` that is no rank.
        """
        gathered = {tensor.name: self.gathered(tensor, root) for tensor in self._tensors()}
        return self.sequential_names(gathered) if root in (None, self.rank) else {}

    def sequential_names(self, own: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Whole tensors of the layer by the names that the sequential module has for them: the inverse of :meth:`own_names`."""
        return dict(own)

    def gathered(
        self, tensor: Tensor, root: int | None = None, local: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Collective: the whole of one of the layer's parameters or buffers, on every rank, or on `root` alone.

        Of `local`, a tensor that lies as it does, where that is given.
        """
        workers = (
            Partition((self.comm.Get_size(),)) if root is None else single_worker("root", root, 1, self.comm)
        )
        everywhere = Layout(tensor.layout.shape, workers, axes=(None,) * tensor.layout.order)
        # Copies are equal: as replicated ones any of them will do, where varying ones would be summed.
        types = tuple("replicated" if copied else "varying" for copied in tensor.layout.copied)
        gather = Repartition(self.comm, tensor.layout, everywhere, dtype=tensor.dtype, types=types)
        return cast(
            "torch.Tensor", gather.forward((self._local(tensor.name) if local is None else local).detach())
        )

    def _scattered(self, tensor: Tensor, whole: torch.Tensor | None, root: int) -> torch.Tensor:
        """Collective: this rank's part of a tensor that `root` has."""
        one = single_worker("root", root, 1, self.comm)
        source = Layout(tensor.layout.shape, one, axes=(None,) * tensor.layout.order)
        dtype = getattr(torch, tensor.dtype)
        local = torch.empty(source.local_shape(self.rank)) if whole is None else whole.detach()
        move = Repartition(self.comm, source, tensor.layout, dtype=tensor.dtype)
        return cast("torch.Tensor", move.forward(local.to(self._local(tensor.name).device, dtype)))

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """A layer with parameters, buffers and hooks of its own; communicator, spaces and operators are shared."""
        return deepcopy_sharing(self, memo)

    def __getstate__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__}: a distributed layer cannot be pickled, as its communicator cannot; save each rank's "
            "state_dict(), or sequential_state_dict()"
        )

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        """Convert the tensors as all of torch's conversions do, or raise `ValueError` for another element type.

        Every rank has every parameter, if only of zero volume, so all refuse what one refuses.
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
        """Each parameter and buffer with what stands for it now: within ``functional_call`` a tensor that is no parameter."""
        by_name = {**self._buffers, **self._parameters}
        return [(tensor, by_name.get(tensor.name)) for tensor in self._tensors()]

    def check_owned(self) -> None:
        """Raise `ValueError` or `TypeError` unless this rank's parameters and buffers are what their spaces say."""
        for tensor, local in self.held():
            if not isinstance(local, torch.Tensor):
                raise TypeError(
                    f"{tensor.name}: {described_type(local)} on rank {self.rank} is not a torch.Tensor"
                )
            # Its class need not see that it is asked for its shape.
            with torch._C.DisableTorchFunctionSubclass():
                batch = check_argument(tensor, local, self.rank)
            if batch:
                raise ValueError(
                    f"{tensor.name}: shape {tuple(local.shape)} on rank {self.rank}, but the layout {tensor.layout} gives it "
                    f"{tensor.layout.local_shape(self.rank)}"
                )

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Add a parameter while the layer is made, and refuse further ones after that, as pruning and the like add."""
        if isinstance(self._parameters, _Owned):
            if name not in self._parameters:
                raise ValueError(_replaced(name))
            if type(param) is nn.Parameter:  # it is the layer's from now on
                param.__class__ = LocalParameter
        super().register_parameter(name, param)

    def _tensors(self) -> tuple[Tensor, ...]:
        return (*self.parameter_space.tensors, *self.buffer_space.tensors)

    def _local(self, name: str) -> torch.Tensor:
        return self.get_parameter(name) if name in self._parameters else self.get_buffer(name)


class _Owned(dict[str, nn.Parameter | None]):
    """The parameters of a layer that is made: another may take the place of one, but none may go."""

    def __setitem__(self, name: str, parameter: nn.Parameter | None) -> None:
        # What functional_call puts here is its caller's, and stays what it is.
        if isinstance(parameter, LocalParameter):
            parameter.local_name = name
        super().__setitem__(name, parameter)

    def __delitem__(self, name: str) -> None:
        raise ValueError(_replaced(name))


def deepcopy_sharing(module: _Module, memo: dict[int, object]) -> _Module:
    """A deep copy of all that torch knows of a module; what its constructor has added to it is shared."""
    twin = module.__new__(type(module))
    memo[id(module)] = twin
    # The state of a module is in the attributes that torch's constructor sets, and these differ between versions
    # of torch. What a layer adds to them is fixed when it is made; a communicator could not be copied anyway.
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
