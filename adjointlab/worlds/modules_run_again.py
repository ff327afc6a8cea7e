"""Modules that use COMM_WORLD when they are imported, run again in a case.

Much MPI code begins with ``comm = MPI.COMM_WORLD; rank = comm.Get_rank()``, and computes neighbours and windows from that, outside all
functions. At import COMM_WORLD is that of the process or of the job; in a case it is the communicator of the case. Run again there, on
each rank, a module has the numbers of the case, and communicators of its ranks. Not run again are definitions: functions read the new
numbers from the module, and functions and classes stay the objects that others have imported. So what they took when they were defined,
as defaults of arguments or attributes of a class, stays too, and so do those that their decorators have put into a dictionary, list or set
of the module.
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
    """Run the first of some modules again that uses COMM_WORLD when it is imported, and those named after it, which may take its numbers.

    To be called on every rank of a case, which has variables of its own in these modules. Raises what their code raises.
    """
    for name in dropwhile(lambda each: not uses_comm_world(each), names):
        if not (file := _file(name)):
            continue
        variables = vars(sys.modules[name])
        before = {key: value for key, value in variables.items() if value is not _print_to_files}
        with _silent(variables):
            exec(_code(file), variables)  # noqa: S102 - a module of the user's, which was imported before
        # Some are made within other statements, such as `try`.
        variables.update((key, value) for key, value in before.items() if is_a(value, *NO_STATE))
        of_variables = {*map(id, variables.values())}
        for key, value in before.items():
            if value is not variables.get(key):
                _keep_definitions(value, variables.get(key), of_variables)


@contextmanager
def _silent(variables: dict[str, Any]) -> Iterator[None]:
    """Context in which code of a module does not print what it has printed when it was imported, unless its `print` is one of its own.

    Not by another `sys.stdout`, which all ranks share: they take turns where a module makes a communicator.
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
    """Have a container that was made again hold what decorators of definitions, which do not run again, have put into the one before."""
    if type(before) is not type(now):
        return
    if is_a(now, dict):
        for key, value in before.items():
            if is_a(value, *NO_STATE):
                now.setdefault(key, value)
    elif is_a(now, list, set):
        held = {*map(id, now)}
        # Not what code of the module has made anew, such as a lambda in a list.
        kept = [
            each
            for each in before
            if is_a(each, *NO_STATE) and id(each) in of_variables and id(each) not in held
        ]
        now.extend(kept) if is_a(now, list) else now.update(kept)


def uses_comm_world(name: str) -> bool:
    """Return True for a module that has been imported and whose code outside functions and classes speaks of COMM_WORLD."""
    file = _file(name)
    return bool(file) and _speaks_of_comm_world(file)


def after_imports(names: Iterable[str], are_followed: Callable[[str], bool]) -> tuple[str, ...]:
    """Some modules and those that they import, and so on, each after what it imports; but for those that are not followed."""
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
    """The modules that the code of a module outside functions and classes imports, or imports something of."""
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
            yield from (f"{origin}.{each.name}" for each in node.names)  # which may be modules

    return tuple(dict.fromkeys(name for node in ast.walk(_statements(file)) for name in names(node)))


def _file(name: str) -> str:
    """The file of a module's source; empty for one that has none any more, and for a script, which would begin to check anew."""
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
    """The statements of a module that are no definitions."""
    tree = ast.parse(Path(file).read_bytes(), file)
    tree.body = [statement for statement in tree.body if not isinstance(statement, _DEFINITIONS)]
    return tree
