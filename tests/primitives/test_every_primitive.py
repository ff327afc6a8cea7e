"""Properties that every primitive has, on the cases that its subject draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adjointlab.checks.memory_orders import ORDERS
from adjointlab.core import arrays
from adjointlab.engine.subject import Subject
from adjointlab.primitives.subjects import installed

SUBJECTS = {name: value for name, value in vars(installed).items() if isinstance(value, Subject)}
RANKS = (1, 2, 3, 4)


def cases(subject: Subject) -> st.SearchStrategy[tuple[int, Any]]:
    return st.sampled_from(RANKS).flatmap(lambda ranks: st.tuples(st.just(ranks), subject.parameters(ranks)))


@pytest.mark.parametrize("name", SUBJECTS)
@given(data=st.data())
def test_the_implementation_does_what_the_specification_says_and_is_coherent(
    name: str, data: st.DataObject, apply_both: Any
) -> None:
    ranks, parameters = data.draw(cases(SUBJECTS[name]))
    libraries = [library for library in ("numpy", "torch") if arrays.supports(library, parameters["dtype"])]
    library, order = data.draw(st.sampled_from(libraries)), data.draw(st.sampled_from(ORDERS))
    apply_both(ranks, lambda comm: SUBJECTS[name].make(comm, parameters), library, order)


@pytest.mark.parametrize("name", SUBJECTS)
@settings(max_examples=10)
@given(data=st.data())
def test_an_element_type_may_be_given_as_a_type_of_numpy(
    name: str, data: st.DataObject, apply_both: Any
) -> None:
    ranks, parameters = data.draw(cases(SUBJECTS[name]))
    dtype = np.dtype("float32") if parameters["dtype"] == "bfloat16" else np.dtype(parameters["dtype"])
    apply_both(
        ranks, lambda comm: SUBJECTS[name].make(comm, {**parameters, "dtype": dtype}), "numpy", "row-major"
    )
