"""How the lab draws cases of the primitives."""
