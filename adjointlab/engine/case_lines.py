"""A failing case as lines of a report: its spaces, and the arguments that these do not show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from adjointlab.checks.check import Spaces
from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.core.space import Space, Tensor
from adjointlab.engine.case import Case
from adjointlab.engine.parameter_tree import is_cut
from adjointlab.engine.search_result import SearchResult

__all__ = ["case_lines"]


_LONGEST = 100
"""The length to which the text of an argument is cut."""


def case_lines(result: SearchResult) -> Iterator[tuple[str, str]]:
    """The failing case: its spaces, or its parameters if no rank got as far as declaring spaces."""
    if result.case is None:
        return
    if result.spaces is None:
        yield from _parameters(result.case)
    else:
        yield from _spaces(result.spaces)
        yield from _other_arguments(result.case, result.spaces)
    yield from result.case.unusual()


def _spaces(spaces: Spaces) -> Iterator[tuple[str, str]]:
    domain, codomain = spaces.domain, spaces.codomain
    if domain == codomain and len(domain.tensors) == 1:
        yield "partition", _tensors(domain)[0].removeprefix("partition ")
        return
    yield from (("domain", tensor) for tensor in _tensors(domain))
    yield from (("codomain", tensor) for tensor in _tensors(codomain))


def _parameters(case: Case) -> Iterator[tuple[str, str]]:
    yield "ranks", str(case.ranks)
    for name, value in case.parameters.items():
        is_layout = isinstance(value, Layout)
        yield name, f"{value.without_workers} over partition {value.partition}" if is_layout else str(value)


def _other_arguments(case: Case, spaces: Spaces) -> Iterator[tuple[str, str]]:
    """The parameters of a case that the lines of its spaces do not show."""
    tensors = (*spaces.domain.tensors, *spaces.codomain.tensors)
    for name, value in _parameters(case):
        if name != "ranks" and not _is_shown(case.parameters.get(name), tensors):
            yield name, value if len(value) <= _LONGEST else f"{value[:_LONGEST]}…"


def _is_shown(value: object, tensors: Sequence[Tensor]) -> bool:
    """Return whether the lines of `tensors` show `value`. A tuple is shown only as a cut: others, such as a kernel's, may not be shapes."""
    match value:
        case Space():
            return True  # its tensors are shown there, or by the module
        case Layout():
            return any(tensor.layout == value for tensor in tensors)
        case Partition():
            return any(tensor.layout.partition == value for tensor in tensors)
        case str():
            return any(tensor.dtype == value for tensor in tensors)
        case tuple() | list() if is_cut(value):
            parts = tuple(pairwise(value))
            return any(parts in tensor.layout.windows for tensor in tensors)
    return False


def _tensors(space: Space) -> list[str]:
    texts = []
    for tensor in space.tensors:
        layout = tensor.layout.without_workers
        kind = tensor.without_workers.removeprefix(layout).strip()
        name = f"{tensor.name}: " if len(space.tensors) > 1 else ""
        texts.append(f"{name}partition {tensor.layout.partition}   layout {layout}   {kind}")
    return texts
