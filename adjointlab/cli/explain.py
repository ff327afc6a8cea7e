"""``adjointlab explain``: an operator's program in the notation of the literature."""

from __future__ import annotations

from typing import Annotated

import typer

from adjointlab.cli.output import Output
from adjointlab.cli.startup import or_usage_error
from adjointlab.exit_codes import ExitCode

__all__ = ["explain"]


def explain(
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help="The subject, as for check.")],
    ranks: Annotated[int, typer.Option(min=1, help="Ranks of the small case that is explained.")] = 2,
) -> int:
    """Print an operator's program and its adjoint in the papers' notation, for a small case."""
    from adjointlab.engine.discovery import find
    from adjointlab.engine.explain import explained

    texts = or_usage_error(lambda: [explained(found.subject, ranks) for found in find([subject])])
    Output().line("\n\n".join(texts))
    return ExitCode.COHERENT
