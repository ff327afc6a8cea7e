"""The rounding of a sequential module, measured on itself by stochastic arithmetic [Parker97].

The module runs again a few times with random errors: the arguments and results of every torch operation in it, forward and backward,
are perturbed by some units in the last place. If this changes a result by some amount, a layer that computes the same in another order
may differ by as much.

Two kinds of operations are treated specially. Those that move or select values do not round, and are not perturbed. And equal arguments
of an elementwise operation get equal errors, so that they stay equal: a maximum of equal values is the same in every order of summation.

At a kink or a tie the smallest error makes a large difference, and larger errors make no much larger one. In this case small integers
and numbers of few binary digits are not perturbed either, because no operation has rounded them; except in normalisations, which
round their own sums. If the difference stays, the module's own result depends on its rounding, and the layer's
cannot be judged.
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
"""More samples, because each changes the index of a maximum of equal values, and counts by that index, only with even odds."""

_SAFETY = 8.0
"""Factor on the largest difference of the samples, whose errors add up at random and not in the worst way."""

_ERROR = 8.0
"""Largest error of arguments and results in units in the last place: large enough that two errors seldom cancel. Less in narrow types."""

_GROWTH = 64.0
"""Factor on the errors that distinguishes a kink, where the difference stays, from an ill-conditioned result, where it grows."""

_UNITS = 8.0
"""Units in the last place of its largest element by which any result may differ."""


class _Errors(NamedTuple):
    """The errors of a run: the number of the sample, the largest error in units in the last place, and whether integers have none."""

    sample: int
    units: float
    spares_integers: bool


_FIRST = _Errors(0, _ERROR, spares_integers=False)


class Allowances:
    """The differences that rounding may make to each tensor of a module's results.

    Most results differ by less than the difference allowed for any result, and most others by less than one sample of the rounding
    shows. So further runs happen only when they are first needed.
    """

    def __init__(
        self,
        least: Differences,
        sample: Callable[[], Differences],
        measure: Callable[[], Differences],
        is_random: Callable[[], bool] = lambda: False,
    ) -> None:
        self.least = least
        """Differences that any result may have: a few units in the last place, never more than the measured ones."""
        self._sample, self._measure, self._is_random = sample, measure, is_random

    def __iter__(self) -> Iterator[Differences]:
        """Allowed differences, each sufficient; later ones are hardly ever smaller, and are measured when they are reached."""
        yield self.least
        yield self.of_one_sample
        yield self.most

    @cached_property
    def of_one_sample(self) -> Differences:
        """Differences that rounding may make, measured by one sample."""
        return self._sample()

    @cached_property
    def most(self) -> Differences:
        """Differences that rounding may make, measured by all samples."""
        return self._measure()

    @property
    def is_measured(self) -> bool:
        """True once rounding has been measured, because some result differed by more than :attr:`least`."""
        return not vars(self).keys().isdisjoint(("of_one_sample", "most"))

    @cached_property
    def is_random(self) -> bool:
        """True if the results change with other random numbers."""
        return self._is_random()

    def measured_now(self, measurement: Measurement) -> Allowances:
        """The same after the given measurement, and without further runs.

        Its attributes return the measured values, or raise the :class:`Inapplicable` with which the measurement ended; those that were
        not measured raise :class:`NotMeasured`.
        """
        sample = self._answer("of_one_sample", measurement >= Measurement.ONE_SAMPLE)
        most, is_random = (
            self._answer(name, measurement == Measurement.ALL) for name in ("most", "is_random")
        )
        return Allowances(self.least, sample, most, is_random)

    def _answer(self, name: str, is_measured: bool) -> Callable[[], Any]:
        """A function that returns or raises the same as the attribute of that name does now; or :class:`NotMeasured`."""
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
    """Return the results of `run`, and the rounding of each tensor of them: in its type, or that of `computes_in`.

    To measure that, `run` is called again when it is first needed: with the context variables and the random numbers of this call, and
    without drawing from the caller's random streams. With `is_subnormal`, results may also differ by the smallest normal number.
    """
    import torch

    before, with_graph, context = _random_states(), torch.is_grad_enabled(), contextvars.copy_context()
    results = run()
    # The module drew numbers when it was called, or when it was made: so it may be random.
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
    """A module with these `results`, which runs again with perturbed operations, with relative errors in units of at least `unit`."""

    run: Callable[[], Mapping[str, Local]]
    results: Mapping[str, Local]
    random_states: _RandomStates
    unit: float
    _known: dict[_Errors, Mapping[str, Local] | Exception] = field(default_factory=dict)

    def differences_of_one_sample(self) -> Differences:
        """Differences in the first run that rounding may cause; zero if the module raises."""
        if isinstance(self._run_with(_FIRST), Exception):
            return {name: (0.0,) * len(local) for name, local in self.results.items()}
        return self._attributed_to_rounding([_FIRST])

    def differences_by_rounding(self) -> Differences:
        """Differences in any of the runs that rounding may cause.

        Raises :class:`Undecided` if all of the first runs raise, so that the rounding remains unknown.
        """
        has_integers = any(array.dtype.kind not in "fc" for local in self.results.values() for array in local)
        samples = range(_SAMPLES_WITH_INTEGERS if has_integers else _SAMPLES)
        # A value at a kink in exact arithmetic may by chance be on the same side in all samples. With the opposite errors
        # it is on the other side.
        errors = [*(_FIRST._replace(sample=sample) for sample in samples), _FIRST._replace(units=-_ERROR)]
        runs = [self._run_with(each) for each in errors]
        raised = [each for each in runs if isinstance(each, Exception)]
        if len(raised) == len(runs):
            kind = type(raised[0]).__name__
            raise Undecided(
                f"the sequential layer raises {kind} if its operations have errors in their last digits"
            ) from raised[0]
        return self._attributed_to_rounding(errors)

    def _attributed_to_rounding(self, errors: Sequence[_Errors]) -> Differences:
        """The parts of the differences that are attributed to rounding, with a margin."""
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
        """Results with these errors, or the exception of a module for which the last digit makes an argument illegal."""
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
        """The largest difference of each tensor in the runs that did not raise; infinite, as unknown, if all did."""
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
    """Return True for a difference that is too large for rounding alone, and hardly grows with the errors."""
    if _is_small(every, array, unit):
        return False
    return grown < math.sqrt(_GROWTH) * every or grown == every  # an infinite one does not grow


def _least_difference(array: NumpyArray, is_subnormal: bool, unit: float = 0.0) -> float:
    least = _UNITS * _epsilon(array, unit) * largest_magnitude(array)
    # Units in the last place of subnormal numbers are not relative to their size, and processors may flush them to zero.
    return least + (float(np.finfo(array.dtype).tiny) if is_subnormal and array.dtype.kind in "fc" else 0.0)


def _is_small(difference: float, array: NumpyArray, unit: float = 0.0) -> bool:
    return difference <= math.sqrt(_epsilon(array, unit)) * max(largest_magnitude(array), 1.0)


def _difference(result: NumpyArray, perturbed: NumpyArray) -> float:
    """The largest difference of a finite element; infinite if an error turns it into NaN or infinity.

    Also infinite if an error changes integers, such as the index of a maximum, because then they may be any.
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
