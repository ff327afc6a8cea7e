"""Of an object that is no subject, the declaration is proposed that would make it one, in the form that fits it."""

from __future__ import annotations

import sys
from textwrap import dedent
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import adjointlab as al
from adjointlab.engine.declaring import how_to_declare, how_to_declare_in

pytestmark = pytest.mark.mpi_skip


def of_torch(module: str, name: str) -> type:
    """A class that torch would have there."""
    return type(name, (), {"__module__": module})


KNOWN = {
    "LinearOperator": al.LinearOperator,
    "Module": of_torch("torch.nn.modules.module", "Module"),
    "Function": of_torch("torch.autograd.function", "Function"),
    "ModuleElsewhere": of_torch("mine", "Module"),
    "group": type("Group", (), {"__module__": "torch.distributed.device_mesh"})(),
}


def module_of(source: str) -> ModuleType:
    module = ModuleType("mine")
    vars(module).update(KNOWN)
    exec(dedent(source), vars(module))  # noqa: S102
    return module


OPERATOR = """\
declare one beside it:

    @adjointlab.subject.operator({0})
    def cases(draw, ranks):
        return dict({1})  # the arguments of one case
{2}"""

FUNCTIONS = """\
declare one beside it:

    @adjointlab.subject.{0}
    def cases(draw, ranks):
        space = adjointlab.Space(draw(adjointlab.strategies.layouts(ranks)))
        return dict(domain=space, codomain=space{1})  # spaces of x and of the result, arguments of a case
"""

LAYER = """\
declare one beside it:

    @adjointlab.subject.layer(Net, sequential=MySequential{0})  # the twin: without ranks, with the same arguments
    def cases(draw, ranks):
        space = adjointlab.Space(draw(adjointlab.strategies.layouts(ranks)))
        return dict(domain=space, codomain=space, parameter_space=...{1})  # spaces and arguments of a case
"""


def operator(
    name: str, arguments: str = "layout=draw(adjointlab.strategies.layouts(ranks))", advice: str = ""
) -> str:
    return OPERATOR.format(name, arguments, advice)


TO_DERIVE = "\nHere Ring has to derive from adjointlab.LinearOperator, to be made as Ring(comm, ...), and to have `domain` and `codomain`.\n"


def functions(form: str, arguments: str = "") -> str:
    return FUNCTIONS.format(form, arguments)


def layer(option: str = "", arguments: str = "") -> str:
    return LAYER.format(option, arguments)


BY_GROUP = ", process_group=True"


@pytest.mark.parametrize(
    ("source", "name", "expected"),
    [
        ("value = 3", "value", operator("MyOperator")),
        ("class Ring(LinearOperator): pass", "Ring", operator("Ring")),
        ("class Ring(LinearOperator):\n    def __init__(self, comm, side, layout, tag=1): pass", "Ring", operator("Ring", "side=..., layout=draw(adjointlab.strategies.layouts(ranks))")),
        ("class Ring:\n    def adjoint(self): pass", "Ring", operator("Ring", advice=TO_DERIVE)),
        ("class Ring:\n    def __init__(self, n, halo, comm): pass\n    def adjoint(self): pass", "Ring", operator("Ring", "n=..., halo=...", TO_DERIVE)),
        ("class Ring: pass", "Ring", operator("MyOperator")),
        ("class Ring: pass\nRing = Ring()", "Ring", operator("MyOperator")),
        # A strategy without its decorator.
        ("def cases(draw, ranks): pass", "cases", operator("MyOperator")),
        ("def f(x, draw): pass", "f", functions("pair(forward=f, adjoint=f_adjoint)")),
        ("def f(): pass", "f", functions("pair(forward=f, adjoint=f_adjoint)")),
        ("def f(comm, x, dim, root=0, *, side, tag=1, **more): pass", "f", functions("pair(forward=f, adjoint=f_adjoint)", ", dim=..., side=...")),
        ("def f(comm, x, /, dim, *more): pass\ndef f_transpose(): pass", "f", functions("pair(forward=f, adjoint=f_transpose)", ", dim=...")),
        ("def f_forward(comm, x): pass\ndef f_backward(): pass", "f_forward", functions("pair(forward=f_forward, adjoint=f_backward)")),
        ("def f(comm, x): pass\ndef f_transposed(): pass\ndef f_adjoint(): pass", "f", functions("pair(forward=f, adjoint=f_adjoint)")),
        ("def f(comm, x): pass\nf_transpose = 3", "f", functions("pair(forward=f, adjoint=f_adjoint)")),
        ("class F(Function):\n    @staticmethod\n    def forward(ctx, x, comm, dim, side): pass", "F", functions("autograd(F)", ", dim=..., side=...")),
        ("class F(Function):\n    forward = None", "F", functions("autograd(F)")),
        ("class F(Function): pass", "F", functions("autograd(F)")),
        ("class Net(Module):\n    def __init__(self, comm, width, bias=True): pass", "Net", layer("", ", width=...")),
        ("class Net(Module):\n    def __init__(self, my_comm): pass", "Net", layer()),
        ("class Net(Module):\n    def __init__(self, width, comm): pass", "Net", layer(BY_GROUP, ", width=..., comm=...")),
        ("class Net(Module):\n    def __init__(self): pass", "Net", layer(BY_GROUP)),
        ("class Net(ModuleElsewhere): pass", "Net", operator("MyOperator")),
    ],
)  # fmt: skip
def test_a_declaration_has_the_form_that_fits(source: str, name: str, expected: str) -> None:
    module = module_of(source)
    # What comes from torch.distributed is not looked at here.
    del module.group  # type: ignore[attr-defined]
    assert how_to_declare(vars(module)[name], name, module) == expected


@pytest.mark.parametrize(
    ("source", "name", "expected"),
    [
        ("value = 3", "value", functions(f"autograd(function{BY_GROUP})")),
        ("def cases(draw, ranks): pass", "cases", functions(f"autograd(function{BY_GROUP})")),
        ("class Ring(LinearOperator): pass", "Ring", operator("Ring")),
        ("def f(x, dim): pass", "f", functions(f"pair(forward=f, adjoint=f_adjoint{BY_GROUP})", ", dim=...")),
        ("class F(Function):\n    @staticmethod\n    def forward(ctx, x, dim): pass", "F", functions(f"autograd(F{BY_GROUP})", ", dim=...")),
        ("class Net(Module):\n    def __init__(self, comm): pass", "Net", layer()),
    ],
)  # fmt: skip
def test_code_of_torch_distributed_is_declared_with_its_process_group(
    source: str, name: str, expected: str
) -> None:
    module = module_of(source)
    assert how_to_declare(vars(module)[name], name, module) == expected


@pytest.mark.parametrize(
    ("home", "is_distributed"),
    [
        ("torch.distributed", True),
        ("torch.distributed.tensor", True),
        ("torch.distributed_tools", False),
        ("torch", False),
        ("mine.torch.distributed", False),
        (3, False),
    ],
)
@pytest.mark.parametrize("is_module", [True, False])
def test_torch_distributed_is_known_by_its_modules_and_by_what_they_define(
    home: Any, is_distributed: bool, is_module: bool
) -> None:
    module = ModuleType("mine")
    if is_module:
        module.imported = ModuleType(str(home))  # type: ignore[attr-defined]
    else:
        module.imported = type("Any", (), {"__module__": home})  # type: ignore[attr-defined]
    assert ("process_group" in how_to_declare(3, "value", module)) == is_distributed


RING, NET, FUNCTION = (
    "class Ring(LinearOperator): pass\n",
    "class Net(Module):\n    def __init__(self, comm): pass\n",
    "class F(Function): pass\n",
)
PAIR = "def f(comm, x): pass\ndef f_adjoint(comm, y): pass\n"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (PAIR + FUNCTION + NET + RING, operator("Ring")),
        (RING + "class Other(LinearOperator): pass\n" + NET, operator("Other")),
        (RING + "class _Other(LinearOperator): pass\n", operator("Ring")),
        (PAIR + FUNCTION + NET, layer()),
        (FUNCTION + PAIR, functions("autograd(F)")),
        (PAIR + "def g(x): pass\n", functions("pair(forward=f, adjoint=f_adjoint)")),
        ("def g(x): pass\nvalue = 3", operator("MyOperator")),
        ("", operator("MyOperator")),
    ],
)
def test_of_a_module_the_last_operator_is_declared_or_else_what_comes_next_to_it(
    source: str, expected: str
) -> None:
    module = module_of(source)
    del module.group  # type: ignore[attr-defined]
    assert how_to_declare_in(module) == expected


def test_what_a_module_only_imports_is_not_declared() -> None:
    module = ModuleType("mine")
    vars(module).update(Ring=al.LinearOperator, array=np.array, path=sys.path)
    assert how_to_declare_in(module) == operator("MyOperator")
