"""Files that were changed, damaged or made up: they are read or refused, run no code, and cause no traceback."""

from __future__ import annotations

import codecs
import json
from contextlib import redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adjointlab.checks.check import Spaces, all_checks
from adjointlab.checks.context import InputSetting
from adjointlab.checks.verdict import Status, Verdict
from adjointlab.cli.main import exit_code_of
from adjointlab.cli.replay import replayed
from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.core.space import Space
from adjointlab.engine.case import Case
from adjointlab.engine.search_result import SearchResult
from adjointlab.exit_codes import ExitCode
from adjointlab.report.summary import exit_code
from adjointlab.store import running_case
from adjointlab.store.job_log import Death, Done, JobLog
from adjointlab.store.known_failures import BadList, KnownFailures
from adjointlab.store.known_failures import read as read_known
from adjointlab.store.reproducer import BadReproducer, Reproducer, Written, read, write_case
from adjointlab.store.running_case import EndedBy, Progress, Running, write_end
from adjointlab.worlds.world import WorldName
from tests.fuzzing import HOSTILE, changed_bytes, many, mutations, no_code_runs
from tests.running import SAMPLES

pytestmark = pytest.mark.mpi_skip

all_checks()  # imported when they are first asked for
codecs.lookup("utf-8-sig")  # as is Python's module of an encoding

LAYOUT = Layout((4,), Partition((2,)))
CASE = Case("RingShift", "adjoint", 2, {"layout": LAYOUT}, InputSetting(), 0)
VERDICT = Verdict(Status.UNJUDGED, "deadlock", "deadlock", (("rank 0", "waits"),))

STORED = """{"schema": 1, "location": "samples:right", "world": "simulated", "kind": "deadlock", "headline": "deadlock",
"lines": [["rank 0", "waits"]], "case": {"subject": "RingShift", "check": "adjoint", "ranks": 2, "parameters": {"layout":
{"$type": "layout", "shape": [4], "partition": {"$type": "partition", "shape": [2], "ranks": [0, 1]},
"windows": [[[0, 2], [2, 4]]], "axes": [0]}}, "setting": {"seed": 5, "library": "numpy", "primal_order": "row-major",
"dual_order": "row-major"}, "schedule": 7}}"""


def test_the_file_that_is_mutated_is_one_that_the_lab_writes(tmp_path: Path) -> None:
    path = tmp_path / "stored.json"
    path.write_text(STORED)
    entry = read(path)
    again = write_case(entry.case, entry.location, entry.world, VERDICT, tmp_path / "again")
    assert json.loads(again.read_text()) == json.loads(STORED)


@many(60)
@given(content=mutations(STORED))
def test_a_reproducer_is_read_or_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "changed.json"
    path.write_bytes(content)
    with no_code_runs(), suppress(BadReproducer):
        entry = read(path)
        assert isinstance(entry, Reproducer)
        # What is read can be stored, and is the same then.
        assert (
            msgspec.json.decode(msgspec.json.encode(entry.case.plain()), type=Case).restored() == entry.case
        )


@many(30)
@given(content=mutations(STORED))
def test_a_replay_of_any_file_ends_in_good_order(tmp_path: Path, content: bytes) -> None:
    path, said = tmp_path / "changed.json", StringIO()
    path.write_bytes(content)

    def command() -> int:
        return exit_code([replayed(path, f"{SAMPLES}:right", watchdog=10.0)[1].status])

    with redirect_stdout(StringIO()), redirect_stderr(said):
        code = exit_code_of(command)
    assert code in set(ExitCode), said.getvalue()
    assert "Traceback" not in said.getvalue(), said.getvalue()


@pytest.fixture
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader of a record that is half written waits for the whole one, which will not come here."""
    monkeypatch.setattr(running_case.time, "sleep", lambda _: None)


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("record") / "running.json"
    progress = Progress("samples.py:right", "samples:right", "adjoint", WorldName.SIMULATED, 8, 5)
    write_end(path, Running.of(progress, CASE, 3, ended=EndedBy.WATCHDOG, kind="no return"))
    return path.read_text()


@many(60)
@given(data=st.data())
@pytest.mark.usefixtures("in_a_hurry")
def test_a_record_of_the_running_case_is_read_or_there_is_none(
    tmp_path: Path, record: str, data: st.DataObject
) -> None:
    (tmp_path / running_case.NAME).write_bytes(data.draw(mutations(record)))
    with no_code_runs():
        running = running_case.read(tmp_path)
    assert running is None or isinstance(running, Running)


@pytest.fixture(scope="module")
def log_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    log = JobLog(tmp_path_factory.mktemp("log"))
    log.begin(5, 30.0)
    space = Space(LAYOUT)
    result = SearchResult("RingShift", "adjoint", "mpi", VERDICT, 1, 0, 0.0, CASE, Spaces(space, space))
    log.finish(Done("samples:right adjoint", result, Written(Path("a.json"), Path("a.py")), ""))
    log.record_death(Death("died", (("why", "so"),), {1: "it died"}, CASE.digest, "samples:right adjoint"))
    with suppress(ZeroDivisionError), log.at("samples:right adjoint", log.folder, is_leader=True):
        raise ZeroDivisionError
    assert (len(log.deaths), len(log.done), log.current.check_id) == (1, 1, "samples:right adjoint")
    return {path.name: path.read_text().strip() for path in log.folder.iterdir()}


@many(60)
@given(data=st.data())
def test_a_job_log_is_read_as_far_as_it_can_be(
    tmp_path: Path, log_files: dict[str, str], data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(log_files)))
    for each, content in log_files.items():
        (tmp_path / each).write_text(content)
    (tmp_path / name).write_bytes(data.draw(mutations(log_files[name])))
    log = JobLog(tmp_path)
    with no_code_runs():
        seen: list[Any] = [log.deaths, log.current, log.done, log.outcome("samples:right adjoint")]
        seen += [log.deadly_cases("samples:right adjoint")(CASE), log.shrinking("samples:right adjoint")]
        seen += [log.session_seed, log.seed_of("samples:right adjoint")]
    assert len(seen) == 8


KNOWN = """# until the ring is closed
WrongShift adjoint         # issue 17
tests/test_it.py::test_one[a b #1]
tests/test_it.py::TestAll::test_two  # issue 18
"""


@many(60)
@given(
    content=changed_bytes(KNOWN.encode())
    | st.lists(HOSTILE).map(lambda lines: "\n".join(lines).encode("utf-8", "surrogatepass"))
)
def test_a_list_of_known_failures_is_read_or_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "known.txt"
    path.write_bytes(content)
    with no_code_runs(), suppress(BadList):
        assert isinstance(read_known(path), KnownFailures)
