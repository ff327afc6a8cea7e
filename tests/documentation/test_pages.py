"""Every code block of the README and of the documentation runs, and prints what the page shows."""

from __future__ import annotations

import ast
import linecache
import re
import runpy
import shlex
import sys
import types
from importlib.util import find_spec
from pathlib import Path

import pytest

from adjointlab.checks.check import checks_of
from adjointlab.cli.main import main
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.engine.subject import Subject
from adjointlab.worlds.simulated.world import SimulatedWorld
from tests.documentation.blocks import Block, blocks
from tests.running import LAUNCHER, ROOT, run

pytestmark = [
    pytest.mark.mpi_skip,
    pytest.mark.filterwarnings("default"),
]  # a reader's Python shows warnings, and goes on

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES_THAT_RUN = [page for page in PAGES if any(block.is_run for block in blocks(page))]
DEFINITIONS = (ast.FunctionDef, ast.ClassDef)
LANGUAGES = {"python", "console", "sh", "text", "yaml", "toml", "json", "bash"}

VARYING = [
    (re.compile(r"-[0-9a-f]{4}\.(json|py)"), r"-xxxx.\1"),
    (re.compile(r"in \d+(\.\d+)? s\b"), "in N s"),
    (re.compile(r"\bpassed in .*"), "passed"),
    (re.compile(r"--seed \d+"), "--seed N"),
    (re.compile(r"floating error \S+"), "floating error N"),
    (re.compile(r"-{3,}|={3,}"), ""),
    (re.compile(r"[ \t]+"), " "),
]
"""Seeds, times and spaces, which may differ from run to run."""


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_each_block_has_a_language_and_is_run_or_says_why_not(page: Path) -> None:
    unknown = [f"{name_of(page)}:{block.line}" for block in blocks(page) if block.language not in LANGUAGES]
    assert unknown == [], "give each block a language: " + ", ".join(sorted(LANGUAGES))
    silent = [
        f"{name_of(page)}:{block.line}"
        for block in blocks(page)
        if block.language in ("sh", "bash") and not block.mark
    ]
    assert silent == [], "write a console, whose commands run, or <!-- not run: why --> before the block"


@pytest.mark.parametrize("page", PAGES_THAT_RUN, ids=name_of)
def test_the_blocks_of_a_page_run(page: Path, reader: Reader) -> None:
    for block in blocks(page):
        if block.is_run and reader.has(block):
            reader.follow(block)
    reader.check_subjects()


class Reader:
    """Someone who does what a page says, from top to bottom, in one folder."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capture = folder, capture
        self.module = types.ModuleType("page")
        self.file = folder / "page.py"
        self.file.write_text("")
        self.module.__file__ = str(self.file)

    def has(self, block: Block) -> bool:
        """Tells whether this environment has the module that the block needs."""
        return not block.mark.startswith("needs ") or find_spec(block.mark.removeprefix("needs ")) is not None

    def follow(self, block: Block) -> None:
        """Save, execute or type one block."""
        if block.language == "console":
            for command, shown in block.commands:
                self.type_in(command, shown)
        elif block.title:
            file = self.folder / block.title
            file.write_text(replaced(file.read_text(), block.text) if file.exists() else block.text)
        else:
            before = self.file.read_text()
            self.file.write_text(before + block.text)  # `inspect` and tracebacks read it there
            code = compile("\n" * before.count("\n") + block.text, str(self.file), "exec")
            exec(code, vars(self.module))  # noqa: S102

    def type_in(self, line: str, shown: str) -> None:
        """Run a command, and compare its exit code and output with those that the page shows."""
        command, _, remark = line.partition("#")
        expected = int(found[1]) if (found := re.search(r"exits with (\d+)", remark)) else 0
        code, output = self.result_of(shlex.split(command))
        assert code == expected, f"{command}: exit code {code}, not {expected}\n{output}"
        assert matches(shown, output), f"{command}: the page shows\n{shown}\nand it printed\n{output}"

    def result_of(self, words: list[str]) -> tuple[object, str]:
        """Exit code and output of a command: in this process where it can be, which is faster."""
        if words[0] == "adjointlab" and words[1] != "run":
            with pytest.raises(SystemExit) as end:
                main(words[1:])
            printed = self.capture.readouterr()
            self.forget_files()
            return end.value.code, printed.out + printed.err
        if words[0] == "python" and words[1] != "-m":
            runpy.run_path(words[1], run_name="__main__")
            return 0, self.capture.readouterr().out
        ranks = 0
        if words[0] == "mpiexec":
            ranks, words = int(words[2]), words[3:]
            if LAUNCHER is None:
                pytest.skip("needs mpiexec: install the extra `mpi`")
        words = words[2:] if words[:2] == ["python", "-m"] else words
        assert words[0] in ("adjointlab", "pytest"), f"{words[0]} is no command that is run here"
        ended = run(*words, ranks=ranks, cwd=self.folder)
        return ended.returncode, ended.stdout + ended.stderr

    def forget_files(self) -> None:
        """Drop the modules of the page's files, which a next command reads anew."""
        for name, module in list(sys.modules.items()):
            if (
                str(getattr(module, "__file__", "")).startswith(f"{self.folder}/")
                and module is not self.module
            ):
                del sys.modules[name]
        linecache.checkcache()

    def check_subjects(self) -> None:
        """Run two cases of each subject that the page itself declares."""
        subjects = {name: value for name, value in vars(self.module).items() if isinstance(value, Subject)}
        if not subjects:
            return
        with_two = Budget(2, ranks=2, seed=1)
        world = SimulatedWorld(2)
        try:
            for name, subject in subjects.items():
                verdict = investigate(world, subject, checks_of(subject)[0], with_two).verdict
                assert verdict.is_coherent, f"{name}: {verdict}"
        finally:
            world.close()


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Reader:
    """Someone in an empty folder but for the examples."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(
        sys, "dont_write_bytecode", True
    )  # a file that is replaced within a second would not be read
    monkeypatch.setattr(sys, "path", [*sys.path])
    one = Reader(tmp_path, capsys)
    monkeypatch.setitem(sys.modules, "page", one.module)
    return one


def replaced(old: str, new: str) -> str:
    """A file of Python in which the definitions of `new` stand in the place of those of the same names, or at the end."""
    lines = old.splitlines(keepends=True)
    names = {node.name for node in ast.parse(new).body if isinstance(node, DEFINITIONS)}
    first = len(lines)
    for node in reversed(ast.parse(old).body):
        if isinstance(node, DEFINITIONS) and node.name in names:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)]) - 1
            del lines[first : node.end_lineno]
    return "".join([*lines[:first], "\n", new, "\n", *lines[first:]])


def matches(shown: str, output: str) -> bool:
    """Tells whether lines of `output` begin with those of `shown`, in this order, up to what varies; others may stand between."""
    lines = iter(
        [plain(line) for line in output.splitlines()]
    )  # each search goes on where the last one ended
    wanted = (plain(line) for line in shown.splitlines() if line.strip() not in ("", "..."))
    return all(any(line.startswith(each) for line in lines) for each in wanted)


def plain(line: str) -> str:
    for pattern, replacement in VARYING:
        line = pattern.sub(replacement, line)
    return line.strip()


@pytest.mark.parametrize(
    ("shown", "is_so"),
    [
        ("adjoint  coherent\n", True),
        ("adjoint  incoherent\n", False),
        ("6 checks in 4.1 s\n...\nadjoint coherent\n", True),
        ("adjoint coherent\n6 checks in 1 s\n", False),
        ("7 checks in 4.1 s\n", False),
    ],
)
def test_an_output_is_compared_up_to_times_and_in_order(shown: str, is_so: bool) -> None:
    assert matches(shown, "6 checks in 2.5 s\n\nadjoint coherent\nend\n") is is_so


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```python\n1 / 0\n```\n", "division by zero"),
        ("```console\n$ adjointlab list --unknown\n```\n", "exit code 2, not 0"),
        ("```console\n$ adjointlab --version\nadjointlab 0.0\n```\n", "the page shows"),
    ],
)
def test_a_page_that_is_wrong_is_found(text: str, message: str, tmp_path: Path, reader: Reader) -> None:
    page = tmp_path / "wrong.md"
    page.write_text(text)
    (block,) = blocks(page)
    with pytest.raises((AssertionError, ZeroDivisionError), match=message):
        reader.follow(block)
