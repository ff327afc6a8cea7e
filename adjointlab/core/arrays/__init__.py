"""Arrays of NumPy, torch and (where installed) CuPy, and their element types.

This package is the one that knows the libraries: no other file asks which of them an array belongs to.
"""

from adjointlab.core.arrays.conversions import (
    from_numpy,
    from_summable,
    in_numpy,
    message,
    summable,
    to_numpy,
)
from adjointlab.core.arrays.element_types import DTYPES, Dtype, dtype
from adjointlab.core.arrays.libraries import (
    LIBRARIES,
    dtype_name,
    dtype_of,
    installed,
    is_array,
    library_of,
    matches,
    supports,
)
from adjointlab.core.arrays.memory import (
    add,
    add_into,
    clear,
    conjugate,
    copy,
    copy_into,
    empty,
    is_row_major,
    is_writable,
    kept,
    may_share_memory,
    note_change,
    scale,
    zeros,
)
from adjointlab.core.arrays.torch_tensors import is_dtensor, local_gradient, local_part, warm_up_torch

__all__ = [
    "DTYPES", "LIBRARIES", "Dtype", "add", "add_into", "clear", "conjugate", "copy", "copy_into", "dtype",
    "dtype_name", "dtype_of", "empty", "from_numpy", "from_summable", "in_numpy", "installed", "is_array",
    "is_dtensor", "is_row_major", "is_writable", "kept", "library_of", "local_gradient", "local_part", "matches",
    "may_share_memory", "message", "note_change", "scale", "summable", "supports", "to_numpy", "warm_up_torch", "zeros",
]  # fmt: skip
