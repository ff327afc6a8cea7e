"""Parallel modules as layers, with the spaces that follow from the placements of their inputs, outputs and parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from adjointlab.core import arrays
from adjointlab.core.arrays import DeviceType
from adjointlab.core.declaration import SubjectError, require_accepts
from adjointlab.core.layer import (
    NO_HOOKS,
    Layer,
    OutputPath,
    PassHooks,
    Prepare,
    elementwise,
    prepared,
    trained,
)
from adjointlab.core.pieces import Fused
from adjointlab.core.rounding import unperturbed
from adjointlab.core.space import Space
from adjointlab.engine.adapters import Parameters, UserFunction
from adjointlab.engine.initial_values import give_initial_values, has_its_parts
from adjointlab.engine.meshes import MeshShape, as_mesh, piece_sizes, placements_by_name, placements_of
from adjointlab.engine.sequential_example import SequentialExample, has_outputs_alike
from adjointlab.engine.sequential_module import (
    freeze,
    require_made_anew,
    sequential_module,
    shapes_of,
    type_of,
    types_of,
    zeros_for,
)
from adjointlab.engine.user_layers import DeclaredTolerance, declared_tolerance, in_mode, truth_of
from adjointlab.spelling import described_type
from adjointlab.typing import Communicator, NumpyArray

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Placement

    from adjointlab.torch_distributed.names import Names
    from adjointlab.torch_distributed.parallel import ParallelModule, Placing

__all__ = [
    "ENTRIES_OF_PARALLEL",
    "DataParallel",
    "MakeOptimizer",
    "ParallelRecipe",
    "Parallelize",
    "Reduction",
    "require_reductions",
]

Parallelize: TypeAlias = "Callable[[Any, DeviceMesh], object]"
"""Makes a module parallel on a mesh, in place or by returning another one."""

Reduction: TypeAlias = Literal["mean", "sum"]

DataParallel: TypeAlias = "Reduction | Mapping[str | int, Reduction] | None"
"""The reduction of gradients over ranks that share the batch: along the first mesh dimension, or along the named ones."""

MakeOptimizer: TypeAlias = Callable[[list[Any]], Any]
"""Makes an optimiser of a list of parameters."""

ENTRIES_OF_PARALLEL: Final = frozenset(
    {
        "mesh",
        "inputs",
        "input_dtypes",
        "dtype",
        "training",
        "evaluated",
        "frozen",
        "dtensors",
        "input_placements",
        "output_placements",
        "parameter_placements",
        "parameter_pieces",
        "rounding",
        "reach",
    }
)
"""Entries of a case that are not arguments of the sequential module."""


@dataclass(frozen=True)
class _Sequential:
    """A sequential module that is about to be made parallel.

    `frozen` are the names of its frozen parameters, `frozen_by_lab` those that the user had not frozen; `values` are the initial
    values of its parameters, if the lab could set them.
    """

    module: torch.nn.Module
    names: Names
    frozen: frozenset[str]
    frozen_by_lab: frozenset[str]
    values: Mapping[str, NumpyArray] | None


@dataclass(frozen=True)
class ParallelRecipe:
    """Makes the module of a case on each rank, and its sequential twin."""

    sequential: UserFunction
    parallelize: Parallelize
    data_parallel: DataParallel = None
    prepare: Prepare = elementwise
    optimizer: MakeOptimizer | None = None
    steps: int = 0
    hooks: PassHooks = NO_HOOKS
    # None: True unless something reduces .grad as a whole, earlier gradients included.
    accumulates: bool | None = None
    one_batch_size: bool = False
    device_type: DeviceType = "cpu"

    def twin(self, /, **parameters: object) -> torch.nn.Module:
        """Make the sequential module of a case."""
        return self._sequential(parameters, is_evaluated=self._is_evaluated(parameters))

    def _sequential(self, parameters: Parameters, *, is_evaluated: bool) -> torch.nn.Module:
        module = self._made(parameters)
        return module.eval() if is_evaluated else module

    def _made(self, parameters: Parameters) -> torch.nn.Module:
        return sequential_module(self.sequential, parameters, ENTRIES_OF_PARALLEL, self.device_type)

    def _zeros(self, parameters: Parameters) -> Sequence[torch.Tensor]:
        """Legal global inputs of a case, made from zeros."""
        return prepared(self.prepare, *zeros_for(parameters, self.device_type))

    def _is_evaluated(self, parameters: Parameters) -> bool:
        """Return True if the case puts its modules into evaluation mode."""
        return truth_of(parameters, "evaluated") and self._has_outputs_alike(parameters, goes_back=True)

    def _has_outputs_alike(self, parameters: Parameters, *, goes_back: bool = False) -> bool:
        """Apply :func:`has_outputs_alike` to a new sequential module."""
        import torch

        # A twin is also made while rounding is measured, and needs the same mode there: so this runs without perturbation.
        with torch.random.fork_rng(devices=[]), unperturbed():
            return has_outputs_alike(self._made(parameters), self._zeros(parameters), goes_back=goes_back)

    def build(self, comm: Communicator, /, **parameters: Any) -> Layer:
        """Make the parallel module of a case on this rank. Collective.

        The sequential module is frozen, its parameters are named and get their values before it is made parallel: a wrapper may refuse
        parameters that are frozen later, gives them longer names, and cuts their values into parts.
        """
        from adjointlab.torch_distributed.shared_tensors import DeclaredParameters, SharedTensors

        shape = as_mesh(parameters["mesh"])
        sharing = self._sharing(shape)
        example = self._example(parameters)
        placing = _placing(
            parameters, shape, sharing, len(shapes_of(parameters["inputs"])), len(example.outputs)
        )
        _require_rows(placing, example.outputs)
        sequential = self._to_parallelize(example, parameters, leaves_one=bool(sharing))
        mesh = shape.make_on(comm, self.device_type)
        made, tolerance = self._made_parallel(sequential, example, mesh, placing, parameters)
        _require_batches(made, sharing, parameters)
        if sequential.values is not None:
            made.renumber(sequential.values, comm)
        requiring_gradients = trained(made) - sequential.frozen_by_lab
        in_mode(made, parameters)  # also the parts that `parallelize` has created
        if example.is_evaluated:
            made.eval()
        names = list(sequential.names.parameters)
        declared = DeclaredParameters(
            placements_by_name(parameters, names, shape), piece_sizes(parameters, names), sequential.values
        )
        shared = SharedTensors(mesh, comm)
        space, pieces = made.parameter_space(shared, declared)
        return Layer(
            comm,
            made,
            _inputs_on(mesh, placing, parameters),
            _outputs_on(mesh, placing, example.outputs),
            space,
            made.buffer_space(shared),
            **tolerance._asdict(),
            prepare=self.prepare,
            user_class=type(made.made),
            uniform_requires_grad=True,
            frozen=sequential.frozen,
            averaged=math.prod(shape.extents[dim] for dim, how in sharing.items() if how == "mean"),
            alternates=made.is_data_parallel or example.alternates,
            needs_all_outputs=made.is_data_parallel,
            accumulates=self._accumulates(sharing),
            joins_passes=self._joins_passes(),
            optimizer=self.optimizer,
            steps=self.steps,
            trained=requiring_gradients,
            needs_graph=example.needs_graph,
            is_made_of_twin=True,
            initial=_initial(comm, made, space, sequential.values, pieces),
            pieces=pieces,
            other_batch=cache(partial(self._other_batch, example, mesh, placing, parameters)),
            takes_evaluation_mode=cache(
                partial(self._takes_evaluation_mode, (example.module, made.made), parameters)
            ),
            takes_order=cache(lambda order: example.takes_order(self._zeros(parameters), order)),
        )

    def _to_parallelize(
        self, example: SequentialExample, parameters: Parameters, *, leaves_one: bool
    ) -> _Sequential:
        """A new sequential module with frozen parameters and initial values."""
        from adjointlab.torch_distributed.names import Names

        module = self._sequential(parameters, is_evaluated=example.is_evaluated)
        require_made_anew(example.module, module)
        owned, pattern = trained(module), parameters.get("frozen", 0)
        # DistributedDataParallel refuses a module without trained parameters, and so do optimisers.
        frozen = freeze(module, pattern, leaves_one=leaves_one or self.optimizer is not None)
        # A parallel style of torch may unfreeze parameters. That is a fault only for those that the user has frozen.
        by_lab = owned & frozen if isinstance(pattern, int) else frozenset[str]()
        return _Sequential(module, Names.of(module), frozen, by_lab, give_initial_values(module))

    def _made_parallel(
        self,
        sequential: _Sequential,
        example: SequentialExample,
        mesh: DeviceMesh,
        placing: Placing,
        parameters: Parameters,
    ) -> tuple[ParallelModule, DeclaredTolerance]:
        """The parallel module, and the tolerance that it declares. Collective."""
        from adjointlab.torch_distributed.parallel import ParallelModule

        module, wrappers = self._parallelized(sequential.module, mesh, type_of(parameters))
        # A wrapper does not have the attributes of the module that it wraps.
        declares = any(hasattr(module, name) for name in ("rounding", "reach"))
        tolerance = declared_tolerance(module if declares else example.module, parameters)
        made = ParallelModule(
            module,
            mesh,
            placing,
            shapes_of(parameters["inputs"]),
            {path: y.dtype for path, y in example.outputs.items()},
            sequential.names,
            self.hooks,
            wrappers=wrappers,
            in_another_type=bool(tolerance.rounding or tolerance.computes_in),
        )
        return made, tolerance

    def _accumulates(self, sharing: Mapping[int, Reduction]) -> bool:
        """Return True if gradients may accumulate over earlier ones: by default not if something reduces ``.grad`` as a whole."""
        if self.accumulates is not None:
            return self.accumulates
        return not (self.hooks.change_gradients or "sum" in sharing.values())

    def _joins_passes(self) -> bool:
        """Return True if gradients of two passes may accumulate between the hooks: by default if `before_backward` clears earlier ones."""
        if self.accumulates is not None:
            return self.accumulates and self.hooks.change_gradients
        return self.hooks.before_backward is not None

    def _parallelized(
        self, module: torch.nn.Module, mesh: DeviceMesh, dtype: str
    ) -> tuple[torch.nn.Module, Sequence[torch.nn.Module]]:
        """Apply the user's function to the sequential module, and convert the result to the element type of the case. Collective.

        Returned with it are the data-parallel modules that the function has made.
        """
        import torch

        from adjointlab.torch_distributed.converted_modules import convert
        from adjointlab.torch_distributed.data_parallel import noting_wrappers
        from adjointlab.torch_distributed.made_parameters import made_in

        require_accepts("parallelize", self.parallelize, ("module", "mesh"), {})
        wanted = getattr(torch, dtype)
        with made_in(wanted), noting_wrappers() as wrappers:
            result = self.parallelize(module, mesh)
        if result is not None and not isinstance(result, torch.nn.Module):
            raise SubjectError(
                f"parallelize returned {described_type(result)}, which is neither a module nor None"
            )
        module = module if result is None else result
        convert((*module.parameters(), *module.buffers()), wanted)  # those that `parallelize` has created
        return module, wrappers

    def _sharing(self, mesh: MeshShape) -> dict[int, Reduction]:
        """The mesh dimensions along which ranks share the batch, with the reduction of their gradients."""
        given = self.data_parallel
        by_dim = {0: given} if isinstance(given, str) else dict(given or {})
        return {mesh.dim(key): how for key, how in by_dim.items()}

    def _example(self, parameters: Parameters) -> SequentialExample:
        is_evaluated = self._is_evaluated(parameters)
        module = self._sequential(parameters, is_evaluated=is_evaluated)
        return SequentialExample.of(module, self._zeros(parameters), is_evaluated=is_evaluated)

    def _other_batch(
        self,
        example: SequentialExample,
        mesh: DeviceMesh,
        placing: Placing,
        parameters: Parameters,
        is_larger: bool,
    ) -> Space | None:
        """The space of inputs of twice or half the batch size, if the outputs of the sequential module grow or shrink alike; else None.

        Parts of a sharded batch are then as even as before, and parts that were not empty are not empty now.
        """
        shapes = shapes_of(parameters["inputs"])
        batch = shapes[0][0] if shapes[0] else 0
        other = 2 * batch if is_larger else batch // 2
        if self.one_batch_size or placing.gives_dtensors or not other:
            return None
        if any(shape[:1] != (batch,) for shape in shapes):
            return None
        if not is_larger and (batch % 2 or not _cut_alike(batch, other, mesh.size())):
            return None
        changed = {**parameters, "inputs": [(other, *sides) for _, *sides in shapes]}
        if not example.takes_batch(lambda: self._zeros(changed), batch, other):
            return None
        return _inputs_on(mesh, placing, changed)

    def _takes_evaluation_mode(self, modules: Sequence[torch.nn.Module], parameters: Parameters) -> bool:
        """Return True if a validation may interrupt training: the user has not fixed the mode of the module or of a submodule."""
        if {"training", "evaluated"} & parameters.keys():
            return False
        parts = (part for module in modules for part in module.modules())
        return all(part.training for part in parts) and self._has_outputs_alike(parameters)


def _cut_alike(batch: int, smaller: int, ranks: int) -> bool:
    """Return True if `torch.chunk` cuts the smaller batch into parts that are not empty, and equal if those of the batch are."""
    largest = -(-smaller // ranks)
    return (ranks - 1) * largest < smaller and (bool(batch % ranks) or not smaller % ranks)


def _inputs_on(mesh: DeviceMesh, placing: Placing, parameters: Parameters) -> Space:
    """The space of the inputs of a case."""
    from adjointlab.torch_distributed.dtensors import space_on

    shapes = shapes_of(parameters["inputs"])
    placements = [placing.of_input(number) for number in range(len(shapes))]
    return space_on(mesh, "x", placements, shapes, types_of(parameters))


def _require_rows(placing: Placing, outputs: Mapping[OutputPath, torch.Tensor]) -> None:
    """Raise :class:`SubjectError` for an output without dimensions that should be cut along the first, as the batch is."""
    for number, y in enumerate(outputs.values()):
        if not y.ndim and any(placement.is_shard() for placement in placing.of_output(number)):
            raise SubjectError(
                f"the sequential module returns a scalar (y{number or ''}), which has no rows for ranks that share the batch: return a value for "
                "each row, not a loss of the whole batch, or say in output_placements how the ranks hold it"
            )


def _require_batches(made: ParallelModule, sharing: Mapping[int, Reduction], parameters: Parameters) -> None:
    """Raise :class:`SubjectError` if the module averages gradients over ranks with the same batch: averages of equal ones hide errors."""
    if made.averages_gradients and not sharing and "input_placements" not in parameters:
        raise SubjectError(
            "the parallel module averages gradients over ranks, as DistributedDataParallel and fully_shard do, and all ranks have the same inputs: "
            'say data_parallel="mean", so that each gets rows of its own'
        )


def _outputs_on(mesh: DeviceMesh, placing: Placing, outputs: Mapping[OutputPath, torch.Tensor]) -> Space:
    """The space of the outputs of a case, with the shapes and types of the sequential module's `outputs`."""
    from adjointlab.torch_distributed.dtensors import space_on

    return space_on(
        mesh,
        "y",
        [placing.of_output(number) for number in range(len(outputs))],
        [tuple(y.shape) for y in outputs.values()],
        [arrays.dtype_name(y) for y in outputs.values()],
    )


def _initial(
    comm: Communicator,
    made: ParallelModule,
    space: Space,
    values: Mapping[str, NumpyArray] | None,
    pieces: Mapping[str, Fused],
) -> Mapping[str, NumpyArray] | None:
    """The initial `values` of the sequential module if every rank of the parallel one has its part of them, else None. Collective."""
    are_parts = values is not None and has_its_parts(made, space, comm.Get_rank(), values, pieces)
    return values if all(comm.allgather(are_parts)) else None


def _placing(
    parameters: Parameters, mesh: MeshShape, sharing: Mapping[int, Reduction], inputs: int, outputs: int
) -> Placing:
    """The placements of a case's `inputs` inputs and `outputs` outputs: by default the batch is cut along the dimensions of `sharing`."""
    from torch.distributed.tensor import Replicate, Shard

    from adjointlab.torch_distributed.parallel import Placing

    batch: list[Placement] = [Shard(0) if dim in sharing else Replicate() for dim in range(len(mesh.extents))]
    return Placing(
        batch,
        placements_of("input_placements", parameters, inputs, mesh),
        placements_of("output_placements", parameters, outputs, mesh),
        truth_of(parameters, "dtensors"),
    )


def require_reductions(given: DataParallel) -> None:
    """Raise :class:`SubjectError` for an invalid reduction of gradients."""
    for how in given.values() if isinstance(given, Mapping) else (given,):
        if how not in get_args(Reduction) and not (how is None and given is None):
            raise SubjectError(
                f'data_parallel: {given!r}: gradients are reduced by "mean" or "sum", not by {how!r}; '
                'for one dimension of the mesh say which, as in {"dp": "mean"}'
            )
