"""``adjointlab demo``: a right operator, a wrong one, and the report on each."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from adjointlab.cli.output import Output
from adjointlab.cli.parameters import Colour
from adjointlab.cli.startup import UsageError, opened_world
from adjointlab.exit_codes import ExitCode
from adjointlab.spelling import from_here
from adjointlab.worlds.launch import is_launched

if TYPE_CHECKING:
    from adjointlab.check_result import CheckResult
    from adjointlab.engine.discovery import Found
    from adjointlab.worlds.world import World

__all__ = ["demo"]

_CASES: Final = 30
_CHECKS: Final = ("adjoint", "matrix")
_SEED: Final = 1
_MODULE: Final = "adjointlab.demonstration"


def demo(
    folder: Annotated[
        Path, typer.Option(help="Folder in which the failure is stored.", show_default=True)
    ] = Path(".adjointlab"),
    _color: Colour = "auto",
) -> int:
    """Show what a check says about a right operator and a wrong one. This takes a few seconds."""
    from adjointlab.demonstration import RightShift, WrongShift
    from adjointlab.engine.discovery import find

    if is_launched():
        raise UsageError("demo shows simulated ranks; run it without a launcher")

    def prepare() -> list[Found]:
        return find([f"{_MODULE}:right", f"{_MODULE}:wrong"])

    out = Output()
    with opened_world(prepare, None) as (world, (right, wrong)):
        out.line("A vector lies on a ring of ranks, and every rank sends its cells to the next one.\n")
        out.line(_source(RightShift.forward, RightShift.adjoint))
        out.line("Is `adjoint` the adjoint of `forward`, on any number of ranks?\n")
        _print(out, [_result(world, right, check, folder) for check in _CHECKS])
        out.line("\nNow with a sign forgotten:\n")
        out.line(_source(WrongShift.adjoint))
        out.line(
            "On two ranks the neighbour to the left is the one to the right, so a test on two ranks passes:\n"
        )
        out.line(f"    two ranks: <Fx, y> = <x, F*y> is {_dot_test_on_two_ranks(world)}\n")
        out.line(f"Of {_CASES} drawn cases some have other numbers of ranks:\n")
        failure = _result(world, wrong, _CHECKS[0], folder)
        _print(out, [failure])
        out.line("\n".join(_next_steps(failure)))
    return ExitCode.COHERENT


def _result(world: World, found: Found, check: str, folder: Path) -> CheckResult:
    from adjointlab.engine.search_result import Budget
    from adjointlab.session import run_check

    return run_check(world, found, check, Budget(_CASES, seed=_SEED), folder)


def _print(out: Output, results: list[CheckResult]) -> None:
    from adjointlab.report.failure_picture import terminal_drawing
    from adjointlab.report.failure_text import failure_text
    from adjointlab.report.tables import VerdictRows

    rows = VerdictRows.of([(each.subject, each.result.check) for each in results], _CASES)
    for result in results:
        if result.is_reported:
            out.line(textwrap.indent(failure_text(result), "    ") + "\n")
            out.drawing(terminal_drawing(result), indent=4)
            out.line()
    out.table(rows.heading(), wraps=False)
    for number, result in enumerate(results, 1):
        out.table(rows.row(number, result), wraps=False)


def _dot_test_on_two_ranks(world: World) -> str:
    """Run the usual dot test, with a random x and y on two ranks; return "true" if it passes, else "false"."""
    from adjointlab.demonstration import WrongShift
    from adjointlab.engine.dot_test import check_adjoint
    from adjointlab.worlds.run import Returned
    from adjointlab.worlds.world import RankContext

    def body(context: RankContext, payload: object) -> bool:
        assert context.comm is not None
        try:
            return check_adjoint(WrongShift(context.comm, cells=2)).is_coherent
        except AssertionError:
            return False

    outcomes = world.run(body, None, 2).outcomes
    return "true" if all(isinstance(each, Returned) and each.value is True for each in outcomes) else "false"


def _source(*functions: Callable[..., object]) -> str:
    """Return the source of methods without docstrings and type annotations."""
    return "\n\n".join("\n".join(_lines(function)) for function in functions) + "\n"


def _lines(function: Callable[..., object]) -> Iterator[str]:
    for line in textwrap.dedent(inspect.getsource(function)).splitlines():
        if '"""' not in line:
            yield "    " + line.partition("  #")[0].replace(": NumpyArray", "").replace(" -> NumpyArray", "")


def _next_steps(failure: CheckResult) -> Iterator[str]:
    import adjointlab.demonstration
    from adjointlab.report.failure_text import replay_command

    yield "\nWhat to do next"
    if failure.written is not None:
        yield f"  see it again      {replay_command(failure)}"
    yield f"  read the code     {from_here(Path(adjointlab.demonstration.__file__))}"
    yield "  check your own    adjointlab check my_file.py       (README: Your own code)"
    yield "  check all         adjointlab check"
