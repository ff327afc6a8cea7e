"""A method without a body is abstract: of a class that has not defined it no object can be made."""

from __future__ import annotations

import ast
import inspect
from abc import ABCMeta
from collections.abc import Iterator

import pytest

from tests.core.test_frozen import modules_of


def methods_without_a_body(module: object) -> Iterator[tuple[str, str]]:
    """The class and the name of each method that is a docstring alone."""
    for kind in ast.parse(inspect.getsource(module)).body:
        for method in kind.body if isinstance(kind, ast.ClassDef) else ():
            if isinstance(method, ast.FunctionDef) and all(map(_says_something, method.body)):
                yield kind.name, method.name


def _says_something(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


@pytest.mark.parametrize("package", ["core", "checks"])
def test_methods_without_a_body_are_abstract(package: str) -> None:
    found = 0
    for module in modules_of(f"adjointlab.{package}"):
        for name, method in methods_without_a_body(module):
            kind = vars(module)[name]
            if isinstance(kind, ABCMeta) and not getattr(kind, "_is_protocol", False):
                found += 1
                assert method in kind.__abstractmethods__, f"{module.__name__}.{name}.{method}"
    assert found > 3
