"""Functions as operators: a plain pair, or one that torch differentiates."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

from adjointlab.core.arrays import is_dtensor, local_part, with_graph
from adjointlab.core.declaration import SubjectError, has_parameter, require_accepts
from adjointlab.core.operator import AdaptedOperator, Direction, NotInSpace, as_tuple
from adjointlab.core.space import Space, Tensor
from adjointlab.quantities import counted
from adjointlab.typing import Array, Communicator
from adjointlab.worlds.backward import BackwardPass
from adjointlab.worlds.forward_mode import dual_level, has_own_forward_mode

if TYPE_CHECKING:
    import torch

__all__ = [
    "BOUNDS",
    "SPACES",
    "Differentiable",
    "FunctionPair",
    "Parameters",
    "Ranks",
    "UserFunction",
    "split_bounds",
    "tensor_names",
]

UserFunction: TypeAlias = Callable[..., Any]
"""A user's function or class: it takes the arguments of a case, and takes and returns arrays or modules of some library."""

Parameters: TypeAlias = Mapping[str, Any]
"""The arguments of one case, as its strategy draws them: plain data (:mod:`adjointlab.engine.case_data`)."""


class Ranks(Enum):
    """The way in which a user's function reaches the other ranks."""

    COMMUNICATOR = "comm"  # the communicator of the case is its first argument
    # it calls torch.distributed, whose default group has the ranks of the case
    PROCESS_GROUP = "process group"

    def arguments(self, comm: Communicator) -> tuple[Communicator, ...]:
        """The arguments that the function gets for this."""
        return (comm,) if self is Ranks.COMMUNICATOR else ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of those arguments, for messages."""
        return ("comm",) if self is Ranks.COMMUNICATOR else ()


Locals: TypeAlias = Any
"""One local tensor or a tuple of several, as operators return them."""

BOUNDS = ("gain", "rounding")
"""Entries of a function's case that bound its intermediates and its error."""

SPACES = ("domain", "codomain", *BOUNDS)
"""Entries of a function's case that are not arguments; but a bound is, if the function has a parameter of that name."""


class FunctionPair(AdaptedOperator):
    """``forward(comm, *x, **arguments)`` and ``adjoint(comm, *y, **arguments)`` as an operator.

    Without `comm` if they reach the other `ranks` through a process group.
    """

    def __init__(
        self,
        comm: Communicator,
        forward: UserFunction,
        adjoint: UserFunction,
        domain: Space,
        codomain: Space,
        arguments: Parameters,
        ranks: Ranks = Ranks.COMMUNICATOR,
    ) -> None:
        self.comm, self.domain, self.codomain = comm, domain, codomain
        (self.gain, self.rounding), arguments = split_bounds(arguments, forward, adjoint)
        self._forward, self._adjoint, self._arguments = forward, adjoint, arguments
        self._comm = ranks.arguments(comm)
        for role, function, space in (("forward", forward, domain), ("adjoint", adjoint, codomain)):
            require_accepts(role, function, (*ranks.names, *tensor_names(space)), arguments, SPACES)

    def forward(self, *x: Array) -> Locals:
        return _local_parts(self._forward(*self._comm, *x, **self._arguments))

    def adjoint(self, *y: Array) -> Locals:
        return _local_parts(self._adjoint(*self._comm, *y, **self._arguments))

    def function(self, direction: Direction) -> UserFunction:
        return self._forward if direction is Direction.FORWARD else self._adjoint


class Differentiable(AdaptedOperator):
    """A linear function of torch tensors; its adjoint is the gradient that reverse mode computes. Reports use the name of `named`.

    The gradient of a linear function does not depend on the inputs. So the adjoint builds its own graph, at zero, and the
    operator keeps no state from a forward pass.
    """

    def __init__(
        self,
        comm: Communicator,
        function: UserFunction,
        domain: Space,
        codomain: Space,
        arguments: Parameters,
        ranks: Ranks = Ranks.COMMUNICATOR,
        named: UserFunction | None = None,
    ) -> None:
        self.comm, self.domain, self.codomain = comm, domain, codomain
        (self.gain, self.rounding), arguments = split_bounds(
            arguments, getattr(function, "forward", function) if inspect.isclass(function) else function
        )
        self._function, self._arguments, self._named = function, arguments, named or function
        self._comm = ranks.arguments(comm)
        for role, space in (("domain", domain), ("codomain", codomain)):
            for tensor in space.tensors:
                if tensor.element.is_integer:
                    raise SubjectError(
                        f"the {role} has a tensor of {tensor.dtype}, and torch differentiates floating-point and complex ones only: "
                        "declare a space of another `dtype`, or the pair of functions with al.subject.pair"
                    )
        tensors = tensor_names(domain)
        if inspect.isclass(function):  # `apply` takes positional arguments only
            positional = (*_context_of(function), *tensors, *ranks.names, *arguments)
            of_class: Any = function
            require_accepts("the function", of_class.forward, positional, {}, SPACES)
        else:
            require_accepts("the function", function, (*ranks.names, *tensors), arguments, SPACES)

    def _call(self, x: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        if inspect.isclass(self._function):
            # `apply` takes positional arguments only.
            function: Any = self._function
            result = function.apply(*x, *self._comm, *self._arguments.values())
        else:
            result = self._function(*self._comm, *x, **self._arguments)
        return self._tensors(as_tuple(result))

    def _tensors(self, results: tuple[object, ...]) -> tuple[torch.Tensor, ...]:
        """The local parts of the function's results. Raises :class:`NotInSpace` for a result that is not a torch tensor."""
        import torch

        for number, result in enumerate(results):
            if not isinstance(result, torch.Tensor):
                name = getattr(self._named, "__qualname__", repr(self._named))
                forgotten = " (is a `return` missing?)" if result is None and not number else ""
                place = f" as result {number}" if number else ""
                raise NotInSpace(
                    f"{name} returned {_described(result)}{place}{forgotten}, but the codomain {self._wanted(number)}"
                )
        return tuple(map(local_part, results))

    def _wanted(self, number: int) -> str:
        """The rest of a sentence that begins with "the codomain", on its tensor number `number`."""
        if number >= len(self.codomain.tensors):
            return f"has {counted(len(self.codomain.tensors), 'tensor')}"
        tensor = self.codomain.tensors[number]
        shape = tensor.layout.local_shape(self.comm.Get_rank())
        return f"wants a torch.Tensor of shape {shape} and type {tensor.dtype} on this rank"

    def function(self, direction: Direction) -> UserFunction:
        if inspect.isclass(self._named):
            return getattr(self._named, "forward" if direction is Direction.FORWARD else "backward")  # type: ignore[no-any-return]
        return self._named

    def forward(self, *x: torch.Tensor) -> Locals:
        result = self._call(tuple(tensor.detach().requires_grad_() for tensor in x))
        detached = tuple(tensor.detach() for tensor in result)
        return detached[0] if len(detached) == 1 else detached

    def without_gradients(self, *x: torch.Tensor) -> Locals:
        """Apply the function without recording a graph, in which case it may take another path. Collective."""
        import torch

        with torch.no_grad():
            return self._call(tuple(tensor.detach() for tensor in x))

    def in_forward_mode(self, *x: torch.Tensor) -> tuple[torch.Tensor, ...] | None:
        """Return the derivative in the direction of `x` by forward mode; None unless an autograd function in it has a `jvp`. Collective."""
        outputs = self._call(tuple(tensor.detach().requires_grad_() for tensor in x))
        # The ranks decide together: a rank that does not reach such a function still takes part in its communication.
        if not any(self.comm.allgather(has_own_forward_mode(outputs))):
            return None
        results = None
        with dual_level(), suppress(NotImplementedError):  # raised by another function without forward mode
            results = self._derivative(x)
        return None if any(self.comm.allgather(results is None)) else results

    def _derivative(self, x: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        import torch
        from torch.autograd import forward_ad

        along = [tensor.detach() for tensor in x]
        duals = tuple(forward_ad.make_dual(tensor, tensor) for tensor in along)  # type: ignore[no-untyped-call]
        results = [forward_ad.unpack_dual(result) for result in self._call(duals)]  # type: ignore[no-untyped-call]
        return tuple(torch.zeros_like(primal) if tangent is None else tangent for primal, tangent in results)

    def adjoint(self, *y: torch.Tensor) -> Locals:
        x, outputs = self._graph(y, range(len(self.domain.tensors)))
        # torch refuses a backward pass from an output without a graph (on a rank that received nothing, say).
        self.without_graph = frozenset(number for number, out in enumerate(outputs) if not out.requires_grad)
        return self._gradients(x, outputs, y)

    def one_gradient_at_a_time(self, *y: torch.Tensor) -> tuple[torch.Tensor, ...] | None:
        """Apply the adjoint with one graph per input, in which only that input requires a gradient; None for one input. Collective."""
        inputs = range(len(self.domain.tensors))
        if len(inputs) < 2:
            return None
        return tuple(self._gradients(*self._graph(y, (number,)), y)[number] for number in inputs)

    def one_output_at_a_time(self, *y: torch.Tensor) -> tuple[torch.Tensor, ...] | None:
        """Apply the adjoint with one graph per output, on which alone the loss depends, and add up the gradients.

        None for one output, and if an output had no graph on some rank in the last plain adjoint. Collective.
        """
        outputs = range(len(self.codomain.tensors))
        # A rank would skip the backward pass of an output without a graph, in which the other ranks may communicate.
        if len(outputs) < 2 or any(self.comm.allgather(bool(self.without_graph))):
            return None
        parts = [self._of_output(number, y) for number in outputs]
        return tuple(sum(gradients[1:], gradients[0]) for gradients in zip(*parts, strict=True))

    def _of_output(self, number: int, y: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        x, outputs = self._graph(y, range(len(self.domain.tensors)))
        return self._gradients(x, outputs[number : number + 1], y[number : number + 1])

    def second_time(self, *y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Apply the adjoint twice with one graph, and return the second result. Collective."""
        x, outputs = self._graph(y, range(len(self.domain.tensors)))
        self._gradients(x, outputs, y, retain_graph=True)
        for entry in x:
            entry.grad = None
        return self._gradients(x, outputs, y, again=True)

    def _graph(
        self, y: Sequence[torch.Tensor], wanted: Sequence[int]
    ) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
        """The inputs, of which those numbered in `wanted` require a gradient, and the outputs."""
        import torch

        rank, device = self.comm.Get_rank(), y[0].device if y else None
        # In the memory order of the cotangents: a backward pass may rely on the strides of its inputs.
        is_turned = any(not each.is_contiguous() for each in y)

        def zeros(tensor: Tensor) -> torch.Tensor:
            shape = tensor.layout.local_shape(rank)
            made = torch.zeros(
                shape[::-1] if is_turned else shape, dtype=getattr(torch, tensor.dtype), device=device
            )
            return made.permute(*reversed(range(len(shape)))) if is_turned else made

        x = tuple(
            zeros(tensor).requires_grad_(number in wanted)
            for number, tensor in enumerate(self.domain.tensors)
        )
        return x, self._call(x)

    def _gradients(
        self,
        x: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        y: Sequence[torch.Tensor],
        *,
        retain_graph: bool = False,
        again: bool = False,
    ) -> tuple[torch.Tensor, ...]:
        """The gradients of the inputs, zero if there is none; `again` if the graph has been used before. Collective."""
        import torch

        ends, cotangents = with_graph(outputs, y)
        if (note_backward := getattr(self.comm, "note_backward", None)) is not None:
            tensors = zip(self.domain.tensors, x, strict=True)
            wanted = {tensor.name: entry.requires_grad for tensor, entry in tensors}
            note_backward(BackwardPass(wanted, bool(ends), again))
        if ends:
            torch.autograd.backward(ends, cotangents, retain_graph=retain_graph)
        return tuple(torch.zeros_like(entry) if entry.grad is None else local_part(entry.grad) for entry in x)


def _context_of(function: type[Any]) -> tuple[str, ...]:
    """The context argument of an autograd function's `forward`, which has none if the class defines `setup_context`."""
    import torch

    is_set_up = function.setup_context is not torch.autograd.Function.setup_context
    return () if is_set_up else ("ctx",)


def _described(result: object) -> str:
    if result is None:
        return "None"
    return f"an object of the type {type(result).__module__}.{type(result).__qualname__}"


def split_bounds(
    arguments: Parameters, *functions: UserFunction
) -> tuple[tuple[int | None, float | None], Parameters]:
    """The gain and the rounding that a case declares for its operator, and the other arguments.

    If a function has a parameter of that name, it is an argument instead of a bound, and the bound is None.
    """
    declared = {
        name
        for name in BOUNDS
        if name in arguments and not any(has_parameter(function, name) for function in functions)
    }
    gain = arguments["gain"] if "gain" in declared else None
    rounding = arguments["rounding"] if "rounding" in declared else None
    return (gain, rounding), {name: value for name, value in arguments.items() if name not in declared}


def tensor_names(space: Space) -> tuple[str, ...]:
    """The argument names for the tensors of a space."""
    return tuple(tensor.name or "x" for tensor in space.tensors)


def _local_parts(result: Locals) -> Locals:
    """The results of a function, with DTensors replaced by their local tensors."""
    if isinstance(result, tuple | list) and any(map(is_dtensor, result)):
        return tuple(map(local_part, result))
    return local_part(result)
