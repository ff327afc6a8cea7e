"""The sequential module of a case, tried on zeros: its outputs, and the modes, batches and memory orders that it takes."""

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
    """A sequential module of a case, and its results for zeros, which say the shapes of the outputs.

    Some modules need a graph for them: a model of forces takes gradients in its forward pass, and others return a penalty or an
    auxiliary loss in training alone. Others change in place what their backward pass needs, such as a scale that they keep, and go
    backward before they go forward again.
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
            except Exception:  # whatever a module raises that finds no graph
                needs_graph = True
            alternates = bool(list(module.buffers())) and not _goes_back(module, outputs)
        return cls(module, is_evaluated, outputs, needs_graph, alternates)

    def takes_sides(self, zeros: Callable[[], Sequence[torch.Tensor]], sides: OtherSides) -> bool:
        """Return True if the module makes outputs of the other sides of inputs that have them, and of the same shapes otherwise."""
        import torch

        with torch.random.fork_rng(devices=[]), torch.no_grad():
            try:
                made = outputs_by_path(self.module(*zeros()))
            except Exception:  # whatever it raises, or what prepares its inputs, that takes one size alone
                return False
        wanted = {path: resized(y.shape, sides) for path, y in self.outputs.items()}
        return {path: tuple(y.shape) for path, y in made.items()} == wanted

    def takes_order(self, zeros: Sequence[torch.Tensor], order: str) -> bool:
        """Return True if the module takes inputs in this memory order: not all can be viewed in another shape."""
        import torch

        if order == ORDERS[0]:
            return True
        inputs = [placed_in(order, each, arrays.memory_of(each)).view for each in zeros]
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            try:
                self.module(*inputs)
            except Exception:  # whatever a module raises that takes row-major memory alone
                return False
        return True


def resized(shape: Sequence[int], sides: OtherSides) -> tuple[int, ...]:
    """The shape with the other side in those dimensions whose side is the one that is replaced."""
    replacing = {(dim, old): new for dim, (old, new) in sides.items()}
    return tuple(replacing.get((dim, side), side) for dim, side in enumerate(shape))


def has_outputs_alike(
    module: torch.nn.Module, zeros: Sequence[torch.Tensor], *, goes_back: bool = False
) -> bool:
    """Return True if a module has outputs of the same places, shapes and types in evaluation mode, alike in each call.

    Some return nothing then, or decoded or random results, or raise, and others keep what they have been given. If it `goes_back`, it has to
    do so in evaluation mode too: a model of forces may keep the graph of its energy in training alone.
    """
    import torch

    seen: list[dict[OutputPath, torch.Tensor]] = []
    for mode in (module.training, False, False, False):
        try:
            outputs = outputs_by_path(module.train(mode)(*zeros))
        except Exception:  # whatever a module raises that is for training alone
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
    """Return True if a module takes a backward pass from outputs that it has returned before it went forward again."""
    import torch

    with_graph = [output for output in outputs.values() if output.requires_grad]
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not with_graph or not parameters:
        return True
    try:
        torch.autograd.grad(
            with_graph, parameters, [torch.zeros_like(y) for y in with_graph], allow_unused=True
        )
    except RuntimeError:  # what it needs has been modified by an inplace operation
        return False
    return True


def _called_with_zeros(
    module: torch.nn.Module, zeros: Sequence[torch.Tensor]
) -> Mapping[OutputPath, torch.Tensor]:
    """The results of a sequential module. What it raises has a note that nothing was parallel yet."""
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
