"""The sequential module of a case, tried on zeros: its outputs, and the modes, batches and memory orders that it supports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from adjointlab.checks.layers.passes import placed_in
from adjointlab.checks.memory_orders import ORDERS
from adjointlab.core import arrays
from adjointlab.core.declaration import SubjectError
from adjointlab.core.layer import OutputPath, element_type_noted, outputs_by_path

if TYPE_CHECKING:
    import torch

__all__ = ["OtherSides", "SequentialExample", "has_outputs_alike", "resized"]

OtherSides: TypeAlias = Mapping[int, tuple[int, int]]
"""By dimension: a side, and the one that takes its place."""


@dataclass(frozen=True)
class SequentialExample:
    """A sequential module of a case, and its results for zeros, which give the shapes of the outputs.

    `needs_graph` is for modules that return these outputs only while torch records a graph: a model of forces takes gradients in its
    forward pass, and others return a penalty or an auxiliary loss only in training. A module `alternates` between forward and backward
    passes if a forward pass changes in place what an earlier one's backward pass needs, such as a running scale.
    """

    module: torch.nn.Module
    is_evaluated: bool
    outputs: Mapping[OutputPath, torch.Tensor]
    needs_graph: bool
    alternates: bool

    @classmethod
    def of(
        cls, module: torch.nn.Module, zeros: Sequence[torch.Tensor], *, is_evaluated: bool
    ) -> SequentialExample:
        """Call the module with zeros."""
        import torch

        with torch.random.fork_rng(devices=[]):
            with torch.enable_grad():
                outputs = _called_with_zeros(module, zeros)
            try:
                with torch.no_grad():
                    needs_graph = outputs_by_path(module(*zeros)).keys() != outputs.keys()
            except Exception:  # a module that needs a graph may raise anything
                needs_graph = True
            alternates = bool(list(module.buffers())) and not _goes_back(module, outputs)
        return cls(module, is_evaluated, outputs, needs_graph, alternates)

    def takes_sides(self, zeros: Callable[[], Sequence[torch.Tensor]], sides: OtherSides) -> bool:
        """Return True if, for inputs with other `sides`, outputs have those sides too, and are otherwise of the same shapes."""
        import torch

        with torch.random.fork_rng(devices=[]), torch.no_grad():
            try:
                made = outputs_by_path(self.module(*zeros()))
            except Exception:  # a module, or a preparation of inputs, for one size only may raise anything
                return False
        wanted = {path: resized(y.shape, sides) for path, y in self.outputs.items()}
        return {path: tuple(y.shape) for path, y in made.items()} == wanted

    def takes_order(self, zeros: Sequence[torch.Tensor], order: str) -> bool:
        """Return True if the module takes inputs in this memory order, in which they may have no view of another shape."""
        import torch

        if order == ORDERS[0]:
            return True
        inputs = [placed_in(order, each, arrays.memory_of(each)).view for each in zeros]
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            try:
                self.module(*inputs)
            except Exception:  # a module that takes row-major memory only may raise anything
                return False
        return True


def resized(shape: Sequence[int], sides: OtherSides) -> tuple[int, ...]:
    """The shape with the other side in those dimensions whose side is the one that is replaced."""
    replacing = {(dim, old): new for dim, (old, new) in sides.items()}
    return tuple(replacing.get((dim, side), side) for dim, side in enumerate(shape))


def has_outputs_alike(
    module: torch.nn.Module, zeros: Sequence[torch.Tensor], *, goes_back: bool = False
) -> bool:
    """Return True if outputs in evaluation mode have the same places, shapes and types, and the same values in each call.

    In evaluation mode some modules return nothing, or decoded or random results, or raise, and others cache their inputs. With
    `goes_back`, they also need a backward pass in evaluation mode: a model of forces may keep the graph of its energy only in training.
    """
    import torch

    seen: list[dict[OutputPath, torch.Tensor]] = []
    for mode in (module.training, False, False, False):
        try:
            outputs = outputs_by_path(module.train(mode)(*zeros))
        except Exception:  # a module that is for training only may raise anything
            return False
        if goes_back and seen and not _goes_back(module, outputs):
            return False
        seen.append({path: y.detach().clone() for path, y in outputs.items()})
    as_made, first, *others = seen
    return _described(as_made) == _described(first) and all(
        _described(each) == _described(first) and all(torch.equal(each[path], y) for path, y in first.items())
        for each in others
    )


def _goes_back(module: torch.nn.Module, outputs: Mapping[OutputPath, torch.Tensor]) -> bool:
    """Return True if a module supports a backward pass from outputs of an earlier forward pass."""
    import torch

    with_graph = [output for output in outputs.values() if output.requires_grad]
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not with_graph or not parameters:
        return True
    try:
        torch.autograd.grad(
            with_graph, parameters, [torch.zeros_like(y) for y in with_graph], allow_unused=True
        )
    except RuntimeError:  # a tensor that it needs has been modified by an inplace operation
        return False
    return True


def _called_with_zeros(
    module: torch.nn.Module, zeros: Sequence[torch.Tensor]
) -> Mapping[OutputPath, torch.Tensor]:
    """The results of a sequential module. Its exceptions get a note that nothing was parallel yet."""
    try:
        with element_type_noted():
            return outputs_by_path(module(*zeros))
    except SubjectError:
        raise
    except Exception as error:
        shapes = ", ".join(str(tuple(each.shape)) for each in zeros)
        error.add_note(
            f"raised by the sequential module, before it was parallelized, given zeros of shape {shapes}"
        )
        raise


def _described(outputs: Mapping[OutputPath, torch.Tensor]) -> dict[OutputPath, tuple[object, ...]]:
    return {path: (y.shape, y.dtype) for path, y in outputs.items()}
