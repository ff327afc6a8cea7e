"""Text of any origin, made fit for files and terminals."""

from __future__ import annotations

__all__ = ["encodable", "printable"]


def encodable(text: str) -> str:
    """`text` with its lone surrogates, which UTF-8 does not have, as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def printable(text: str, keep: str = "") -> str:
    """`text` with escapes for all characters but printable ones and those of `keep`: control characters, marks of direction."""
    if text.isprintable():
        return text
    return "".join(
        char
        if char.isprintable() or char in keep
        else char.encode("unicode_escape", "surrogatepass").decode()
        for char in text
    )
