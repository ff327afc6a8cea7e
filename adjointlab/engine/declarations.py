"""A subject of any kind, declared by a strategy and the options that all kinds have."""

from __future__ import annotations

import inspect
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, Final

from hypothesis.strategies import DrawFn

from adjointlab.checks.memory_orders import ORDERS
from adjointlab.core.arrays import DeviceType
from adjointlab.core.declaration import SubjectError
from adjointlab.core.kept_strategies import choices
from adjointlab.core.layer import Layer
from adjointlab.core.operator import LinearOperator
from adjointlab.engine.adapters import Parameters, UserFunction
from adjointlab.engine.legal_arguments import require_functions
from adjointlab.engine.noted import note
from adjointlab.engine.options import Options, require_legal, require_one_place
from adjointlab.engine.parallel import ParallelRecipe
from adjointlab.engine.pipeline import PipelineRecipe
from adjointlab.engine.subject import EXAMPLE, BuildOn, Declare, DrawParameters, Kind, Subject
from adjointlab.spelling import did_you_mean

__all__ = ["declaration", "declaration_of_recipe", "perhaps_misspelt", "with_defaults"]


def _require_strategy(draws: object) -> None:
    # Other callables, such as a functools.partial, have no name for reports and scripts.
    if not callable(draws) or not hasattr(draws, "__name__"):
        raise SubjectError(f"@subject decorates a function, not {draws!r}; {EXAMPLE}")


def declaration_of_recipe(
    target: UserFunction,
    recipe: ParallelRecipe | PipelineRecipe,
    options: Options,
    own: Sequence[str],
    *,
    twice_differentiable: bool = False,
) -> Declare:
    """Declare a layer that a recipe makes from a sequential module, on the host or on a device."""

    def build_on(device_type: DeviceType) -> tuple[Callable[..., Layer], UserFunction]:
        there = replace(recipe, device_type=device_type)
        return there.build, there.twin

    options["reference"], options["process_group"] = recipe.twin, True
    return declaration(
        Kind.LAYER,
        target,
        recipe.build,
        options,
        twice_differentiable=twice_differentiable,
        takes_steps=bool(recipe.steps),
        build_on=build_on,
        own=own,
    )


def declaration(
    kind: Kind,
    target: UserFunction,
    build: Callable[..., LinearOperator | Layer],
    options: Options,
    twice_differentiable: bool = False,
    takes_steps: bool = False,
    build_on: BuildOn | None = None,
    own: Sequence[str] = (),
) -> Declare:
    """Declare what `build` makes as `target`; `own` are the options of this kind alone."""
    require_legal(options, own)
    require_functions(reference=options.get("reference"), every=options.get("every"))
    if build_on is not None:
        require_one_place(options)
    has_group = options.get("process_group", False)
    library = "torch" if has_group or kind.is_differentiated else "numpy"

    def declared(draws: DrawParameters) -> Subject:
        _require_strategy(draws)
        names = list(inspect.signature(draws).parameters)
        if len(names) != 2 or names[1] == "draw":
            raise SubjectError(f"{draws.__name__}{inspect.signature(draws)} takes (draw, ranks); {EXAMPLE}")
        name = (options.get("name") or "").strip() or str(getattr(target, "__name__", "<lambda>"))
        if name == "<lambda>":
            name = draws.__name__
        subject = Subject(
            name="".join(map(_in_a_line, name)),
            kind=kind,
            build=build,
            draws=draws,
            target=target,
            reference=options.get("reference"),
            arrays=tuple(options.get("arrays") or (library,)),
            orders=tuple(options.get("orders", ORDERS)),
            ranks=tuple(options.get("ranks", ())),
            every=options.get("every"),
            twice_differentiable=twice_differentiable,
            takes_steps=takes_steps,
            process_group=has_group,
            rank_local=tuple(options.get("rank_local", ())),
            declared_in=_module_being_imported(),
            build_on=build_on,
        )
        note(subject)
        return subject

    return declared


def _in_a_line(character: str) -> str:
    """The character, escaped if it breaks lines or has no UTF-8: names are used in files, in lines of reports and for classes."""
    is_escaped = unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")
    return character.encode("unicode_escape").decode() if is_escaped else character


def _module_being_imported() -> str:
    """The name of the module whose top-level code called this, directly or through functions; empty outside of imports."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return "" if frame is None else str(frame.f_globals.get("__name__", ""))


def with_defaults(
    draws: DrawParameters, needs: Sequence[str], *, has_mesh: bool = True, is_parallel: bool = False
) -> DrawParameters:
    """The strategy with defaults for what it does not draw: the mesh, and for a parallel module frozen parameters and the mode."""
    _require_strategy(draws)

    @wraps(draws)
    def drawn(draw: DrawFn, ranks: int) -> Parameters:
        given: Any = draws(draw, ranks)
        if not isinstance(given, Mapping):
            return given  # type: ignore[no-any-return]  # the caller raises a SubjectError for it
        if missing := [name for name in needs if name not in given]:
            raise SubjectError(
                f"{draws.__name__}: the strategy's dictionary needs `{missing[0]}`, of each input{perhaps_misspelt(missing[0], given)}"
            )
        result = {"mesh": (ranks,), **given} if has_mesh else {**given}
        if is_parallel and "frozen" not in given:
            result["frozen"] = draw(choices(_FROZEN))
        if is_parallel and not {"training", "evaluated"} & given.keys() and draw(choices(_EVALUATED)) is True:
            result["evaluated"] = True
        return result

    return drawn


_EVALUATED: Final = (*(False,) * 5, True)
"""A module is put into evaluation mode in a sixth of the cases; otherwise it keeps the mode in which it was made."""

_FROZEN: Final = (*(0,) * 200, *range(1, 201))
"""Patterns of frozen parameters: none in half of the cases, and any in the others."""


def perhaps_misspelt(name: str, given: Parameters) -> str:
    """The end of a message on a missing entry, which names a given one of a similar name; empty if there is none."""
    other = next((each for each in given if did_you_mean(str(each), [name])), None)
    return "" if other is None else f": it is perhaps what is called {other}"
