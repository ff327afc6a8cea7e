"""An attribute that was replaced for a time is as it was afterwards."""

from __future__ import annotations

from contextlib import suppress

import pytest

from adjointlab.replacement import replaced


class Base:
    @staticmethod
    def kind() -> str:
        return "base"


class Derived(Base):
    pass


@pytest.mark.parametrize("owner", [Base, Derived], ids=["of its own", "inherited"])
def test_an_attribute_is_as_it_was_once_its_replacement_has_ended(owner: type[Base]) -> None:
    before = dict(vars(owner))
    with suppress(KeyError), replaced(owner, "kind", lambda: "other"):
        assert owner.kind() == "other"
        raise KeyError
    assert (dict(vars(owner)), owner().kind()) == (before, "base")
