"""Modules of packages that cannot be imported as a whole, for they ask for other versions, or for compilers and devices."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import PathFinder
from importlib.util import module_from_spec


def without_init(*packages):
    """Let modules of these packages be imported, each package after the one that it is in, without what the packages import themselves."""
    for name in packages:
        parent = name.rpartition(".")[0]
        spec = PathFinder.find_spec(name, sys.modules[parent].__path__ if parent else None)
        if spec is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        sys.modules.setdefault(name, module_from_spec(spec))


@contextmanager
def with_modules(modules: Mapping[str, object]) -> Iterator[None]:
    """While a module is imported, let others stand in the place of those that it imports, which its functions do not need."""
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
