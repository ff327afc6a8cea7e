"""Re-execution, within a case, of modules that use COMM_WORLD when they are imported.

Much MPI code begins with ``comm = MPI.COMM_WORLD; rank = comm.Get_rank()``, and computes neighbours and windows from that at module
level. At import COMM_WORLD is that of the process or of the job; in a case it is the communicator of the case. Executed again there, on
each rank, a module gets the rank and size of the case, and communicators of its ranks. Function and class definitions are not executed
again: functions read the new values from the module, and functions and classes stay the objects that other modules have imported. So values
captured at definition, such as default arguments and class attributes, are not updated. Functions and classes that decorators have put
into a dictionary, list or set of the module are kept in it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import resolve_name
from itertools import dropwhile
from pathlib import Path
from types import CodeType
from typing import Any

from adjointlab.worlds.module_state import NO_STATE, is_a

__all__ = ["after_imports", "imports", "run_again", "uses_comm_world"]

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def run_again(names: Sequence[str]) -> None:
    """Execute again the first module of `names` that uses COMM_WORLD when it is imported, and all modules after it, which may depend on it.

    Call it on every rank of a case; each rank has its own variables in these modules. Exceptions of the modules' code propagate.
    """
    for name in dropwhile(lambda each: not uses_comm_world(each), names):
        if not (file := _file(name)):
            continue
        variables = vars(sys.modules[name])
        before = {key: value for key, value in variables.items() if value is not _print_to_files}
        with _silent(variables):
            exec(_code(file), variables)  # noqa: S102 - a module of the user's, which was imported before
        # Definitions nested in other statements, such as `try`, have been executed again.
        variables.update((key, value) for key, value in before.items() if is_a(value, *NO_STATE))
        of_variables = {*map(id, variables.values())}
        for key, value in before.items():
            if value is not variables.get(key):
                _keep_definitions(value, variables.get(key), of_variables)


@contextmanager
def _silent(variables: dict[str, Any]) -> Iterator[None]:
    """Context in which a module's `print` writes nothing to the terminal, as it has printed when it was imported; unless it defines a `print`.

    `sys.stdout` is not replaced, because all ranks share it, and they take turns while a module makes a communicator.
    """
    if variables.setdefault("print", _print_to_files) is not _print_to_files:
        yield
        return
    try:
        yield
    finally:
        variables.pop("print", None)


def _print_to_files(*values: object, file: Any = None, **options: Any) -> None:
    if file not in (None, sys.stdout, sys.stderr):
        print(*values, file=file, **options)


def _keep_definitions(before: Any, now: Any, of_variables: set[int]) -> None:
    """Copy into a re-created container the functions and classes that decorators had put into the old one: definitions do not run again."""
    if type(before) is not type(now):
        return
    if is_a(now, dict):
        for key, value in before.items():
            if is_a(value, *NO_STATE):
                now.setdefault(key, value)
    elif is_a(now, list, set):
        held = {*map(id, now)}
        # Not those that re-executed code has replaced, such as a lambda in a list.
        kept = [
            each
            for each in before
            if is_a(each, *NO_STATE) and id(each) in of_variables and id(each) not in held
        ]
        now.extend(kept) if is_a(now, list) else now.update(kept)


def uses_comm_world(name: str) -> bool:
    """Return True if the module has been imported and its module-level code mentions COMM_WORLD."""
    file = _file(name)
    return bool(file) and _speaks_of_comm_world(file)


def after_imports(names: Iterable[str], are_followed: Callable[[str], bool]) -> tuple[str, ...]:
    """Return modules and their transitive imports, each after its own imports; modules for which `are_followed` is False are left out."""
    seen: set[str] = set()
    ordered: list[str] = []

    def visit(name: str) -> None:
        if name in seen or not are_followed(name):
            return
        seen.add(name)
        for each in imports(name):
            visit(each)
        ordered.append(name)

    for name in names:
        visit(name)
    return tuple(ordered)


def imports(name: str) -> tuple[str, ...]:
    """The modules that a module's code outside functions and classes imports, or imports names from."""
    file = _file(name)
    package = getattr(sys.modules.get(name), "__package__", None) or ""
    imported = _imported(file, package) if file else ()
    return tuple(each for each in imported if each in sys.modules)


@lru_cache(maxsize=1024)
def _imported(file: str, package: str) -> tuple[str, ...]:
    def names(node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level and not package:
                return
            origin = resolve_name("." * node.level + module, package) if node.level else module
            yield origin
            yield from (f"{origin}.{each.name}" for each in node.names)  # these may be modules

    return tuple(dict.fromkeys(name for node in ast.walk(_statements(file)) for name in names(node)))


def _file(name: str) -> str:
    """The source file of a module; empty if it does not exist any more, and for a script, which would start its checks again."""
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return file if name != "__main__" and file.endswith(".py") and Path(file).is_file() else ""


@lru_cache(maxsize=1024)
def _speaks_of_comm_world(file: str) -> bool:
    if b"COMM_WORLD" not in Path(file).read_bytes():
        return False
    nodes = ast.walk(_statements(file))
    return "COMM_WORLD" in (
        getattr(node, "id", getattr(node, "attr", getattr(node, "name", ""))) for node in nodes
    )


@lru_cache(maxsize=64)
def _code(file: str) -> CodeType:
    return compile(_statements(file), file, "exec", dont_inherit=True)


def _statements(file: str) -> ast.Module:
    """The top-level statements of a module, without function and class definitions."""
    tree = ast.parse(Path(file).read_bytes(), file)
    tree.body = [statement for statement in tree.body if not isinstance(statement, _DEFINITIONS)]
    return tree
