"""Checks that need a sequential twin, or that differentiate a module."""
