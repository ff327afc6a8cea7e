"""Hostile texts, mutations of files, and the proof that reading one has run no code."""

from __future__ import annotations

import json
import os
import sys
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

HOSTILE = st.one_of(
    st.text(st.characters(exclude_categories=[])),
    st.sampled_from(
        [
            '"""\nraise SystemExit',
            "'''\n__import__('os')._exit(3)",
            "\\",
            "\\\n",
            "\r1/0",
            "\x0c1/0",
            "\x851/0",
            "\u20281/0",
            "\x00",
            "\ud800",
            "\u202e",
            "{name}",
            "-*- coding: utf-7 -*-",
            "+AAoALw- 1/0",
            "\x1b]0;title\x07\x1b[2J",
            "[bold]not markup[/bold][/]",
            "]]><evil/>&amp;<!--",
            "../../../etc/passwd",
            "a/b\x00c",
            "x" * 300,
            "\ufffe\uffff\x01",
            "::test[#1] # no comment",
        ]
    ),
)
"""Texts that a file, a terminal or a program may take for something else than text."""


def many(few: int) -> settings:
    """Settings of a fuzz test: `few` examples, or as many as the variable ADJOINTLAB_FUZZ asks for."""
    return settings(
        max_examples=int(os.environ.get("ADJOINTLAB_FUZZ", few)),
        deadline=None,
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
        ],
    )


# Mutations

ODD_VALUES = st.one_of(
    st.sampled_from(
        [
            None, True, -1, 0, 2**63, -(10**40), 1e308, "", "adjoint", "nan", [], {}, [[]], {"$type": "space"},
            {"$type": "complex", "real": 1, "imag": "x"}, {"$type": "os.system", "value": "exit"}, {"$type": []},
            {"$type": "text", "escaped": "\\N{x}"}, "__import__('os')._exit(3)", [None] * 50,
        ]
    ),
    HOSTILE.map(lambda text: text.encode("utf-8", "replace").decode()),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
)  # fmt: skip


@st.composite
def changed_values(draw: st.DrawFn, text: str) -> bytes:
    """A JSON text, of whose values one to three are replaced, removed or doubled."""
    content: Any = json.loads(text)
    for _ in range(draw(st.integers(1, 3))):
        node = content
        while isinstance(node, dict | list) and node:
            key = draw(st.sampled_from(list(node) if isinstance(node, dict) else range(len(node))))
            if not (isinstance(node[key], dict | list) and node[key]) or draw(st.integers(0, 3)) == 0:
                break
            node = node[key]
        if not node:
            continue
        match draw(st.sampled_from(["replace", "remove", "add"])):
            case "replace":
                node[key] = deepcopy(draw(ODD_VALUES))
            case "remove":
                del node[key]
            case "add" if isinstance(node, list):
                node.append(deepcopy(node[key]))
            case "add":
                node[draw(st.sampled_from(["$type", "more", "", "shape"]))] = deepcopy(draw(ODD_VALUES))
    return json.dumps(content).encode()


@st.composite
def changed_bytes(draw: st.DrawFn, text: bytes) -> bytes:
    """A file, cut, or with bytes inserted, removed, replaced or repeated."""
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        stop = min(len(text), start + draw(st.sampled_from([0, 1, 2, 8, 64])))
        match draw(st.sampled_from(["cut", "replace", "repeat", "deep"])):
            case "cut":
                text = text[:start]
            case "replace":
                text = text[:start] + draw(st.binary(max_size=8)) + text[stop:]
            case "repeat":
                text = text[:stop] + text[start:stop] * draw(st.integers(1, 5)) + text[stop:]
            case "deep":
                text = text[:start] + draw(st.sampled_from([b"[", b'{"a":', b'"'])) * 2000 + text[stop:]
    return text


def mutations(text: str) -> st.SearchStrategy[bytes]:
    """Mutations of a file of JSON, of its values and of its bytes."""
    return changed_values(text) | changed_bytes(text.encode())


# No code is run

_CODE = ("exec", "compile", "os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "pickle.find_class",
         "marshal.loads", "ctypes.dlopen", "socket.connect", "code.__new__")  # fmt: skip
_OF_ANNOTATIONS = (typing.__file__, str(Path(msgspec.__file__).with_name("_utils.py")))
_watching: list[list[str]] = []


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if not _watching or not (event in _CODE or (event == "import" and str(arguments[0]) not in sys.modules)):
        return
    # Annotations of dataclasses are compiled when msgspec first needs them.
    if sys._getframe(1).f_code.co_filename not in _OF_ANNOTATIONS:
        _watching[-1].append(f"{event} {arguments!r:.200}")


@contextmanager
def no_code_runs() -> Iterator[None]:
    """Fail if Python compiles, executes, imports or starts something in the meantime."""
    if not getattr(sys, "_adjointlab_audited", False):
        sys.addaudithook(_audit)  # for good: Python takes no hook back
        sys._adjointlab_audited = True  # type: ignore[attr-defined]
    seen: list[str] = []
    _watching.append(seen)
    try:
        yield
    finally:
        _watching.pop()
    assert not seen, seen
