"""Keeps pytest out of the two rooms: collected from the root, they would be imported under a second name."""

collect_ignore = ["layers", "primitives"]
