"""Programs: the four generators, and what is composed of them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adjointlab.core.layout import Layout
from adjointlab.core.partition import Partition
from adjointlab.core.program import (
    Add,
    Allocate,
    Buffer,
    Clear,
    Deallocate,
    Generator,
    Program,
    Region,
    buffers,
    buffers_by_rank,
    copy,
    copy_to_new,
    move,
    move_to_new,
)
from adjointlab.core.space import Space, Tensor

small = settings(max_examples=80, deadline=None)


def tensors(order: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(0, 3), min_size=order, max_size=order).map(tuple)


@st.composite
def regions(draw: st.DrawFn, buffer: Buffer, shape: tuple[int, ...] | None = None) -> Region:
    slices = []
    for dim, side in enumerate(buffer.shape):
        length = draw(st.integers(0, side)) if shape is None else shape[dim]
        start = draw(st.integers(0, side - length))
        slices.append((start, start + length))
    return Region(buffer.rank, buffer.name, tuple(slices))


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Valid programs: whatever is drawn is applied to the buffers that are in scope at that point."""
    order = draw(st.integers(0, 2))
    dtype = draw(st.sampled_from(["float64", "float16", "int32", "complex64", "bfloat16"]))
    made = 0

    def fresh() -> Buffer:
        nonlocal made
        made += 1
        return Buffer(draw(st.integers(0, 2)), f"b{made}", draw(tensors(order)), dtype)

    inputs = [fresh() for _ in range(draw(st.integers(0, 3)))]
    scope = list(inputs)
    gone: list[Buffer] = []
    steps: list[Generator] = []
    for _ in range(draw(st.integers(0, 8))):
        match draw(st.sampled_from(["allocate", "again", "deallocate", "clear", "add", "add", "add"])):
            case "allocate":
                scope.append(fresh())
                steps.append(Allocate(scope[-1]))
            case "again" if gone:
                scope.append(gone.pop())
                steps.append(Allocate(scope[-1]))
            case "deallocate" if scope:
                gone.append(scope.pop(draw(st.integers(0, len(scope) - 1))))
                steps.append(Deallocate(gone[-1]))
            case "clear" if scope:
                steps.append(Clear(draw(regions(draw(st.sampled_from(scope))))))
            case "add" if scope:
                a, b = draw(st.sampled_from(scope)), draw(st.sampled_from(scope))
                shape = tuple(draw(st.integers(0, min(pair))) for pair in zip(a.shape, b.shape, strict=True))
                source, target = draw(regions(a, shape)), draw(regions(b, shape))
                if not source.overlaps(target):
                    steps.append(Add(source, target))
    return Program(inputs, steps)


def memory_of(program: Program) -> dict[tuple[int, str], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    stored = {"bfloat16": "float32"}
    return {
        (b.rank, b.name): rng.integers(-5, 6, b.shape).astype(stored.get(b.dtype, b.dtype))
        for b in program.inputs
    }


def flat(
    memory: dict[tuple[int, str], np.ndarray[Any, Any]], held: tuple[Buffer, ...]
) -> np.ndarray[Any, Any]:
    return np.concatenate([np.zeros(0), *(memory[b.rank, b.name].ravel() for b in held)])


@given(programs())
@small
def test_the_matrix_of_the_adjoint_is_the_transpose(program: Program) -> None:
    assert np.array_equal(program.adjoint().matrix(), program.matrix().T)


@given(programs())
@small
def test_the_adjoint_is_an_involution_between_inputs_and_outputs(program: Program) -> None:
    adjoint = program.adjoint()
    assert adjoint.adjoint() == program
    assert (adjoint.inputs, adjoint.outputs) == (program.outputs, program.inputs)


@given(programs(), st.data())
@small
def test_a_composition_multiplies_and_its_adjoint_is_the_reversed_composition(
    program: Program, data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(program.steps)))
    first = Program(program.inputs, program.steps[:place])
    second = Program(first.outputs, program.steps[place:])
    assert first.then(second) == program
    assert np.array_equal(program.matrix(), second.matrix() @ first.matrix())
    assert program.adjoint() == second.adjoint().then(first.adjoint())


@given(programs())
@small
def test_execution_is_the_matrix_and_leaves_its_memory_alone(program: Program) -> None:
    memory = memory_of(program)
    before = {key: array.copy() for key, array in memory.items()}
    result = program.execute(memory)
    assert set(result) == {(buffer.rank, buffer.name) for buffer in program.outputs}
    assert np.array_equal(flat(result, program.outputs), program.matrix() @ flat(memory, program.inputs))
    assert all(np.array_equal(memory[key], before[key]) for key in before)
    for array in result.values():
        assert not any(np.shares_memory(array, held) for held in memory.values())
    for buffer in program.outputs:
        array = result[buffer.rank, buffer.name]
        assert (array.shape, array.dtype) == (
            buffer.shape,
            "float32" if buffer.dtype == "bfloat16" else buffer.dtype,
        )


@given(programs())
@small
def test_the_gain_is_the_largest_row_sum_of_any_intermediate_in_both_directions(program: Program) -> None:
    largest = [1.0]
    for place in range(len(program.steps) + 1):
        prefix = Program(program.inputs, program.steps[:place])
        suffix = Program(prefix.outputs, program.steps[place:])
        for matrix in (prefix.matrix(), suffix.matrix().T):
            largest += np.abs(matrix).sum(axis=1).tolist()
    assert program.gain() == max(largest)
    assert program.gain() == program.adjoint().gain()
    assert isinstance(program.gain(), int)


def test_a_gain_beyond_64_bits_does_not_wrap_around() -> None:
    a, b = Buffer(0, "a", ()), Buffer(0, "b", ())
    doubling = [Add(a.whole, b.whole), Add(b.whole, a.whole)] * 60
    assert Program([a, b], doubling).gain() > 2**64


def test_sums_of_half_precision_programs_are_counted_exactly() -> None:
    a, b = Buffer(0, "a", (), "float16"), Buffer(1, "b", (), "float16")
    program = Program([a], [Allocate(b), *[Add(a.whole, b.whole)] * 3001])
    assert program.gain() == 3002  # in the adjoint, whose first buffer has a value of its own
    assert program.matrix().tolist() == [[1], [3001]]


a, b = Buffer(0, "a", (2,)), Buffer(1, "b", (2,))
one, zero = np.eye(2), np.zeros((2, 2))


def steps(*generators: Generator) -> tuple[Generator, ...]:
    return generators


@pytest.mark.parametrize(
    ("name", "inputs", "program", "matrix", "adjoint"),
    [
        ("eqs. 3, 5", [a], steps(Allocate(b)), [[one], [zero]], steps(Deallocate(b))),
        ("eq. 6", [a, b], steps(Clear(b.whole)), [[one, zero], [zero, zero]], steps(Clear(b.whole))),
        (
            "eqs. 7, 8",
            [a, b],
            steps(Add(a.whole, b.whole)),
            [[one, zero], [one, one]],
            steps(Add(b.whole, a.whole)),
        ),
        (
            "eqs. 9, 10",
            [a, b],
            copy(a.whole, b.whole),
            [[one, zero], [one, zero]],
            steps(Add(b.whole, a.whole), Clear(b.whole)),
        ),
        ("eq. 11", [a], copy_to_new(a.whole, b), [[one], [one]], steps(Add(b.whole, a.whole), Deallocate(b))),
        ("eqs. 12, 13", [a, b], move(a.whole, b.whole), [[zero, zero], [one, zero]], move(b.whole, a.whole)),
        ("eqs. 14, 15", [a], move_to_new(a, b), [[one]], move_to_new(b, a)),
    ],
)
def test_the_memory_operations_are_the_matrices_of_the_paper(
    name: str, inputs: list[Buffer], program: Any, matrix: list[Any], adjoint: Any
) -> None:
    subject = Program(inputs, program)
    assert np.array_equal(subject.matrix(), np.block(matrix)), name
    assert subject.adjoint().steps == adjoint, name
    assert np.array_equal(subject.adjoint().matrix(), np.block(matrix).T), name


def test_copies_between_parts_of_one_buffer() -> None:
    whole = Buffer(0, "a", (4,))
    program = Program([whole], copy(whole[:2], whole[2:]))
    assert program.execute({(0, "a"): np.arange(4.0)})[0, "a"].tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("rank", "slices", "argument"),
    [
        ("0", ((0, 1),), "rank: '0' is not a whole number"),
        (0.0, ((0, 1),), "rank: 0.0 is not a whole number"),
        (0, ((0, 1.5),), r"slices: \(\(0, 1.5\),\) is not a \(start, stop\) for each dimension"),
        (0, (0, 1), "slices:"),
        (0, 3, "slices:"),
        (0, "01", "slices:"),
    ],
)
def test_a_region_of_what_are_no_integers_is_refused_when_it_is_made(rank, slices, argument):
    with pytest.raises(TypeError, match=argument):
        Region(rank, "a", slices)


def test_regions_are_slices_of_a_buffer() -> None:
    matrix = Buffer(2, "w", (3, 5))
    assert matrix[1:] == Region(2, "w", ((1, 3), (0, 5)))
    assert matrix[:, -2:] == Region(2, "w", ((0, 3), (3, 5)))
    assert matrix[2:1, 0:99].shape == (0, 5)
    assert matrix.whole == matrix[:] == matrix[()]
    assert Buffer(0, "s", ()).whole.shape == ()
    assert [str(matrix), str(matrix[1:]), str(Buffer(0, "s", ()).whole)] == ["w@2", "w@2[1:3, 0:5]", "s@0"]
    assert matrix.size == 15


@given(st.data(), st.integers(0, 2))
@small
def test_regions_overlap_where_they_share_an_element(data: st.DataObject, order: int) -> None:
    buffer = Buffer(0, "a", data.draw(tensors(order)))
    x, y = data.draw(regions(buffer)), data.draw(regions(buffer))
    marks = np.zeros(buffer.shape, dtype=int)
    for region in (x, y):
        marks[region.index] += 1
    assert x.overlaps(y) == y.overlaps(x) == bool(np.any(marks == 2))
    assert not x.overlaps(Region(1, "a", y.slices))
    assert not x.overlaps(Region(0, "b", y.slices))


def test_the_index_of_a_region_gives_a_view_also_of_a_single_number() -> None:
    for buffer in (Buffer(0, "a", ()), Buffer(0, "a", (3,))):
        memory = np.zeros(buffer.shape)
        view = memory[buffer.whole.index]
        view[...] = 1
        assert np.all(memory == 1)


c = Buffer(0, "c", (2, 2))


@pytest.mark.parametrize(
    ("inputs", "program", "message"),
    [
        ([a, a], [], "inputs: the buffer a@0 is in scope already"),
        ([a], [Allocate(a)], r"step 0, A\(a@0\): the buffer a@0 is in scope already"),
        ([a], [Allocate(Buffer(0, "a", (9,)))], "a@0 is in scope already"),
        ([a], [Deallocate(b)], r"step 0, D\(b@1\): there is no buffer b@1 \(2,\) in scope, but None"),
        ([a], [Deallocate(Buffer(0, "a", (3,)))], r"no buffer a@0 \(3,\) in scope, but a@0"),
        ([a], [Deallocate(a), Deallocate(a)], r"step 1, D\(a@0\)"),
        ([a], [Clear(b.whole)], r"step 0, K\(b@1\[0:2\]\): there is no buffer b@1 in scope"),
        ([a], [Deallocate(a), Clear(a.whole)], "no buffer a@0 in scope"),
        ([a], [Add(a.whole, b.whole)], "no buffer b@1 in scope"),
        (
            [a],
            [Clear(Region(0, "a", ((0, 3),)))],
            r"region a@0\[0:3\] is not inside its buffer of shape \(2,\)",
        ),
        ([a], [Clear(Region(0, "a", ((-1, 1),)))], r"a@0\[-1:1\] is not inside"),
        ([a], [Clear(Region(0, "a", ((1, 0),)))], r"a@0\[1:0\] is not inside"),
        ([a], [Clear(Region(0, "a", ()))], r"a@0 is not inside its buffer of shape \(2,\)"),
        ([a, b], [Add(a[:1], b.whole)], r"the regions have shapes \(1,\) and \(2,\)"),
        ([a], [Clear(Region(0, "a", ((0, 2), (0, 1))))], r"a@0\[0:2, 0:1\] is not inside its buffer"),
        ([c], [Clear(Region(0, "c", ((0, 2), (0, 3))))], r"c@0\[0:2, 0:3\] is not inside its buffer"),
        ([a, b], [Add(a.whole, b[1:])], r"the regions have shapes \(2,\) and \(1,\)"),
        (
            [Buffer(0, "a", (2,), "float32"), b],
            [Add(a.whole, b.whole)],
            "the buffers have the element types float32 and float64",
        ),
        ([a, c], [Add(a.whole, c.whole)], r"the regions have shapes \(2,\) and \(2, 2\)"),
        (
            [a, b],
            [copy(a.whole, b.whole)],
            r"step 0, .* it is not an Allocate, Deallocate, Clear or Add; .* unpacked by \*",
        ),
        ([a], ["D(a@0)"], r"step 0, D\(a@0\): it is not an Allocate"),
        ([a], [Add(a.whole, a.whole)], "the regions overlap"),
        (
            [Buffer(0, "a", (3,))],
            [Add(Buffer(0, "a", (3,))[:2], Buffer(0, "a", (3,))[1:])],
            "the regions overlap",
        ),
        (
            [Buffer(0, "s", ())],
            [Add(Buffer(0, "s", ()).whole, Buffer(0, "s", ()).whole)],
            "the regions overlap",
        ),
        (
            [a, Buffer(1, "b", (2,), "float32")],
            [Add(a.whole, b.whole)],
            "the buffers have the element types float64 and float32",
        ),
    ],
)
def test_an_ill_formed_program_is_refused_with_the_step(
    inputs: list[Buffer], program: list[Generator], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Program(inputs, program)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: a[::2], "key: a region has step 1, not 2"),
        (lambda: a[::-1], "key: a region has step 1, not -1"),
        (lambda: c[:, :, :], "key: 3 slices of c@0, which has 2 dimensions"),
        (lambda: c[:, 1], "key: 1 in dimension 1 of c@0 is not a slice"),
        (
            lambda: a[0],  # type: ignore[index]
            "key: 0 in dimension 0 of a@0 is not a slice",
        ),
        (lambda: a[:, :], "key: 2 slices of a@0, which has 1 dimensions"),
        (lambda: Program([a], []).then(Program([b], [])), r"starts from \['b@1'\], .* ends with \['a@0'\]"),
        (lambda: Program([a], []).execute({}), r"memory: the input a@0 of shape \(2,\) is missing"),
        (lambda: Program([b], []).then(Program([a], [])), r"starts from \['a@0'\], .* ends with \['b@1'\]"),
        (lambda: Program([a], []).execute({(0, "a"): np.zeros(3)}), r"a@0 of shape \(2,\) has shape \(3,\)"),
        (lambda: Program([a], []).execute({(0, "a"): np.zeros(1)}), r"a@0 of shape \(2,\) has shape \(1,\)"),
    ],
)
def test_other_bad_arguments_are_refused_with_their_values(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("inputs", "steps", "message"),
    [
        (3, [], "inputs: 3 is not a list of buffers"),
        (["a"], [], "inputs: 'a' is not a Buffer"),
        ([a], 3, "steps: 3 is not a list of generators"),
    ],
)
def test_buffers_and_steps_that_are_none_are_refused_by_their_names(
    inputs: Any, steps: Any, message: str
) -> None:
    with pytest.raises(TypeError) as raised:
        Program(inputs, steps)
    assert str(raised.value) == message


def test_the_buffers_of_a_space_are_the_local_tensors_of_its_active_ranks() -> None:
    weight = Tensor(Layout((3,), Partition((2,), (2, 0))), "float32", name="w")
    bias = Tensor(Layout((), Partition((), (1,))), name="b")
    assert buffers(Space(weight, bias)) == (
        Buffer(0, "w", (1,), "float32"),
        Buffer(1, "b", ()),
        Buffer(2, "w", (2,), "float32"),
    )


def test_a_program_prints_in_the_order_of_execution() -> None:
    assert str(Program([a], move_to_new(a, b))) == "A(b@1)\nS(a@0[0:2] → b@1[0:2])\nD(a@0)"


def test_buffers_by_rank_are_in_ascending_order() -> None:
    space = Space(Layout((3,), Partition((2,), (2, 0))), name="w")
    assert list(buffers_by_rank(space).items()) == [(0, Buffer(0, "w", (1,))), (2, Buffer(2, "w", (2,)))]


EVERY_STEP = Program(
    [a, b],
    [
        Allocate(Buffer(2, "t", (2,))),
        Add(a.whole, Region(2, "t", ((0, 2),))),
        Add(a[:1], a[1:]),
        Clear(b[1:]),
        Add(b.whole, a.whole),
        Deallocate(b),
    ],
)


def test_a_movement_is_who_sends_who_has_the_result_and_the_step() -> None:
    assert EVERY_STEP.movements == (
        (None, 2, "A(t@2)"),
        (0, 2, "S(a@0[0:2] → t@2[0:2])"),
        (None, 0, "S(a@0[0:1] → a@0[1:2])"),
        (None, 1, "K(b@1[1:2])"),
        (1, 0, "S(b@1[0:2] → a@0[0:2])"),
        (None, 1, "D(b@1)"),
    )


def test_a_renamed_program_calls_every_buffer_by_its_new_name() -> None:
    renamed = EVERY_STEP.renamed(lambda name: f"{name}{name}")
    assert str(renamed) == (
        "A(tt@2)\nS(aa@0[0:2] → tt@2[0:2])\nS(aa@0[0:1] → aa@0[1:2])\nK(bb@1[1:2])\n"
        "S(bb@1[0:2] → aa@0[0:2])\nD(bb@1)"
    )
    assert [str(each) for each in renamed.inputs] == ["aa@0", "bb@1"]
    assert [str(each) for each in renamed.outputs] == ["aa@0", "tt@2"]
    assert renamed.outputs[1] == Buffer(2, "tt", (2,))


@given(programs(), st.integers(1, 3))
@small
def test_a_batch_of_memories_is_executed_as_each_of_them(program: Program, width: int) -> None:
    rng = np.random.default_rng(1)
    memories = [
        {
            key: rng.integers(-5, 6, array.shape).astype(array.dtype)
            for key, array in memory_of(program).items()
        }
        for _ in range(width)
    ]
    batch = {key: np.stack([memory[key] for memory in memories], axis=-1) for key in memories[0]}
    result = program.execute(batch, (width,))
    for number, memory in enumerate(memories):
        alone = program.execute(memory)
        assert result.keys() == alone.keys()
        assert all(np.array_equal(result[key][..., number], alone[key]) for key in alone)
        assert all(result[key].dtype == alone[key].dtype for key in alone)


def test_inputs_are_of_the_shape_of_the_batch() -> None:
    with pytest.raises(ValueError, match=r"^memory: the input a@0 of shape \(2,\) has shape \(2,\)$"):
        Program([a], []).execute({(0, "a"): np.zeros(2)}, (2,))


def test_a_gain_counts_values_that_are_cleared_later_and_is_at_least_one() -> None:
    assert Program([], []).gain() == Program([a], [Clear(a.whole)]).gain() == 1
    assert Program([a, b], copy(a.whole, b.whole)).gain() == 2  # backward, a has the cotangents of both
    summed = [Add(a.whole, b.whole)] * 3
    assert Program([a, b], [*summed, Clear(b.whole)]).gain() == 4
    assert Program([a, b], [*summed, Add(b[:0], a[:0])]).gain() == 4  # of nothing, nothing is the largest
