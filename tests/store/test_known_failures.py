"""A list of known failures: what it lists does not fail the run, what is mended does."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from adjointlab.cli.main import main
from adjointlab.store.known_failures import BadList, read
from tests.running import SAMPLES, run

LIST = """
# until the ring is closed
WrongShift adjoint         # issue 17
tests/test_it.py::test_one[a b #1]
tests/test_it.py::TestAll::test_two  # issue 18, and # 19
tests/test_it.py::test_one[a#1]
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "known.txt"
    path.write_text(text)
    return path


def test_lines_are_checks_of_subjects_or_tests_with_their_reasons(tmp_path: Path) -> None:
    path = written(tmp_path, LIST)
    known = read(path)

    assert str(known.of_check("WrongShift", "adjoint")) == f"issue 17 ({path}:3)"
    assert known.of_check("WrongShift", "purity") is None
    assert known.of_check("Other", "adjoint") is None
    assert known.of_test("tests/test_it.py::TestAll::test_two[x]") is known.of_test(
        "tests/test_it.py::TestAll::test_two"
    )
    assert known.of_test("tests/test_it.py::test_one") is None
    assert str(known.of_test("tests/test_it.py::test_one[a#1]")) == f"the list gives no reason ({path}:6)"
    assert str(known.of_test("tests/test_it.py::TestAll::test_two")) == f"issue 18, and # 19 ({path}:5)"


def test_a_line_that_nothing_matches_is_unused(tmp_path: Path) -> None:
    known = read(written(tmp_path, "A adjoint\nB matrix\nt.py::one\nt.py::two[a]\nt.py::three\n"))

    def unused(pairs: set[tuple[str, str]], nodeids: set[str] | None = None) -> list[str]:
        return [each.position.rpartition(":")[2] for each in known.unused(pairs, nodeids)]

    assert unused({("A", "adjoint")}) == ["2"]
    # A line without parameters stands for the test with any of them.
    assert unused({("A", "adjoint"), ("B", "matrix")}, {"t.py::one[x]", "t.py::two[a]"}) == ["5"]
    assert unused({("B", "matrix")}, {"t.py::three", "t.py::two[b]"}) == ["1", "3", "4"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "WrongShift\n",
            r"known.txt:1: 'WrongShift' cannot be read as a known failure; a line is a subject and a check",
        ),
        ("\nWrongShift adjiont\n", r"known.txt:2: check: 'adjiont' is not one of adjoint, matrix"),
        ("a adjoint\na adjoint # again\n", r"known.txt:2: a adjoint is already listed at .*known.txt:1$"),
        ("a b c # d\n", r"known.txt:1: check: 'c' is not one of adjoint, matrix"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BadList, match=message):
        read(written(tmp_path, text))


def test_the_name_of_a_subject_may_have_spaces(tmp_path: Path) -> None:
    known = read(written(tmp_path, "cropped halo adjoint # issue 3\n"))
    assert known.of_check("cropped halo", "adjoint") is not None


def test_a_mark_of_the_encoding_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    known = read(written(tmp_path, "\ufeffRingShift adjoint\r\n"))
    assert known.of_check("RingShift", "adjoint") is not None


def test_a_list_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadList, match=r"nowhere: No such file"):
        read(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("number", "told"), [(5, None), (6, "and 1 more line of"), (9, "and 4 more lines of")]
)
def test_of_many_failures_that_were_not_checked_five_are_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: int,
    told: str | None,
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "\n".join(f"Absent{each} adjoint" for each in range(number)))
    with pytest.raises(SystemExit):
        main(["check", f"{SAMPLES}:right", "--xfails", "known.txt", "--check", "adjoint", "--cases", "3"])
    printed = capsys.readouterr().out
    assert printed.count("lists a failure of something that was not checked") == 5
    assert (told is None) == ("more line" not in printed)
    assert told is None or told in printed


@pytest.mark.parametrize(
    ("subject", "lines", "code", "told"),
    [
        ("wrong", "WrongShift adjoint # issue 17", 0, "fails as expected"),
        ("wrong", "WrongShift purity", 1, "adjoint is not the transpose of forward"),
        ("right", "RingShift adjoint", 1, "is coherent, although it is listed as a known failure"),
        ("right", "Absent adjoint", 0, "known.txt:1: lists a failure of something that was not checked"),
        ("right", "RingShift adjoin", 2, "'adjoin' is not one of"),
    ],
)
def test_a_known_failure_does_not_fail_the_run_and_a_mended_one_does(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    subject: str,
    lines: str,
    code: int,
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, lines)
    options = ["--check", "adjoint", "--cases", "20", "--ranks", "3", "--json", "verdicts.json"]
    with pytest.raises(SystemExit) as end:
        main(["check", f"{SAMPLES}:{subject}", "--xfails", "known.txt", *options])
    printed = capsys.readouterr()

    assert end.value.code == code
    assert told in printed.out + printed.err
    if code != 2:
        assert json.loads(Path("verdicts.json").read_text())["exit_code"] == code


def test_a_pass_on_too_few_ranks_says_nothing_of_a_known_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "WrongShift adjoint\n")
    told = []
    for ranks in ("3", "1"):
        with pytest.raises(SystemExit) as end:
            main(
                ["check", f"{SAMPLES}:wrong", "--check", "adjoint", "--ranks", ranks, "--xfails", "known.txt"]
            )
        told.append((end.value.code, "".join(capfd.readouterr())))
    (failing, _), (passing, text) = told
    assert (failing, passing) == (0, 0)
    assert "1 of 1 check judged, 1 coherent" in text
    assert "a failure of WrongShift (adjoint) is not replayed: it needs 2 ranks, and this run has 1" in text


TESTS = """
import adjointlab as al
from tests import samples

TestWrong = al.coherence_tests(samples.wrong, checks=["adjoint", "purity"])
TestRight = al.coherence_tests(samples.right, checks=["purity"])


def test_wrong():
    assert False


def test_right():
    pass
"""


def test_pytest_knows_the_same_list(tmp_path: Path) -> None:
    (tmp_path / "test_all.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nadjointlab_xfails = known.txt\nadjointlab_cases = 20\n")
    options = ("pytest", "-q", "-rxX", "-p", "no:cacheprovider")

    gone = "WrongShift linearity\ntest_all.py::test_wrong[1]\n"
    written(tmp_path, "WrongShift adjoint # issue 17\ntest_all.py::test_wrong # issue 18\n" + gone)
    known = run(*options, cwd=tmp_path)
    assert known.returncode == 0, known.stdout
    unused = [line for line in known.stdout.splitlines() if "is not among the tests here" in line]
    assert [line.partition(": ")[0].rpartition(":")[2] for line in unused] == ["3", "4"]
    assert "3 passed, 2 xfailed" in known.stdout
    assert "issue 17 (" in known.stdout

    written(tmp_path, "RingShift purity\ntest_all.py::test_right\n")
    mended = run(*options, cwd=tmp_path)
    assert mended.returncode == 1
    assert mended.stdout.count("[XPASS(strict)]") >= 2
    assert "4 failed" in mended.stdout

    written(tmp_path, "nonsense\n")
    bad = run(*options, cwd=tmp_path)
    assert bad.returncode == 4
    assert "known.txt:1: 'nonsense' cannot be read as a known failure" in bad.stderr + bad.stdout


@pytest.mark.skipif(find_spec("xdist") is None, reason="needs pytest-xdist")
def test_lines_that_match_no_test_are_named_with_xdist_too(tmp_path: Path) -> None:
    (tmp_path / "test_all.py").write_text("def test_right():\n    pass\n")
    written(tmp_path, "WrongShift linearity\n")
    options = ("-q", "-p", "no:cacheprovider", "--adjointlab-xfails=known.txt")
    ended = run("pytest", *options, "-n", "1", cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout
    unused = [line for line in ended.stdout.splitlines() if "is not among the tests here" in line]
    assert len(unused) == 1
    assert "known.txt:1: " in unused[0]
