"""Errors in the last places of the arguments and results of torch's operations, to measure the effect of rounding."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import torch
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from adjointlab.core.arrays import is_differentiable
from adjointlab.core.rounding import is_unperturbed

__all__ = ["Perturbation"]

_SPARE_BITS = 4
"""Integers that leave this many bits of the significand unused count as exact."""

_TRAILING_ZEROS = 8
"""Numbers whose significands end in this many zeros count as exact too, such as sums of products of integers, times a power of two.

None of bfloat16 does: its significand has no more bits.
"""

_COARSE = 2.0**-11
"""A type whose unit in the last place of 1 is larger is narrow: float16 or bfloat16."""

_LESS = 8.0
"""Factor by which errors in narrow types are smaller. Eight units of bfloat16 are 6%: a few operations later they hide a factor of two."""

_MOVES = frozenset(
    name
    for line in (
        "abs amax amin arange bernoulli cat clamp clamp_max clamp_min clone constant_pad_nd copy embedding empty empty_like",
        "empty_strided eye fill flip full full_like gather hardtanh hardtanh_backward index index_put index_select",
        "masked_fill masked_select max maximum max_pool2d_with_indices max_pool2d_with_indices_backward",
        "max_pool3d_with_indices max_pool3d_with_indices_backward min minimum neg new_empty new_empty_strided new_full",
        "new_ones new_zeros ones ones_like rand rand_like randn randn_like relu repeat roll scalar_tensor scatter",
        "select_backward sgn sign slice_backward sort stack threshold threshold_backward topk tril triu",
        "value_selecting_reduction_backward where zero zeros zeros_like _to_copy",
    )
    for name in line.split()
)
"""Torch operations that move or select values, or make constants, without the underscore of in-place variants."""

_FUSED = frozenset(
    [
        "binary_cross_entropy",
        "binary_cross_entropy_with_logits",
        "gelu",
        "gelu_backward",
        "mish_backward",
        "soft_margin_loss",
        "_log_softmax",
        "_log_softmax_backward_data",
        "_safe_softmax",
        "_softmax",
        "_softmax_backward_data",
    ]
)
"""Fused operations that take differences internally, such as 1 + erf(x), or add terms that may cancel.

Errors in their arguments and results do not show the effect of rounding such terms, so they are perturbed step by step, in torch's
decomposition.
"""

_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
"""Also perturbed step by step, except for the values that the kernel saves for its backward pass."""

_SOFTMAX: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "_softmax": lambda result, error: result * error.exp(),
    "_log_softmax": lambda result, error: result + error,
}
"""Softmax operations, with the effect of an error of x - l on the result, where l is the logarithm of the sum of exponentials of x.

Other implementations compute x - l, as attention does block by block. For large x this rounds more than torch's own
implementation, which subtracts the largest x.
"""

_LARGEST_ERROR = 30.0
"""Bound on such an error, which leaves nothing of a result; its exponential is still finite in all types but float16."""

_SIGNIFICANDS = {torch.float32: (torch.int32, 23), torch.float64: (torch.int64, 52)}
"""For each floating-point type, the integer type of the same width and the number of bits of the significand."""

_STATISTICS = frozenset({"running_mean", "running_var"})
"""Arguments that torch's batch normalisations write into although their schemas do not say so."""


class Perturbation(TorchDispatchMode):
    """Context that perturbs the arguments and results of this thread's operations by up to `error` units in the last place.

    The errors are random, and the same for equal samples. With `spares_integers`, small integers and numbers of few binary digits
    have none, except in normalisations. The relative size of a unit is that of the value's type, or `least` if that is larger.
    """

    def __init__(self, sample: int, error: float, spares_integers: bool, least: float = 0.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.generator = torch.Generator().manual_seed(sample)
        numbers = random.Random(sample)
        self.factor, self.offset = numbers.getrandbits(63), numbers.getrandbits(23)
        self.error, self.spares_integers, self.least = error, spares_integers, least

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # If True, torch would import its compiler, which takes seconds, to keep it from compiling code below.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # A tensor that wraps others runs operations on those, which are dispatched here in turn.
        if any(each.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ for each in types):
            return NotImplemented
        kwargs, operation = kwargs or {}, _operation(func)
        if operation.moves or is_unperturbed():
            return func(*args, **kwargs)
        if operation.is_composite:
            with self:
                return func.decompose(*args, **kwargs)
        if operation.is_fused:
            with self:
                result = decomposition_table[func](*args, **kwargs)
            changed = _SOFTMAX.get(operation.name)
            return result if changed is None else changed(result, self._error_of_logarithm(result, *args[:2]))
        result = self._at_once(func, operation, args, kwargs)
        if operation.name != _ATTENTION:
            return result
        with self:
            output, _ = decomposition_table[func](*args, **kwargs)
        # The others include the logarithm of the sum of exponentials, which the backward pass of the kernel reads.
        return output, *result[1:]

    def _at_once(
        self, func: Any, operation: _Operation, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run an operation in one step, with errors in its arguments and in its result."""
        elementwise = operation.is_elementwise
        spares_integers = self.spares_integers and not operation.normalises
        written = operation.written(args, kwargs)
        # Tensors that are written into must be passed as they are: the caller reads the result there.
        kept = {id(each) for each in (*written, *operation.statistics(args, kwargs))}

        def perturbed(value: torch.Tensor) -> torch.Tensor:
            if id(value) in kept or not _is_rounded(value):
                return value
            return self.wrong(value, elementwise, spares_integers)

        result = func(
            *_mapped(perturbed, args), **{name: _mapped(perturbed, kwargs[name]) for name in kwargs}
        )
        for each in filter(_is_rounded, written):
            each.copy_(self.wrong(each, elementwise, spares_integers))
        return _mapped(perturbed, result)

    def _error_of_logarithm(self, result: torch.Tensor, x: torch.Tensor, dim: int) -> torch.Tensor:
        """Return an error of the logarithm of the sum of exponentials of x, in the type of the `result` of a softmax."""
        if not x.numel():
            return torch.zeros_like(result)
        largest = x.to(result.dtype).amax(dim, keepdim=True)
        errors = self.relative_errors(largest, elementwise=False, spares_integers=False)
        # The logarithm is nearly the largest x, if that is large. An infinity has no error.
        error = (largest * errors).nan_to_num(0.0, posinf=0.0, neginf=0.0)
        return error.clamp(-_LARGEST_ERROR, _LARGEST_ERROR)

    def unseen(self, value: torch.Tensor, *, elementwise: bool) -> torch.Tensor:
        """Perturb a value of an operation that torch does not dispatch."""
        with _disable_current_modes():
            return self.wrong(value, elementwise, self.spares_integers)

    def wrong(self, value: torch.Tensor, elementwise: bool, spares_integers: bool) -> torch.Tensor:
        """Return the value with errors; those of the real and the imaginary part of a complex number are independent."""
        if value.is_complex():
            parts = torch.view_as_real(value.resolve_conj())
            return torch.view_as_complex(self.wrong(parts, elementwise, spares_integers))
        errors = self.relative_errors(value, elementwise, spares_integers)
        wrong = value * (1 + errors)
        if value.layout is not torch.strided:  # torch cannot compare it
            return wrong
        # Units in the last place of subnormal numbers are not relative to their size.
        if not _has_subnormal(value):
            return wrong
        smallest_normal = torch.finfo(value.dtype).smallest_normal
        is_subnormal = (value.abs() < smallest_normal).logical_and_(value)
        return wrong + torch.where(is_subnormal, errors * smallest_normal, 0.0)

    def relative_errors(self, value: torch.Tensor, elementwise: bool, spares_integers: bool) -> torch.Tensor:
        """Return errors of a real value relative to its elements: if `elementwise` equal for equal elements, else independent."""
        if elementwise:
            fractions = self._hashed(value)
        else:
            # On the host, so that a value on a device gets the same errors.
            drawn = torch.empty(value.shape, dtype=torch.float32)
            fractions = drawn.uniform_(-1.0, 1.0, generator=self.generator).to(value.device)
        epsilon = max(torch.finfo(value.dtype).eps, self.least)
        largest = self.error * epsilon / (_LESS if epsilon > _COARSE else 1)
        # In the value's precision, in which an infinity stays infinite.
        errors = fractions.mul_(largest).to(value.dtype)
        if spares_integers:
            is_exact = _is_exact(value, epsilon)
            # An operation that is not elementwise may add the elements. Partial sums of exact and rounded terms are rounded relative to
            # the largest term, so none is exact unless all are.
            errors[is_exact if elementwise else is_exact.all().expand_as(is_exact)] = 0.0
        return errors

    def _hashed(self, value: torch.Tensor) -> torch.Tensor:
        """Return pseudo-random numbers from -1 to 1, equal for elements that differ only in sign or by a power of two.

        Multiplies the bits of the significand by a large odd number, which drops the highest bits of the product. An infinity, such
        as the score of a masked key, gets a number too: a NaN would allow for any difference.
        """
        wide = value.resolve_neg() if value.dtype in _SIGNIFICANDS else value.float()
        integers, digits = _SIGNIFICANDS[wide.dtype]
        width = 8 * wide.itemsize
        bits = wide.view(integers).bitwise_and(2**digits - 1)
        hashed = bits.add_(self.offset).mul_(self.factor >> (64 - width) | 1)
        return hashed.to(wide.dtype).mul_(2.0 ** (1 - width))


def _has_subnormal(value: torch.Tensor) -> bool:
    """Return True if an element lies between zero and the smallest normal number: it is closer to half of that number than both are."""
    half = torch.finfo(value.dtype).smallest_normal / 2
    return float(value.abs().sub_(half).abs_().amin()) < half


def _is_exact(value: torch.Tensor, epsilon: float) -> torch.Tensor:
    """True for elements that look exact: a rounded number does so only by chance."""
    size = value.abs()
    is_small_integer = (size <= 2.0**-_SPARE_BITS / epsilon).logical_and_(value == value.round())
    leading = torch.frexp(value.double()).mantissa.mul_(2.0 ** (1 - _TRAILING_ZEROS) / epsilon)
    # Subnormal numbers have few digits because they are rounded.
    is_short = (leading == leading.round()).logical_and_(size >= torch.finfo(value.dtype).smallest_normal)
    return is_small_integer.logical_or_(is_short)


class _Operation(NamedTuple):
    """A torch operation as described by its name, tags and schema."""

    name: str
    moves: bool  # or selects values, makes constants, or gives a view
    is_fused: bool
    is_composite: bool  # decomposed before it is dispatched here, except in torch's own decompositions
    is_elementwise: bool
    normalises: bool
    arguments: tuple[str, ...]
    written_arguments: frozenset[str]

    def written(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """The tensors that it writes into according to its schema."""
        return self._tensors(self.written_arguments, args, kwargs)

    def statistics(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """The statistics of batch normalisations, which it may write into."""
        return self._tensors(_STATISTICS, args, kwargs)

    def _tensors(
        self, names: frozenset[str], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[torch.Tensor]:
        if names.isdisjoint(self.arguments):
            return []
        found: list[torch.Tensor] = []

        def note(value: torch.Tensor) -> torch.Tensor:
            found.append(value)
            return value

        for name, value in (*zip(self.arguments, args, strict=False), *kwargs.items()):
            if name in names:
                _mapped(note, value)
        return found


@cache  # few operations, each of which is called thousands of times
def _operation(func: Any) -> _Operation:
    schema = func._schema
    name = schema.name.split("::")[1].rstrip("_")
    aliases = [entry.alias_info for entry in schema.returns]
    is_view = any(alias is not None and not alias.is_write for alias in aliases)
    return _Operation(
        name,
        moves=is_view or name in _MOVES,
        is_fused=name in _FUSED and func in decomposition_table,
        is_composite=func._can_decompose(),
        is_elementwise=torch.Tag.pointwise in func.tags,
        normalises="norm" in name,
        arguments=tuple(entry.name for entry in schema.arguments),
        written_arguments=frozenset(
            entry.name
            for entry in schema.arguments
            if entry.alias_info is not None and entry.alias_info.is_write
        ),
    )


def _mapped(function: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """Apply `function` to all tensors in an argument or result of an operation, also in lists and tuples."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, list | tuple):
        return type(value)([_mapped(function, each) for each in value])
    return value


def _is_rounded(value: torch.Tensor) -> bool:
    """Return True for a tensor with values that an operation may have rounded."""
    return (
        is_differentiable(value)
        and value.numel() > 0
        # Torch's zero tensors have no memory, nor have the meta tensors by which it finds the shape of a sum with them.
        and not (value._is_zerotensor() or value.is_meta)
    )
