"""Libraries that keep their groups in module-level variables are checked on simulated ranks, if the subject names them."""

from __future__ import annotations

import builtins
import functools
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from torch.distributed.tensor import Shard

import adjointlab as al
from adjointlab.checks.verdict import Status
from adjointlab.engine.discovery import find_subject
from adjointlab.engine.search import investigate
from adjointlab.engine.search_result import Budget
from adjointlab.worlds.module_state import ModuleState
from tests.torch_distributed import parallel_state

BUDGET = Budget(8, ranks=3, seed=1)


def cases(draw: Any, ranks: int) -> dict[str, Any]:
    space = al.Space(al.Layout((ranks,), al.Partition((ranks,))))
    return dict(domain=space, codomain=space)


def sums(**options: Any) -> Any:
    function = parallel_state.sum_over_group
    return al.subject.pair(function, function, process_group=True, **options)(cases)


def test_each_rank_has_the_variables_for_itself(world: al.SimulatedWorld) -> None:
    before = dict(vars(parallel_state))
    result = investigate(world, sums(rank_local=[parallel_state.__name__]), "adjoint", BUDGET)
    assert result.verdict.status is Status.COHERENT, result.verdict
    assert vars(parallel_state) == before
    assert parallel_state._MADE == {}


def test_a_variable_of_two_leading_underscores_is_one_of_each_rank() -> None:
    # heat keeps its communicator in such a one.
    state = ModuleState([parallel_state.__name__])
    vars(parallel_state)["__default"] = 1
    state.seed(0)
    assert "__default" not in vars(parallel_state)


def test_the_builtins_that_compiled_code_refers_to_are_no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    state = ModuleState([parallel_state.__name__])
    monkeypatch.setitem(vars(parallel_state), "__builtins_dict___0", vars(builtins))
    state.seed(0)
    assert vars(parallel_state)["__builtins_dict___0"] is vars(builtins)
    containers = [container for container, _ in ModuleState([parallel_state.__name__]).save().contents]
    assert not any(each is vars(builtins) for each in containers)


def test_state_that_is_shared_is_diagnosed(world: al.SimulatedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_state, "_GROUP", None)
    monkeypatch.setattr(parallel_state, "_MADE", {})
    monkeypatch.setattr(parallel_state, "_SIZE", 0, raising=False)
    result = investigate(world, sums(), "adjoint", BUDGET)
    assert result.verdict.status is Status.UNJUDGED
    assert "rank_local" in str(result.verdict) or "process group" in str(result.verdict)


@pytest.mark.parametrize("is_declared", [True, False])
def test_an_array_that_is_made_with_its_module_is_one_of_each_rank(
    world: al.SimulatedWorld, is_declared: bool
) -> None:
    function = parallel_state.sum_in_scratch
    options = {"rank_local": [parallel_state.__name__]} if is_declared else {}
    subject = al.subject.pair(function, function, **options)(cases)
    parallel_state.SCRATCH[:] = -1
    result = investigate(world, subject, "adjoint", BUDGET)
    assert (result.verdict.status is Status.COHERENT) is is_declared
    assert (parallel_state.SCRATCH == -1).all() == is_declared
    parallel_state.SCRATCH[:] = 0


@pytest.mark.parametrize("is_declared", [True, False])
def test_a_function_keeps_its_results_for_each_rank_alone_where_its_module_is_named(
    world: al.SimulatedWorld, is_declared: bool
) -> None:
    function = parallel_state.own_part
    options = {"rank_local": [parallel_state.__name__]} if is_declared else {}
    kept = parallel_state.own_rank
    kept.cache_clear()
    subject = al.subject.pair(function, function, process_group=True, **options)(cases)
    verdict = investigate(world, subject, "adjoint", Budget(20, ranks=3, seed=1)).verdict
    assert parallel_state.own_rank is kept
    assert bool(kept.cache_info().currsize) != is_declared
    assert verdict.is_coherent is is_declared
    told = dict(verdict.lines).get("perhaps", "")
    assert ("own_rank" in told and "rank_local=" in told) != is_declared


RANKS = """
from functools import cache
import torch.distributed as dist

@cache
def own_rank():
    return dist.get_rank()

@cache
def calls():
    return []
"""
PARTS = """
import torch
import torch.distributed as dist
from {package}.ranks import calls, own_rank

def own_part(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    calls().append(x)
    assert ranks.calls() is calls()
    return parts[own_rank()]

from {package} import ranks
"""
SUBJECTS = """
import adjointlab as al
from {package}.parts import own_part
{imported}
def function(x):
    return own_part(x){factor}

@al.subject.pair(function, function, process_group=True, rank_local={rank_local})
def parts(draw, ranks):
    space = al.Space(al.Layout((ranks,), al.Partition((ranks,))))
    return dict(domain=space, codomain=space)
"""


def of_package(folder: Path, *, named: Sequence[str], by_name: str = "", factor: str = "") -> Any:
    """A subject that imports a function of a package, which keeps the rank in a cache, in a file of its own."""
    package = folder.name
    for module, text in {"__init__": "", "ranks": RANKS, "parts": PARTS}.items():
        (folder / f"{module}.py").write_text(text.format(package=package))
    file = folder.parent / f"of_{package}.py"
    rank_local = [package + module for module in named]
    imported = f"from {package}.ranks import {by_name}" if by_name else ""
    file.write_text(SUBJECTS.format(package=package, rank_local=rank_local, imported=imported, factor=factor))
    return find_subject(f"{file}:parts")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, of a name of its own, from which modules can be imported."""
    (folder := tmp_path / f"package_{tmp_path.name}").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def test_what_stands_among_the_modules_and_is_none_holds_nothing(
    world: al.SimulatedWorld, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OfSlots:
        __slots__ = ()

    class OfCffi(OfSlots):
        """As a library of cffi, it says that it is a module."""

        __slots__ = ()
        __class__ = property(lambda self: ModuleType)

    monkeypatch.setitem(sys.modules, "library_of_cffi", OfCffi())
    monkeypatch.setitem(sys.modules, "not_to_be_imported", None)
    monkeypatch.setitem(sys.modules, "in_its_own_place", OfSlots())
    subject = of_package(package, named=[""])
    assert investigate(world, subject, "adjoint", Budget(5, ranks=3, seed=1)).verdict.is_coherent


def test_modules_that_hold_a_function_which_the_package_has_imported_too_are_left_alone(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = ModuleType("other")
    other.shared = functools.cache(lambda: None)
    other.shared.__module__ = "other"
    monkeypatch.setitem(sys.modules, "other", other)
    (package / "__init__.py").write_text("from other import shared")
    importlib.import_module(package.name)
    state = ModuleState([package.name])
    other.count = 1
    state.seed(0)
    assert other.count == 1


@pytest.mark.parametrize("named", ["", ".ranks"], ids=["the package", "the module that keeps it"])
def test_a_function_keeps_one_result_of_each_rank_for_all_modules_that_have_imported_it_by_name(
    world: al.SimulatedWorld, package: Path, named: str
) -> None:
    subject = of_package(package, named=[named], by_name="own_rank", factor=" * (1 + own_rank())")
    verdict = investigate(world, subject, "adjoint", Budget(20, ranks=3, seed=1)).verdict
    assert verdict.is_coherent, verdict


def test_what_a_package_keeps_is_named_where_the_subject_imports_a_function_of_it(
    world: al.SimulatedWorld, package: Path
) -> None:
    verdict = investigate(
        world, of_package(package, named=()), "adjoint", Budget(20, ranks=3, seed=1)
    ).verdict
    assert not verdict.is_coherent
    told = dict(verdict.lines)["perhaps"]
    assert "own_rank" in told
    assert f"rank_local=['{package.name}']" in told


@pytest.mark.parametrize("make", [parallel_state.Scaled, parallel_state.ScaledBySize])
def test_the_sequential_module_finds_the_variables_as_they_were_before_it_was_made_parallel(
    world: al.SimulatedWorld, make: Any
) -> None:
    def draw_case(draw: Any, ranks: int) -> dict[str, Any]:
        return dict(
            inputs=(3, 4),
            input_placements=[[Shard(1)]],
            output_placements=[[Shard(1)]],
            parameter_placements={"weight": [Shard(0)]},
        )

    subject = al.subject.parallel(
        make, parallel_state.parallel, rank_local=[parallel_state.__name__], ranks=(2,)
    )(draw_case)
    verdict = investigate(world, subject, "gradients", Budget(2, ranks=2, seed=1)).verdict
    assert verdict.is_coherent is (make is parallel_state.Scaled), verdict
    assert verdict.is_coherent or ("sequential twin", "gradcheck passes") in verdict.lines
    assert parallel_state.SIZE == 1
