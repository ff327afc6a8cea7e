"""All subjects of the layers, if torch is installed: the entry point, which must be importable without torch, too.

Every module of this package is searched for subjects, so that a new module needs no entry here.
"""

from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules

from adjointlab.engine.subject import Subject
from adjointlab.layers import subjects

if find_spec("torch") is None:
    UNAVAILABLE = "the subjects of adjointlab.layers, such as Linear, need torch, which is not installed: pip install 'adjointlab[torch]'"
else:
    for _module in iter_modules(subjects.__path__, f"{subjects.__name__}."):
        if _module.name != __name__:
            for _name, _value in vars(import_module(_module.name)).items():
                if isinstance(_value, Subject):
                    globals()[_name] = _value
