"""Buffers are read as mpi4py reads them, and refused with the exceptions that mpi4py raises."""

import numpy as np
import pytest

from adjointlab import MPI
from adjointlab.worlds.arguments import blocks, elements, typed_blocks


def read(spec, **keywords):
    return elements(spec, writable=False, **keywords).array.tolist()


ARRAY = np.arange(6.0)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (ARRAY, [0, 1, 2, 3, 4, 5]),
        (ARRAY.reshape(2, 3), [0, 1, 2, 3, 4, 5]),
        (ARRAY.reshape(2, 3).T, [0, 1, 2, 3, 4, 5]),  # memory order, as mpi4py
        (np.array(4.0), [4]),
        ([ARRAY, MPI.DOUBLE], [0, 1, 2, 3, 4, 5]),
        ([ARRAY, "d"], [0, 1, 2, 3, 4, 5]),
        ([ARRAY, 2], [0, 1]),
        ((ARRAY, 2, "f8"), [0, 1]),
        ([ARRAY, (2, 3), MPI.DOUBLE], [3, 4]),
        ([ARRAY, [2, 3]], [3, 4]),
        ([ARRAY, 2, 4, MPI.DOUBLE], [4, 5]),
        ([ARRAY[:1], MPI.BYTE], list(np.zeros(8))),
        (b"ab", [97, 98]),
        (bytearray(b"ab"), [97, 98]),
        ([None, 0, MPI.INT], []),
        (np.zeros((0, 4))[:, ::2], []),
    ],
)
def test_what_is_sent(spec, expected):
    assert read(spec) == expected


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        (ARRAY[::2], BufferError),
        (np.broadcast_to(1.0, 3), BufferError),
        (ARRAY.astype(">f8"), BufferError),
        (1.0, TypeError),
        (None, TypeError),
        ([ARRAY], ValueError),
        ([ARRAY, 1, 2, MPI.DOUBLE, 5], ValueError),
        ([ARRAY, -1], ValueError),
        ([ARRAY, 7], ValueError),
        ([ARRAY, (2, 7), MPI.DOUBLE], ValueError),
        ([ARRAY, "zz"], KeyError),
        (np.zeros(2, [("a", "f8")]), KeyError),
    ],
)
def test_what_is_refused(spec, error):
    with pytest.raises(error):
        read(spec)


def test_what_cannot_be_written_is_no_receive_buffer():
    constant = np.zeros(3)
    constant.flags.writeable = False
    with pytest.raises(BufferError, match="not writable"):
        elements(constant, writable=True)
    with pytest.raises(BufferError):
        elements(b"constant", writable=True)


def test_views_share_memory_with_the_array():
    for array in (np.zeros(4), np.zeros((2, 2)), np.zeros((2, 3, 4), order="F")):
        elements(array, writable=True).array[:] = 5
        assert (array == 5).all()


def test_an_inferred_count_must_divide_by_the_ranks():
    with pytest.raises(ValueError, match="not a multiple"):
        read(ARRAY, blocks=4)


def test_records_are_sent_as_the_datatype_that_is_named():
    records = np.zeros(3, [("position", "f8"), ("kind", "i4")])
    assert len(read([records, MPI.BYTE])) == 36
    assert elements([records, 12, MPI.BYTE], writable=True).array.base is not None  # no copy
    with pytest.raises(KeyError):
        read(records)
    with pytest.raises(BufferError, match="not contiguous"):
        read([records[::2], MPI.BYTE])


def test_a_given_count_is_that_of_one_block():
    assert read([ARRAY, 2, MPI.DOUBLE], blocks=3) == ARRAY.tolist()
    assert read([ARRAY, 1], blocks=3) == ARRAY.tolist()[:3]
    with pytest.raises(ValueError, match="count 8, but the buffer holds 6 elements"):
        read([ARRAY, 2], blocks=4)


def test_blocks():
    whole = blocks(ARRAY, 4, writable=True)  # uneven, as mpi4py
    assert (whole.counts, whole.displacements) == ([2, 2, 1, 1], [0, 2, 4, 5])
    listed = blocks([ARRAY, [1, 2]], 2, writable=True)
    assert (listed.counts, listed.displacements) == ([1, 2], [0, 1])
    paired = blocks([ARRAY, ([1, 2], [3, 0]), MPI.DOUBLE], 2, writable=True)
    assert (paired.counts, paired.displacements) == ([1, 2], [3, 0])
    apart = blocks([ARRAY, np.array([1, 2]), (0, 4), "d"], 2, writable=True)
    assert (apart.counts, apart.displacements) == ([1, 2], [0, 4])
    with pytest.raises(ValueError, match="expecting 3 items, got 2"):
        blocks([ARRAY, [1, 2]], 3, writable=True)
    with pytest.raises(ValueError, match="block 1 is elements 4 to 7"):
        blocks([ARRAY, [1, 3], [0, 4], "d"], 2, writable=True)


def test_torch_tensors():
    torch = pytest.importorskip("torch")
    tensor = torch.arange(6.0).reshape(2, 3)
    assert read(tensor) == read(tensor.T) == [0, 1, 2, 3, 4, 5]
    elements(tensor, writable=True).array[:] = 7
    assert (tensor == 7).all()
    for refused in (torch.ones(3, requires_grad=True), tensor[:, ::2], torch.ones(1).expand(3)):
        with pytest.raises(BufferError):
            read(refused)
    assert elements(torch.ones(3, dtype=torch.float16), writable=True).datatype.numpy == "float16"
    half = elements(torch.ones(3, dtype=torch.bfloat16), writable=True)
    assert half.datatype is MPI.BYTE  # no such type in MPI: moved as bytes, not reduced
    assert half.array.size == 6


TWO = MPI.DOUBLE.Create_indexed([2, 2], [0, 1]).Commit()
EVEN = MPI.DOUBLE.Create_vector(3, 1, 2).Commit()
COLUMN = MPI.DOUBLE.Create_vector(2, 2, 3).Commit()


@pytest.mark.parametrize(
    "receive",
    [
        lambda a: blocks([a, [2, 3], [0, 1], MPI.DOUBLE], 2, writable=True),
        lambda a: blocks([a, [2, 0, 3], [3, 4, 0], MPI.DOUBLE], 3, writable=True) and blocks([a, [1, 1], [5, 5], "d"], 2, writable=True),
        lambda a: elements([a, 1, TWO], writable=True),
        lambda a: typed_blocks([a, [1, 1], [0, 8], [COLUMN, COLUMN]], 2, writable=True),
    ],
)  # fmt: skip
def test_blocks_to_receive_in_do_not_overlap(receive):
    with pytest.raises(
        ValueError, match=r"of the receive buffer (overlap|are named more than once), which MPI forbids"
    ):
        receive(np.zeros(6))


def test_blocks_to_send_may_overlap_and_empty_ones_lie_anywhere():
    assert blocks([ARRAY, [3, 3], [0, 1], MPI.DOUBLE], 2, writable=False).displacements == [0, 1]
    assert elements([ARRAY, 1, TWO], writable=False).array.copy().tolist() == [0, 1, 1, 2]
    apart = blocks([np.zeros(6), [2, 0, 3], [0, 1, 3], MPI.DOUBLE], 3, writable=True)
    assert apart.counts == [2, 0, 3]
    typed, _ = typed_blocks([np.zeros(6), [1, 1], [0, 8], [EVEN, EVEN]], 2, writable=True)
    assert typed.counts == [24, 24]
