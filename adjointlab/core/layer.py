"""Layers under test: torch modules on one rank, in general not linear and with parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from adjointlab.core.arrays import is_array
from adjointlab.core.declaration import SubjectError
from adjointlab.core.pieces import IN_ONE, Fused
from adjointlab.core.space import Space
from adjointlab.notes import noted
from adjointlab.quantities import counted
from adjointlab.spelling import described_type
from adjointlab.typing import Communicator, NumpyArray

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = [
    "NO_HOOKS",
    "Layer",
    "LegalIndices",
    "OutputPath",
    "PassHooks",
    "constants_of",
    "element_type_noted",
    "elementwise",
    "index_positions",
    "outputs_by_path",
    "outputs_of",
    "place_of",
    "prepared",
    "trained",
    "undeclared",
]

Prepare = Callable[..., Sequence[Any]]
"""Turns drawn inputs into legal ones (integers into class indices, say).

It is applied to global tensors, of which each rank then gets its part. If ranks hold summands, there is no global tensor: it is
applied to local tensors, and must work element by element."""


def elementwise(*inputs: Any) -> Sequence[Any]:
    """Return the drawn inputs as they are."""
    return inputs


@dataclass(frozen=True)
class LegalIndices:
    """A preparation that turns integers of any size at these `positions` into legal indices."""

    prepare: Prepare
    positions: frozenset[int]

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        return self.prepare(*inputs)


def index_positions(prepare: Prepare) -> frozenset[int]:
    """Positions of the inputs whose integers, of any size, a preparation turns into indices."""
    return prepare.positions if isinstance(prepare, LegalIndices) else frozenset()


def prepared(prepare: Prepare, *inputs: Any) -> tuple[Any, ...]:
    """Return the legal inputs that `prepare` makes of these; it may return a single tensor.

    Raises :class:`SubjectError` if it returns `None`, or another number of tensors than it gets.
    """
    with noted(f"raised by prepare=, which {_gets(inputs)}"):
        made = prepare(*inputs)
    if made is None:
        raise SubjectError(f"prepare= {_gets(inputs)}, and returned None (is a `return` missing?)")
    legal = (made,) if is_array(made) else tuple(made)
    if len(legal) != len(inputs):
        raise SubjectError(f"prepare= {_gets(inputs)}, and returned {len(legal)}")
    return legal


def _gets(inputs: Sequence[object]) -> str:
    return f"gets {counted(len(inputs), 'tensor')}, one for each input"


OutputPath: TypeAlias = tuple[object, ...]
"""Indices and keys that lead to a tensor in a module's return value; a single tensor has the index 0, as in a tuple of one."""


def outputs_of(returned: Any) -> tuple[torch.Tensor, ...]:
    """Return the tensors that a module returned, alone or in tuples, lists, dictionaries and dataclasses, in order, without `None`.

    Raises :class:`SubjectError` for anything else.
    """
    return tuple(outputs_by_path(returned).values())


def outputs_by_path(returned: Any) -> dict[OutputPath, torch.Tensor]:
    """Return the tensors of :func:`outputs_of`, each with its path."""
    if returned is None:
        raise SubjectError("a module returned None, not a tensor (is a `return` missing?)")
    import torch

    return dict(_tensors_in((returned,) if isinstance(returned, torch.Tensor) else returned, ()))


def _tensors_in(returned: Any, path: OutputPath) -> Iterator[tuple[OutputPath, torch.Tensor]]:
    import torch

    match returned:
        case torch.Tensor():
            yield path, returned
        case None:
            pass
        case Mapping():
            for key, entry in returned.items():
                yield from _tensors_in(entry, (*path, key))
        case tuple() | list():
            for index, entry in enumerate(returned):
                yield from _tensors_in(entry, (*path, index))
        case _ if is_dataclass(returned):
            for each in fields(returned):
                yield from _tensors_in(getattr(returned, each.name), (*path, each.name))
        case _:
            among = f" at {place_of(path)}" if path else ""
            raise SubjectError(
                f"a module returned {described_type(returned)}{among}: its outputs are tensors, alone or in tuples, lists, "
                "dictionaries and dataclasses; wrap it in a module that returns these"
            )


def place_of(path: OutputPath) -> str:
    """Return a path as a sequence of subscripts, such as "[0]['key']"."""
    return "".join(f"[{each!r}]" for each in path)


@contextmanager
def element_type_noted() -> Iterator[None]:
    """Add a note to an exception of user code that mentions float64, or double as torch calls it: why modules run in that type."""
    try:
        yield
    except Exception as error:
        if re.search(r"\b(double|float64)\b", str(error), re.IGNORECASE):
            error.add_note(
                'modules run in float64, unless the dictionary of a strategy says another type, such as dtype="float32"; tensors that code makes '
                "without a dtype, such as a flat buffer, are of float32"
            )
        raise


@dataclass(frozen=True)
class PassHooks:
    """User code that runs around the passes of a module, as in a training loop.

    `before_backward` and `after_backward` get the module; forward and backward passes run in ``context()``.
    """

    before_backward: Callable[[Any], object] | None = None
    after_backward: Callable[[Any], object] | None = None
    context: Callable[[], AbstractContextManager[object]] = nullcontext

    @property
    def change_gradients(self) -> bool:
        """True if a hook may clear or reduce ``.grad``, including earlier gradients."""
        return self.before_backward is not None or self.after_backward is not None


NO_HOOKS: Final = PassHooks()


@dataclass(frozen=True)
class Layer:
    """A torch module on one rank, with the spaces that its tensors are in.

    `domain` and `codomain` are the spaces of its inputs and outputs, `parameters` and `buffers` those of its parameters and
    buffers. Their tensors have the names that the module gives them (``module.get_parameter(name)``), and the sequential twin uses
    the same names. A rank that holds nothing of a parameter has one of zero volume.

    `rounding` bounds the difference between outputs or gradients and the sequential ones, relative to the largest value of each
    tensor: 0 where the arithmetic is exact on small integers. Where terms cancel, the result may be smaller than the rounding
    error of the terms: `reach` is a lower bound for the largest value that the difference is compared with. If `rounding`
    is `None`, the effect of rounding is measured on the sequential layer: in its own element types, or with the coarser rounding
    of `computes_in`, the name of a type that the module computes in.

    With `overwrites_inputs` the module may write into its inputs, as an in-place activation does, and gets copies of them.
    With `uniform_requires_grad` its messages may depend on which inputs and parameters require a gradient, which is then the
    same on all ranks. If `frozen` is given, the parameters that it names have not required a gradient since the module was made,
    and all others do; the inputs that it names require none.

    `averaged` is the number of ranks over which the module averages the gradients of its parameters, instead of summing them. With
    `alternates`, a backward pass follows every forward pass. Without `accumulates`, gradients are not added to earlier ones. With
    `joins_passes`, the gradients of several backward passes may be added up between one ``before_backward()`` and one
    ``after_backward()`` of the module. With `needs_all_outputs`, every backward pass begins from all outputs.

    ``optimizer(parameters)`` makes an optimiser, which takes this many `steps`. `trained`, if known, names the parameters that
    required a gradient when the module was made. Without `has_forward_mode`, the Jacobian is judged without forward mode.
    A layer that `needs_graph`, since it takes gradients in its forward pass, is never called with gradients disabled.
    One that `is_made_of_twin` computes what the sequential module does, which then gets inputs in the same memory orders.
    If `initial` is given, the module was made from a sequential one whose parameters have these values, and has its part of them.
    If `module` is the lab's wrapper of the user's module, `user_class` is the class of the latter, by which reports name it.
    `pieces` has the pieces of fused parameters, by name. The tensors of these parameters in the space have an additional dimension,
    which counts the pieces; if the pieces are of unequal size, they have the parts of the pieces in the order of the ranks instead.
    ``other_batch(is_larger)`` is the space of inputs with a larger or a smaller batch, if the module takes those too.
    ``takes_evaluation_mode()`` is True if the module, which is in training mode, may be in evaluation mode for a while.
    ``takes_order(order)`` is False for a memory order of inputs that the sequential module rejects, so that the layer may reject it too.
    """

    comm: Communicator
    module: nn.Module
    domain: Space
    codomain: Space
    parameters: Space
    buffers: Space
    _: KW_ONLY
    rounding: float | None = None
    prepare: Prepare = elementwise
    reach: float = 0.0
    computes_in: str = ""
    overwrites_inputs: bool = False
    uniform_requires_grad: bool = False
    frozen: frozenset[str] | None = None
    averaged: int = 1
    alternates: bool = False
    accumulates: bool = True
    joins_passes: bool = False
    needs_all_outputs: bool = False
    optimizer: Callable[[list[Any]], Any] | None = None
    steps: int = 0
    trained: frozenset[str] | None = None
    has_forward_mode: bool = True
    needs_graph: bool = False
    is_made_of_twin: bool = False
    initial: Mapping[str, NumpyArray] | None = None
    user_class: type[nn.Module] | None = None
    pieces: Mapping[str, Fused] = field(default_factory=dict)
    other_batch: Callable[[bool], Space | None] = lambda is_larger: None
    takes_evaluation_mode: Callable[[], bool] = lambda: False
    takes_order: Callable[[str], bool] = lambda order: True

    def pieces_of(self, name: str) -> Fused:
        """The pieces of the parameter of that name."""
        return self.pieces.get(name, IN_ONE)


def trained(module: nn.Module) -> frozenset[str]:
    """Return the names of the parameters that require a gradient."""
    owned = module.named_parameters(remove_duplicate=False)
    return frozenset(name for name, parameter in owned if parameter.requires_grad)


def constants_of(module: nn.Module) -> set[str]:
    """The names of the buffers that are not persistent, which torch keeps out of ``state_dict``: constants or caches."""
    return {
        f"{path}.{name}" if path else name
        for path, part in module.named_modules()
        for name in part._non_persistent_buffers_set
    }


def undeclared(module: nn.Module, parameters: Space, buffers: Space) -> list[str]:
    """List the differences between the module's parameters and buffers and those that the spaces name.

    Each is a predicate of the module, such as "has no parameter w, ...". Spaces need not name constants (:func:`constants_of`). For
    a tensor that the module has under several names, one of them is enough.
    """
    constants = constants_of(module)
    faults = []
    for kind, space, owned in (
        ("parameter", parameters, dict(module.named_parameters(remove_duplicate=False))),
        ("buffer", buffers, dict(module.named_buffers(remove_duplicate=False))),
    ):
        declared = [tensor.name for tensor in space.tensors]
        known = {id(owned[name]) for name in declared if name in owned}
        faults += [
            f"has the {kind} {name}, which {kind}_space does not name"
            for name, tensor in owned.items()
            if id(tensor) not in known and name not in constants
        ]
        faults += [
            f"has no {kind} {name}, which {kind}_space names" for name in declared if name not in owned
        ]
    return faults
