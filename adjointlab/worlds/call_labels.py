"""Labels of calls: the name under which a call is reported and matched, if a library calls MPI on behalf of user code.

For example, a process group of torch.distributed calls ``Iallreduce`` when user code calls ``all_reduce(op=AVG)``.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import Final, NamedTuple

__all__ = ["CallLabel", "called_as", "label_of_call"]


class CallLabel(NamedTuple):
    """Name and arguments of a call in the API of the library that user code has called. Collectives match if these are equal."""

    name: str
    arguments: tuple[tuple[str, object], ...] = ()

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value}' for name, value in self.arguments)})"


_label: Final[ContextVar[CallLabel | None]] = ContextVar("label of the calls being made", default=None)


def label_of_call() -> CallLabel | None:
    """The label of the calls that this rank is making; None if they have none."""
    return _label.get()


class called_as:
    """Context in which calls of a communicator of the lab have a label."""

    __slots__ = ("_label", "_token")

    def __init__(self, label: CallLabel) -> None:
        self._label = label
        self._token: Token[CallLabel | None] | None = None

    def __enter__(self) -> None:
        self._token = _label.set(self._label)

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            _label.reset(self._token)
