"""Worlds, which execute one SPMD function on P ranks."""
