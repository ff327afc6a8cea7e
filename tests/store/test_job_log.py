"""The log of a supervised job, and the search of a job that was started again."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Iterable
from dataclasses import replace
from itertools import cycle, repeat
from pathlib import Path

import msgspec
import pytest

from adjointlab.checks.context import InputSetting
from adjointlab.checks.verdict import Status, coherent
from adjointlab.engine.case import Case
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget, SearchResult
from adjointlab.store.job_log import DeadlyCases, Death, Done, JobLog, claimed, stopped_by, supervised
from adjointlab.store.reproducer import Written
from adjointlab.variables import HOOKED, SUPERVISED
from adjointlab.worlds.run import Dead, Finding, Run
from adjointlab.worlds.simulated.world import SimulatedWorld
from adjointlab.worlds.world import Runner
from tests.running import ROOT
from tests.samples import right, wrong


@pytest.fixture
def job_log(tmp_path: Path) -> JobLog:
    job_log = JobLog(tmp_path / "job_log")
    job_log.begin(seed=5, shrinking=30.0)
    return job_log


def failing_report() -> SearchResult:
    return investigate(SimulatedWorld(3), wrong, "adjoint", Budget(20, seed=1))


def test_what_is_done_comes_back_as_it_was(job_log: JobLog, monkeypatch: pytest.MonkeyPatch) -> None:
    done = Done("here:wrong adjoint", failing_report(), Written(Path("a.json"), Path("a.py")), "")
    assert done.result.case is not None
    job_log.finish(done)
    other = Done(
        "here:right adjoint", investigate(SimulatedWorld(2), right, "adjoint", Budget(5, seed=1)), None, ""
    )
    job_log.finish(other)
    monkeypatch.setattr("adjointlab.store.job_log._own_pid", lambda: "the next job")

    assert job_log.outcome("here:wrong adjoint") == done
    assert job_log.outcome("here:right adjoint") == other
    assert job_log.outcome("here:else adjoint") is None
    assert job_log.outcome("here:zero adjoint") is None


def test_the_signal_that_ends_a_job_is_known_to_its_supervised_process_alone(
    job_log: JobLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SUPERVISED, raising=False)
    monkeypatch.delenv(HOOKED, raising=False)
    assert stopped_by() == 0

    monkeypatch.setenv(SUPERVISED, str(job_log.folder))
    monkeypatch.setenv(HOOKED, str(os.getpid()))
    assert stopped_by() == 0
    job_log.record_stop(15)
    job_log.record_stop(2)
    assert stopped_by() == job_log.stop_signal == 15

    monkeypatch.setenv(HOOKED, str(os.getpid() + 1))
    assert stopped_by() == 0


def test_a_death_comes_back_as_it_was(job_log: JobLog) -> None:
    death = Death(
        "a rank died", (("why", "so"),), {1: "it died"}, case="abc", check_id="here:it adjoint", at=7.0
    )
    job_log.record_death(death)

    assert job_log.deaths == [death]


@pytest.mark.parametrize(("ago", "least", "most"), [(0.0, 20.0, 30.0), (1000.0, 0.0, 0.0)])
def test_the_seconds_for_shrinking_count_from_the_first_death_on_and_are_not_below_none(
    job_log: JobLog, ago: float, least: float, most: float
) -> None:
    assert job_log.shrinking("here:it adjoint") == 30.0
    for at in (time.time() - ago, time.time()):
        job_log.record_death(Death("died", (), {}, case="abc", check_id="here:it adjoint", at=at))
    for other in ("here:a adjoint", "here:z adjoint"):
        job_log.record_death(Death("died", case="abc", check_id=other, at=time.time() - 2000))
    assert least <= job_log.shrinking("here:it adjoint") <= most
    assert job_log.shrinking("here:else adjoint") == 30.0


def test_a_death_without_a_case_is_one_of_its_own_check_and_one_with_a_case_is_another(
    job_log: JobLog,
) -> None:
    def died(check_id: str, case: str) -> Death:
        death = Death("a rank died", (), {}, case=case, check_id=check_id)
        job_log.record_death(death)
        return death

    died("here:it adjoint", "abc"), died("here:other adjoint", ""), died("here:a adjoint", "")
    died("here:a adjoint", "def"), died("here:other adjoint", "ghi")
    assert job_log.death_without_case("here:it adjoint") is None
    assert [death.case for death in job_log.deadly_cases("here:it adjoint").deaths] == ["abc"]
    assert [death.case for death in job_log.deadly_cases("here:other adjoint").deaths] == ["ghi"]
    death = died("here:it adjoint", "")
    assert job_log.death_without_case("here:it adjoint") == death


def test_the_check_that_the_leader_is_at_is_known_until_it_is_done(job_log: JobLog, tmp_path: Path) -> None:
    assert job_log.current == ("", None)
    with job_log.at("here:ring adjoint", tmp_path, is_leader=True):
        assert job_log.current == ("here:ring adjoint", tmp_path)
        with job_log.at("elsewhere", tmp_path, is_leader=False):
            assert job_log.current == ("here:ring adjoint", tmp_path)
        assert job_log.current == ("here:ring adjoint", tmp_path)
    assert job_log.current == ("", None)
    with pytest.raises(KeyError), job_log.at("here:ring matrix", tmp_path, is_leader=True):
        raise KeyError
    assert job_log.current == ("here:ring matrix", tmp_path)
    job_log.clear()
    assert job_log.current == ("", None)


def test_half_a_line_of_somebody_who_died_is_passed_over(job_log: JobLog) -> None:
    with (job_log.folder / "deaths.jsonl").open("w") as file:
        file.write('{"kind": "a rank d')
    job_log.record_death(Death("a rank died", check_id="here:it adjoint"))

    assert [death.kind for death in job_log.deaths] == ["a rank died"]


def test_a_case_is_the_same_after_it_was_stored() -> None:
    case = failing_report().case
    assert case is not None
    read = msgspec.json.decode(msgspec.json.encode(case.data()), type=Case).restored()

    assert read.digest == case.digest


def test_what_a_supervised_process_starts_is_not_supervised(job_log: JobLog) -> None:
    mine = {"ADJOINTLAB_SUPERVISED": str(job_log.folder)}
    assert claimed(0, {}) is supervised({}) is None
    assert supervised(mine) is None
    assert claimed(0, mine) == claimed(0, mine) == supervised(mine) == job_log
    child = mine | {"ADJOINTLAB_HOOKED": str(os.getppid())}
    assert claimed(0, child) is supervised(child) is None


def test_of_processes_side_by_side_one_at_a_time_is_the_job_of_its_rank(job_log: JobLog) -> None:
    program = (
        "import sys; from adjointlab.store.job_log import claimed\n"
        "print(claimed(int(sys.argv[1])) is not None, flush=True); sys.stdin.read()"
    )
    environment = os.environ | {"ADJOINTLAB_SUPERVISED": str(job_log.folder), "PYTHONPATH": str(ROOT)}

    def begun(rank: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", program, str(rank)]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)

    def is_job(process: subprocess.Popen[str]) -> bool:
        assert process.stdout is not None
        return process.stdout.readline() == "True\n"

    first, other_rank = begun(0), begun(1)
    assert is_job(first)
    assert is_job(other_rank)
    second = begun(0)
    assert not is_job(second)
    first.kill()
    first.wait()
    third = begun(0)
    assert is_job(third)
    for process in (first, second, third, other_rank):
        process.communicate()


def test_time_for_shrinking_runs_from_the_first_death_on(job_log: JobLog) -> None:
    assert job_log.shrinking("one") == 30.0
    now = time.time()
    job_log.record_death(Death("died", check_id="one", at=now - 20))
    job_log.record_death(Death("died", check_id="one", at=now))

    assert 5.0 < job_log.shrinking("one") <= 10.0
    assert job_log.shrinking("other") == 30.0


def test_a_case_is_taken_for_deadly_once_it_has_ended_so_many_jobs_or_has_hung() -> None:
    case = Case("Ring", "adjoint", 2, {}, InputSetting(), 0)
    died, hung = (Death(kind, case=case.digest, certain=kind == "hung") for kind in ("died", "hung"))

    def is_known(*deaths: Death, times: int) -> bool:
        return DeadlyCases(deaths)(case, times) is not None

    assert is_known(died, times=1)
    assert not is_known(died, times=2)
    assert is_known(died, died, times=2)
    assert is_known(hung, times=2)
    assert is_known(hung, died, times=3)
    assert not is_known(Death("died", case="another"), times=1)
    assert not is_known(times=1)


class Deadly:
    """A world in which cases on two ranks or more end the job; keeps what a supervisor would.

    Each is said to have ended in the next of `kinds`; once these are used up, cases end no job.
    """

    def __init__(self, job_log: JobLog, kinds: Iterable[str] = repeat("died")) -> None:
        self.job_log, self.kinds = job_log, iter(kinds)
        self.jobs = 0
        self.ended_by: list[Case] = []

    class Ended(KeyboardInterrupt):
        """Ends the search at once, as the end of a process does."""

    def job(self, shrinking: float) -> SearchResult | None:
        self.jobs += 1
        world = SimulatedWorld(4)
        memory = self.job_log.deadly_cases("check")
        budget = Budget(20, seed=1, shrinking=shrinking)
        lead = world.lead

        def deadly(body, conduct, about=""):  # type: ignore[no-untyped-def]
            def watched(run: Runner) -> SearchResult:
                def watching(payload: Case, ranks: int, **options: object) -> Run:
                    if ranks > 1 and (kind := next(self.kinds, "")):
                        self.ended_by.append(payload)
                        self.job_log.record_death(
                            Death(kind, case=payload.digest, check_id="check", at=time.time())
                        )
                        raise Deadly.Ended
                    return run(payload, ranks, **options)  # type: ignore[arg-type]

                return conduct(watching)

            return lead(body, watched, about)

        world.lead = deadly  # type: ignore[method-assign]
        try:
            return investigate(world, right, "adjoint", budget, known=memory)
        except Deadly.Ended:
            return None


def test_jobs_that_die_go_on_shrinking_where_the_one_before_was(job_log: JobLog) -> None:
    world = Deadly(job_log)
    report = None
    while report is None and world.jobs < 30:
        report = world.job(shrinking=60.0)

    assert report is not None
    assert report.status is Status.UNJUDGED
    assert report.verdict.kind == "died"
    assert report.case is not None
    assert report.case.ranks == 2
    # The last job ran nothing that ends a job; the smallest case has done so twice, all others once.
    times = [case.digest for case in world.ended_by]
    assert times.count(report.case.digest) == 2
    assert len(times) == len(set(times)) + 1 == world.jobs - 1


def test_a_death_that_is_told_in_other_words_each_time_is_the_same_failure(job_log: JobLog) -> None:
    world = Deadly(
        job_log, cycle(["a rank called MPI_Abort(5)", "a rank was killed", "the launcher ended the job"])
    )
    report = None
    while report is None and world.jobs < 30:
        report = world.job(shrinking=60.0)

    assert report is not None
    assert report.case is not None
    assert report.case.ranks == 2
    assert report.verdict.is_death


def test_a_death_that_is_not_seen_again_is_a_death(job_log: JobLog) -> None:
    world = Deadly(job_log, ["a rank was ended by a signal (SIGTERM)"])
    assert world.job(shrinking=60.0) is None
    report = world.job(shrinking=60.0)

    assert report is not None
    assert report.status is Status.UNJUDGED
    assert report.verdict.kind == "a rank was ended by a signal (SIGTERM)"
    assert dict(report.verdict.lines)["again"] == "no failure, when it ran once more"


def test_without_time_the_smallest_known_case_is_the_result(job_log: JobLog) -> None:
    world = Deadly(job_log)
    assert world.job(shrinking=60.0) is None
    assert world.job(shrinking=60.0) is None
    report = world.job(shrinking=0.0)

    assert report is not None
    assert report.case is not None
    smallest = min(world.ended_by, key=lambda case: (case.ranks, len(case.key())))
    assert report.case.digest == smallest.digest


def test_subjects_of_one_function_have_results_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may have one name and one place, so a result under that may be another subject's."""

    def job(number: int) -> None:
        monkeypatch.setattr("adjointlab.store.job_log._own_pid", lambda: str(number))

    job_log, check_id = JobLog(tmp_path), "factories:draws adjoint"
    result = SearchResult("Made", "adjoint", "simulated", coherent())
    job(1)
    job_log.finish(Done(check_id, result, None, ""))
    # The first of them has been done by this very job, which now comes to the second.
    assert job_log.outcome(check_id) is None
    job(2)
    assert job_log.outcome(check_id) is not None
    # The second has ended the job after the first was done.
    job_log.record_death(Death("a rank died", check_id=check_id))
    assert job_log.outcome(check_id) is None
    job_log.finish(Done(check_id, result, None, ""))
    job(3)
    assert job_log.outcome(check_id) is None  # of two results nobody knows whose they are


def test_a_check_that_has_ended_jobs_is_done_once_it_has_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_log, check_id = JobLog(tmp_path), "here:draws adjoint"
    job_log.record_death(Death("a rank died", check_id=check_id))
    job_log.finish(Done(check_id, SearchResult("Made", "adjoint", "simulated", coherent()), None, ""))
    monkeypatch.setattr("adjointlab.store.job_log._own_pid", lambda: "the next job")
    job_log.record_death(Death("a rank died", check_id="here:others adjoint"))
    assert job_log.outcome(check_id) is not None


def test_each_command_of_a_script_has_results_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_id = "here:draws adjoint"

    def command(number: int) -> JobLog:
        monkeypatch.setattr("adjointlab.store.job_log._own_pid", lambda: str(number))
        job_log = claimed(0, {SUPERVISED: str(tmp_path)})
        assert job_log is not None
        return job_log

    result = SearchResult("Made", "adjoint", "simulated", coherent())
    before, nobodys = JobLog(tmp_path), "here:nobodys adjoint"
    before.finish(Done(nobodys, result, None, ""))  # of a process that has not claimed the job
    command(1).finish(Done(check_id, result, None, ""))
    assert before.outcome(nobodys) is None
    # The second may have another environment, other cases, or another file under the same name.
    assert command(2).outcome(check_id) is None
    (tmp_path / "rank-0.lock").unlink()  # as the next job begins
    assert command(3).outcome(check_id) is not None


@pytest.mark.parametrize(("case", "known"), [("b", True), ("a", False), ("c", False), ("", False)])
def test_a_death_is_known_by_its_case(job_log: JobLog, case: str, known: bool) -> None:
    job_log.record_death(Death("a rank died", case="b"))
    assert job_log.is_known(Death("another kind", case="".join(case))) is known


@pytest.mark.parametrize(("since", "newer"), [(-5, False), (0, True), (5, True)])
def test_a_file_is_newer_from_the_moment_on_at_which_supervision_began(
    job_log: JobLog, tmp_path: Path, since: int, newer: bool
) -> None:
    path = tmp_path / "junit.xml"
    assert not job_log.is_newer(path)
    path.touch()
    for file, moment in ((job_log.folder / "settings.json", 1000), (path, 1000 + since)):
        os.utime(file, (moment, moment))
    assert job_log.is_newer(path) is newer
    (job_log.folder / "settings.json").unlink()
    assert not job_log.is_newer(path)


def test_the_settings_are_those_that_the_supervisor_has_written_or_others_where_they_are_lost(
    job_log: JobLog, tmp_path: Path
) -> None:
    assert (job_log.session_seed, job_log.shrinking("it")) == (5, 30.0)
    for settings in ("", "no JSON", '{"seed": "five"}'):
        (job_log.folder / "settings.json").write_text(settings)
        assert (job_log.session_seed, job_log.shrinking("it")) == (0, 60.0)


def test_the_seed_of_a_check_follows_from_its_name_and_from_the_seed_of_the_job(tmp_path: Path) -> None:
    def seeds(seed: int) -> list[int]:
        log = JobLog(tmp_path / str(seed))
        log.begin(seed, 1.0)
        return [log.seed_of(name) for name in ("here:it adjoint", "here:it matrix")]

    assert seeds(5) == [zlib.crc32(b"5:here:it adjoint"), zlib.crc32(b"5:here:it matrix")]
    assert len({*seeds(5), *seeds(6)}) == 4


def test_what_says_where_the_job_is_may_be_gone_at_any_moment(job_log: JobLog, tmp_path: Path) -> None:
    job_log.clear()
    job_log.clear()
    with job_log.at("here:ring adjoint", tmp_path, is_leader=True):
        (job_log.folder / "running.json").touch()
        (job_log.folder / "running-1.json").touch()
        job_log.clear()
        assert sorted(path.name for path in job_log.folder.iterdir()) == ["settings.json"]
    with job_log.at("here:ring matrix", tmp_path, is_leader=True):
        pass
    assert job_log.current == ("", None)


@pytest.mark.parametrize(
    ("finished_by", "asked_by", "is_known"), [("1", "2", True), ("2", "1", True), ("1", "1", False)]
)
def test_a_result_is_certain_if_another_process_has_found_it(
    job_log: JobLog, monkeypatch: pytest.MonkeyPatch, finished_by: str, asked_by: str, is_known: bool
) -> None:
    done = Done("here:it adjoint", SearchResult("It", "adjoint", "simulated", coherent()), None, "why not")
    for process in (finished_by, asked_by):
        monkeypatch.setattr("adjointlab.store.job_log._own_pid", lambda process=process: "".join(process))
        if process is finished_by and not job_log.done:
            job_log.finish(done)
    assert job_log.done == [done]
    assert job_log.outcome("here:it adjoint") == (done if is_known else None)


def test_a_result_that_was_found_after_more_deaths_than_are_known_is_not_certain(
    job_log: JobLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_log.record_death(Death("died", check_id="here:it adjoint"))
    job_log.finish(Done("here:it adjoint", SearchResult("It", "adjoint", "simulated", coherent()), None, ""))
    monkeypatch.setattr("adjointlab.store.job_log._own_pid", lambda: "the next job")
    assert job_log.outcome("here:it adjoint") is not None
    (job_log.folder / "deaths.jsonl").unlink()
    assert job_log.outcome("here:it adjoint") is None


def test_the_newest_death_of_a_case_is_told_with_the_ranks_that_died() -> None:
    case = Case("Ring", "adjoint", 3, {}, InputSetting(), 0)
    first = Death("died at first", (("why", "so"),), {0: "killed"}, case=case.digest)
    last = Death(
        "died at last", (("why", "this"), ("and", "that")), {1: "killed", 2: "aborted"}, case=case.digest
    )
    run = DeadlyCases((first, Death("another", case="another"), last))(case, 2)
    assert run is not None
    assert run.outcomes == (Dead("ended with the job"), Dead("killed"), Dead("aborted"))
    assert run.findings == (Finding("died at last", ""), Finding("why", "this"), Finding("and", "that"))

    verdict = replace(last, ranks={2: "aborted", 1: "killed"}).verdict()
    assert (verdict.status, verdict.kind) == (Status.UNJUDGED, "died at last")
    assert verdict.lines == (("rank 1", "killed"), ("rank 2", "aborted"), ("why", "this"), ("and", "that"))


def test_a_job_whose_folder_is_gone_is_nobodys(tmp_path: Path) -> None:
    environment = {SUPERVISED: str(tmp_path / "gone")}
    assert claimed(0, environment) is None
    assert environment == {SUPERVISED: str(tmp_path / "gone")}
    assert claimed(0, {SUPERVISED: "", HOOKED: str(os.getpid())}) is None
    # Nor one whose lock another file stands in for.
    (tmp_path / "rank-0.lock").mkdir()
    assert claimed(0, {SUPERVISED: str(tmp_path)}) is None


def test_each_claim_of_a_job_is_a_byte_more(tmp_path: Path) -> None:
    for number in range(3):
        environment = {SUPERVISED: str(tmp_path)}
        assert claimed(2, environment) == JobLog(tmp_path)
        assert environment[HOOKED] == str(os.getpid())
        assert (tmp_path / "rank-2.lock").read_bytes() == b"." * (number + 1)


@pytest.mark.parametrize(
    ("error", "is_claimed"), [(errno.EACCES, False), (errno.EAGAIN, False), (errno.ENOLCK, True)]
)
def test_a_file_system_without_locks_lets_every_process_be_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, is_claimed: bool
) -> None:
    asked: list[int] = []

    def lockf(file: int, how: int) -> None:
        asked.append(how)
        raise OSError(error, "no lock")

    monkeypatch.setattr(fcntl, "lockf", lockf)
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    assert (claimed(0, {SUPERVISED: str(tmp_path)}) is not None) is is_claimed
    assert asked == [fcntl.LOCK_EX | fcntl.LOCK_NB]
    if before:
        assert len(os.listdir("/proc/self/fd")) == before + is_claimed
