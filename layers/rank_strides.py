"""Distributions with strides of ranks [Kuehn20, section 3]: a grid of workers that leaves ranks of a machine out.

A distribution N̄ x C̄ x H̄ x W̄ has N̄ parts of the batch, C̄ of the channels and H̄ x W̄ of the image; strides Ñ x C̃ x P̃ reserve ranks
for C̃ parts of the channels for each part of the batch, and for P̃ parts of the image for each of these:

    rank of (n, c, h, w) = M[(n C̃ + c) P̃ + h W̄ + w]              for the ordered ranks M of the machine

With C̃ = 2, P̃ = 4, a layer over 2 x 2 x 2 x 1 has the ranks 0 1 | 4 5 || 8 9 | 12 13, and one over 2 x 2 x 2 x 2 all of 0 to 15: so the
corner of a part lies on the same rank in both, and less is sent between them than if each layer counted its ranks from 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

from adjointlab.core.partition import Partition, integers

__all__ = ["strided_partition"]


def strided_partition(
    distribution: Sequence[int], strides: Sequence[int], machine: Sequence[int]
) -> Partition:
    """Return the partition with sides N̄, C̄, H̄, W̄, or other spatial ones, over the ranks that the strides Ñ, C̃, P̃ give its workers.

    Raises `ValueError` for strides that violate an inequality of the note, with its number, and for strides that the inequalities
    permit although two workers would have one rank, or one would be beyond the machine.
    """
    sides, room, ranks = (
        integers(name, values)
        for name, values in (("distribution", distribution), ("strides", strides), ("machine", machine))
    )
    if len(sides) < 3 or len(room) != 3:
        raise ValueError(
            f"strides: {room} for a distribution {sides}, but it takes three of them, for batch, channels and image, and a "
            "distribution with these and at least one side of the image"
        )
    if min(*sides, *room) < 1:
        raise ValueError(
            f"strides: {room} for a distribution {sides}, but each of them, and of its sides, is at least 1"
        )
    (parts, channels, *image), (_, per_channel, per_image) = sides, room
    for number, needed, given in (
        ("3.1", prod(image), per_image),
        ("3.2", channels * prod(image), per_channel * per_image),
        ("3.3", prod(sides), prod(room)),
        ("3.3", prod(room), len(ranks)),
    ):
        if needed > given:
            raise ValueError(
                f"strides: {room} over a machine of {len(ranks)} ranks leave too little room for a distribution {sides}: inequality "
                f"{number} of the note asks that {needed} <= {given}"
            )
    places = [
        (n * per_channel + c) * per_image + place
        for n, c, place in product(range(parts), range(channels), range(prod(image)))
    ]
    if len(set(places)) < len(places) or max(places) >= len(ranks):
        raise ValueError(
            f"strides: {room} give two workers of a distribution {sides} one rank, or one beyond the {len(ranks)} of the machine; "
            "at most as many parts as the stride of their dimension have ranks of their own"
        )
    return Partition(sides, [ranks[place] for place in places])
