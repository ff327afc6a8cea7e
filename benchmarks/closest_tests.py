"""Finds the tests closest to a file of the lab: those that state what it promises."""

from __future__ import annotations

from pathlib import Path

__all__ = ["ALWAYS", "CLOSEST", "ROOT", "closest_tests"]

ROOT = Path(__file__).resolve().parent.parent

_LOOKS = "tests/checks/looks"
_LAYERS = (
    f"{_LOOKS}/test_layers.py",
    "tests/checks/test_checks_of_layers.py",
    "tests/checks/test_registry.py",
)
_SCRIPTS = (
    "tests/store/test_texts_of_scripts.py",
    "tests/store/test_arguments_of_scripts.py",
    "tests/store/test_reproducer.py",
    "tests/store/test_scripts.py",
)
_SEARCH = (
    "tests/engine/test_looks_of_a_search.py",
    "tests/engine/test_promises_of_a_search.py",
    "tests/engine/test_counts.py",
    "tests/engine/test_search.py",
    "tests/engine/test_draws_of_a_search.py",
    "tests/engine/test_hypothesis_in_a_search.py",
    "tests/engine/test_judging_in_a_search.py",
    "tests/engine/test_confirming_in_a_search.py",
)
_PARALLEL = tuple(
    f"tests/torch_distributed/test_{name}.py"
    for name in ("check_parallel", "optimizers", "names_of_parameters", "legal_options")
)
_COMMANDS = (
    "tests/report",
    "tests/store/test_reproducer.py",
    "tests/cli/test_outputs.py",
    "tests/cli/test_cli.py",
)
_SIMULATED = "tests/worlds/simulated"
_CALLS = tuple(
    f"{_SIMULATED}/test_{name}.py"
    for name in (
        "collectives",
        "messages",
        "communicators",
        "constants",
        "buffers",
        "nondeterminism",
        "communicating",
        "findings",
        "modes_of_messages",
        "reductions",
        "refused_arguments",
        "texts_of_findings",
        "groups",
        "scheduler",
        "envelopes",
        "mailbox",
        "requests",
    )
)

CLOSEST: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("checks/layers/sensitivity", ("tests/checks/test_sensitivity.py", *_LAYERS)),
    (
        "checks/layers/repeated",
        ("tests/checks/test_repeated_parameters.py", "tests/checks/test_parts_of_whole_tensors.py"),
    ),
    (
        "checks/layers/differences",
        ("tests/checks/test_differences.py", "tests/checks/test_jacobian_at_kinks.py"),
    ),
    (
        "checks/layers/own_part",
        (
            "tests/checks/test_explanations_of_verdicts.py",
            "tests/checks/test_probed_matrices.py",
            "tests/checks/test_own_part.py",
            "tests/checks/test_hints_of_retries.py",
        ),
    ),
    (
        "checks/layers/jacobian",
        (
            "tests/checks/test_jacobian_figures.py",
            "tests/checks/test_points_of_jacobians.py",
            *_LAYERS,
            "tests/checks/test_jacobian_at_kinks.py",
        ),
    ),
    (
        "checks/layers/training",
        (
            "tests/checks/test_explanations_of_verdicts.py",
            "tests/checks/test_passes_of_layers.py",
            *_LAYERS,
            *_PARALLEL,
        ),
    ),
    (
        "checks/layers/drawn_values",
        (
            "tests/checks/test_values_of_inputs.py",
            "tests/checks/test_modules_of_layers.py",
            *_LAYERS,
            *_PARALLEL,
        ),
    ),
    (
        "checks/layers/modules",
        (
            "tests/checks/test_modules_of_layers.py",
            "tests/checks/test_parts_of_whole_tensors.py",
            "tests/checks/test_values_of_inputs.py",
            *_LAYERS,
            *_PARALLEL,
        ),
    ),
    (
        "checks/layers/twin",
        ("tests/checks/test_passes_of_layers.py", *_LAYERS, "tests/checks/test_values_of_inputs.py"),
    ),
    (
        "checks/layers/passes",
        ("tests/checks/test_passes_of_layers.py", *_LAYERS, "tests/engine/test_drawn_cases.py"),
    ),
    (
        "checks/layers/sequential",
        (
            "tests/checks/test_passes_of_layers.py",
            f"{_LOOKS}/test_sequential.py",
            f"{_LOOKS}/test_schedule_invariants.py",
            *_LAYERS,
        ),
    ),
    (
        "checks/layers/",
        (
            "tests/checks/test_explanations_of_verdicts.py",
            "tests/checks/test_passes_of_layers.py",
            *_LAYERS,
            "tests/checks/test_values_of_inputs.py",
        ),
    ),
    (
        "checks/probed_matrices",
        ("tests/checks/test_probed_matrices.py", "tests/checks/test_rounding_and_mixed_matrices.py", _LOOKS),
    ),
    (
        "checks/measured_rounding",
        ("tests/checks/test_rounding_of_operators.py", "tests/checks/test_figures.py"),
    ),
    ("checks/declarations", ("tests/checks/test_limits.py", "tests/checks/test_hints.py")),
    ("checks/basis_probe", ("tests/checks/test_basis_probe.py", _LOOKS)),
    (
        "checks/compared",
        (
            "tests/checks/test_compared_matrices.py",
            "tests/checks/test_limits.py",
            "tests/checks/test_verdicts.py",
            _LOOKS,
            "tests/checks/test_hints.py",
        ),
    ),
    ("checks/forms", ("tests/checks/test_other_forms.py", _LOOKS)),
    (
        "checks/drawing",
        (
            "tests/checks/test_drawings_of_evidence.py",
            "tests/checks/test_compared_matrices.py",
            "tests/pictures/test_failures.py",
        ),
    ),
    (
        "checks/hints",
        (
            "tests/checks/test_relations_of_values.py",
            "tests/checks/test_texts_of_hints.py",
            "tests/checks/test_hints.py",
            "tests/pictures/test_failures.py",
        ),
    ),
    ("checks/arithmetic", ("tests/checks/test_contexts.py", "tests/checks/test_figures.py", _LOOKS)),
    (
        "checks/gain",
        (
            "tests/checks/test_contexts.py",
            "tests/checks/test_figures.py",
            "tests/checks/test_rounding_of_operators.py",
            _LOOKS,
        ),
    ),
    (
        "checks/context",
        (
            "tests/checks/test_contexts.py",
            "tests/checks/test_figures.py",
            _LOOKS,
            "tests/engine/test_looks_of_a_search.py",
        ),
    ),
    (
        "checks/adjoint",
        (
            "tests/checks/test_dot_test_figures.py",
            "tests/checks/test_figures.py",
            _LOOKS,
            "tests/checks/test_outputs_that_are_not_finite.py",
            "tests/engine/test_looks_of_a_search.py",
        ),
    ),
    *(
        (
            name,
            (
                "tests/checks/test_elements.py",
                "tests/checks/test_figures.py",
                _LOOKS,
                "tests/checks/test_outputs_that_are_not_finite.py",
                "tests/engine/test_looks_of_a_search.py",
            ),
        )
        for name in ("checks/elements", "checks/memory_orders")
    ),
    (
        "checks/matrix",
        (
            "tests/checks/test_probed_matrices.py",
            "tests/checks/test_figures.py",
            _LOOKS,
            "tests/checks/test_hints.py",
            "tests/pictures/test_failures.py",
            "tests/checks/test_compared_matrices.py",
        ),
    ),
    ("checks/declarations", ("tests/checks/test_hints.py", "tests/checks/test_probed_matrices.py", _LOOKS)),
    (
        "checks/schedule_invariant",
        ("tests/checks/test_probed_matrices.py", "tests/checks/test_figures.py", _LOOKS),
    ),
    (
        "checks/linearity",
        (
            "tests/checks/test_dot_test_figures.py",
            f"{_LOOKS}/test_linearity.py",
            "tests/checks/test_figures.py",
        ),
    ),
    (
        "checks/check.",
        (
            "tests/checks/test_registry.py",
            "tests/checks/test_probed_matrices.py",
            "tests/checks/test_figures.py",
            _LOOKS,
            *_SEARCH,
        ),
    ),
    (
        "checks/",
        (
            "tests/checks/test_explanations_of_verdicts.py",
            "tests/checks/test_elements.py",
            "tests/checks/test_figures.py",
            "tests/checks/test_registry.py",
            "tests/checks/test_limits.py",
            "tests/checks/test_verdicts.py",
            _LOOKS,
            "tests/checks/test_outputs_that_are_not_finite.py",
            "tests/engine/test_looks_of_a_search.py",
            "tests/checks/test_each_check_catches_its_own.py",
            "tests/checks/test_hints.py",
            "tests/pictures/test_failures.py",
            "tests/engine/test_search.py",
        ),
    ),
    (
        "core/strategies",
        ("tests/core/test_everything_drawn.py", "tests/core/test_drawn.py", "tests/core/test_strategies.py"),
    ),
    ("core/kept_strategies", ("tests/core/test_drawn.py", "tests/core/test_strategies.py")),
    (
        "core/placements",
        (
            "tests/core/test_placements.py",
            "tests/torch_distributed/test_spaces.py",
            "tests/torch_distributed/test_parallel_modules.py",
        ),
    ),
    (
        "core/agreement",
        (
            "tests/core/test_agreement.py",
            "tests/primitives/test_checked_operator.py",
            "tests/primitives/test_validation.py",
        ),
    ),
    ("core/declaration", ("tests/core/test_declaration.py", "tests/engine/test_declared_wrongly.py")),
    (
        "core/layer.",
        ("tests/core/test_layer.py", "tests/checks/test_checks_of_layers.py", f"{_LOOKS}/test_layers.py"),
    ),
    ("core/splitmix", ("tests/core/test_splitmix.py", "tests/core/test_values.py")),
    (
        "core/transport",
        (
            "tests/gpu/test_nccl.py",
            "tests/gpu/test_transports.py",
            "tests/gpu/test_transport_parts.py",
            "tests/devices/test_transport.py",
        ),
    ),
    *(
        (
            name,
            (
                "tests/core/test_arguments.py",
                "tests/core/test_space.py",
                "tests/core/test_local_types.py",
                "tests/gpu/test_arrays_on_a_device.py",
            ),
        )
        for name in ("core/space", "core/arguments")
    ),
    (
        "core/arrays/",
        (
            *(f"tests/core/test_{name}.py" for name in ("arrays", "arguments")),
            *(
                f"tests/gpu/test_{name}.py"
                for name in (
                    "kernels",
                    "launches",
                    "device_buffers",
                    "streams_of_transfers",
                    "arrays_on_a_device",
                    "cupy_beside_torch",
                    "torch_on_a_device",
                    "wrong_memory",
                    "stand_in",
                )
            ),
        ),
    ),
    (
        "core/",
        (
            *(
                f"tests/core/test_{name}.py"
                for name in [
                    "arguments",
                    "arrays",
                    "bases",
                    "executor_and_notation",
                    "explained",
                    "layout",
                    "operator",
                    "pairing",
                    "partition",
                    "program",
                    "program_equations",
                    "texts_of_programs",
                    "space",
                    "values",
                    "local_types",
                ]
            ),
            "tests/checks/test_figures.py",
            _LOOKS,
            "tests/primitives/test_compositions.py",
        ),
    ),
    *(
        (
            name,
            (
                "tests/torch_distributed/test_calls_of_checks.py",
                *_PARALLEL,
                "tests/torch_distributed/test_pipelines.py",
            ),
        )
        for name in ("engine/parallel_check", "engine/drawn_meshes", "engine/example_tensors")
    ),
    *(
        (name, ("tests/engine/test_freezing.py", "tests/torch_distributed/test_recipes.py"))
        for name in ("engine/dtensor", "engine/meshes", "engine/sequential_module")
    ),
    *(
        (
            name,
            ("tests/engine/test_freezing.py", "tests/torch_distributed/test_recipes.py", *_PARALLEL),
        )
        for name in ("engine/parallel", "engine/sequential_example")
    ),
    (
        "engine/drawing_errors",
        ("tests/engine/test_drawing_errors.py", "tests/engine/test_declared_wrongly.py"),
    ),
    ("engine/simulate_first", ("tests/engine/test_simulate_first.py", *_SEARCH)),
    ("engine/folded_warnings", ("tests/engine/test_folded_warnings.py",)),
    (
        "engine/declaring",
        (
            "tests/engine/test_declaring.py",
            "tests/engine/test_discovery.py",
            "tests/engine/test_declared_wrongly.py",
        ),
    ),
    ("engine/dot_test", ("tests/engine/test_dot_test.py", *_SEARCH)),
    (
        "engine/pipeline",
        ("tests/torch_distributed/test_layers_of_pipelines.py", "tests/torch_distributed/test_pipelines.py"),
    ),
    ("engine/parameter_tree", ("tests/engine/test_single_steps.py", "tests/engine/test_even_cuts.py")),
    ("engine/single_steps", ("tests/engine/test_looks_of_a_search.py", "tests/engine/test_single_steps.py")),
    *(
        (f"engine/{name}", ("tests/engine/test_shares_of_proofs.py", "tests/engine/test_exhaust.py"))
        for name in ("exhaust", "listed_cases", "shares_of_proofs")
    ),
    (
        "engine/explain",
        (
            "tests/engine/test_explain.py",
            "tests/core/test_executor_and_notation.py",
            "tests/primitives/test_compositions.py",
            "tests/cli/test_cli.py",
        ),
    ),
    (
        "engine/subject",
        (
            "tests/engine/test_declarations_of_subjects.py",
            "tests/engine/test_properties_of_subjects.py",
            "tests/engine/test_refused_subjects.py",
            "tests/engine/test_subject.py",
            "tests/engine/test_drawn_cases.py",
            "tests/engine/test_search.py",
            "tests/engine/test_discovery.py",
        ),
    ),
    *(
        (
            name,
            (
                "tests/engine/test_adapted_functions.py",
                "tests/engine/test_subject.py",
                "tests/engine/test_cotangents_of_adapters.py",
                "tests/engine/test_search.py",
                "tests/adapters/test_released.py",
            ),
        )
        for name in ("engine/adapters", "engine/user_layers")
    ),
    (
        "engine/discovery",
        (
            "tests/engine/test_references_of_subjects.py",
            "tests/engine/test_discovery.py",
            "tests/cli/test_cli.py",
        ),
    ),
    (
        "engine/run_case",
        ("tests/engine/test_running_a_case.py", "tests/engine/test_verdicts_of_runs.py", *_SEARCH),
    ),
    (
        "engine/case",
        (
            "tests/engine/test_case_data.py",
            "tests/engine/test_drawn_cases.py",
            "tests/store/test_reproducer.py",
            "tests/store/test_mutated_files.py",
        ),
    ),
    ("engine/even_cuts", ("tests/engine/test_even_cuts.py", "tests/checks/test_hints_of_retries.py")),
    ("engine/retries", ("tests/engine/test_retries.py", "tests/checks/test_hints_of_retries.py")),
    (
        "engine/interleavings",
        ("tests/engine/test_interleavings.py", *_SEARCH[:2], f"{_SIMULATED}/test_schedules.py"),
    ),
    ("engine/counts", ("tests/engine/test_case_counts.py", "tests/report", *_SEARCH)),
    (
        "engine/",
        (*_SEARCH, "tests/report", "tests/engine/test_single_steps.py", f"{_SIMULATED}/test_schedules.py"),
    ),
    ("store/script", _SCRIPTS),
    ("store/products_script", _SCRIPTS),
    ("store/job_log", ("tests/store/test_job_log.py",)),
    ("store/known_failures", ("tests/store/test_known_failures.py",)),
    ("store/running_case", ("tests/store/test_running_case.py",)),
    ("store/json_lines", ("tests/store/test_job_log.py", "tests/report/test_printed_figures.py")),
    (
        "store/",
        (
            "tests/engine/test_looks_of_a_search.py",
            "tests/store/test_reproducer.py",
            "tests/store/test_mutated_files.py",
            "tests/store/test_files.py",
            "tests/store/test_hostile_texts.py",
            "tests/store/test_job_log.py",
            "tests/store/test_running_case.py",
            "tests/cli/test_outputs.py",
        ),
    ),
    (
        "worlds/simulated/schedules/",
        tuple(f"{_SIMULATED}/test_{name}.py" for name in ("strategies", "priorities", "schedules")),
    ),
    (
        "worlds/collection_thresholds",
        ("tests/worlds/test_collection_thresholds.py", "tests/worlds/test_collections_at_imports.py"),
    ),
    ("worlds/simulated/frozen_objects", (f"{_SIMULATED}/test_frozen_objects.py",)),
    (
        "worlds/simulated/simulation",
        (
            *_CALLS,
            *(
                f"{_SIMULATED}/test_{name}.py"
                for name in ("isolation", "schedules", "watchdog_of_a_run", "scaling")
            ),
            "tests/worlds/test_forks.py",
        ),
    ),
    ("worlds/simulated/world", (*_CALLS, f"{_SIMULATED}/test_isolation.py")),
    *(
        (name, (*_CALLS, f"{_SIMULATED}/test_isolation.py", f"{_SIMULATED}/test_schedules.py"))
        for name in ("worlds/simulated/scheduler", "worlds/simulated/workers")
    ),
    ("worlds/simulated/", (*_CALLS, f"{_SIMULATED}/test_isolation.py", "tests/worlds/test_conformance.py")),
    ("report/", ("tests/report", "tests/engine/test_counts.py")),
    ("check_result", _COMMANDS),
    ("recording", ("tests/store/test_running_case.py", "tests/store/test_interrupted.py", *_COMMANDS)),
    ("session", _COMMANDS),
    ("replaying", ("tests/store/test_reproducer.py", *_COMMANDS)),
    ("unjudged_checks", ("tests/engine/test_declared_wrongly.py", *_COMMANDS)),
)
"""The tests that are run for a mutant of a file, the closest first: of the first line with which the file's name begins."""

ALWAYS = ("tests/core/test_frozen.py", "tests/core/test_left_out.py", "tests/core/test_abstract_methods.py")
"""Quick, and of all packages."""


def closest_tests(file: str) -> tuple[str, ...]:
    """Return the existing test files to run for a mutant of `file`, beginning with those named like it."""
    tests = next((tests for prefix, tests in CLOSEST if file.startswith(f"adjointlab/{prefix}")), ("tests",))
    files = dict.fromkeys(found for test in (*ALWAYS, *tests) for found in _files_of_tests(test))
    own = f"test_{Path(file).name}"
    return tuple(sorted(files, key=lambda found: Path(found).name != own))


def _files_of_tests(test: str) -> list[str]:
    path = ROOT / test
    if path.is_dir():
        return [str(found.relative_to(ROOT)) for found in sorted(path.rglob("test_*.py"))]
    return [test] if path.exists() else []
