"""Combinations of CuPy, the driver and torch that cannot work are named, with what was found and what would be legal."""

from __future__ import annotations

import pytest

from adjointlab.devices.compatibility import (
    CudaStack,
    DeviceMismatch,
    Problem,
    check,
    mismatches,
    version_text,
)

FOR_11, FOR_12, FOR_13 = (("cupy-cuda11x", "13.6.0"), ("cupy-cuda12x", "14.2.0"), ("cupy-cuda13x", "14.2.0"))
TORCH = "2.13.0"


@pytest.mark.parametrize(
    "stack",
    [
        CudaStack(),
        CudaStack(torch="2.13.0+cpu"),
        CudaStack(torch=TORCH, torch_cuda="13.0"),  # a torch for CUDA works without a driver, on the host
        CudaStack((FOR_13,), 13000, 13020),
        CudaStack((FOR_12,), 13000, 12090),  # drivers run what is older
        CudaStack((FOR_12,), 12020, 12090),  # and what is newer in the minor version
        CudaStack((FOR_13,), 13000, 13020, TORCH, "13.0"),
        CudaStack((FOR_12,), 13000, 12090, TORCH, "12.8"),
        CudaStack((FOR_13,), 13000, 13020, "2.13.0+cpu"),
        CudaStack((("cupy", "14.2.0"),), 12040, 12040, TORCH, "12.8"),  # built from source
    ],
)
def test_what_fits_together_is_not_refused(stack: CudaStack) -> None:
    assert mismatches(stack) == ()
    check(stack)


@pytest.mark.parametrize(
    ("stack", "problems", "names"),
    [
        (
            CudaStack((FOR_12,), 11080, 12090),
            [Problem.CUPY_AND_DRIVER],
            ["cupy-cuda12x 14.2.0", "CUDA 11.8 at most", "install cupy-cuda11x", "driver 525.60 or newer"],
        ),
        (
            CudaStack((FOR_13,), 12040, 13020),
            [Problem.CUPY_AND_DRIVER],
            ["cupy-cuda13x 14.2.0", "CUDA 12.4 at most", "install cupy-cuda12x", "driver 580.65 or newer"],
        ),
        (
            CudaStack((("cupy", "14.2.0"),), 12040, 13020),
            [Problem.CUPY_AND_DRIVER],
            ["cupy 14.2.0 is built for CUDA 13"],
        ),
        (
            CudaStack((), 12040, None, TORCH, "13.0"),
            [Problem.TORCH_AND_DRIVER],
            ["torch 2.13.0 for CUDA 13.0", "CUDA 12.4 at most", "a torch that is built for CUDA 12"],
        ),
        (
            CudaStack((FOR_13,), 13000, 13020, TORCH, "12.8"),
            [Problem.CUPY_AND_TORCH],
            ["cupy-cuda13x 14.2.0", "torch 2.13.0 for CUDA 12.8", "install cupy-cuda12x instead"],
        ),
        (
            CudaStack((FOR_12,), 12040, 12090, TORCH, "13.0"),
            [Problem.TORCH_AND_DRIVER, Problem.CUPY_AND_TORCH],
            ["or a torch that is built for CUDA 12"],
        ),
        (
            CudaStack((FOR_12, FOR_13), 13000, 13020, TORCH, "12.8"),
            [Problem.SEVERAL_WHEELS],
            [
                "cupy-cuda12x 14.2.0 and cupy-cuda13x 14.2.0 are installed at once",
                "pip uninstall cupy-cuda12x cupy-cuda13x",
                "install cupy-cuda12x alone",
            ],
        ),
        (CudaStack((FOR_11, FOR_13), 12000, None), [Problem.SEVERAL_WHEELS], ["install cupy-cuda12x alone"]),
        (
            CudaStack((FOR_13,), None, 13020),
            [Problem.NO_DRIVER],
            ["cupy-cuda13x 14.2.0", "no driver of NVIDIA", "driver 580.65 or newer"],
        ),
        (
            CudaStack((FOR_13,), None, None, TORCH, "12.8"),
            [Problem.NO_DRIVER, Problem.CUPY_AND_TORCH],
            ["no driver", "install cupy-cuda12x instead"],
        ),
    ],
)
def test_what_cannot_work_is_named_with_what_would(
    stack: CudaStack, problems: list[Problem], names: list[str]
) -> None:
    found = mismatches(stack)
    assert [each.problem for each in found] == problems
    with pytest.raises(DeviceMismatch) as refused:
        check(stack)
    for name in names:
        assert name in str(refused.value)


def test_every_problem_has_a_row() -> None:
    rows = test_what_cannot_work_is_named_with_what_would.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert {problem for _, problems, _ in rows for problem in problems} == set(Problem)


@pytest.mark.parametrize(
    ("version", "text"), [(12040, "12.4"), (11080, "11.8"), (13000, "13.0"), (None, "none")]
)
def test_versions_of_cuda_are_written_as_its_documents_write_them(version: int | None, text: str) -> None:
    assert version_text(version) == text
