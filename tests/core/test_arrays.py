"""The array libraries behind one set of functions."""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import array_api_strict
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adjointlab.core import arrays
from adjointlab.core.arrays import DTYPES
from adjointlab.core.arrays.libraries import is_torch, known_library
from adjointlab.spelling import described_type

small = settings(max_examples=60, deadline=None)
KINDS = [(lib, name) for lib in ("numpy", "torch") for name in DTYPES if arrays.supports(lib, name)]
every_kind = pytest.mark.parametrize(("library", "name"), KINDS)


def values(shape: tuple[int, ...], name: str) -> Any:
    """Small integers that every type represents."""
    whole = np.random.default_rng(0).integers(-9, 10, (2, *shape))
    plain = "float32" if name == "bfloat16" else name
    return (whole[0] + 1j * whole[1] if DTYPES[name].is_complex else whole[0]).astype(plain)


@st.composite
def strided(draw: st.DrawFn) -> tuple[Any, np.ndarray[Any, Any], str]:
    """An array of some library, shape and memory order, the values that it holds, and its type's name."""
    library, name = draw(st.sampled_from(KINDS))
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    expected = values(shape, name)
    array = arrays.from_numpy(expected, name, library)
    for step in draw(
        st.lists(st.sampled_from(["transposed", "step", "reversed", "expanded", "conjugate"]), max_size=3)
    ):
        match step:
            case "transposed" if array.ndim:
                array, expected = array.swapaxes(0, -1), expected.swapaxes(0, -1)
            case "step" if array.ndim:
                array, expected = array[..., ::2], expected[..., ::2]
            case "reversed" if array.ndim and library == "numpy":
                array, expected = array[::-1], expected[::-1]
            case "expanded":
                expected = np.broadcast_to(expected, (2, *expected.shape))
                array = (
                    np.broadcast_to(array, expected.shape)
                    if library == "numpy"
                    else array.expand(expected.shape)
                )
            case "conjugate" if library == "torch":
                array, expected = array.conj(), expected.conj()
    return array, expected, name


@given(strided())
@small
def test_values_survive_every_way_out_and_back(case: tuple[Any, np.ndarray[Any, Any], str]) -> None:
    array, expected, name = case
    library = arrays.library_of(array)
    assert arrays.dtype_of(array) is DTYPES[name]
    assert np.array_equal(arrays.to_numpy(array), expected)
    for other in (
        arrays.copy(array),
        arrays.from_numpy(arrays.to_numpy(array), name, library),
        arrays.from_summable(arrays.summable(array), name, array),
    ):
        assert arrays.library_of(other) == library
        assert arrays.dtype_of(other).name == name
        assert tuple(other.shape) == expected.shape
        assert np.array_equal(arrays.to_numpy(other), expected)


@given(strided())
@small
def test_what_can_be_summed_is_row_major_and_of_a_type_that_mpi_knows(
    case: tuple[Any, np.ndarray[Any, Any], str],
) -> None:
    array, expected, name = case
    buffer = arrays.summable(array)
    assert buffer.flags.c_contiguous
    assert buffer.dtype == ("float32" if DTYPES[name].itemsize == 2 else name)
    assert np.array_equal(buffer, expected)


@given(strided())
@small
def test_a_message_is_the_row_major_memory(case: tuple[Any, np.ndarray[Any, Any], str]) -> None:
    array, expected, name = case
    buffer = arrays.message(array)
    assert buffer.flags.c_contiguous
    assert buffer.dtype == ("uint8" if DTYPES[name].itemsize == 2 else name)
    assert buffer.nbytes == expected.size * DTYPES[name].itemsize
    if DTYPES[name].itemsize > 2:
        assert np.array_equal(buffer, expected)
    received = arrays.zeros(expected.shape, name, array)
    arrays.message(received)[...] = buffer.reshape(arrays.message(received).shape)
    assert np.array_equal(arrays.to_numpy(received), expected)


@every_kind
@pytest.mark.parametrize("shape", [(), (1,), (3, 2), (2, 1, 3), (0,), (3, 0)])
def test_the_message_of_a_row_major_array_is_its_memory_itself(
    library: str, name: str, shape: tuple[int, ...]
) -> None:
    array = arrays.from_numpy(values(shape, name), name, library)
    buffer = arrays.message(array)
    if buffer.size:
        address = array.data_ptr() if library == "torch" else array.ctypes.data
        assert buffer.ctypes.data == address
        buffer[...] = 0
        assert not np.any(arrays.to_numpy(array))


@given(strided())
@small
def test_views_in_numpy_are_the_memory_itself_or_the_arrays(
    case: tuple[Any, np.ndarray[Any, Any], str],
) -> None:
    array, expected, name = case
    (view,) = arrays.in_numpy(array)
    assert np.array_equal(arrays.to_numpy(view), expected)
    again: Any = arrays.of_library(view, array)
    assert (type(again), again.dtype, tuple(again.shape)) == (type(array), array.dtype, expected.shape)
    assert np.array_equal(arrays.to_numpy(again), expected)
    is_lazy = arrays.library_of(array) == "torch" and (array.is_conj() or array.is_neg())
    assert (view is array) == (arrays.library_of(array) == "numpy" or name == "bfloat16" or is_lazy)
    if view is not array and expected.size:
        assert view.ctypes.data == array.data_ptr()
        assert arrays.in_numpy(array, arrays.zeros((1,), "bfloat16", "torch"))[0] is array


@given(strided())
@small
def test_memory_with_views_is_new_and_what_is_written_through_its_view(
    case: tuple[Any, np.ndarray[Any, Any], str],
) -> None:
    array, expected, name = case
    result, held, filled = arrays.empty_with_views(expected.shape, name, array)
    assert np.array_equal(arrays.to_numpy(held), expected)
    assert type(held) is type(filled)  # else neither could be assigned to the other
    arrays.copy_into(filled, held)
    assert np.array_equal(arrays.to_numpy(result), expected)
    assert type(result) is type(array)
    assert (result.dtype, tuple(result.shape)) == (array.dtype, expected.shape)
    assert arrays.is_row_major(result)
    assert not arrays.may_share_memory(result, array)


@given(strided())
@small
def test_a_copy_is_row_major_and_shares_no_memory(case: tuple[Any, np.ndarray[Any, Any], str]) -> None:
    array, expected, name = case
    library = arrays.library_of(array)
    fresh = arrays.copy(array)
    again = arrays.from_numpy(expected, name, library)
    for other in (fresh, again):
        arrays.clear(other)
        arrays.add_into(other, arrays.from_numpy(np.ones(expected.shape), name, library))
        assert np.array_equal(arrays.to_numpy(array), expected)
        assert other.is_contiguous() if library == "torch" else other.flags.c_contiguous


@given(strided())
@small
def test_joined_arrays_are_the_elements_of_all_in_row_major_order_and_share_no_memory(
    case: tuple[Any, np.ndarray[Any, Any], str],
) -> None:
    array, expected, _ = case
    for parts in (1, 2):
        flat = arrays.joined([array] * parts)
        assert arrays.library_of(flat) == arrays.library_of(array)
        assert np.array_equal(arrays.to_numpy(flat), np.concatenate([expected.reshape(-1)] * parts))
        arrays.clear(flat)
        assert np.array_equal(arrays.to_numpy(array), expected)


@given(strided())
@small
def test_a_complex_conjugate_is_new_and_a_real_one_is_the_array(
    case: tuple[Any, np.ndarray[Any, Any], str],
) -> None:
    array, expected, name = case
    conjugate = arrays.conjugate(array)
    assert np.array_equal(arrays.to_numpy(conjugate), expected.conj())
    if not DTYPES[name].is_complex:
        assert conjugate is array
    else:
        arrays.clear(conjugate)
        assert np.array_equal(arrays.to_numpy(array), expected)


@every_kind
@pytest.mark.parametrize("shape", [(), (2, 3), (0, 2)])
def test_the_memory_operations_work_in_place(library: str, name: str, shape: tuple[int, ...]) -> None:
    a, b = values(shape, name), values(shape, name)[..., ::-1] if shape else values(shape, name)
    target, source = (arrays.from_numpy(array, name, library) for array in (a, b))
    arrays.add_into(target, source)
    assert np.array_equal(arrays.to_numpy(target), a + b)
    arrays.copy_into(target, source)
    assert np.array_equal(arrays.to_numpy(target), b)
    assert np.array_equal(arrays.to_numpy(source), b)
    assert np.array_equal(arrays.to_numpy(arrays.add(target, source)), b + b)
    assert np.array_equal(arrays.to_numpy(arrays.scale(3, source)), 3 * b)
    for result in (arrays.add(target, source), arrays.scale(3, source)):
        assert arrays.dtype_of(result).name == name
        result[...] = 0  # an array also where NumPy would give a scalar
    arrays.clear(target)
    assert np.array_equal(arrays.to_numpy(target), np.zeros(shape))
    assert tuple(target.shape) == shape


@every_kind
def test_clearing_removes_what_is_not_finite(library: str, name: str) -> None:
    if DTYPES[name].is_integer:
        return
    array = arrays.empty((3,), name, library)
    array[...] = float("nan")
    arrays.clear(array)
    assert not np.any(arrays.to_numpy(array))


@every_kind
def test_new_arrays_are_like_an_array_or_of_a_named_library(library: str, name: str) -> None:
    like = arrays.zeros((2,), "float64", library)
    for array in (arrays.zeros((2, 0, 3), name, library), arrays.zeros((2, 0, 3), name, like)):
        assert (arrays.library_of(array), tuple(array.shape)) == (library, (2, 0, 3))
        assert arrays.dtype_of(array).name == name
    assert tuple(arrays.empty((), name, like).shape) == ()
    assert not np.any(arrays.to_numpy(arrays.zeros((4,), name, like)))


@pytest.mark.parametrize("name", DTYPES)
def test_new_torch_arrays_of_many_bytes_are_like_small_ones(name: str) -> None:
    like = arrays.zeros((2,), "float64", "torch")
    large, small = (arrays.empty((side, 2**11), name, like) for side in (2**11, 1))
    assert (large.dtype, large.device, large.layout) == (small.dtype, small.device, small.layout)
    assert large.shape == (2**11, 2**11)
    assert large.is_contiguous()
    assert not large.requires_grad
    arrays.clear(large)
    assert not large.any()


def test_torch_arrays_are_taken_out_of_the_graph() -> None:
    array = torch.ones(3, dtype=torch.bfloat16, requires_grad=True)
    doubled = array * 2
    for other in (arrays.copy(doubled), arrays.from_summable(arrays.summable(doubled), "bfloat16", doubled)):
        assert not other.requires_grad
    target = torch.zeros(3, dtype=torch.bfloat16)
    arrays.add_into(target, doubled)
    arrays.copy_into(target, doubled)
    assert not target.requires_grad
    assert arrays.message(doubled).size == 6
    assert np.array_equal(arrays.to_numpy(doubled), [2, 2, 2])


def test_torch_arrays_with_a_negative_bit_are_resolved() -> None:
    negative = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
    assert negative.is_neg()
    for out in (arrays.to_numpy, arrays.message, arrays.summable):
        assert out(negative).tolist() == [-2, 4]
    assert arrays.to_numpy(arrays.copy(negative)).tolist() == [-2, 4]
    contiguous = torch.tensor([1 + 2j]).conj().imag
    assert contiguous.is_contiguous()
    assert arrays.message(contiguous).tolist() == [-2]


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_half_precisions_are_summed_wide_and_rounded_once(name: str) -> None:
    one = arrays.from_numpy(np.array([1.0]), name, "torch")
    tiny = arrays.from_numpy(np.array([2.0**-12]), name, "torch")
    total = arrays.summable(one) + sum(arrays.summable(tiny) for _ in range(64))
    assert arrays.to_numpy(arrays.from_summable(total, name, one)).tolist() == [1 + 2.0**-6]


def test_a_numpy_scalar_is_an_array_of_order_zero_but_not_a_target() -> None:
    scalar = np.float32(3)
    assert arrays.is_array(scalar)
    assert arrays.library_of(scalar) == "numpy"
    assert arrays.dtype_of(scalar).name == "float32"
    assert arrays.to_numpy(scalar).shape == arrays.copy(scalar).shape == arrays.message(scalar).shape == ()
    with pytest.raises(TypeError, match="scalar"):
        arrays.add_into(scalar, scalar)


def test_only_the_three_libraries_have_arrays() -> None:
    for thing in (1.0, [1.0], None, array_api_strict.asarray([1.0])):
        assert not arrays.is_array(thing)
        with pytest.raises(TypeError, match=described_type(thing)):
            arrays.library_of(thing)
    assert arrays.is_array(np.zeros(2))
    assert arrays.is_array(torch.zeros(2))


def test_what_no_library_has_is_refused_with_its_name() -> None:
    with pytest.raises(ValueError, match="'jax' is not one of numpy, torch, cupy"):
        arrays.zeros((2,), "float64", "jax")
    for make in (arrays.zeros, arrays.empty):
        with pytest.raises(ValueError, match="numpy has no bfloat16"):
            make((2,), "bfloat16", "numpy")
    with pytest.raises(ValueError, match="numpy has no bfloat16"):
        arrays.from_numpy(np.zeros(2), "bfloat16", "numpy")
    with pytest.raises(ValueError, match="'float8' is not one of"):
        arrays.zeros((2,), "float8", "numpy")
    with pytest.raises(ValueError, match="'bool' is not one of"):
        arrays.dtype_of(np.zeros(2, bool))


def test_installed_and_supported() -> None:
    assert arrays.installed("numpy")
    assert arrays.installed("torch")
    assert not arrays.installed("no_such_library")
    assert arrays.supports("torch", "bfloat16")
    assert not arrays.supports("numpy", "bfloat16")


def test_numpy_users_never_import_torch() -> None:
    import subprocess

    code = """
import sys, numpy as np
from adjointlab.core import arrays
a = arrays.zeros((2,), "float64", "numpy")
arrays.add_into(a, arrays.copy(a)); arrays.message(a); arrays.summable(a); arrays.conjugate(a)
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


class OnDevice(torch.Tensor):
    """Says that it lies on a device, as tensors of a machine that has one do."""

    is_cuda = True


def test_the_memory_of_an_array_is_that_of_its_library_and_of_its_device() -> None:
    host = torch.zeros(2)
    assert arrays.memory_of(host) == "torch"
    assert arrays.memory_of(host.as_subclass(OnDevice)) == "torch-cuda"
    assert arrays.memory_of(np.zeros(2)) == "numpy"
    with pytest.raises(TypeError):
        arrays.memory_of([0.0])


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_sum_is_rounded_once_to_the_type_of_its_result(library: str) -> None:
    name = "float16" if library == "numpy" else "bfloat16"
    like = arrays.empty((3,), name, library)
    total = arrays.summing_memory((3,), name, like)
    assert arrays.dtype_of(total).name == "float32"
    # Halfway between two numbers of either type, and to either side of it.
    step = 2.0**-10 if name == "float16" else 2.0**-7
    total[...] = [1 + step / 2, 1 + step * 0.75, 1 + step * 1.5]
    rounded = arrays.from_summable(total, name, like)
    assert arrays.dtype_of(rounded).name == name
    assert arrays.library_of(rounded) == library
    assert arrays.to_numpy(rounded).tolist() == [1, 1 + step, 1 + 2 * step]


def test_large_tensors_lie_in_memory_of_numpy_from_four_mebibytes_on() -> None:
    """NumPy takes it in huge pages; torch cannot resize such memory."""
    like = torch.zeros(1)
    for name, count in (("float64", 2**19), ("bfloat16", 2**21), ("complex64", 2**19)):
        for shape, is_torchs_own in (((count - 1,), True), ((count,), False), ((2, count // 2), False)):
            made: Any = arrays.empty(shape, name, like)
            assert made.untyped_storage().resizable() is is_torchs_own
            assert (tuple(made.shape), made.dtype) == (shape, getattr(torch, name))


MEMORY = torch.zeros(12)
COMPLEX = torch.ones(2, 2, dtype=torch.complex64)


@pytest.mark.parametrize(
    ("array", "is_row_major"),
    [
        (np.zeros((2, 3)), True),
        (np.zeros((2, 3)).T, False),
        (np.zeros((2, 3))[:, ::2], False),
        (np.zeros((1, 3)).T, True),
        (np.float32(1), True),
        (torch.zeros(2, 3), True),
        (torch.zeros(2, 3).T, False),
        (torch.zeros(4)[::2], False),
        (COMPLEX, True),
        (COMPLEX.conj(), False),
        (torch.ones(1, dtype=torch.complex64).conj().imag, False),
    ],
)
def test_row_major_memory_holds_the_values_in_their_order(array: Any, is_row_major: bool) -> None:
    assert arrays.is_row_major(array) is is_row_major


def test_an_array_is_writable_unless_it_is_read_only_or_torch_would_record_it() -> None:
    fixed, parameter = np.zeros(2), torch.zeros(2, requires_grad=True)
    fixed.flags.writeable = False
    for array, is_writable in (
        (np.zeros(2), True),
        (fixed, False),
        (np.float64(1), False),
        (torch.zeros(2), True),
        (parameter, False),
        (parameter * 2, False),
    ):
        assert arrays.is_writable(array) is is_writable
    with torch.no_grad():
        assert arrays.is_writable(parameter)


@pytest.mark.parametrize(
    ("one", "other", "do_share"),
    [
        (MEMORY, MEMORY, True),
        (MEMORY[:4], MEMORY[4:], False),
        (MEMORY[:5], MEMORY[4:], True),
        (MEMORY[:8:4], MEMORY[5:], False),
        (MEMORY[:9:4], MEMORY[5:7], True),
        (MEMORY[:9:4], MEMORY[8:], True),
        (MEMORY[:9:4], MEMORY[9:], False),
        (MEMORY[3:3], MEMORY, False),
        (MEMORY[::2], MEMORY[1::2], True),
        (MEMORY.view(3, 4).T[:2], MEMORY[10:], False),
        (MEMORY.view(3, 4).T[:2], MEMORY[9:], True),
        (MEMORY.view(3, 4).T[:3], MEMORY[10:], True),
        (MEMORY.view(3, 4)[:2, :1], MEMORY[5:], False),
        (MEMORY.view(3, 4)[:2, :1], MEMORY[4:5], True),
        (MEMORY[:1].expand(4, 3), MEMORY[1:], False),
        (MEMORY[5], MEMORY[:6], True),
        (MEMORY[5], MEMORY[:5], False),
        (MEMORY, torch.zeros(12), False),
    ],
)
def test_arrays_share_memory_where_their_ranges_of_addresses_meet(
    one: Any, other: Any, do_share: bool
) -> None:
    assert arrays.may_share_memory(one, other) is arrays.may_share_memory(other, one) is do_share


def test_numpys_arrays_share_memory_as_numpy_says() -> None:
    memory = np.zeros(8)
    assert arrays.may_share_memory(memory[:5], memory[4:])
    assert not arrays.may_share_memory(memory[:4], memory[4:])


def test_torch_is_told_of_changes_that_it_does_not_see() -> None:
    tensor = torch.zeros(2)
    before = tensor._version
    arrays.note_change(tensor)
    assert tensor._version == before + 1
    with torch.inference_mode():
        inferred = torch.zeros(2)
    for unversioned in (inferred, np.zeros(2)):
        arrays.note_change(unversioned)


def test_memory_that_is_kept_may_be_in_a_graph_wherever_it_was_made() -> None:
    with torch.inference_mode():
        for like, is_kept in ((torch.zeros(1), True), (torch.zeros(1), False)):
            with arrays.outside_inference_mode(like) if is_kept else nullcontext():
                assert arrays.empty((2,), "float32", like).is_inference() is not is_kept
        with arrays.outside_inference_mode(np.zeros(1)):
            assert torch.is_inference_mode_enabled()


@pytest.mark.parametrize("value", [np.zeros((2, 3), "f4"), torch.zeros(2, 3)])
def test_an_array_matches_its_shape_and_element_type_alone(value: Any) -> None:
    for matches in (arrays.matches, arrays.matches_on_host):
        assert matches(value, (2, 3), "float32") is True
        for shape, name in (
            ((2, 3), "float64"),
            ((3, 2), "float32"),
            ((2, 3, 1), "float32"),
            ((), "float32"),
        ):
            assert matches(value, shape, name) is False


@pytest.mark.parametrize("value", [None, 2.0, [2.0], "float32"])
def test_what_is_no_array_matches_nothing_and_belongs_to_no_library(value: Any) -> None:
    assert known_library(value) is None
    assert arrays.matches(value, (), "float32") is False
    assert arrays.matches_on_host(value, (), "float32") is False
    assert arrays.is_array(value) is False
    with pytest.raises(TypeError) as raised:
        arrays.library_of(value)
    assert str(raised.value) == f"{described_type(value)} is not a NumPy, torch or CuPy array"


@pytest.mark.parametrize(
    ("ask", "of_numpy", "of_torch"),
    [
        (known_library, "numpy", "torch"),
        (arrays.library_of, "numpy", "torch"),
        (is_torch, False, True),
        (arrays.is_array, True, True),
        (lambda array: arrays.matches(array, (1,), "float32"), True, True),
        (lambda array: arrays.matches_on_host(array, (1,), "float32"), True, True),
        (arrays.is_on_device, False, False),
    ],
)
def test_a_subclass_that_nobody_has_asked_about_is_known_at_once(
    ask: Callable[[Any], object], of_numpy: object, of_torch: object
) -> None:
    class OfNumpy(np.ndarray[Any, Any]):
        """Of a user."""

    class OfTorch(torch.Tensor):
        """Another one."""

    for _ in range(2):
        assert ask(np.zeros(1, "f4").view(OfNumpy)) == of_numpy
        assert ask(torch.zeros(1).as_subclass(OfTorch)) == of_torch


def test_a_library_is_known_by_the_type_of_its_arrays() -> None:
    assert [known_library(each) for each in (np.float64(1), np.zeros(1), torch.zeros(1))] == [
        "numpy",
        "numpy",
        "torch",
    ]


@pytest.mark.parametrize("name", [name for name in DTYPES if arrays.supports("numpy", name)])
def test_a_row_major_array_of_numpy_is_its_own_message_unless_mpi_lacks_its_type(name: str) -> None:
    array, is_half = np.zeros((2, 3), name), name == "float16"
    assert (arrays.message(array) is array) is not is_half
    assert (arrays.elementwise(array) is array) is not is_half
    assert (arrays.summable(array) is array) is not is_half
    assert arrays.summable_values(array) is array
    column_major: Any = np.asfortranarray(array)
    assert arrays.message(column_major) is not column_major
    assert arrays.summable(column_major) is not column_major


def test_an_empty_tensor_of_torch_has_the_strides_that_torch_gives_it() -> None:
    torch = pytest.importorskip("torch")
    assert (
        arrays.from_numpy(np.zeros((0, 3, 2)), "float64", "torch").stride() == torch.empty(0, 3, 2).stride()
    )


def test_a_pass_starts_from_the_outputs_that_have_a_graph() -> None:
    one, other = torch.ones(2, requires_grad=True), torch.ones(3)
    y, w = torch.full((2,), 7.0), torch.zeros(3)
    assert [[id(each) for each in part] for part in arrays.with_graph([one, other], [y, w])] == [
        [id(one)],
        [id(y)],
    ]
    assert [[id(each) for each in part] for part in arrays.with_graph([other, one], [w, y])] == [
        [id(one)],
        [id(y)],
    ]
    empty = torch.zeros(0, 4, requires_grad=True)
    _, (shaped,) = arrays.with_graph([empty], [torch.zeros(0, dtype=torch.float64)])
    assert (shaped.shape, shaped.dtype) == ((0, 4), torch.float32)


def test_what_is_of_zero_volume_on_both_sides_takes_the_shape_and_type_of_the_layers_own() -> None:
    empty, full = torch.zeros(0, 4), torch.ones(2)
    taken = arrays.in_shape_of(empty, torch.zeros(3, 0, dtype=torch.float64))
    assert (taken.shape, taken.dtype) == ((0, 4), torch.float32)
    for own, other in ((empty, full), (full, empty), (full, torch.zeros(2))):
        assert arrays.in_shape_of(own, other) is other
