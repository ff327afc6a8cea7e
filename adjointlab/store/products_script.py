"""A script that shows a wrong matrix entry by two inner products, using a plain communicator of mpi4py.

It contains two basis vectors as literals, so that a reader can verify the inner products without trusting the lab.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import indent
from types import ModuleType
from typing import NamedTuple

import numpy as np

from adjointlab.checks.check import Spaces
from adjointlab.checks.verdict import MatrixEntry
from adjointlab.core import arrays
from adjointlab.core.bases import basis_vector
from adjointlab.core.declaration import has_parameter
from adjointlab.core.space import Space
from adjointlab.engine.adapters import BOUNDS, UserFunction
from adjointlab.engine.case import Case
from adjointlab.engine.subject import Kind, Subject
from adjointlab.store.script_text import (
    HEAD,
    PATHS,
    Name,
    commented,
    folders,
    in_module,
    literal,
    script_name,
    subject_name,
)

__all__ = ["functions_of", "products"]

_PRODUCTS = (
    HEAD
    + """import shlex
import time
import traceback
from importlib import import_module
"""
    + PATHS
    + """
# The tensors of x and y on each rank: values, type, shape.
X = {x}
Y = {y}
# Ranks whose copy counts in the pairing: of invariant copies, the first.
COUNTED_X = {counted_x}
COUNTED_Y = {counted_y}


def without_mpi():
{without_mpi}

def main():
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):  # RuntimeError where mpi4py finds no MPI library
        return without_mpi()
    import numpy as np

    comm = MPI.COMM_WORLD
    rank = comm.Get_rank()
    if comm.Get_size() != {ranks}:
        if rank == 0:
            print("this case needs: mpiexec -n {ranks} python " + shlex.quote(__file__))
        return 2
    missing = []
    try:
{imports}        for name in {modules}:
            import_module(name)
    except ModuleNotFoundError as error:
        missing = [str(error)]
    missing = sorted({{text for texts in comm.allgather(missing) for text in texts}})
    if missing:
        if rank == 0:
            print(*missing, "run this script where the project lies, or set PYTHONPATH", sep="; ", file=sys.stderr)
        return 2
{setup}
    def tensors(ranks):
        made = [np.array(values, dtype=dtype).reshape(shape) for values, dtype, shape in ranks[rank]]
        return {convert}

    def tuple_of(value):
        return tuple(value) if isinstance(value, (tuple, list)) else (value,)

    def pairing(a, b, counted):
        terms = [np.sum(np.asarray(u) * np.conj(np.asarray(v))) for u, v, ranks in zip(a, b, counted) if rank in ranks]
        return comm.allreduce(sum(terms, 0.0))

    x, y = tensors(X), tensors(Y)
    Fx = tuple_of({forward})
    Fy = tuple_of({adjoint})
    left, right = pairing(Fx, y, COUNTED_Y), pairing(x, Fy, COUNTED_X)
    # What the products are measured against: they may cancel.
    scale = pairing([np.abs(a) for a in Fx], [np.abs(b) for b in y], COUNTED_Y)
    same = abs(left - right) <= {tolerance!r} * scale
    if rank == 0:
        print("<Fx, y>  =", left)
        print("<x, F*y> =", right)
{expected}    return 0 if same else 1


if __name__ == "__main__":
    try:
        code = main()
    except BaseException:
        # Python would end with 1, as if the failure had been seen; and the other ranks would wait.
        sys.stderr.write(traceback.format_exc())
        sys.stderr.flush()
        if "mpi4py.MPI" in sys.modules:
            # Once it sees an abort, MPICH's mpiexec reads no more of what the ranks have written.
            time.sleep(0.2)
            sys.modules["mpi4py.MPI"].COMM_WORLD.Abort(2)
        code = 2
    sys.exit(code)
"""
)

_ON_SIMULATED_RANKS = """\
    # The JSON file beside this script has the case.
    try:
        from adjointlab.cli.reproduce import reproduce

        reproduce(__file__, {reference})
    except SystemExit as end:
        return end.code
    except ImportError:
        print("this script needs mpi4py, or adjointlab, which replays the case on simulated ranks", file=sys.stderr)
        return 2
"""

_NOT_WITHOUT_MPI = """\
    print("this script needs mpi4py", file=sys.stderr)
    return 2
"""

_EXPECTED = """        print("expected  =", {weight!r})
    same = same and left == {weight!r}
"""

# The lab's modules are imported before the replacement, so that they keep their own constants.
_TRANSLATION = """\
    # The operator talks to mpi4py here, so adjointlab.MPI has to mean mpi4py's constants.
    import adjointlab.worlds.mpi.world
    import adjointlab.worlds.simulated.world
    from adjointlab.store.reproducer import read

    sys.modules["adjointlab.MPI"] = adjointlab.MPI = MPI
"""

_STORED = "dict(read(Path(__file__).with_suffix('.json')).case.parameters)"


def functions_of(subject: Subject) -> list[Name] | None:
    """Return the name of an operator, or those of the two functions of a pair; `None` if a script cannot import them."""
    functions = (subject.target,) if subject.kind is Kind.OPERATOR else subject.pair
    names = [name for function in functions if (name := _function_name(function)) is not None]
    return names if len(names) == len(functions) else None


def _function_name(function: UserFunction) -> Name | None:
    module, path = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    value: object = sys.modules.get(module)
    for part in path.split("."):
        value = getattr(value, part, None)
    name = in_module(module, path) if value is function else None
    return name if name is not None and name.module == module else None


def _uses_lab(module: ModuleType) -> bool:
    origins = [
        value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", "")
        for value in vars(module).values()
    ]
    return any(str(origin).partition(".")[0] == "adjointlab" for origin in origins)


_PRODUCTS_USAGE = """Run with: mpiexec -n {ranks} python {name}
It needs {needs}.{without}
It prints both inner products of two basis vectors, one entry of the matrix.
Exit codes: 1 while they differ{differ}, 0 once they do not, 2 where it cannot run."""


class _Call(NamedTuple):
    """The expressions that apply both directions, and the lines that precede them."""

    setup: Sequence[str]
    forward: str
    adjoint: str


def products(
    case: Case,
    subject: Subject,
    spaces: Spaces,
    entry: MatrixEntry,
    functions: list[Name],
    findings: str,
    beside: Path,
) -> str:
    """Return the script that shows a matrix `entry`, with the names that :func:`functions_of` returns for the subject.

    `findings` are comments that describe the failure, and `beside` is the reproducer beside the script.
    """
    not_passed = _not_passed(subject)
    made = literal({key: value for key, value in case.parameters.items() if key not in not_passed})
    needs_lab = (
        subject.kind is Kind.OPERATOR
        or made is None
        or any(_uses_lab(sys.modules[function.__module__]) for function in subject.pair)
    )
    is_torch = case.setting.library == "torch"
    call = _call(subject, functions, made, not_passed)
    domain, codomain = spaces.domain, spaces.codomain
    weight = None if entry.weight is None else entry.weight if entry.weight.imag else entry.weight.real
    imports = ("    import torch\n" if is_torch else "") + (_TRANSLATION if needs_lab else "")
    return _PRODUCTS.format(
        findings=findings,
        usage=commented(
            _PRODUCTS_USAGE.format(
                ranks=case.ranks,
                name=script_name(beside),
                needs=_needs(functions, is_torch=is_torch, needs_lab=needs_lab, needs_file=made is None),
                without="\nWithout mpi4py, adjointlab replays the case on simulated ranks."
                if needs_lab
                else "",
                differ="" if weight is None else ", from each other or from what the specification says",
            )
        ),
        folders=folders(functions, beside),
        ranks=case.ranks,
        without_mpi=_without_mpi(subject, needs_lab=needs_lab),
        imports=indent(imports, "    "),
        modules=literal(_modules(functions)),
        setup="".join(f"    {line}\n" for line in call.setup),
        x=_values(domain, case.ranks, entry.column),
        y=_values(codomain.dual, case.ranks, entry.row),
        counted_x=_counted(domain, case.ranks),
        counted_y=_counted(codomain, case.ranks),
        convert="[torch.from_numpy(array) for array in made]" if is_torch else "made",
        forward=call.forward,
        adjoint=call.adjoint,
        tolerance=4 * 2.0 ** -min(tensor.element.precision for tensor in domain.tensors),
        expected="" if weight is None else _EXPECTED.format(weight=weight),
    )


def _not_passed(subject: Subject) -> tuple[str, ...]:
    """Return the names of a case's arguments that the code under test does not get, such as the spaces of a pair."""
    if subject.kind is Kind.OPERATOR:
        return ()
    bounds = [name for name in BOUNDS if not any(has_parameter(function, name) for function in subject.pair)]
    return ("domain", "codomain", *bounds)


def _call(subject: Subject, functions: list[Name], made: str | None, not_passed: tuple[str, ...]) -> _Call:
    """Return the call of an operator or of a pair's functions. The arguments are the literal `made`, or read from the JSON file."""
    setup = [f"arguments = {made or _STORED}"]
    if made is None and not_passed:
        setup.append(f"arguments = {{k: v for k, v in arguments.items() if k not in {not_passed}}}")
    loaded = [f"import_module({literal(each.module)}).{each.attribute}" for each in functions]
    if subject.kind is Kind.OPERATOR:
        setup.append(f"operator = {loaded[0]}(comm, **arguments)")
        return _Call(setup, "operator.forward(*x)", "operator.adjoint(*y)")
    setup += [f"forward = {loaded[0]}", f"adjoint = {loaded[1]}"]
    return _Call(setup, "forward(comm, *x, **arguments)", "adjoint(comm, *y, **arguments)")


def _needs(functions: list[Name], *, is_torch: bool, needs_lab: bool, needs_file: bool) -> str:
    needs = ["mpi4py", "NumPy"]
    needs += ["torch"] if is_torch else []
    needs += ["adjointlab"] if needs_lab else []
    needs += ["the JSON file beside it"] if needs_file else []
    return f"{', '.join(needs)}, and what {' and '.join(_modules(functions))} imports"


def _modules(functions: list[Name]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each.module for each in functions))


def _without_mpi(subject: Subject, *, needs_lab: bool) -> str:
    """Return the lines that run if mpi4py is missing: they replay the case on simulated ranks, if the lab is needed anyway."""
    found = subject_name(subject)
    if found is None or not needs_lab:
        return _NOT_WITHOUT_MPI
    return _ON_SIMULATED_RANKS.format(reference=literal(f"{found.module}:{found.attribute}"))


def _values(space: Space, ranks: int, index: int) -> str:
    """Return the source of the basis vector `index`: its local tensors on all ranks."""
    everywhere = []
    for rank in range(ranks):
        held = zip(
            space.tensors, map(arrays.to_numpy, basis_vector(space, index, rank, "numpy")), strict=True
        )
        local = [
            (np.asarray(values).tolist(), tensor.dtype, tensor.layout.local_shape(rank))
            for tensor, values in held
        ]
        everywhere.append(f"    [{', '.join(str(literal(each)) for each in local)}],\n")
    return f"[\n{''.join(everywhere)}]"


def _counted(space: Space, ranks: int) -> list[list[int]]:
    return [[rank for rank in range(ranks) if tensor.is_counted(rank)] for tensor in space.tensors]
