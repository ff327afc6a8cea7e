"""CUDA-aware MPI is decided from what the library answers, in a fixed order; the library of this environment does answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adjointlab.devices import cuda_aware_mpi as detection
from adjointlab.devices.cuda_aware_mpi import OVERRIDE, MPIEvidence, built_with_cuda, decide
from tests.running import run_python

OPEN_MPI = MPIEvidence("Open MPI v5.0.11, package: ...", "3.1")
MPICH = MPIEvidence("MPICH Version: 5.0.2", "5.0")
CRAY = MPIEvidence("MPI VERSION : CRAY MPICH version 8.1.30", "3.1", query=True)
QUERY, KINDS = "MPIX_Query_cuda_support", "mpi_memory_alloc_kinds"


@pytest.mark.parametrize(
    ("evidence", "is_aware", "test"),
    [
        (replace(OPEN_MPI, query=True), True, QUERY),
        (replace(OPEN_MPI, query=False), False, QUERY),
        (replace(OPEN_MPI, query=False, ompi_info=True), False, QUERY),  # built with it, and switched off
        (replace(OPEN_MPI, ompi_info=True), True, "ompi_info"),
        (replace(OPEN_MPI, ompi_info=False), False, "ompi_info"),
        (replace(MPICH, query=True), True, QUERY),
        (replace(MPICH, query=False, memory_kinds="mpi,system"), False, QUERY),
        (replace(MPICH, memory_kinds="mpi,system,cuda:device,cuda:managed"), True, KINDS),
        (replace(MPICH, query=False, memory_kinds="mpi, cuda"), True, KINDS),
        (replace(MPICH, memory_kinds="mpi,system,rocm:device"), False, "none"),
        (replace(MPICH, memory_kinds="mpi,system"), False, "none"),
        (replace(MPICH, query=True, environment={"MPIR_CVAR_ENABLE_GPU": "1"}), True, QUERY),
        (replace(MPICH, query=True, environment={"MPIR_CVAR_ENABLE_GPU": "0"}), False, "MPIR_CVAR_ENABLE_GPU"),
        (CRAY, False, "MPICH_GPU_SUPPORT_ENABLED"),
        (replace(CRAY, environment={"MPICH_GPU_SUPPORT_ENABLED": "0"}), False, "MPICH_GPU_SUPPORT_ENABLED"),
        (replace(CRAY, environment={"MPICH_GPU_SUPPORT_ENABLED": "1"}), True, QUERY),
        (replace(MPICH, query=False, environment={OVERRIDE: "yes"}), True, OVERRIDE),
        (replace(MPICH, query=True, environment={OVERRIDE: "no"}), False, OVERRIDE),
        (replace(CRAY, environment={OVERRIDE: "Yes"}), True, OVERRIDE),
        (MPIEvidence("", error="mpi4py cannot be imported: no"), False, "import of mpi4py"),
    ],
)  # fmt: skip
def test_the_decision_follows_from_the_evidence(evidence: MPIEvidence, is_aware: bool, test: str) -> None:
    decision = decide(evidence)
    assert (decision.is_aware, decision.test) == (is_aware, test)
    assert decision.reason


def test_a_wrong_word_is_refused_with_those_that_are_legal() -> None:
    with pytest.raises(ValueError, match=f"{OVERRIDE}: 'perhaps' is neither yes nor no"):
        decide(replace(MPICH, environment={OVERRIDE: "perhaps"}))


@pytest.mark.parametrize(
    ("text", "built"),
    [
        ("mca:mpi:base:param:mpi_built_with_cuda_support:value:true\n", True),
        (
            "mca:opal:base:param:opal_built_with_cuda_support:value:false\nmca:opal:base:param:opal_cuda_support:value:true",
            False,
        ),
        ("mca:accelerator:null:version\n", None),
    ],
)
def test_the_output_of_ompi_info_is_read(text: str, built: bool | None) -> None:
    assert built_with_cuda(text) is built


class Library:
    """An MPI library of which one function is asked."""

    def __init__(self, answer: int | None) -> None:
        if answer is not None:
            self.MPIX_Query_cuda_support = lambda: answer


@pytest.mark.parametrize(("answer", "query"), [(1, True), (0, False), (None, None)])
def test_the_function_of_the_library_is_called(answer: int | None, query: bool | None) -> None:
    library: Any = Library(answer)
    assert detection._query(library) is query


ASK = """
import ctypes
from adjointlab.devices import cuda_aware_mpi as detection
evidence = detection.mpi_evidence()
library = detection._loaded_library(__import__("mpi4py.MPI").MPI.__file__)
other = detection._ompi_info()
if hasattr(library, "MPIX_GPU_query_support"):
    answer = ctypes.c_int(-1)
    assert library.MPIX_GPU_query_support(0, ctypes.byref(answer)) == 0
    other = bool(answer.value)
print(evidence.query, other, evidence.error or "asked", detection.decide(evidence).test)
"""


@pytest.mark.starts_mpiexec
def test_the_library_of_this_environment_answers_as_it_does_to_another_question(tmp_path: Path) -> None:
    asked = run_python("-c", ASK, cwd=tmp_path, **{OVERRIDE: ""})
    assert asked.returncode == 0, asked.stderr
    query, other, error, test = asked.stdout.split()
    assert (error, test in (QUERY, KINDS)) == ("asked", True)
    assert query == other != "None"


ASK_TOO_EARLY = """
import mpi4py
mpi4py.rc.initialize = False
from adjointlab.devices.cuda_aware_mpi import mpi_evidence
evidence = mpi_evidence()
print(evidence.query, bool(evidence.library))
"""


@pytest.mark.starts_mpiexec
def test_a_library_is_not_asked_before_it_is_initialised(tmp_path: Path) -> None:
    asked = run_python("-c", ASK_TOO_EARLY, cwd=tmp_path)
    assert asked.stdout.split() == ["None", "True"], asked.stderr
