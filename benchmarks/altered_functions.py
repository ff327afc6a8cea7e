"""Runs tests against mutants of function bodies without copying the package: the altered code replaces that of the function.

One process imports the lab and collects the tests, once. For each mutant it forks a child, which gives the altered functions their new
code and runs the tests of the mutant. So a mutant costs its tests alone. What lies outside of functions (constants, decorators,
defaults) has been evaluated by then; and processes that tests start import the lab as it is. For these there are :mod:`altered copies
<benchmarks.altered_copies>`.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FunctionType

import pytest

from benchmarks.altered_copies import preload
from benchmarks.closest_tests import ROOT
from benchmarks.forked_tests import FINDER, Mutant, Outcome, Runs, confirmed, forked

__all__ = ["altered_functions", "run_all"]

_NEW_LOCALS = 0x0002
"""Flag set in the code of functions but not of class bodies."""


def altered_functions(before: str, after: str, file: str) -> list[tuple[CodeType, CodeType]] | None:
    """Return the outermost functions whose code differs between two versions of a file, as pairs of old and new code.

    None if anything else differs: code that runs when the file is imported, or the variables that a function closes over.
    """
    return _differing(compile(before, file, "exec"), compile(after, file, "exec"))


def _differing(before: CodeType, after: CodeType) -> list[tuple[CodeType, CodeType]] | None:
    if (before.co_code, before.co_names) != (after.co_code, after.co_names):
        return None
    if len(before.co_consts) != len(after.co_consts):
        return None
    found: list[tuple[CodeType, CodeType]] = []
    for old, new in zip(before.co_consts, after.co_consts, strict=True):
        if not isinstance(old, CodeType) or not isinstance(new, CodeType):
            if (type(old), repr(old)) != (type(new), repr(new)):
                return None
        elif _is_same(old, new):
            continue
        elif not old.co_flags & _NEW_LOCALS:
            inside = _differing(old, new)
            if inside is None:
                return None
            found += inside
        elif old.co_freevars != new.co_freevars or _place(old) != _place(new):
            return None
        else:
            found.append((old, new))
    return found


def _is_same(one: CodeType, other: CodeType) -> bool:
    """Compare code objects, ignoring the source positions of their instructions."""
    plain = [code.replace(co_linetable=b"", co_consts=()) for code in (one, other)]
    return plain[0] == plain[1] and all(
        _is_same(mine, theirs)
        if isinstance(mine, CodeType) and isinstance(theirs, CodeType)
        else (type(mine), repr(mine)) == (type(theirs), repr(theirs))
        for mine, theirs in zip(one.co_consts, other.co_consts, strict=True)
    )


def _place(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def run_all(mutants: Sequence[Mutant], jobs: int) -> Iterator[Outcome]:
    """Run the tests that each mutant names, `jobs` mutants at a time; yield outcomes as they end. Mutants must differ in functions only.

    Tests named only by their file, and tests that are collected only with ``--with-mpi``, do not run. Raises `RuntimeError` as
    :func:`benchmarks.altered_copies.run_all` does, and where the tests cannot be collected.
    """
    preload()
    ours, theirs = multiprocessing.Pipe(duplex=False)
    sys.stdout.flush()
    process = os.fork()
    if not process:
        try:
            ours.close()
            _collect_and_run(mutants, jobs, theirs)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    theirs.close()
    try:
        while (outcome := ours.recv()) is not None:
            yield outcome
    except EOFError:
        raise RuntimeError("the tests could not be collected, or their process has ended") from None
    finally:
        os.waitpid(process, 0)


def _collect_and_run(mutants: Sequence[Mutant], jobs: int, results: Connection) -> None:
    os.environ |= {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    sys.dont_write_bytecode = True
    tests = (test for mutant in mutants for stage in mutant.stages for test in stage)
    files = dict.fromkeys(str(ROOT / test.split("::")[0]) for test in tests)
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", str(ROOT)]
    options += [
        "-W",
        "ignore::pytest.PytestAssertRewriteWarning",
        "--adjointlab-cases=10",
        "--adjointlab-seed=1",
    ]
    plugin = _Running(lambda session: _run(session, mutants, jobs, results))
    with tempfile.TemporaryFile() as output:
        terminal = os.dup(2)
        for standard in (1, 2):
            os.dup2(output.fileno(), standard)
        code = pytest.main([*options, *files], plugins=[plugin])
        if not plugin.has_run:
            output.seek(0)
            os.write(terminal, f"pytest ended with {code}:\n".encode() + output.read()[-2000:])


class _Running:
    """A pytest plugin that calls a function instead of running the collected tests."""

    def __init__(self, instead: Callable[[pytest.Session], None]) -> None:
        self.instead = instead
        self.has_run = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.instead(session)
        self.has_run = True
        return True


def _run(session: pytest.Session, mutants: Sequence[Mutant], jobs: int, results: Connection) -> None:
    items = {item.nodeid: item for item in session.items}
    files = {mutant.file for mutant in mutants}
    originals = {file: (ROOT / file).read_text(encoding="utf-8") for file in files}
    functions = _functions_of(files)

    def prepare(mutant: Mutant, folder: Path) -> None:
        shutil.rmtree(folder)
        _link_everything(folder)

    def run(mutant: Mutant, folder: Path) -> int:
        pairs = altered_functions(originals[mutant.file], mutant.text, str(ROOT / mutant.file))
        assert pairs is not None
        for old, new in pairs:
            for function in functions[mutant.file]:
                if _place(function.__code__) == _place(old):
                    function.__code__ = new
        os.chdir(folder)
        chosen = [items[test] for test in forked(mutant) if test in items]
        return _run_items(session, chosen, folder)

    def tidy(mutant: Mutant, folder: Path) -> None:
        del mutant, folder

    with tempfile.TemporaryDirectory() as folder:
        folders = [Path(folder) / f"job-{number}" for number in range(jobs)]
        for each in folders:
            each.mkdir()
        for outcome in confirmed(list(mutants)[::-1], Runs(folders, prepare, run, tidy)):
            results.send(outcome)
    results.send(None)


def _functions_of(files: set[str]) -> dict[str, list[FunctionType]]:
    for file in files:
        import_module(file.removesuffix(".py").replace("/", ".").removesuffix(".__init__"))
    found: dict[str, list[FunctionType]] = {file: [] for file in files}
    names = {str(ROOT / file): file for file in files}
    for each in gc.get_objects():
        if type(each) is FunctionType and each.__code__.co_filename in names:
            found[names[each.__code__.co_filename]].append(each)
    return found


def _link_everything(folder: Path) -> None:
    """Make a working directory with links to everything in the repository except stored failures."""
    folder.mkdir()
    for each in ROOT.iterdir():
        if each.name not in (".adjointlab", ".git"):
            (folder / each.name).symlink_to(each)


def _run_items(session: pytest.Session, items: Sequence[pytest.Item], folder: Path) -> int:
    """Run collected tests until one fails, and write down its name."""
    temporary = folder / "temporary"
    temporary.mkdir()
    session.config._tmp_path_factory._basetemp = temporary  # type: ignore[attr-defined]  # made for each session, and this one is forked
    failed = _Failed()
    session.config.pluginmanager.register(failed)
    session.items = list(items)
    for item, following in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if failed.names:
            (folder / FINDER).write_text(failed.names[0], encoding="utf-8")
            return int(pytest.ExitCode.TESTS_FAILED)
        session.shouldfail = session.shouldstop = False
    return int(pytest.ExitCode.OK)


class _Failed:
    """A pytest plugin that collects the names of failing tests."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.names.append(report.nodeid)
