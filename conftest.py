"""What of the tests is collected where."""

import os
from pathlib import Path

import pytest

from adjointlab.worlds.launch import LAUNCHERS, is_launched

ROOT = Path(__file__).parent

# The two rooms: collected from the root, they would be imported under a second name.
collect_ignore = ["layers", "primitives"]

_SIMULATED_ONLY = (
    "tests/benchmarks",
    "tests/core",
    "tests/devices",
    "tests/documentation",
    "tests/checks",
    "tests/gpu",
    "tests/engine",
    "tests/store",
    "tests/cli",
    "tests/pytest",
    "tests/report",
    "tests/primitives",
    "tests/supervisor",
    "tests/unearned_greens",
    "tests/subjects/test_drawn",
    "tests/worlds/simulated",
    "tests/worlds/torch_world",
    "tests/worlds/test_interrupts",
    "tests/worlds/test_deadline",
    "tests/power/test_recreated",
    "tests/power/test_planted_halos",
    "tests/power/test_planted_layers",
    "tests/adapters/test_jax",
    "tests/adapters/test_lists",
    "tests/adapters/test_released",
    "tests/torch_distributed/test_autograd_functions",
    "tests/torch_distributed/test_backend_of_a_group",
    "tests/torch_distributed/test_layers",
    "tests/torch_distributed/test_meshes",
    "tests/torch_distributed/test_pipelines",
    "tests/torch_distributed/test_planted",
    "tests/torch_distributed/test_rank_local",
)

_ALL_SKIPPED = "\npytestmark = pytest.mark.mpi_skip\n"
"""A line of files that need no processes of MPI in any of their tests."""

_ON_RANKS = {
    # Planted bugs, adapters and examples show on two real ranks what they show on more.
    "tests/adapters/": (2,),
    "tests/power/": (2,),
    "tests/test_examples": (2,),
    "tests/subjects/test_layers": (4,),
    # Their cases on two ranks are drawn on three as well; four are for grids of 2 x 2.
    "tests/subjects/": (3, 4),
    # Simulated ranks have shown them on other numbers, and they call no MPI but through what runs on all.
    "tests/layers/": (4,),
    "tests/torch_distributed/": (3,),
    "tests/": (2, 3),
}
"""The numbers of real ranks, of two, three and four, on which tests run; the first that a path begins with counts.

Any other number runs all of them.
"""

_SLOW = (
    "tests/benchmarks/",
    "tests/cli/",
    "tests/documentation/",
    "tests/engine/test_exhaust",
    "tests/engine/test_hangs",
    "tests/engine/test_watchdog",
    "tests/faults/",
    "tests/power/test_planted_",
    "tests/power/test_recreated",
    "tests/primitives/test_exhaustive",
    "tests/pytest/",
    "tests/store/test_scripts",
    "tests/supervisor/",
    "tests/test_packaging",
    "tests/unearned_greens/",
    "tests/worlds/mpi_world/test_exit_codes",
)
"""What starts processes for each test, proves, or looks for many planted bugs: one test of nine, and most of the time."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of a thorough run."""
    parser.addoption("--thorough", action="store_true", help="run also what is more of the same")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what shows on more samples what a test without the mark shows on some, unless it is asked for."""
    if config.getoption("--thorough"):
        return
    kept, left_out = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        (kept if item.get_closest_marker("thorough") is None else left_out).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left_out)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what a developer's every run can leave out."""
    if item.path.relative_to(ROOT).as_posix().startswith(_SLOW):
        item.add_marker(pytest.mark.slow)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Under a launcher, leave out the tests that use simulated ranks alone: they would run once on every rank."""
    if not is_launched():
        return None
    place = collection_path.relative_to(ROOT).as_posix()
    if collection_path.is_file() and not _runs_on(_launched_ranks(), place):
        return True
    simulated = place.startswith(_SIMULATED_ONLY) or (
        collection_path.suffix == ".py" and _ALL_SKIPPED in collection_path.read_text(encoding="utf-8")
    )
    top_level = collection_path.parent.name == "tests" and collection_path.suffix == ".py"
    apart = (
        top_level and collection_path.name.startswith("test_") and collection_path.name != "test_examples.py"
    )
    return True if simulated or apart else None


def _runs_on(ranks: int | None, place: str) -> bool:
    """True if the tests in a file run on so many real ranks."""
    chosen = next((some for start, some in _ON_RANKS.items() if place.startswith(start)), ())
    return ranks in chosen or not chosen or ranks not in (2, 3, 4)


def _launched_ranks() -> int | None:
    """The number of processes that the launcher says it has started."""
    stated = (each.processes(os.environ) for each in LAUNCHERS if each.apply_in(os.environ))
    return next(filter(None, stated), None)
