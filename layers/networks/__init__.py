"""Whole networks, made of the distributed layers."""
