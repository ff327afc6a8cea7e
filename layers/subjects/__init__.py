"""How the lab draws cases of the layers."""
