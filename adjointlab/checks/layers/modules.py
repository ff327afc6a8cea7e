"""The two modules that are compared, a layer and its sequential twin, and the drawn tensors that each gets.

Every rank runs the layer on its local tensors; rank 0 runs the twin on the whole tensors, of which the local ones are windows:

    tensor             0   1   2   3   4   5       values follow from the seed and the global index, so that
    rank 0, window   [ 0   1   2   3 )             the ranks and the twin have the same tensor without
    rank 1, window                   [ 4   5 )     a message

The twin's results are cut into the windows of the ranks and compared there. So nothing is gathered, and the layer's call
log has only the layer's messages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np

from adjointlab.checks.context import CheckContext
from adjointlab.checks.elements import Local
from adjointlab.checks.layers.drawn_values import (
    LARGEST_FOR_INDICES,
    SMALL,
    change_of,
    has_halved_cotangents,
    has_small_cotangents,
    infinite,
    left_as_given,
)
from adjointlab.checks.whole_tensors import has_copies_of_their_own, whole_array
from adjointlab.core import arrays
from adjointlab.core.declaration import SubjectError
from adjointlab.core.layer import elementwise, index_positions, outputs_of, prepared, undeclared
from adjointlab.core.operator import NotInSpace, ParameterNotInSpace
from adjointlab.core.rounding import current_perturbation, unperturbed
from adjointlab.core.space import LocalType, Space, Tensor
from adjointlab.core.vectors import THIRDS, Draw, local_values
from adjointlab.quantities import counted
from adjointlab.typing import NumpyArray
from adjointlab.worlds.backward import BackwardPass

if TYPE_CHECKING:
    import torch

ArrayT = TypeVar("ArrayT", "NumpyArray", "torch.Tensor")

__all__ = ["LocalModule", "ModuleUnderTest", "SequentialTwin", "first_positions", "values"]


@contextmanager
def _gradients_of_their_own(
    parameters: Sequence[torch.Tensor], cotangents: Sequence[torch.Tensor]
) -> Iterator[None]:
    """Context in which gradients of parameters share no memory with a cotangent.

    If a backward pass only reshapes a cotangent, torch makes a view of it the gradient. Code that then reduces gradients in place, as
    DistributedDataParallel does, would write into the cotangent.
    """
    import torch

    def has_memory(tensor: torch.Tensor) -> bool:
        """Return True unless it is sparse or a wrapper of another tensor."""
        return type(tensor) is torch.Tensor and tensor.layout is torch.strided

    in_memory = list(filter(has_memory, cotangents))

    def in_its_own_memory(gradient: torch.Tensor | None) -> torch.Tensor | None:
        if gradient is None:  # second derivatives may not depend on a parameter
            return None
        held = gradient._values() if gradient.is_sparse else gradient
        is_view = has_memory(held) and any(arrays.may_share_memory(held, each) for each in in_memory)
        return gradient.clone() if is_view else gradient

    hooks = [
        each.register_hook(in_its_own_memory)  # type: ignore[no-untyped-call]
        for each in parameters
        if each.is_leaf and each.requires_grad
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class ModuleUnderTest(ABC):
    """A torch module, and the part that it gets of each drawn tensor; both are in the memory of the case on this rank."""

    takes_orders = True
    """True if inputs and cotangents have the memory orders of the case; otherwise they keep the one in which they are drawn."""

    def __init__(self, context: CheckContext, module: torch.nn.Module) -> None:
        self.layer, self.module, self.memory = context.layer, module, context.torch_memory
        arrays.move_module(module, self.memory)
        self._change = change_of(context.values, self.layer.computes_in)
        self.note_return: Callable[[Callable[..., object]], None] = lambda function: None
        self.note_backward: Callable[[BackwardPass], None] = lambda begun: None
        self._averaged = 1
        # Ordered names of tensors to whose gradients a backward pass has added nothing.
        self._unreached: dict[str, None] = {}

    def with_sparse_gradients(self) -> list[torch.Tensor]:
        """The weights of embeddings with sparse gradients; DistributedDataParallel rejects dense ones for them."""
        import torch

        kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
        return [part.weight for part in self.module.modules() if isinstance(part, kinds) and part.sparse]

    @abstractmethod
    def drawn(self, space: Space, position: int, key: Draw) -> NumpyArray:
        """The module's part of the drawn tensor at `position` in a space."""

    @abstractmethod
    def check_outputs(self, outputs: Sequence[torch.Tensor]) -> None:
        """Raise :class:`NotInSpace` or `ValueError` for outputs that are not in the codomain."""

    def tensors(self, space: Space, key: Draw) -> list[torch.Tensor]:
        """Drawn tensors of a space."""
        return [
            self._in_memory(tensor, self.drawn(space, position, key))
            for position, tensor in enumerate(space.tensors)
        ]

    def _in_memory(self, tensor: Tensor, drawn: NumpyArray) -> torch.Tensor:
        return cast("torch.Tensor", arrays.from_numpy(drawn, tensor.dtype, self.memory))

    def inputs(self, key: Draw) -> list[torch.Tensor]:
        """Legal inputs: drawn ones after the subject's preparation, with values of the case's kind where that has not changed them."""
        domain, change = self.layer.domain, self._change
        inputs = list(self.drawn_inputs(domain, key))
        if change is None:
            return inputs
        free = left_as_given(self.layer, self.memory, change)
        for position, (tensor, is_free) in enumerate(zip(domain.tensors, free, strict=True)):
            # Not for summands: if one becomes infinite, the twin's sum, which may be any integer, need not.
            is_summand = change is infinite and LocalType.PARTIAL in tensor.types
            if is_free and inputs[position].is_floating_point() and not is_summand:
                inputs[position] = change(inputs[position])
        return inputs

    def cotangents(self, key: Draw) -> list[torch.Tensor]:
        """Drawn gradients of the outputs, for some seeds :func:`small <has_small_cotangents>` or :func:`halved <has_halved_cotangents>`."""
        exponent = SMALL if has_small_cotangents(key.seed, self.layer) else 0
        halved = has_halved_cotangents(key.seed)
        return self.tensors(self.layer.codomain.dual, replace(key, exponent=exponent, halved=halved))

    def parameters(self) -> list[torch.nn.Parameter]:
        """Declared parameters, in the order of their space."""
        return [self.module.get_parameter(tensor.name) for tensor in self.layer.parameters.tensors]

    @property
    def trainable(self) -> frozenset[str]:
        """Names of the declared parameters that are not frozen."""
        return frozenset(tensor.name for tensor in self.layer.parameters.tensors) - (
            self.layer.frozen or frozenset()
        )

    def require_gradients(self, names: Collection[str]) -> None:
        """Make only the named parameters require a gradient, except integers, and clear all gradients."""
        for tensor, parameter in zip(self.layer.parameters.tensors, self.parameters(), strict=True):
            wanted = tensor.name in names and arrays.is_differentiable(parameter)
            parameter.requires_grad_(wanted).grad = None

    def buffers(self) -> list[torch.Tensor]:
        """Declared buffers, in the order of their space."""
        return [self.module.get_buffer(tensor.name) for tensor in self.layer.buffers.tensors]

    def go_back(
        self,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        cotangents: Sequence[torch.Tensor],
        *,
        goes_on: bool = False,
        is_continued: bool = False,
    ) -> None:
        """Run the backward pass from those outputs that have a graph. Collective for a layer.

        Every rank runs it, whatever requires a gradient here: the messages of the others depend on it. If the module's user adds up the
        gradients of several passes, `goes_on` is set for all but the first, and `is_continued` for all but the last.
        """
        import torch

        tensors = (*self.layer.domain.tensors, *self.layer.parameters.tensors)
        leaves = (*inputs, *self.parameters())
        roots, of_those = arrays.with_graph(outputs, cotangents)
        pairs = zip(tensors, leaves, strict=True)
        named = [(tensor.name, leaf) for tensor, leaf in pairs if arrays.is_differentiable(leaf)]
        wanted = {name: leaf.requires_grad for name, leaf in named}
        before = [_gradient_as_it_is(leaf) for _, leaf in named]
        begun = BackwardPass(wanted, bool(roots), without=tuple(self._unreached))
        self.note_backward(begun)
        if not goes_on:
            self._call_hook("before_backward")
        if roots:
            with self.pass_context(), _gradients_of_their_own(self.parameters(), of_those):
                torch.autograd.backward(roots, of_those)
            self.note_return(torch.autograd.backward)
        after = [_gradient_as_it_is(leaf) for _, leaf in named]
        unchanged = (name for (name, _), old, new in zip(named, before, after, strict=True) if old == new)
        if unreached := dict.fromkeys(filter(wanted.get, unchanged)):
            self._unreached |= unreached
            self.note_backward(begun._replace(without=tuple(self._unreached)))
        if not is_continued:
            self._call_hook("after_backward")
        # Read them, as an optimiser does: only this waits for a gradient from a functional collective.
        for leaf in leaves:
            arrays.local_part(leaf.grad)

    def _call_hook(self, name: str) -> None:
        """Call the user's hook before or after a backward pass, if there is one."""
        getattr(self.module, name, lambda: None)()

    def pass_context(self) -> AbstractContextManager[object]:
        """The context in which the module's user runs backward passes."""
        made: AbstractContextManager[object] = getattr(self.module, "pass_context", nullcontext)()
        return made

    def of_means(self, cotangents: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The cotangents of the same loss as a mean over all ranks, if the module averages gradients: scaled by the number of ranks.

        Then the gradients of the parameters are the sequential ones, and so are those that the module itself adds, as of an auxiliary loss
        that is a mean over a rank's part. :meth:`of_sums` undoes the scaling for inputs.
        """
        if self._averaged == 1:
            return list(cotangents)
        return [cotangent * self._averaged for cotangent in cotangents]

    def of_sums(self, gradients: Sequence[ArrayT]) -> tuple[ArrayT, ...]:
        """Gradients that the module does not average, such as those of inputs, for the cotangents given to :meth:`of_means`."""
        if self._averaged == 1:
            return tuple(gradients)
        with np.errstate(invalid="ignore"):  # a quotient of an infinite complex number may be NaN
            return tuple(gradient / self._averaged for gradient in gradients)

    def in_space(self, of_parameters: Sequence[ArrayT]) -> tuple[ArrayT, ...]:
        """Arrays that belong to the parameters, in the shapes of their space: fused ones with their pieces separated."""
        named = zip(self.layer.parameters.tensors, of_parameters, strict=True)
        return tuple(self.layer.pieces_of(tensor.name).apart(array) for tensor, array in named)

    @abstractmethod
    def as_loss(self, cotangents: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The cotangents for the gradients that an optimiser gets, which are means over ranks if the layer averages them."""

    def fill_parameters(self, key: Draw) -> None:
        """Overwrite the parameters with drawn values.

        Frozen ones keep the initial values, if the layer was made from these: they never change, and the layer may have derived something
        from them. Frozen ones of an integer type, such as quantised ones, always keep their values, which are compared.
        """
        import torch

        frozen = self.layer.frozen or frozenset()
        kept = frozenset() if self.layer.initial is None else frozen
        self.begin_with(kept)
        # FSDP may hold gathered copies of them.
        getattr(self.module, "reshard", lambda: None)()
        with torch.no_grad():
            drawn = self.tensors(self.layer.parameters, key)
            names = [tensor.name for tensor in self.layer.parameters.tensors]
            for name, parameter, given in zip(names, self.parameters(), drawn, strict=True):
                # A tensor of zero volume may have another shape than the drawn one.
                is_quantised = name in frozen and not arrays.is_differentiable(parameter)
                if given.numel() and name not in kept and not is_quantised:
                    own = arrays.local_part(parameter)
                    own.copy_(self.layer.pieces_of(name).joined(given, own.shape))

    @abstractmethod
    def begin_with(self, names: Collection[str]) -> None:
        """Set these parameters to their initial values; a layer that was made from them has its parts already."""

    def __call__(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Apply the module, to copies if it may write into its inputs."""
        outputs = self.applied_to(self.given(inputs))
        self.note_return((self.layer.user_class or type(self.module)).forward)
        self.check_outputs(outputs)
        return outputs

    def drawn_inputs(self, space: Space, key: Draw) -> tuple[torch.Tensor, ...]:
        """Inputs of a space, the layer's or another: drawn ones after the subject's preparation."""
        return self._prepared(space, key, self.drawn)

    def _prepared(
        self, space: Space, key: Draw, drawn: Callable[[Space, int, Draw], NumpyArray]
    ) -> tuple[torch.Tensor, ...]:
        # Small integers alone would give few of many indices, and never those of some ranks' shards.
        large, indices = replace(key, bound=LARGEST_FOR_INDICES), index_positions(self.layer.prepare)
        return prepared(
            self.layer.prepare,
            *(
                self._in_memory(tensor, drawn(space, position, large if position in indices else key))
                for position, tensor in enumerate(space.tensors)
            ),
        )

    def applied_to(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The local outputs of the module for inputs of the layer's space or of another; they are not checked here."""
        return tuple(map(arrays.local_part, outputs_of(self.module(*inputs))))

    @contextmanager
    def evaluated(self) -> Iterator[None]:
        """Context in which the module is in evaluation mode; afterwards it is in training mode."""
        self.module.eval()
        try:
            yield
        finally:
            self.module.train()

    def given(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The tensors with which the module is called for these inputs."""
        return tuple(x.clone() for x in inputs) if self.layer.overwrites_inputs else tuple(inputs)


class LocalModule(ModuleUnderTest):
    """The layer on this rank. Raises :class:`ParameterNotInSpace` for a parameter of another shape or element type than declared."""

    def __init__(self, context: CheckContext) -> None:
        layer = context.layer
        super().__init__(context, layer.module)
        self.rank = context.rank
        self.note_return, self.note_backward = context.note_return, context.note_backward
        self._averaged = layer.averaged
        for tensor, parameter in zip(layer.parameters.tensors, self.parameters(), strict=True):
            try:
                own = layer.pieces_of(tensor.name).apart(arrays.local_part(parameter))
                self._check(f"the parameter {tensor.name} has", tensor, own)
            except NotInSpace as error:
                raise ParameterNotInSpace(str(error)) from None

    def drawn(self, space: Space, position: int, key: Draw) -> NumpyArray:
        return local_values(space, position, self.rank, key)

    def drawn_inputs(self, space: Space, key: Draw) -> tuple[torch.Tensor, ...]:
        """This rank's parts of the twin's inputs: a preparation may combine several elements, such as those of a row that is cut.

        If there are no whole inputs, each rank prepares its own part. Raises :class:`SubjectError` for inputs of other shapes.
        """
        windows = [_window_within(tensor, self.rank) for tensor in space.tensors]
        if self.layer.prepare is elementwise or None in windows:
            return super().drawn_inputs(space, key)
        whole = self._prepared(space, key, whole_array)
        for tensor, x in zip(space.tensors, whole, strict=True):
            if tuple(x.shape) != tensor.layout.shape:
                raise SubjectError(
                    f"prepare= returned shape {tuple(x.shape)} in the place of {tensor.layout.shape}: let the module change shapes"
                )
        return tuple(x[window].contiguous() for x, window in zip(whole, windows, strict=True))

    def begin_with(self, names: Collection[str]) -> None:
        pass  # the layer was made from them

    def as_loss(self, cotangents: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return list(cotangents)

    def check_outputs(self, outputs: Sequence[torch.Tensor]) -> None:
        declared = self.layer.codomain.tensors
        if len(outputs) != len(declared):
            raise NotInSpace(
                f"the layer returned {counted(len(outputs), 'tensor')}, but the codomain has {len(declared)}"
            )
        for tensor, output in zip(declared, outputs, strict=True):
            of = f"of {tensor.name} " if len(declared) > 1 else ""
            self._check(f"{of}the layer returned", tensor, output)
        # The gradient of a parameter that a call makes would not be compared.
        if faults := undeclared(self.module, self.layer.parameters, self.layer.buffers):
            raise ValueError(
                f"after a call, the layer {faults[0]}: make it when the layer is made, and declare it"
            )

    def _check(self, what: str, tensor: Tensor, value: torch.Tensor) -> None:
        shape = tuple(value.shape)
        partition, wanted = tensor.layout.partition, tensor.layout.local_shape(self.rank)
        if not partition.is_active(self.rank):
            if 0 not in shape:
                raise NotInSpace(
                    f"{what} shape {shape} on rank {self.rank}, which is inactive in {partition} and holds a "
                    "zero-volume tensor"
                )
        elif shape != wanted:
            raise NotInSpace(
                f"{what} shape {shape} on rank {self.rank}, but the layout {tensor.layout} gives it {wanted}"
            )
        elif arrays.type_in_space(dtype := arrays.dtype_name(value)) != tensor.dtype:
            raise NotInSpace(
                f"{what} element type {dtype} on rank {self.rank}, but {tensor.dtype} is declared"
            )
        if (place := arrays.memory_and_place(value)) != self.memory:
            raise NotInSpace(
                f"{what} a tensor in the memory {place} on rank {self.rank}, whose tensors lie in {self.memory}"
            )


class SequentialTwin(ModuleUnderTest):
    """A new sequential module. Raises :class:`SubjectError` if its parameters or buffers are not the layer's."""

    def __init__(self, context: CheckContext) -> None:
        layer = context.layer
        assert context.reference is not None
        super().__init__(context, context.reference())
        self._makes_thirds = context.values == THIRDS
        self._begun: set[str] = set()
        if faults := undeclared(self.module, layer.parameters, layer.buffers):
            raise SubjectError(
                f"the sequential twin and the layer are not called alike: the twin {faults[0]}"
            )
        for tensor, parameter in zip(layer.parameters.tensors, self.parameters(), strict=True):
            _require_shape("parameter", tensor, layer.pieces_of(tensor.name).apart(parameter))
        for tensor, buffer in zip(layer.buffers.tensors, self.buffers(), strict=True):
            # A buffer without elements may get its shape in the first call.
            if buffer.numel():
                _require_shape("buffer", tensor, buffer)

    def drawn(self, space: Space, position: int, key: Draw) -> NumpyArray:
        """The whole tensor; while rounding is measured, the sum of rounded summands, as the ranks may have them."""
        return whole_array(space, position, key, self._rounded_summand(space.tensors[position]))

    def _rounded_summand(self, tensor: Tensor) -> Callable[[NumpyArray], NumpyArray]:
        perturb = current_perturbation()
        has_summands = LocalType.PARTIAL in tensor.types or has_copies_of_their_own(tensor, in_windows=True)
        if perturb is None or tensor.element.is_integer or not has_summands:
            return lambda summand: summand
        # Integers are exact on the ranks too, unless they become thirds.
        divisor = 3 if self._makes_thirds else 1

        def rounded(summand: NumpyArray) -> NumpyArray:
            given = cast("torch.Tensor", arrays.from_numpy(summand, tensor.dtype, "torch"))
            return arrays.to_numpy(perturb(given / divisor, elementwise=False) * divisor)

        return rounded

    def inputs(self, key: Draw) -> list[torch.Tensor]:
        """The inputs, without perturbation: the ranks make theirs from the same drawn numbers by the same operations."""
        with unperturbed():
            return super().inputs(key)

    def drawn_inputs(self, space: Space, key: Draw) -> tuple[torch.Tensor, ...]:
        """Inputs of a space, without perturbation, as in :meth:`inputs`."""
        with unperturbed():
            return super().drawn_inputs(space, key)

    def begin_with(self, names: Collection[str]) -> None:
        """Set these initial values once: a call that changes a frozen parameter, as in an embedding with `max_norm`, does so in the layer too."""
        import torch

        initial = self.layer.initial or {}
        with torch.no_grad():
            for name in set(names) - self._begun:
                self.module.get_parameter(name).copy_(torch.from_numpy(initial[name]))
        self._begun.update(names)

    def as_loss(self, cotangents: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [cotangent / self.layer.averaged for cotangent in cotangents]

    def check_outputs(self, outputs: Sequence[torch.Tensor]) -> None:
        shapes = [tuple(output.shape) for output in outputs]
        wanted = [tensor.layout.shape for tensor in self.layer.codomain.tensors]
        if shapes != wanted:
            raise SubjectError(f"the sequential twin returned shapes {shapes}, but the codomain has {wanted}")


def _gradient_as_it_is(leaf: torch.Tensor) -> object:
    """An object that compares equal later if nothing was added to the leaf's gradient, as far as that can be known."""
    import torch

    gradient = leaf.grad
    if gradient is None:
        return None
    # A subclass, such as the pending result of a collective, must not be accessed yet.
    return (id(gradient), gradient._version) if type(gradient) is torch.Tensor else object()


def _require_shape(kind: str, tensor: Tensor, own: torch.Tensor) -> None:
    """Raise :class:`SubjectError` if the twin's parameter or buffer does not have the global shape of the layer's."""
    if (shape := tuple(own.shape)) != tensor.layout.shape:
        raise SubjectError(
            f"the sequential twin's {kind} {tensor.name} has shape {shape}, but the layer's is laid out as "
            f"{tensor.layout.shape}"
        )


def _window_within(tensor: Tensor, rank: int) -> tuple[slice, ...] | None:
    """The part of a whole tensor that a rank holds; `None` if it holds summands, copies with different values, or elements beyond the tensor."""
    window = tensor.layout.window(rank)
    if (
        window is None
        or LocalType.PARTIAL in tensor.types
        or has_copies_of_their_own(tensor, in_windows=True)
    ):
        return None
    if any(start < 0 or stop > side for (start, stop), side in zip(window, tensor.layout.shape, strict=True)):
        return None
    return tuple(slice(start, stop) for start, stop in window)


def first_positions(tensors: Sequence[torch.Tensor]) -> list[int]:
    """For each tensor, the position of the first that is the same object: tied parameters may be declared under several names."""
    first: dict[int, int] = {}
    return [first.setdefault(id(tensor), position) for position, tensor in enumerate(tensors)]


def values(tensors: Sequence[torch.Tensor]) -> Local:
    """Copy the current values of tensors to NumPy."""
    return tuple(np.array(arrays.to_numpy(arrays.local_part(tensor.detach()))) for tensor in tensors)
