"""The bridge to torch: every linear operator is a differentiable function.

The operator is its own Jacobian [Hewett21, section 3.3], so backward is its adjoint and the forward-mode product is the
operator itself. Both are again such functions: reverse mode, forward mode and double backward go through any
composition of operators.

The messages of a rank, in a backward pass and in one through a backward pass, must not depend on its local tensors, nor
on what requires a gradient there: torch prunes a graph rank by rank, and a rank that leaves a backward pass out lets
the others wait for ever. Two empty tensors keep every rank in:

- where no x requires a gradient, the application takes one that does, the *anchor*. So it stands in the graph of every
  rank, and its backward communicates whether or not anybody wants the result;
- each application returns one, which the adjoint's application in the backward pass takes as its anchor. So a pass
  through the latter goes on through the former, on every rank:

        forward     anchor, x ──► F ──► y, end
                                              │ saved
        backward           end, δy ──► F* ──► δx         differentiated again, F* leads by `end` to F, and on by x

  Without it only y would lead back to F, by the functions that follow: and where a worker holds nothing these return
  zeros, which depend on y linearly, so that torch finds no second derivative there.

Torch runs a graph in the reverse order of its making; so equal applications on all ranks are equal messages in equal
order. A worker without elements of a tensor has an empty one, which keeps its graph connected: it calls ``backward`` as
the others do.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, cast

import torch
from torch.autograd import Function, forward_ad
from torch.autograd.function import FunctionCtx

from adjointlab.core.arguments import check_argument
from adjointlab.core.operator import LinearOperator, apply_adjoint, apply_forward

__all__ = [
    "PositionalFunction",
    "anchor_of",
    "applied",
    "apply",
    "carried",
    "connected",
    "differentiable",
    "end_of",
    "of_nothing",
    "without_gradient",
]


def apply(operator: LinearOperator, *x: torch.Tensor) -> Any:
    """F x as a differentiable function of this rank's local tensors: collective, and so is its backward pass.

    Returns a tensor, or a tuple where the codomain has several. Raises what the operator raises, and
    :class:`adjointlab.core.operator.NotInSpace` for results that are not in the codomain.
    """
    result = applied(operator, x)
    return result if len(operator.codomain.tensors) > 1 else result[0]


def carried(operator: LinearOperator, x: torch.Tensor) -> torch.Tensor:
    """F x as from :func:`apply`, or x itself, uncopied, where F is the identity: for use inside a layer.

    The result requires a gradient on every rank while gradients are recorded, as that of :func:`apply` does.
    """
    # An x without a gradient goes through F all the same: what follows it may be a collective, which needs an input
    # that puts it into this rank's graph.
    if operator.is_identity and (x.requires_grad or not torch.is_grad_enabled()):
        check_argument(operator.domain.tensors[0], x, operator.comm.Get_rank())
        return x
    return applied(operator, (x,))[0]


def differentiable(operator: LinearOperator) -> Callable[..., Any]:
    """The function ``x -> apply(operator, *x)``."""
    return lambda *x: apply(operator, *x)


def without_gradient(operator: LinearOperator, x: torch.Tensor) -> torch.Tensor:
    """F x, through which no gradient goes, as of indices, or x itself where F is the identity: its backward pass sends nothing."""
    # Not operator.forward(x): within torch.func's transforms x may be a tensor without memory, which a Function is given with it.
    with torch.no_grad():
        return carried(operator, x)


def connected(result: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    """`result`, made to depend on `others` in the graph, though on none of their elements.

    So a worker that computes nothing with a tensor takes part in its backward pass: its gradient there is zero, and the
    operators before it communicate. The dependence is linear; where other workers apply a function that is not, use
    :func:`of_nothing`.
    """
    for other in others:
        # Less zero, which is x of any x: -0.0 and a zero would be 0.0.
        result = result - other.reshape(-1)[:0].sum().to(result.dtype)
    return result


def in_graph(x: torch.Tensor) -> torch.Tensor:
    """x, in the graph of this rank while gradients are recorded, whatever requires one: as on ranks where x does.

    For layers whose only messages are those of their check of inputs: a checkpoint runs it again, on all ranks if each has the layer in
    its graph.
    """
    # Within torch.func's transforms, which have no checkpoints, a tensor says of the innermost one alone whether it requires a gradient.
    if x.requires_grad or not torch.is_grad_enabled() or torch._C._are_functorch_transforms_active():
        return x
    return connected(x, x.new_zeros(0).requires_grad_())


def of_nothing(
    shape: Sequence[int], function: Callable[..., torch.Tensor], *tensors: torch.Tensor
) -> torch.Tensor:
    """Zeros of `shape`, for a worker without elements to apply `function` to, where others apply it to `tensors`.

    The function is applied all the same, to a single zero in the place of each tensor, and none of its value enters the
    result. So this worker's graph has the same derivatives as the others', of any order, and a checkpoint's too: it comes
    by the same operators in the same order, and sends the messages that the others wait for.
    """
    zeros = [_zeros_of((1,) * tensor.ndim, tensor) for tensor in tensors]
    return _zeros_of(shape, function(*zeros).to(tensors[0].dtype))


def _zeros_of(shape: Sequence[int], tensor: torch.Tensor) -> torch.Tensor:
    """Zeros of `shape` that depend on `tensor` in the graph, though on none of its elements."""
    # Not a sum as in `connected`: in forward mode, torch (2.13) adds a tensor that has a tangent to one that has none by code in
    # Python, which takes milliseconds, and more than a second the first time, when it imports its compiler.
    return torch.nn.functional.pad(tensor.reshape(-1)[:0], (0, math.prod(shape))).reshape(tuple(shape))


def applied(
    operator: LinearOperator, x: tuple[torch.Tensor, ...], anchor: torch.Tensor | None = None
) -> tuple[torch.Tensor, ...]:
    """F x as from :func:`apply`, a tuple whatever the codomain. The graph goes through `anchor` too, by default that of x."""
    # A layer's parameter is of a class that sees which function asks for it, its shape and its element type too. Nothing here
    # takes a part for the whole, and a weight is asked some ten times.
    with torch._C.DisableTorchFunctionSubclass():
        is_transformed = torch._C._are_functorch_transforms_active()
        if anchor is None and (is_transformed or not x or not x[0].requires_grad):
            anchor = anchor_of(x)
        function = _Apply.apply if is_transformed else _Apply.apply_plainly
        outputs: tuple[torch.Tensor, ...] = function(anchor, operator, *x)
    return outputs[:-1]


def anchor_of(x: tuple[torch.Tensor, ...]) -> torch.Tensor | None:
    """An empty tensor that puts the application into the graph, if nothing of x does on this rank."""
    for tensor in x:
        # Within torch.func's transforms a tensor says of the innermost one alone whether it requires a gradient.
        if tensor.requires_grad and not torch._C._are_functorch_transforms_active():
            return None
    return torch.empty(0, device=x[0].device if x else None, requires_grad=torch.is_grad_enabled())


_NOTHING: Final = torch.empty(0, device="cpu")
"""Every empty tensor of the host is a view of it: a new one takes torch three times as long."""


def end_of(x: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """An empty tensor where x is."""
    if x and x[0].is_cpu:
        return _NOTHING.detach()
    return torch.empty(0, device=x[0].device if x else None)


class _AsGiven(inspect.Signature):
    """A signature whose arguments are taken as they are."""

    def bind(self, *args: Any, **kwargs: Any) -> Any:
        return _Arguments(args)


class _Arguments:
    """Arguments that have been bound, as torch asks for them."""

    __slots__ = ("args", "kwargs")

    def __init__(self, args: tuple[Any, ...]) -> None:
        self.args = args
        self.kwargs: dict[str, Any] = {}  # C++ takes it for a dictionary

    def apply_defaults(self) -> None:
        """Nothing: there are none."""


class PositionalFunction(Function):
    """A function whose ``forward`` has no defaults, so that it takes the arguments of ``apply`` as they are.

    Torch's own ``apply`` binds them to the signature of ``forward`` in every call where there is a ``setup_context``,
    which takes longer than all else that an application does. Up to torch 2.13 that is done in Python, and can be left out; from
    2.14 on in C++, which asks the signature.
    """

    apply_plainly: ClassVar[Callable[..., Any]]
    """:meth:`apply` where no transform of torch.func's is active."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.apply_plainly = super(Function, cls).apply  # type: ignore[misc]
        parameters = inspect.signature(cls.forward).parameters.values()
        cls.forward.__signature__ = _AsGiven(list(parameters))  # type: ignore[attr-defined]

    @classmethod
    def apply(cls, *arguments: Any) -> Any:
        """Apply the function, as ``Function.apply`` does."""
        if torch._C._are_functorch_transforms_active():
            return super().apply(*arguments)  # type: ignore[no-untyped-call]
        return cls.apply_plainly(*arguments)


def _is_differentiated() -> bool:
    """Return True if torch is to differentiate what is computed now, in any mode; the same on all ranks, of one pass."""
    return (
        torch.is_grad_enabled()
        or forward_ad._current_level >= 0
        or torch._C._are_functorch_transforms_active()
    )


class _Context(FunctionCtx):
    """State of one application between its forward and its backward pass."""

    operator: LinearOperator
    saved_tensors: tuple[torch.Tensor, ...]
    shape: torch.Size
    """Of y, where there is one, and torch makes no zeros for it."""


class _Apply(PositionalFunction):
    """One application; the last of its outputs is the empty one.

    It is the only tensor that is saved, and every rank saves it. A non-reentrant checkpoint computes a function again
    when a saved tensor is asked for: so all ranks do, also those whose other functions save nothing.
    """

    # `setup_context` apart from `forward`, which does not see the context: torch.func's transforms, and so
    # functional_call under torch.func.grad, take no other form of Function (torch 2.0 on).

    @staticmethod
    def forward(
        anchor: torch.Tensor | None, operator: LinearOperator, *x: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        return *apply_forward(operator, x), end_of(x)

    @staticmethod
    def setup_context(
        ctx: _Context,
        inputs: tuple[torch.Tensor | None, LinearOperator, *tuple[torch.Tensor, ...]],
        output: tuple[torch.Tensor, ...],
    ) -> None:
        ctx.operator = inputs[1]
        ctx.save_for_backward(output[-1])
        if len(output) == 2 and forward_ad._current_level < 0:
            # In a backward pass torch need make no zeros for the empty output then. The only y nearly always has a cotangent.
            ctx.set_materialize_grads(False)
            ctx.shape = output[0].shape

    @staticmethod
    def backward(ctx: _Context, *given: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        # Asked for in any case: a checkpoint computes its function again here, on every rank.
        (anchor,) = ctx.saved_tensors
        y = cast("tuple[torch.Tensor, ...]", given[:-1])
        if given[0] is None:
            # The empty output alone led here: on this rank, what followed y depends on it linearly.
            (tensor,) = ctx.operator.codomain.tensors
            y = (torch.zeros(ctx.shape, dtype=getattr(torch, tensor.dtype), device=anchor.device),)
        if not _is_differentiated():
            return None, None, *apply_adjoint(ctx.operator, y)
        # The adjoint is applied as a function too, so that its backward pass is F again.
        return None, None, *applied(ctx.operator.H, y, anchor)

    @staticmethod
    def jvp(
        ctx: _Context, anchor: torch.Tensor | None, operator: None, *x: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        # Torch wants a tangent of every output, the empty one too. That of the anchor is None, as it has none.
        return *applied(ctx.operator, x), torch.zeros_like(x[0].reshape(-1)[:0])
