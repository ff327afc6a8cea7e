"""The rounding of a sequential module, measured on itself by stochastic arithmetic [Parker97].

The module runs again a few times, and every operation of torch's in it, forward and backward, gets arguments and gives results that
are wrong by some units in the last place, at random. Results that differ then by so much may differ by as much in a layer that
does the same in another order.

Two kinds of operations are spared. Those that move or select values do not round. And equal arguments of an elementwise operation get
equal errors, so that they stay equal: a maximum of equal values is the same one in every order of summation.

At a kink or a tie the least error makes a great difference, and larger errors make none that is much greater. Small integers are
spared too where that happens, and numbers of few binary digits, for no operation has rounded them, but for normalisations, which
round sums of their own. If the difference stays, the module's own result is a matter of its rounding, and nothing can be said about the
layer's.
"""

from __future__ import annotations

import contextvars
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias

import numpy as np

from adjointlab.checks.elements import Local, largest_magnitude
from adjointlab.checks.verdict import Inapplicable, Measurement, NotMeasured, Undecided
from adjointlab.core.rounding import perturbing
from adjointlab.typing import NumpyArray
from adjointlab.worlds.randomness import own_streams

if TYPE_CHECKING:
    import torch

__all__ = ["Allowances", "Differences", "measured"]

Differences: TypeAlias = Mapping[str, tuple[float, ...]]
"""A difference for each tensor of the results of one name."""

_SAMPLES = 3
_SAMPLES_WITH_INTEGERS = 8
"""Each sample changes the index of a maximum of equal values, and what is counted by it, by an even chance."""

_SAFETY = 8.0
"""Factor on the largest difference of the samples, whose errors add up at random and not at the worst."""

_ERROR = 8.0
"""Units in the last place by which arguments and results are wrong at most: so many that two errors seldom cancel. In narrow types fewer."""

_GROWTH = 64.0
"""Factor on the errors that tells a kink, where the difference stays, from an ill-conditioned result, where it grows."""

_UNITS = 8.0
"""Units in the last place of its largest element by which any result may differ."""


class _Errors(NamedTuple):
    """Of a run: the number of the sample, the errors of its operations in units in the last place at most, and what has none."""

    sample: int
    units: float
    spares_integers: bool


_FIRST = _Errors(0, _ERROR, spares_integers=False)


class Allowances:
    """The differences that rounding may make to each tensor of a module's results.

    Most results differ by less than any may, and most others by less than one sample of the rounding shows. So the runs that show more
    are made when they are first asked for.
    """

    def __init__(
        self,
        least: Differences,
        sample: Callable[[], Differences],
        measure: Callable[[], Differences],
        is_random: Callable[[], bool] = lambda: False,
    ) -> None:
        self.least = least
        """Differences that any result may have: a few units in the last place, and never more than is measured."""
        self._sample, self._measure, self._is_random = sample, measure, is_random

    def __iter__(self) -> Iterator[Differences]:
        """Differences that are allowed, each of them; the later ones are hardly ever smaller, and are measured when they are reached."""
        yield self.least
        yield self.of_one_sample
        yield self.most

    @cached_property
    def of_one_sample(self) -> Differences:
        """Differences that rounding may make, as far as one sample shows them."""
        return self._sample()

    @cached_property
    def most(self) -> Differences:
        """Differences that rounding may make, as they are measured."""
        return self._measure()

    @property
    def is_measured(self) -> bool:
        """True once somebody has asked, as some result differed by more than any may."""
        return not vars(self).keys().isdisjoint(("of_one_sample", "most"))

    @cached_property
    def is_random(self) -> bool:
        """True if the results are others with other random numbers."""
        return self._is_random()

    def measured_now(self, measurement: Measurement) -> Allowances:
        """The same with no runs to come, after so much measurement.

        Whoever asks is told what was measured, or gets the :class:`Inapplicable` that it ended with; who asks for more raises
        :class:`NotMeasured`.
        """
        sample = self._answer("of_one_sample", measurement >= Measurement.ONE_SAMPLE)
        most, is_random = (
            self._answer(name, measurement == Measurement.ALL) for name in ("most", "is_random")
        )
        return Allowances(self.least, sample, most, is_random)

    def _answer(self, name: str, is_measured: bool) -> Callable[[], Any]:
        """A function that returns or raises what the attribute of that name does now, or says that it is not measured."""
        if not is_measured:
            return partial(_raise, NotMeasured())
        try:
            value = getattr(self, name)
        except Inapplicable as error:
            return partial(_raise, error)
        return lambda: value


def _raise(error: Exception) -> NoReturn:
    raise error


def measured(
    run: Callable[[], Mapping[str, Local]], *, is_subnormal: bool = False, computes_in: str = ""
) -> tuple[Mapping[str, Local], Allowances]:
    """Return the results of `run`, and by how much rounding may change each tensor of them: in its types, or that of `computes_in`.

    `run` is called again to measure that, by whoever asks for it first: in the context variables of now, with the same random numbers,
    and none is taken from the streams of the caller. With `is_subnormal` results may differ by the smallest normal number too.
    """
    import torch

    before, with_graph, context = _random_states(), torch.is_grad_enabled(), contextvars.copy_context()
    results = run()
    # By the module when it is called, or when it was made: so it may be random.
    has_drawn = not torch.equal(before[-1], torch.get_rng_state())
    unit = torch.finfo(getattr(torch, computes_in)).eps if computes_in else 0.0
    least = {
        name: tuple(_least_difference(array, is_subnormal, unit) for array in local)
        for name, local in results.items()
    }

    perturbed = _Perturbed(run, results, before, unit)

    def measure(differences: Callable[[], Differences]) -> Differences:
        with own_streams(), torch.set_grad_enabled(with_graph):
            more = differences()
        return {
            name: tuple(one + other for one, other in zip(least[name], more[name], strict=True))
            for name in results
        }

    def is_random() -> bool:
        runs = []
        for seed in range(2):
            with own_streams(seed), torch.set_grad_enabled(with_graph):
                runs.append(run())
        one, other = runs
        return any(
            not np.array_equal(array, changed, equal_nan=array.dtype.kind in "fc")
            for name, local in one.items()
            for array, changed in zip(local, other[name], strict=True)
        )

    return results, Allowances(
        least,
        lambda: context.run(measure, perturbed.differences_of_one_sample),
        lambda: context.run(measure, perturbed.differences_by_rounding),
        lambda: has_drawn and context.run(is_random),
    )


@dataclass(frozen=True)
class _Perturbed:
    """A module with these `results`, which runs again with perturbed operations, whose relative errors are in units of `unit` at least."""

    run: Callable[[], Mapping[str, Local]]
    results: Mapping[str, Local]
    random_states: _RandomStates
    unit: float
    _known: dict[_Errors, Mapping[str, Local] | Exception] = field(default_factory=dict)

    def differences_of_one_sample(self) -> Differences:
        """By how much results differ in the first run that rounding may be the reason of; by nothing where the module raises."""
        if isinstance(self._run_with(_FIRST), Exception):
            return {name: (0.0,) * len(local) for name, local in self.results.items()}
        return self._attributed_to_rounding([_FIRST])

    def differences_by_rounding(self) -> Differences:
        """By how much results differ, in any of the runs, that rounding may be the reason of.

        Raises :class:`Undecided` if none of the first runs comes to its end, so that nothing is known of the rounding.
        """
        has_integers = any(array.dtype.kind not in "fc" for local in self.results.values() for array in local)
        samples = range(_SAMPLES_WITH_INTEGERS if has_integers else _SAMPLES)
        # What lies at a kink in exact arithmetic may lie on one side of it by chance in all of them. With the opposite errors
        # it lies on the other side.
        errors = [*(_FIRST._replace(sample=sample) for sample in samples), _FIRST._replace(units=-_ERROR)]
        runs = [self._run_with(each) for each in errors]
        raised = [each for each in runs if isinstance(each, Exception)]
        if len(raised) == len(runs):
            kind = type(raised[0]).__name__
            raise Undecided(
                f"the sequential layer raises {kind} where its operations are wrong in the last digits"
            ) from raised[0]
        return self._attributed_to_rounding(errors)

    def _attributed_to_rounding(self, errors: Sequence[_Errors]) -> Differences:
        """The parts of the differences that are put down to rounding, with a margin."""
        every = grown = some = self._differences(errors)
        if not all(
            _is_small(difference, array, self.unit)
            for name, local in self.results.items()
            for difference, array in zip(every[name], local, strict=True)
        ):
            grown = self._differences([each._replace(units=_GROWTH * each.units) for each in errors])
        kinks = {
            name: tuple(map(partial(_is_kink, unit=self.unit), every[name], grown[name], local))
            for name, local in self.results.items()
        }
        if any(map(any, kinks.values())):
            some = self._differences([each._replace(spares_integers=True) for each in errors])
        return {
            name: tuple(
                _SAFETY * (less if is_kink else difference)
                for is_kink, difference, less in zip(kinks[name], every[name], some[name], strict=True)
            )
            for name in self.results
        }

    def _run_with(self, errors: _Errors) -> Mapping[str, Local] | Exception:
        """Results with these errors, or what the module raises that finds its arguments illegal by the last digit."""
        if errors not in self._known:
            self._known[errors] = self._run_anew(errors)
        return self._known[errors]

    def _run_anew(self, errors: _Errors) -> Mapping[str, Local] | Exception:
        from adjointlab.core.perturbation import Perturbation  # which imports torch

        _restore(self.random_states)
        try:
            perturbation = Perturbation(errors.sample, errors.units, errors.spares_integers, self.unit)
            with perturbation, perturbing(perturbation.unseen):
                return self.run()
        except Exception as exception:
            return exception

    def _differences(self, errors: Sequence[_Errors]) -> Differences:
        """The largest difference of each tensor in a run that came to its end; infinite where none did, for nothing is known then."""
        runs = map(self._run_with, errors)
        ended = [each for each in runs if not isinstance(each, Exception)]
        return {
            name: tuple(
                max((_difference(array, each) for each in changed), default=math.inf)
                for array, *changed in zip(local, *(each[name] for each in ended), strict=True)
            )
            for name, local in self.results.items()
        }


def _is_kink(every: float, grown: float, array: NumpyArray, unit: float = 0.0) -> bool:
    """Return True for a difference that is too much for rounding alone, and hardly grows with the errors."""
    if _is_small(every, array, unit):
        return False
    return grown < math.sqrt(_GROWTH) * every or grown == every  # an infinite one does not grow


def _least_difference(array: NumpyArray, is_subnormal: bool, unit: float = 0.0) -> float:
    least = _UNITS * _epsilon(array, unit) * largest_magnitude(array)
    # Units in the last place of such numbers are not relative to their size, and processors may take them for zero.
    return least + (float(np.finfo(array.dtype).tiny) if is_subnormal and array.dtype.kind in "fc" else 0.0)


def _is_small(difference: float, array: NumpyArray, unit: float = 0.0) -> bool:
    return difference <= math.sqrt(_epsilon(array, unit)) * max(largest_magnitude(array), 1.0)


def _difference(result: NumpyArray, perturbed: NumpyArray) -> float:
    """The largest difference of an element that is finite; infinite where an error makes a NaN or an infinity of it.

    Integers that an error changes, such as the index of a maximum, may be any: then the difference is infinite too.
    """
    if result.shape != perturbed.shape or not result.size:
        return 0.0
    if result.dtype.kind not in "fc":
        return 0.0 if np.array_equal(result, perturbed) else math.inf
    finite = np.isfinite(result)
    difference = abs(
        result[finite].astype(complex if result.dtype.kind == "c" else float) - perturbed[finite]
    )
    return float(np.where(np.isnan(difference), np.inf, difference).max(initial=0.0))


def _epsilon(array: NumpyArray, least: float = 0.0) -> float:
    return max(float(np.finfo(array.dtype).eps), least) if array.dtype.kind in "fc" else 0.0


_RandomStates: TypeAlias = "tuple[object, Any, torch.Tensor]"
"""States of the global streams of `random`, NumPy and torch."""


def _random_states() -> _RandomStates:
    import torch

    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def _restore(states: _RandomStates) -> None:
    import torch

    python, numpy, of_torch = states
    random.setstate(python)  # type: ignore[arg-type]
    np.random.set_state(numpy)
    torch.set_rng_state(of_torch)
