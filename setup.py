"""Refuses to build from a checkout in which the links to ``primitives/`` and ``layers/`` are not links.

Git on a file system without symbolic links (or with ``core.symlinks`` off) writes each link as a small text file. A
wheel built from such a checkout would lack the primitives, silently; so the build stops here and says why. In a source
distribution both are plain folders, which is fine. Everything else stands in ``pyproject.toml``.
"""

from pathlib import Path

from setuptools import setup

for room in ("primitives", "layers"):
    linked = Path(__file__).parent / "adjointlab" / room
    if not (linked / "__init__.py").is_file():
        raise SystemExit(
            f"adjointlab cannot be built from this checkout: adjointlab/{room} must be a symbolic link to ../{room}, "
            f"but it is {'a plain file' if linked.is_file() else 'not a package'}. The checkout was made without "
            "symbolic links; set `git config core.symlinks true` (on Windows also turn on developer mode) and check "
            "out again, or install from a wheel or a source distribution."
        )

setup()
