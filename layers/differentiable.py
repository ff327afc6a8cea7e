"""The bridge to torch: every linear operator is a differentiable function.

The operator is its own Jacobian [Hewett21, section 3.3], so backward is its adjoint and the forward-mode product is the
operator itself. Both are such functions again: reverse mode, forward mode and double backward work for any
composition of operators.

The messages of a rank, in a backward pass and in a double backward pass, must not depend on its local tensors, nor
on which tensors require a gradient there: torch prunes the graph of each rank separately, and if one rank skipped a backward
pass, the others would wait forever. Two empty tensors keep every rank in the pass:

- if no x requires a gradient, the application takes an empty tensor that does, the *anchor*. So the application is in the
  graph of every rank, and its backward communicates whether or not anybody needs the result;
- each application returns one, which the adjoint's application in the backward pass takes as its anchor. So a pass
  through the latter goes on through the former, on every rank:

        forward     anchor, x ──► F ──► y, end
                                              │ saved
        backward           end, δy ──► F* ──► δx         differentiated again, F* leads by `end` to F, and on by x

  Without it only y would lead back to F, through the functions that follow. On a worker that holds nothing, these return
  zeros that depend on y linearly, so torch would find no second derivative there.

Torch runs a graph in the reverse order of its creation; so equal applications on all ranks send equal messages in equal
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
    """Return F x as a differentiable function of this rank's local tensors: collective, and so is its backward pass.

    Returns a tensor, or a tuple if the codomain has several. Raises the operator's errors, and
    :class:`adjointlab.core.operator.NotInSpace` for results that are not in the codomain.
    """
    result = applied(operator, x)
    return result if len(operator.codomain.tensors) > 1 else result[0]


def carried(operator: LinearOperator, x: torch.Tensor) -> torch.Tensor:
    """Return F x as :func:`apply` does, or x itself, uncopied, if F is the identity: for use inside a layer.

    The result requires a gradient on every rank while gradients are recorded, as that of :func:`apply` does.
    """
    # An x that requires no gradient still goes through F: a collective may follow, which needs an input that puts it into
    # this rank's graph.
    if operator.is_identity and (x.requires_grad or not torch.is_grad_enabled()):
        check_argument(operator.domain.tensors[0], x, operator.comm.Get_rank())
        return x
    return applied(operator, (x,))[0]


def differentiable(operator: LinearOperator) -> Callable[..., Any]:
    """The function ``x -> apply(operator, *x)``."""
    return lambda *x: apply(operator, *x)


def without_gradient(operator: LinearOperator, x: torch.Tensor) -> torch.Tensor:
    """Return F x without a gradient, for indices, or x itself if F is the identity: its backward pass sends nothing."""
    # Not operator.forward(x): within torch.func's transforms x may be a wrapper without memory, which a Function gets unwrapped.
    with torch.no_grad():
        return carried(operator, x)


def connected(result: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    """Return `result`, made to depend on `others` in the graph, though on none of their elements.

    So a worker that computes nothing with a tensor takes part in its backward pass: its gradient there is zero, and the
    operators before it communicate. The dependence is linear; if other workers apply a nonlinear function, use
    :func:`of_nothing`.
    """
    for other in others:
        # Subtracting zero never changes x, whereas adding it would turn -0.0 into 0.0.
        result = result - other.reshape(-1)[:0].sum().to(result.dtype)
    return result


def in_graph(x: torch.Tensor) -> torch.Tensor:
    """Return x as a part of this rank's graph while gradients are recorded, as on ranks where x requires a gradient.

    For layers that send messages only when they check inputs: a checkpoint repeats the check, on all ranks if each has the layer in its
    graph.
    """
    # Within torch.func's transforms, which have no checkpoints, `requires_grad` refers only to the innermost transform.
    if x.requires_grad or not torch.is_grad_enabled() or torch._C._are_functorch_transforms_active():
        return x
    return connected(x, x.new_zeros(0).requires_grad_())


def of_nothing(
    shape: Sequence[int], function: Callable[..., torch.Tensor], *tensors: torch.Tensor
) -> torch.Tensor:
    """Return zeros of `shape` on a worker that has no elements to apply `function` to, while others apply it to `tensors`.

    The function is still applied, to a single zero in place of each tensor, but its value does not enter the result. So this
    worker's graph has the same derivatives as the others', of any order and in a checkpoint, too: it passes the same operators
    in the same order, and sends the messages that the others wait for.
    """
    zeros = [_zeros_of((1,) * tensor.ndim, tensor) for tensor in tensors]
    return _zeros_of(shape, function(*zeros).to(tensors[0].dtype))


def _zeros_of(shape: Sequence[int], tensor: torch.Tensor) -> torch.Tensor:
    """Return zeros of `shape` that depend on `tensor` in the graph, though on none of its elements."""
    # Not a sum as in `connected`: in forward mode, torch (2.13) adds a tensor that has a tangent to one that has none in Python
    # code, which takes milliseconds, and more than a second the first time, when it imports its compiler.
    return torch.nn.functional.pad(tensor.reshape(-1)[:0], (0, math.prod(shape))).reshape(tuple(shape))


def applied(
    operator: LinearOperator, x: tuple[torch.Tensor, ...], anchor: torch.Tensor | None = None
) -> tuple[torch.Tensor, ...]:
    """Return F x as :func:`apply` does, but always as a tuple. The graph goes through `anchor` too, by default that of x."""
    # A layer's parameter is of a class whose `__torch_function__` guards against taking a part for the whole, even when its shape is
    # read. Here that guard is not needed, and would run some ten times for a weight.
    with torch._C.DisableTorchFunctionSubclass():
        is_transformed = torch._C._are_functorch_transforms_active()
        if anchor is None and (is_transformed or not x or not x[0].requires_grad):
            anchor = anchor_of(x)
        function = _Apply.apply if is_transformed else _Apply.apply_plainly
        outputs: tuple[torch.Tensor, ...] = function(anchor, operator, *x)
    return outputs[:-1]


def anchor_of(x: tuple[torch.Tensor, ...]) -> torch.Tensor | None:
    """Return an empty tensor that puts the application into the graph; `None` if a tensor of x does so on this rank."""
    for tensor in x:
        # Within torch.func's transforms, `requires_grad` refers only to the innermost transform.
        if tensor.requires_grad and not torch._C._are_functorch_transforms_active():
            return None
    return torch.empty(0, device=x[0].device if x else None, requires_grad=torch.is_grad_enabled())


_NOTHING: Final = torch.empty(0, device="cpu")
"""All empty host tensors are views of this one: making a new one takes torch three times as long."""


def end_of(x: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Return an empty tensor on the device of x."""
    if x and x[0].is_cpu:
        return _NOTHING.detach()
    return torch.empty(0, device=x[0].device if x else None)


class _AsGiven(inspect.Signature):
    """A signature that binds positional arguments unchanged."""

    def bind(self, *args: Any, **kwargs: Any) -> Any:
        return _Arguments(args)


class _Arguments:
    """Bound arguments, with the attributes that torch reads."""

    __slots__ = ("args", "kwargs")

    def __init__(self, args: tuple[Any, ...]) -> None:
        self.args = args
        self.kwargs: dict[str, Any] = {}  # C++ code requires a dictionary

    def apply_defaults(self) -> None:
        """Do nothing: there are no defaults."""


class PositionalFunction(Function):
    """A function whose ``forward`` has no defaults, so that the arguments of ``apply`` need not be bound to its signature.

    Torch's ``apply`` binds them in every call if there is a ``setup_context``, which takes longer than the rest of an application. Up to
    torch 2.13 it does that in Python code, which can be bypassed; from 2.14 on in C++, which calls the signature's ``bind``.
    """

    apply_plainly: ClassVar[Callable[..., Any]]
    """:meth:`apply` for use outside torch.func's transforms."""

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
    """Return True if torch differentiates the current computation, in any mode; within one pass this is the same on all ranks."""
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
    """The shape of y, if there is only one y; torch then makes no zeros for it."""


class _Apply(PositionalFunction):
    """One application; the last of its outputs is the empty one.

    It is the only tensor that is saved, and every rank saves it. A non-reentrant checkpoint recomputes a function
    when a saved tensor is unpacked: so all ranks recompute, even those whose other functions save nothing.
    """

    # `setup_context` is separate from `forward`, which does not get the context: torch.func's transforms, and so
    # functional_call under torch.func.grad, accept no other form of Function (torch 2.0 on).

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
            # Then torch makes no zeros for the empty output in a backward pass. The only y nearly always has a cotangent.
            ctx.set_materialize_grads(False)
            ctx.shape = output[0].shape

    @staticmethod
    def backward(ctx: _Context, *given: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        # Unpacked in any case: this makes a checkpoint recompute its function, on every rank.
        (anchor,) = ctx.saved_tensors
        y = cast("tuple[torch.Tensor, ...]", given[:-1])
        if given[0] is None:
            # Only the empty output led here: on this rank, the functions after y depend on it linearly.
            (tensor,) = ctx.operator.codomain.tensors
            y = (torch.zeros(ctx.shape, dtype=getattr(torch, tensor.dtype), device=anchor.device),)
        if not _is_differentiated():
            return None, None, *apply_adjoint(ctx.operator, y)
        # The adjoint is applied as a differentiable function, so that its backward pass is F again.
        return None, None, *applied(ctx.operator.H, y, anchor)

    @staticmethod
    def jvp(
        ctx: _Context, anchor: torch.Tensor | None, operator: None, *x: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        # Torch requires a tangent for every output, even the empty one. The anchor has none: its tangent is None.
        return *applied(ctx.operator, x), torch.zeros_like(x[0].reshape(-1)[:0])
