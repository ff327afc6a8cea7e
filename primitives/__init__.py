"""The linear operators, one file each: a specification (a program) and an implementation (collectives)."""

if __name__ != "adjointlab.primitives":
    raise ImportError(
        f"this package is adjointlab.primitives, but it was imported as {__name__!r}, which would load its modules "
        "twice; write `import adjointlab.primitives`"
    )
