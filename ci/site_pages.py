"""Pages of the site that are generated from the code: the reference, from `__all__` and docstrings, and the examples.

mkdocs calls the functions ``on_...`` while it builds (``hooks`` in ``mkdocs.yml``).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from typer.main import get_command
from typer.testing import CliRunner

from adjointlab.cli.main import app

ROOT = Path(__file__).resolve().parent.parent
BASES = {"adjointlab.primitives": "LinearOperator"}
"""For a package without `__all__`, the base class of the classes that belong in the reference."""

WITH_PAGES = {"MPI", "strategies"}
"""Names of the package that are modules, each with a separate page."""

REFERENCE = re.compile(r"^<!-- reference: ([\w.]+) -->$", re.MULTILINE)
ROLE = re.compile(r":(?:attr|class|func|meth|mod):(?=<code>)")
COMMANDS = "<!-- commands -->"
IN_A_CHECKOUT = re.compile(r"^<!-- checkout -->\n.*?^<!-- end -->\n", re.MULTILINE | re.DOTALL)
"""Text that only a reader of the file in a checkout needs, because the site includes what it refers to."""

TO_EXAMPLE = re.compile(r"\]\((?:\.\./)+(examples/[\w/.]+\.(?:py|txt))\)")
TO_ROOT = re.compile(r"\[([^]]+)\]\((?:\.\./)+((?:CONTRIBUTING|README|CHANGELOG)\.md|[\w/]+/?)(?:#[\w-]+)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Adds a page for each example."""
    for path in sorted((ROOT / "examples").rglob("*")):
        if path.suffix not in (".py", ".txt"):
            continue
        name = path.relative_to(ROOT).as_posix()
        language = "python" if path.suffix == ".py" else "text"
        content = f"# {path.name}\n\n````{language}\n{path.read_text(encoding='utf-8')}````\n"
        files.append(File.generated(config, page_of(name), content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fills in the reference, and redirects links to files of the repository to their pages."""
    above = "../" * page.file.src_uri.count("/")
    markdown = IN_A_CHECKOUT.sub("", markdown)
    markdown = REFERENCE.sub(lambda found: directives(found[1]), markdown)
    markdown = markdown.replace(COMMANDS, "\n\n".join(command_help()) if COMMANDS in markdown else "")
    markdown = TO_EXAMPLE.sub(lambda found: f"]({above}{page_of(found[1])})", markdown)
    return TO_ROOT.sub(lambda found: found[1], markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Removes reStructuredText roles from docstrings, because Markdown would print them."""
    return ROLE.sub("", html)


def page_of(example: str) -> str:
    """Returns the page of an example, such as ``examples/ring_shift.py``."""
    return example.rpartition(".")[0] + ".md"


def directives(package: str) -> str:
    """Returns an mkdocstrings directive for each public name of a package."""
    return "\n\n".join(f"::: {path}" for path in public_names(package))


def public_names(package: str) -> Iterator[str]:
    """Yields the names in the `__all__` of a package or module, else its classes that derive from its entry in `BASES`."""
    path = ROOT.joinpath(*package.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    listed = exported(ast.parse(file.read_text(encoding="utf-8")))
    if listed:
        yield from (f"{package}.{name}" for name in listed if name not in WITH_PAGES)
        return
    classes = {}
    for module in sorted(path.rglob("*.py")):
        if "subjects" in module.parts:
            continue
        dotted = ".".join(module.relative_to(ROOT).with_suffix("").parts)
        for node in ast.parse(module.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                classes[node.name] = (dotted, [ast.unparse(base).partition("[")[0] for base in node.bases])
    for name, (module, _) in classes.items():
        if not name.startswith("_") and derives(name, BASES[package], classes):
            yield f"{module}.{name}"


def exported(tree: ast.Module) -> list[str]:
    """Returns the value of `__all__` in a module; empty if it has none."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def derives(name: str, base: str, classes: Mapping[str, tuple[str, list[str]]]) -> bool:
    """Returns True if a class of `classes` derives from `base`, directly or not; `base` may be a class of another package."""
    if name == base:
        return True
    return name in classes and any(derives(parent, base, classes) for parent in classes[name][1])


def command_help() -> Iterator[str]:
    """Yields the help of each command, as ``adjointlab COMMAND --help`` prints it."""
    for name in vars(get_command(app))["commands"]:
        printed = CliRunner().invoke(app, [name, "--help"], prog_name="adjointlab", terminal_width=100)
        yield f"## adjointlab {name}\n\n```text\n{printed.output.strip()}\n```"
