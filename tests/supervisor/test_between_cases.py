"""The report of a supervisor on a job that ended while it drew a case."""

from __future__ import annotations

from pathlib import Path

from adjointlab.engine.discovery import found_as
from adjointlab.recording import _overdue_report
from adjointlab.store.job_log import JobLog
from adjointlab.store.running_case import NAME, Progress
from adjointlab.supervisor.exit_report import ExitReport
from adjointlab.supervisor.supervise import SupervisedCommand, _Supervisor
from adjointlab.worlds.world import WorldName
from tests.samples import right


def test_a_strategy_that_the_watchdog_has_ended_did_not_return(tmp_path: Path) -> None:
    command = SupervisedCommand(("true",), 1, None, 60.0, 60.0, 1, tmp_path)
    supervisor = _Supervisor(command, JobLog(tmp_path), print)
    JobLog(tmp_path).at("module:subject adjoint", tmp_path, is_leader=True).__enter__()
    progress = Progress("module:subject", "module:subject", "adjoint", WorldName.SIMULATED, 8, 1)
    report = _overdue_report(found_as(right), progress, tmp_path, tmp_path / NAME)
    report(None, "the strategy did not return within 15 s, at cases.py:3", "")
    death = supervisor._death(
        ExitReport("a rank left by os._exit(3)", {0: "it left by os._exit(3)"}), is_stuck=False
    )

    assert death.check_id == "module:subject adjoint"
    verdict = str(death.verdict())
    assert verdict.startswith("no return")
    assert "the strategy did not return within 15 s, at cases.py:3" in verdict
    assert "os._exit" not in verdict
