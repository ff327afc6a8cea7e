"""Functions and the arguments that they are called with: the whole sentence for what does not fit."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import pytest

from adjointlab.core.declaration import SubjectError, has_parameter, require_accepts

pytestmark = pytest.mark.mpi_skip


def plain(comm: Any, x: Any, width: int = 1, *, height: int = 2) -> None: ...


def positional(comm: Any, x: Any, /, width: int) -> None: ...


def without_comm(x: Any, width: int) -> None: ...


def any_name(comm: Any, width: int, **more: Any) -> None: ...


def any_number(*given: Any, width: int) -> None: ...


class Called:
    def __call__(self, comm: Any, width: int) -> None: ...


class Unhashable(Called):
    __hash__ = None  # type: ignore[assignment]


COMM = "takes no communicator: say process_group=True in the subject if it communicates by torch.distributed; give a function that leaves it out if it uses MPI.COMM_WORLD, such as lambda comm, x: function(x); else let it take the communicator as its first argument, or after the tensors in an autograd function"  # fmt: skip

REFUSED: list[tuple[Callable[..., Any], tuple[str, ...], tuple[str, ...], str]] = [
    (plain, ("comm", "x"), ("widht",), "plain(comm, x, widht=…), but plain(comm, x, width, height) takes no `widht`; did you mean width?"),
    (plain, ("comm", "x"), ("heigth",), "plain(comm, x, heigth=…), but plain(comm, x, width, height) takes no `heigth`; did you mean height?"),
    (plain, ("comm", "x"), ("width", "widht"), "plain(comm, x, width=…, widht=…), but plain(comm, x, width, height) takes no `widht`"),
    (plain, ("comm", "x"), ("height", "heigth"), "plain(comm, x, height=…, heigth=…), but plain(comm, x, width, height) takes no `heigth`"),
    (plain, ("comm", "x"), ("xx",), "plain(comm, x, xx=…), but plain(comm, x, width, height) takes no `xx`"),
    (plain, ("comm", "x"), ("domian",), "plain(comm, x, domian=…), but plain(comm, x, width, height) takes no `domian`; did you mean domain?"),
    (plain, ("comm",), (), "plain(comm), but plain(comm, x, width, height) cannot be called so: missing a required argument: 'x'"),
    (plain, ("comm", "x", "y", "z"), (), "plain(comm, x, y, z), but plain(comm, x, width, height) cannot be called so: too many positional arguments"),
    (plain, ("comm", "x", "y"), ("width",), "plain(comm, x, y, width=…), but plain(comm, x, width, height) cannot be called so: multiple values for argument 'width'"),
    (positional, ("comm", "x"), ("comm",), "positional(comm, x, comm=…), but positional(comm, x, width) takes no `comm`"),
    (positional, ("comm", "x"), ("widht",), "positional(comm, x, widht=…), but positional(comm, x, width) takes no `widht`; did you mean width?"),
    (without_comm, ("comm", "x"), ("width",), f"without_comm(comm, x, width=…), but without_comm(x, width) {COMM}"),
    (without_comm, ("comm", "x", "y"), (), f"without_comm(comm, x, y), but without_comm(x, width) {COMM}"),
    (without_comm, ("comm",), ("x", "width"), f"without_comm(comm, x=…, width=…), but without_comm(x, width) {COMM}"),
    (without_comm, ("comm", "x", "y", "z"), (), "without_comm(comm, x, y, z), but without_comm(x, width) cannot be called so: too many positional arguments"),
    (without_comm, ("x",), (), "without_comm(x), but without_comm(x, width) cannot be called so: missing a required argument: 'width'"),
    (without_comm, (), (), "without_comm(), but without_comm(x, width) cannot be called so: missing a required argument: 'x'"),
    (without_comm, ("x", "y"), ("width",), "without_comm(x, y, width=…), but without_comm(x, width) cannot be called so: multiple values for argument 'width'"),
    (any_name, ("comm",), ("height",), "any_name(comm, height=…), but any_name(comm, width, **more) cannot be called so: missing a required argument: 'width'"),
    (any_number, ("comm", "x"), ("widht",), "any_number(comm, x, widht=…), but any_number(*given, width) takes no `widht`; did you mean width?"),
    (Called(), ("comm",), ("widht",), "Called(comm, widht=…), but Called(comm, width) takes no `widht`; did you mean width?"),
    (Unhashable(), ("comm",), ("widht",), "Unhashable(comm, widht=…), but Unhashable(comm, width) takes no `widht`; did you mean width?"),
    (partial(plain, height=3), ("comm",), (), "partial(comm), but partial(comm, x, width, height) cannot be called so: missing a required argument: 'x'"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "given", "named", "told"), REFUSED)
def test_a_function_that_cannot_be_called_so_is_refused_in_one_sentence(
    function: Callable[..., Any], given: tuple[str, ...], named: tuple[str, ...], told: str
) -> None:
    with pytest.raises(SubjectError, match=f"^the function is called as {re.escape(told)}$"):
        require_accepts("the function", function, given, dict.fromkeys(named), ("domain",))


@pytest.mark.parametrize(
    ("function", "given", "named"),
    [
        (plain, ("comm", "x"), ()),
        (plain, ("comm", "x"), ("width", "height")),
        (plain, ("comm", "x", "y"), ("height",)),
        (plain, (), ("comm", "x")),
        (positional, ("comm", "x"), ("width",)),
        (any_name, ("comm",), ("width", "height")),
        (any_number, ("comm", "x", "y"), ("width",)),
        (Called(), ("comm",), ("width",)),
        (Unhashable(), ("comm", "width"), ()),
    ],
)
def test_a_function_that_can_be_called_so_is_accepted(
    function: Callable[..., Any], given: tuple[str, ...], named: tuple[str, ...]
) -> None:
    require_accepts("the function", function, given, dict.fromkeys(named))


def test_a_function_has_the_parameters_that_it_tells() -> None:
    names = ("comm", "x", "width", "height", "given", "more")
    taken = {
        f: [name for name in names if has_parameter(f, name)]
        for f in (plain, positional, any_name, any_number)
    }
    assert taken == {
        plain: ["comm", "x", "width", "height"],
        positional: ["width"],
        any_name: ["comm", "width"],
        any_number: ["width"],
    }


def test_what_a_decorator_passes_on_is_for_the_function_behind_it_to_take() -> None:
    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def wrapper(*given: Any, own: int = 0, **more: Any) -> Any:
            return function(*given, **more)

        return wrapper

    once, twice = decorated(plain), decorated(decorated(plain))
    assert all(has_parameter(each, "width") and has_parameter(each, "own") for each in (once, twice))
    assert not any(has_parameter(each, "gain") for each in (once, twice))
    assert not has_parameter(decorated(any_name), "gain")
