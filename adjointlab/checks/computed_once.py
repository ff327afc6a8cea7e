"""Properties that are computed once, also where computing them communicates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

__all__ = ["computed_once"]

T = TypeVar("T")


class computed_once(Generic[T]):
    """Property that is computed on first access and kept in the instance.

    `functools.cached_property` holds one lock for all instances while it computes, up to Python 3.11
    [cpython-87634]. What is computed here communicates, and simulated ranks are threads: the second rank would wait
    for the lock, and the first, inside the lock, for a message of the second.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self.compute, self.name = compute, compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> computed_once[T]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> computed_once[T] | T:
        if instance is None:
            return self
        # An entry of the instance's dictionary has precedence over a descriptor without __set__, so this runs once.
        value = vars(instance)[self.name] = self.compute(instance)
        return value
