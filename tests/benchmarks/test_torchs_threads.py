"""torch's own threads, beside which the lab is measured, do their work or end the script."""

from __future__ import annotations

import runpy
import threading

import pytest

pytest.importorskip("torch")

from benchmarks.__main__ import FOLDER


def test_no_time_is_taken_of_ranks_that_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    script = runpy.run_path(str(FOLDER / "torch_distributed.py"))  # an example has that name too
    monkeypatch.setattr(threading, "excepthook", lambda _: None)

    def fail(times: int) -> None:
        raise ValueError(times)

    with pytest.raises(SystemExit, match="has failed"):
        script["threaded"](fail, 1)()
