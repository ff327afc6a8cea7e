"""A point at which a layer is evaluated and differentiated: in reverse mode, in forward mode and by differences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from adjointlab.checks.elements import Local
from adjointlab.checks.layers.differences import Estimate, derivatives
from adjointlab.checks.layers.modules import ModuleUnderTest, first_positions, values
from adjointlab.core import arrays
from adjointlab.core.layer import Layer
from adjointlab.core.vectors import Draw

if TYPE_CHECKING:
    import torch

__all__ = ["Point", "unit_roundoff"]

_EVALUATION = 16.0
"""Assumed error of an output in units in the last place; differences add their own estimate."""


def _along(p: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
    """The direction in the shape of the input or parameter `p`: in the space, fused parameters have separate pieces."""
    joined = direction.reshape(p.shape) if direction.numel() == p.numel() else direction
    return arrays.in_shape_of(p, joined)


class Point:
    """A point of a layer: the inputs, parameters and buffers from which every evaluation starts."""

    def __init__(self, version: ModuleUnderTest, inputs: Sequence[torch.Tensor], key: Draw) -> None:
        self.version = version
        self.inputs = [x.requires_grad_() if arrays.is_differentiable(x) else x for x in inputs]
        version.fill_parameters(key)
        version.require_gradients(version.trainable)
        self.parameters: list[torch.Tensor] = []
        self.buffers = {name: value.clone() for name, value in version.module.named_buffers()}

    def outputs(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Evaluate the layer with the parameters that it has. Collective."""
        return self.version.applied_to(self.version.given(inputs))

    def elsewhere(
        self, inputs: Sequence[torch.Tensor], parameters: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        """Evaluate the layer at another point, from the same buffers, after the backward pass. Collective."""
        import torch

        # Written into the layer's own parameters, whose hooks and attributes replacements would lack.
        with torch.no_grad():
            own = self.version.parameters()
            # Only the first of tied parameters: copying the others would overwrite its tangent.
            for position in set(first_positions(own)):
                arrays.local_part(own[position].requires_grad_(False)).copy_(parameters[position])
            for name, value in self.buffers.items():
                self.version.module.get_buffer(name).copy_(value)
        return self.outputs(inputs)

    def without_integers(self, directions: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return directions of the inputs, with zeros for those that cannot be differentiated."""
        import torch

        return [
            v if arrays.is_differentiable(x) else torch.zeros_like(x)
            for x, v in zip(self.inputs, directions, strict=True)
        ]

    def pulled_back(
        self, outputs: Sequence[torch.Tensor], cotangents: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """J*w, by inputs and by parameters; tied ones are a single parameter, the first. Collective."""
        import torch

        self.version.go_back(self.inputs, outputs, self.version.of_means(cotangents))
        # Only now: a layer may change its parameters in a pass, as an embedding with `max_norm` does.
        self.parameters = [
            arrays.local_part(parameter.detach()).clone() for parameter in self.version.parameters()
        ]

        def zeros(leaf: torch.Tensor) -> torch.Tensor:
            return torch.zeros_like(arrays.local_part(leaf.detach()))

        def gradient(leaf: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor | None = arrays.local_gradient(leaf)
            return zeros(leaf) if found is None else found

        own = self.version.parameters()
        of_parameters = [
            gradient(p) if position == first else zeros(p)
            for position, (p, first) in enumerate(zip(own, first_positions(own), strict=True))
        ]
        of_inputs = self.version.of_sums([gradient(x) for x in self.inputs])
        return list(of_inputs), list(self.version.in_space(of_parameters))

    def pushed_forward(
        self, along_inputs: Sequence[torch.Tensor], along_parameters: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """J v by torch's forward mode. Collective."""
        import torch
        from torch.autograd import forward_ad

        def dual(p: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            if not arrays.is_differentiable(p):
                return p
            made: torch.Tensor = forward_ad.make_dual(p.detach(), _along(p, v))  # type: ignore[no-untyped-call]
            return made

        outputs = self.elsewhere(
            [dual(p, v) for p, v in zip(self.inputs, along_inputs, strict=True)],
            [dual(p, v) for p, v in zip(self.parameters, along_parameters, strict=True)],
        )
        tangents = [forward_ad.unpack_dual(output).tangent for output in outputs]  # type: ignore[no-untyped-call]
        return [torch.zeros_like(y) if v is None else v for y, v in zip(outputs, tangents, strict=True)]

    def differences(
        self, along_inputs: Sequence[torch.Tensor], along_parameters: Sequence[torch.Tensor]
    ) -> list[Estimate]:
        """J v by differences. Collective."""
        import torch

        layer = self.version.layer
        relative = max(layer.rounding or 0.0, _EVALUATION * unit_roundoff(layer))

        def along(p: torch.Tensor, v: torch.Tensor, step: float) -> torch.Tensor:
            return p + step * _along(p, v) if arrays.is_differentiable(p) else p

        def moved(step: float) -> Local:
            with torch.no_grad():
                outputs = self.elsewhere(
                    [along(p, v, step) for p, v in zip(self.inputs, along_inputs, strict=True)],
                    [along(p, v, step) for p, v in zip(self.parameters, along_parameters, strict=True)],
                )
            return values(outputs)

        return derivatives(moved, moved(0.0), lambda largest: relative * largest)


def unit_roundoff(layer: Layer) -> float:
    """Return the largest unit roundoff of the layer's tensors and of the type in which it computes."""
    spaces = (layer.domain, layer.parameters, layer.codomain)
    precisions = [
        tensor.element.precision
        for space in spaces
        for tensor in space.tensors
        if not tensor.element.is_integer
    ]
    computes_in = [arrays.dtype(layer.computes_in).precision] if layer.computes_in else []
    return 2.0 ** -min((*precisions, *computes_in), default=53)
