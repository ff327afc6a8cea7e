"""Parameters of which a rank has a part, and their gradients, which torch's utilities for whole parameters reject.

A utility that takes a part for the whole would compute wrong numbers without an error: a norm of one rank's gradients, an
initial value scaled by the sides of the part. So these tensors are of subclasses, whose `__torch_function__`, torch's protocol
for overriding functions, finds out which torch function is using them. All other functions work as on any tensor, and return plain
tensors: so does ``detach``, for a computation that is meant for this rank's part.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Final

import torch
from torch import nn

from adjointlab.layers.torch_arguments import entries

__all__ = ["LocalGradient", "LocalParameter", "takes_the_whole"]

_SEQUENTIAL: Final = "apply it to the sequential module and load its values (load_sequential)"

WHOLE: Final[Mapping[str, str]] = {
    "torch.nn.init": "use the layer's initialise(name, function)",
    "torch.nn.utils.clip_grad": "use adjointlab.layers.utilities, which has clip_grad_norm_ and get_total_norm for models",
    "torch.nn.utils.convert_parameters": "use adjointlab.layers.utilities, which has both conversions for models",
    "torch.nn.utils.fusion": _SEQUENTIAL,
    "torch.nn.utils.parametrizations": _SEQUENTIAL,
    "torch.nn.utils.parametrize": _SEQUENTIAL,
    "torch.nn.utils.prune": _SEQUENTIAL,
    "torch.nn.utils.spectral_norm": _SEQUENTIAL,
    "torch.nn.utils.weight_norm": _SEQUENTIAL,
    "torch.optim._adafactor": "use an optimiser that works element by element, such as SGD or Adam",
    "torch.optim._muon": "use an optimiser that works element by element, such as SGD or Adam",
    "torch.optim.lbfgs": "use an optimiser that works element by element, such as SGD or Adam",
    "torch.amp.grad_scaler": "use bfloat16, whose gradients need no scaling",
}
"""Torch's modules that compute with whole parameters or gradients, and advice for each."""

_ELEMENTWISE: Final = {
    "torch.nn.init": {"constant_", "ones_", "zeros_"},
    "torch.nn.utils.clip_grad": {"clip_grad_value_", "clip_grads_with_norm_"},
}
"""Functions of these modules that work element by element, and so are right for parts."""


def takes_the_whole(name: str, function: str, instead: str) -> str:
    """Return the message of the error about a torch function that uses the parameter `name`."""
    return f"{name}: {function} computes with whole parameters, of which this rank has a part; {instead}"


class _Local:
    """A tensor of a layer, of which other ranks have other parts."""

    local_name = "parameter"

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if caller := _caller_of_the_whole(sys._getframe(1)):
            name = next((a.local_name for a in entries(args) if isinstance(a, _Local)), cls.local_name)
            raise ValueError(takes_the_whole(name, *caller))
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        if func == _GET_GRADIENT and type(result) is torch.Tensor:
            # Changes the class of autograd's tensor itself, instead of making an alias, so that `p.grad is p.grad`, as usual.
            result.__class__ = LocalGradient
            result.local_name = args[0].local_name  # type: ignore[attr-defined]
        return result


class LocalParameter(_Local, nn.Parameter):
    """A parameter of a layer, of which this rank has a part."""


class LocalGradient(_Local, torch.Tensor):
    """The gradient of a :class:`LocalParameter`; it is copied and pickled as a plain tensor."""

    def __deepcopy__(self, memo: dict[int, object]) -> torch.Tensor:
        memo[id(self)] = result = self.detach().clone()
        return result

    def __reduce_ex__(self, protocol: Any) -> Any:
        return torch.Tensor.__reduce_ex__(self.detach(), protocol)  # type: ignore[no-untyped-call]


_GET_GRADIENT: Final[object] = vars(torch._C.TensorBase)["grad"].__get__


def _caller_of_the_whole(frame: FrameType | None) -> tuple[str, str] | None:
    """Return the torch function that computes with whole parameters and is being called, and advice; `None` if there is none."""
    found = None
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if not module.startswith("torch."):
            break
        code = frame.f_code
        function = code.co_qualname.removesuffix(".__init__") if code.co_name == "__init__" else code.co_name
        if module in WHOLE and function.lstrip("_") in _ELEMENTWISE.get(module, ()):
            return None
        # The outermost public function is the one that was called; decorators and comprehensions have frames too.
        if module in WHOLE and (found is None or function[0] not in "_<"):
            found = f"{module}.{function.lstrip('_')}", WHOLE[module]
        frame = frame.f_back
    return found
