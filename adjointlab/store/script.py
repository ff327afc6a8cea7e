"""A failing case as a script that needs only the operator and mpi4py.

The script states what the lab has computed as literals, the local tensors and the ranks whose copies count, so that its reader
can follow the inner products without trusting the lab. It calls the operator and nothing else of the lab.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from adjointlab.core import arrays
from adjointlab.core.layout import Layout
from adjointlab.core.operator import basis_vector
from adjointlab.core.partition import Partition
from adjointlab.core.space import LocalType, Space, Tensor
from adjointlab.core.values import Draw, Role, local_values
from adjointlab.engine.case import Case
from adjointlab.engine.case_data import Parameters, to_data
from adjointlab.engine.search import SearchResult
from adjointlab.engine.subject import Subject

__all__ = ["script"]

_LIMIT = """
The failure was found by another check, {check}, which the products need not show: replay the JSON file beside this
script for that."""

_TEMPLATE = '''"""{headline}

{lines}

Run with: mpiexec -n {ranks} python {name}
It prints both inner products of {pair} and exits with 1 while they {differ}.{limit}
"""

from mpi4py import MPI
import numpy as np
{imports}

comm = MPI.COMM_WORLD
rank = comm.Get_rank()
if comm.Get_size() != {ranks}:
    if rank == 0:
        print("this case needs: mpiexec -n {ranks} python " + __file__)
    raise SystemExit(2)

{setup}

# What each rank holds of x and y.
x = {x}[rank]
y = {y}[rank]
# Ranks whose copy counts in the pairing: of invariant copies, the first.
counted_x = {counted_x}
counted_y = {counted_y}


def tuple_of(value):
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def pairing(a, b, counted):
    terms = [np.sum(np.asarray(u) * np.conj(np.asarray(v))) for u, v, ranks in zip(a, b, counted) if rank in ranks]
    return comm.allreduce(sum(terms, 0.0))


x, y = [{convert} for array in x], [{convert} for array in y]
Fx = tuple_of(operator.forward(*x))
Fy = tuple_of(operator.adjoint(*y))
left, right = pairing(Fx, y, counted_y), pairing(x, Fy, counted_x)
if rank == 0:
    print("<Fx, y>  =", left)
    print("<x, F*y> =", right)
# What the products are measured against: they may cancel.
scale = pairing([np.abs(a) for a in Fx], [np.abs(b) for b in y], counted_y)
same = abs(left - right) <= {tolerance!r} * scale
{expected}raise SystemExit(0 if same else 1)
'''

_EXPECTED = """expected = {weight!r}
if rank == 0:
    print("expected  =", expected)
same = same and left == expected
"""

_BARE = '''"""{headline}

{lines}

Run with: mpiexec -n {ranks} python {name}
It makes the operator and calls it forward and adjoint, with the values of this case. (No rank returned its spaces, so
adjointlab is needed to draw them.)
"""

from mpi4py import MPI
from adjointlab.core.values import Draw, local_values
{imports}

comm = MPI.COMM_WORLD
rank = comm.Get_rank()
if comm.Get_size() != {ranks}:
    if rank == 0:
        print("this case needs: mpiexec -n {ranks} python " + __file__)
    raise SystemExit(2)

{setup}


def drawn(space, role):
    values = [local_values(space, i, rank, Draw({seed}, 0, role, 8)) for i in range(len(space.tensors))]
    return [{convert} for array in values]


print("rank", rank, "calls forward", flush=True)
operator.forward(*drawn(operator.domain, "primal"))
print("rank", rank, "calls adjoint", flush=True)
operator.adjoint(*drawn(operator.codomain.dual, "dual"))
print("rank", rank, "has returned", flush=True)
'''


def script(case: Case, report: SearchResult, subject: Subject, name: str) -> str:
    """The text of the script for `case`; `name` is the file name of the reproducer beside it.

    Where the verdict names a matrix entry, the vectors are its two basis vectors, so that the script shows that entry. Else
    they are drawn; for a failure of another check than the dot test the script says that they need not show it.
    """
    spaces = report.spaces
    lines = [f"{label}: {text}" for label, text in report.verdict.lines if label != "traceback"]
    if spaces is None:
        return _bare(case, report, subject, lines, name)
    _, attribute = _origin(subject)
    library = case.setting.library
    parameters = dict(case.parameters)
    imports = _imports(subject, parameters, library)
    entry, domain, dual = report.verdict.entry, spaces.domain, spaces.codomain.dual
    weight = None if entry is None else entry.weight
    tolerance = 4 * 2.0 ** -min(tensor.element.precision for tensor in domain.tensors)
    return _TEMPLATE.format(
        headline=f"{report.subject}: {report.verdict.headline}",
        lines="\n".join(lines) or "(no details)",
        ranks=case.ranks,
        name=Path(name).with_suffix(".py").name,
        pair="one pair of vectors" if entry is None else "two basis vectors, one entry of the matrix,",
        differ="differ" if weight is None else "differ, from each other or from what the specification says",
        limit=""
        if entry is not None or case.check in ("adjoint", "matrix")
        else _LIMIT.format(check=case.check),
        imports="\n".join(imports),
        setup=_setup(subject, attribute, parameters),
        x=_values(domain, case, "primal", None if entry is None else entry.column),
        y=_values(dual, case, "dual", None if entry is None else entry.row),
        counted_x=_counted(domain, case.ranks),
        counted_y=_counted(spaces.codomain, case.ranks),
        convert="torch.from_numpy(array)" if library == "torch" else "array",
        expected="" if weight is None else _EXPECTED.format(weight=weight if weight.imag else weight.real),
        tolerance=tolerance,
    )


def _setup(subject: Subject, attribute: str, parameters: Parameters) -> str:
    """The lines that make the operator: from its class, or, for functions, through the declared subject."""
    arguments = ", ".join(f"{key}={value!r}" for key, value in parameters.items())
    if inspect.isclass(subject.target) and hasattr(subject.target, "adjoint"):
        return f"operator = {attribute}(comm, {arguments})"
    file = inspect.getsourcefile(inspect.unwrap(subject.draws))
    module, _, name = subject.location.partition(":")
    source = module if file is None else str(Path(file).resolve())
    return (
        "from adjointlab.engine.discovery import find_subject\n\n"
        f"operator = find_subject({f'{source}:{name}'!r}).make(comm, dict({arguments}))"
    )


def _origin(subject: Subject) -> tuple[str, str]:
    target = subject.target
    return target.__module__, getattr(target, "__qualname__", subject.name)


def _import(subject: Subject) -> str:
    """The lines that import the operator: from its module, or, where that is on no path, from its file."""
    module, attribute = _origin(subject)
    name = attribute.split(".")[0]
    file = inspect.getsourcefile(inspect.unwrap(subject.target))
    plain = f"from {module} import {name}"
    if file is None:
        return plain
    return f"""try:
    {plain}
except ImportError:
    import runpy

    {name} = runpy.run_path({str(Path(file).resolve())!r})[{name!r}]"""


def _names(value: object) -> set[str]:
    """The classes of adjointlab that the repr of `value` names."""
    kinds = (Partition, Layout, Space, Tensor, LocalType)
    if isinstance(value, Mapping):
        return set().union(*(_names(entry) for entry in value.values()))
    if isinstance(value, tuple | list):
        return set().union(*(_names(entry) for entry in value))
    if not isinstance(value, kinds):
        return set()
    found = {type(value).__name__}
    fields = getattr(value, "__dataclass_fields__", {})
    return found.union(*(_names(getattr(value, field)) for field in fields))


def _values(space: Space, case: Case, role: Role, index: int | None) -> str:
    """The local tensors of all ranks, as text: of the basis vector `index`, or of a random element if that is `None`."""
    ranks = []
    for rank in range(case.ranks):
        held = [
            f"np.array({values.tolist()!r}, dtype={_numpy_dtype(tensor)!r}).reshape({tensor.layout.local_shape(rank)!r})"
            for tensor, values in zip(space.tensors, _local(space, case, role, index, rank), strict=True)
        ]
        ranks.append("[" + ", ".join(held) + "]")
    return "[\n    " + ",\n    ".join(ranks) + ",\n]"


def _local(space: Space, case: Case, role: Role, index: int | None, rank: int) -> list[np.ndarray[Any, Any]]:
    if index is None:
        draw = Draw(case.setting.seed, 0, role, bound=8)
        return [local_values(space, position, rank, draw) for position in range(len(space.tensors))]
    everywhere = all(arrays.supports("numpy", tensor.dtype) for tensor in space.tensors)
    return [*map(arrays.to_numpy, basis_vector(space, index, rank, "numpy" if everywhere else "torch"))]


def _counted(space: Space, ranks: int) -> list[list[int]]:
    return [[rank for rank in range(ranks) if tensor.is_counted(rank)] for tensor in space.tensors]


def _numpy_dtype(tensor: Tensor) -> str:
    return "float32" if tensor.dtype == "bfloat16" else tensor.dtype


def _imports(subject: Subject, parameters: Parameters, library: str) -> list[str]:
    needed = sorted(_names(parameters))
    names = [f"from adjointlab import {', '.join(needed)}"] if needed else []
    return [*(["import torch"] if library == "torch" else []), *names, _import(subject)]


def _bare(case: Case, report: SearchResult, subject: Subject, lines: list[str], name: str) -> str:
    """A script for a case of which no rank has returned its spaces."""
    text = "\n".join(lines)
    if not subject.is_layer:
        parameters, library = dict(case.parameters), case.setting.library
        return _BARE.format(
            headline=f"{report.subject}: {report.verdict.headline}",
            lines=text or "(no details)",
            ranks=case.ranks,
            name=Path(name).with_suffix(".py").name,
            imports="\n".join(_imports(subject, parameters, library)),
            setup=_setup(subject, _origin(subject)[1], parameters),
            seed=case.setting.seed,
            convert="torch.from_numpy(array)" if library == "torch" else "array",
        )
    return (
        f'"""{report.subject}: {report.verdict.headline}\n\n{text}\n\n'
        "No rank has returned, so there are no spaces to draw vectors from; replay the JSON file beside\n"
        f'this script instead.\n\nParameters: {to_data(case.parameters)!r}\n"""\n'
    )
