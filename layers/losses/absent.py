"""The loss on a rank that does not have it, and the terms that this rank adds to it.

The loss is a sum over all ranks, and so is a penalty on the parameters, of which each rank has its part:

    forward    l = R Σ_r l_r + Σ_r p_r       the root adds its p_r to the loss; the other ranks keep p_r with an empty tensor
    adjoint    δp_r = δl

So if all ranks scale their sums by a factor, this scales every p_r. Other functions of a sum need the value of the loss, which only
the root has, and are rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import torch

from adjointlab.layers.torch_arguments import entries

__all__ = ["AbsentLoss", "absent"]

_SUMS: Final = {"add", "sub", "subtract", "rsub", "__add__", "__radd__", "__sub__", "__rsub__"}
"""Names of torch's functions that are linear in all tensors together."""

_FACTORS: Final = {"mul", "multiply", "__mul__", "__rmul__"}
"""Names of functions that are linear in one tensor, if the other one does not depend on parameters."""

_OF_THE_LOSS: Final = {
    "div",
    "divide",
    "true_divide",
    "__truediv__",
    "neg",
    "sum",
    "mean",
    "clone",
    "to",
    "float",
    "double",
    "squeeze",
}
"""Names of functions that are linear only in the first tensor."""

_TO_A_NUMBER: Final = frozenset({torch.Tensor.sum, torch.sum, torch.Tensor.mean, torch.mean})
"""Functions that do not change a loss, since it is one number."""

_COTANGENTS: Final[dict[object, str]] = {
    torch.autograd.grad: "grad_outputs",
    torch.autograd.backward: "grad_tensors",
}
"""Names of the cotangents of the functions that start a backward pass. Torch passes these by name, and the tensors first."""


class AbsentLoss(torch.Tensor):
    """The loss on a rank that does not have it: without elements, but in the graph, so that this rank takes part in the backward pass.

    ``backward()`` needs no cotangent, like that of the scalar on the root. Multiples and sums of it are such tensors too. If a tensor
    that requires a gradient is added, such as a penalty on this rank's parameters, it gets the same gradient as on the root.

    Raises `ValueError` for any other function of the loss and such a tensor: its gradient depends on a value that this rank lacks.
    """

    _own: torch.Tensor | None = None
    """The terms that this rank has added, scaled like the loss."""

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        named = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            given = entries((*args, *named.values()))
            if func is torch.autograd.grad:  # its inputs require a gradient, but are not added
                given = [each for each in given if isinstance(each, AbsentLoss)]
            has_own = torch.is_grad_enabled() and any(map(_adds_a_gradient, given))
            if has_own and func is torch.autograd.grad:
                raise _no_function(func)
            if has_own and (changed := _with_own_terms(func, args, named)) is not None:
                return changed
            if func in _COTANGENTS:
                (tensors, *others), name = args, _COTANGENTS[func]
                tensors, cotangents = _with_cotangents(tensors, named.get(name), name)
                # Not by the tensor's method, which would also dispatch to the class of the given parameters.
                return func(tensors, *others, **{**named, name: cotangents})
            if func in _TO_A_NUMBER and args and not has_own:
                # Without elements, torch would return a number: the sum 0, or the mean NaN.
                return args[0].reshape(-1)[:0].as_subclass(AbsentLoss)
        result = super().__torch_function__(func, types, args, named)  # type: ignore[no-untyped-call]
        if has_own and any(map(_requires_grad, entries((result,)))):
            raise _no_function(func)
        return result

    def backward(
        self,
        gradient: torch.Tensor | None = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Sequence[torch.Tensor] | None = None,
    ) -> None:
        """Like `torch.Tensor.backward`, but needs no cotangent, even without elements.

        Raises `ValueError` for a cotangent if this rank has added terms, whose cotangent would differ.
        """
        with torch._C.DisableTorchFunctionSubclass():
            tensors, cotangents = _with_cotangents([self], gradient, "gradient")
            torch.autograd.backward(tensors, cotangents, retain_graph, create_graph, inputs=inputs)

    def item(self) -> float:
        """Raise `RuntimeError`, as any tensor without elements does, and say where the number is; comparisons raise it too."""
        if self.numel():
            return super().item()
        raise RuntimeError(
            "loss: the number is on another rank, the root of the loss: ask for it there, or send it to all by "
            "comm.bcast(loss.tolist(), root)"
        )

    __float__ = item

    def __bool__(self) -> bool:
        return bool(self.item())

    def __format__(self, spec: str) -> str:
        """Format like a tensor; for a number format, such as ".3f", raise the error of :meth:`item`."""
        return format(self.item(), spec) if spec else super().__format__(spec)  # type: ignore[no-untyped-call]


def absent(loss: torch.Tensor) -> torch.Tensor:
    """Return a loss without elements as an :class:`AbsentLoss`; unchanged within torch.func's transforms, which do not call backward."""
    if torch._C._are_functorch_transforms_active():
        return loss
    return loss.as_subclass(AbsentLoss)


def _with_own_terms(
    func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]
) -> AbsentLoss | None:
    """Apply `func`, maybe in place, to the loss and to this rank's terms; return the loss, or `None` if the function is not linear."""
    losses = [each for each in args if isinstance(each, AbsentLoss)]
    others = [each for each in (*args, *named.values()) if not isinstance(each, AbsentLoss)]
    in_place = func.__name__.endswith("_") and not func.__name__.endswith("__")
    name = func.__name__.removesuffix("_") if in_place else func.__name__
    is_first = bool(args) and isinstance(args[0], AbsentLoss)
    is_scaled = len(losses) == 1 and not any(map(_requires_grad, others))
    is_linear = name in _SUMS or (is_scaled and (name in _FACTORS or (is_first and name in _OF_THE_LOSS)))
    if not (losses and is_linear) or (in_place and not is_first):
        return None
    terms = (_terms_of(each) if isinstance(each, AbsentLoss) else each for each in args)
    own: torch.Tensor = (getattr(torch.Tensor, name) if in_place else func)(*terms, **named)
    # The result depends on all losses, so that this rank takes part in the backward pass of each.
    result = losses[0] if in_place else losses[0].reshape(-1)[:0].as_subclass(AbsentLoss)
    for other in losses[1:]:
        result.add_(other)
    result._own = own
    return result


def _with_cotangents(
    tensors: Sequence[torch.Tensor], given: Any, name: str
) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    """Return the tensors of a backward pass and their cotangents, with those of losses without elements, for which torch makes none.

    This rank's terms are included: in one pass, as on the root, the operators of both are visited in the reverse order of their
    application. Raises `ValueError` for a cotangent, the argument `name`, of a loss that has such terms.
    """
    cotangents = [given] if isinstance(given, torch.Tensor) else list(given or [None] * len(tensors))
    own: list[torch.Tensor] = []
    for place, (loss, cotangent) in enumerate(zip(tensors, list(cotangents), strict=False)):
        if not isinstance(loss, AbsentLoss):
            continue
        if loss._own is not None:
            if cotangent is not None:
                raise ValueError(
                    f"{name}: multiply the loss by it on every rank, and call backward() without one"
                )
            own.append(loss._own)
        if cotangent is None and not loss.numel():
            cotangents[place] = torch.zeros_like(loss)
    return [*tensors, *own], [*cotangents, *(None for _ in own)]


def _no_function(func: Callable[..., Any]) -> ValueError:
    return ValueError(
        f"loss: {func.__name__} of a loss that is on another rank and a tensor that requires a gradient, such as a penalty: only "
        "sums of both and their multiples have a gradient that this rank knows; or call backward() of each by itself"
    )


def _terms_of(loss: AbsentLoss) -> torch.Tensor:
    return loss.as_subclass(torch.Tensor).new_zeros(()) if loss._own is None else loss._own


def _adds_a_gradient(x: object) -> bool:
    if isinstance(x, AbsentLoss):
        return x._own is not None
    return _requires_grad(x) and isinstance(x, torch.Tensor) and x.numel() > 0


def _requires_grad(x: object) -> bool:
    return isinstance(x, torch.Tensor) and x.requires_grad
