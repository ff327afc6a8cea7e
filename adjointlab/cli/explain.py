"""``adjointlab explain``: an operator's program in the notation of the literature, and as a picture."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from adjointlab.cli.output import Output, write_text
from adjointlab.cli.result_files import target
from adjointlab.cli.startup import or_usage_error
from adjointlab.exit_codes import ExitCode
from adjointlab.worlds.launch import launched_rank

__all__ = ["explain"]

_MOST_RANKS: Final = 64
"""A picture of more ranks would not be readable."""


def explain(
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help="The subject, as for check.")],
    ranks: Annotated[
        int, typer.Option(min=1, max=_MOST_RANKS, help="Number of ranks in the small case.")
    ] = 2,
    html: Annotated[
        str | None, typer.Option("--html", metavar="FILE", help="Write both with pictures as one HTML page.")
    ] = None,
) -> int:
    """Print an operator's program and adjoint in the papers' notation. The case is a small one."""
    if launched_rank():
        return ExitCode.COHERENT  # rank 0 prints
    from adjointlab.engine.discovery import find
    from adjointlab.engine.explain import explained

    html_to = None if html is None else target("--html", html)
    subjects = or_usage_error(lambda: [found.subject for found in find([subject])])
    explanations = or_usage_error(
        lambda: [(each.label, *explained(each, ranks)) for each in subjects], doing="explaining the subject"
    )
    Output().line("\n\n".join(text for _, text, _ in explanations))
    if html_to is not None:
        from adjointlab.report.html_explanation import html_explanation

        if problem := write_text(html_to, html_explanation(explanations)):
            Output(to_stderr=True).line(f"adjointlab: --html: {problem}")
            return ExitCode.UNJUDGED
    return ExitCode.COHERENT
