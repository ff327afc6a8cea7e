"""Distributed layers for torch, one module for each kind; `networks` composes them, and `subjects` draws cases of each."""

if __name__ != "adjointlab.layers":
    raise ImportError(
        f"this package is adjointlab.layers, but it was imported as {__name__!r}, which would load its modules "
        "twice; write `import adjointlab.layers`"
    )
