"""Exceptions: of every kind, out of every place where user code runs."""

from __future__ import annotations

import asyncio
import gc
import threading
import unittest
import weakref
from typing import Any, NoReturn

import hypothesis
import hypothesis.errors

import adjointlab as al
from adjointlab.checks.verdict import Inapplicable
from tests.faults.declaring import (
    COHERENT,
    DEADLOCK,
    INCOMPLETE,
    RAISED,
    RuntimeFault,
    Shift,
    blocks,
    declared,
    fault,
    subject_of,
)

STRATEGY = (*RAISED, "raised TypeError", "the subject's strategy failed")
OUTPUT = ("an output is not in its declared space",)


def raises(error: Any) -> NoReturn:
    raise error


class Own(BaseException):
    """No Exception."""


class Wordless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("there are no words for it")

    __repr__ = __str__


class Unpicklable(Exception):
    """Needs two arguments, which pickle does not know of, and holds a lock."""

    def __init__(self, one: object, other: object) -> None:
        super().__init__(one)
        self.lock = threading.Lock()


class RaisesWhenPickled:
    def __reduce__(self) -> Any:
        raise RuntimeError("not to be sent")


class RaisesWhenUnpickled:
    def __reduce__(self) -> Any:
        return raises, (RuntimeError("not to be received"),)


class RaisesWhenDeleted:
    def __del__(self) -> None:
        raise RuntimeError("not to be deleted")


class RaisesAsArray:
    shape, dtype = (1,), "float64"

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("not to be looked at")


def generated() -> Any:
    yield 1
    raise RuntimeError("in a generator")


def ignoring_its_end() -> Any:
    try:
        yield 1
    finally:
        raise RuntimeError("in the end of a generator")


def with_causes_in_a_cycle() -> NoReturn:
    one, other = RuntimeError("one"), RuntimeError("the other")
    one.__cause__, other.__cause__ = other, one
    raise one


def in_a_thread() -> None:
    thread = threading.Thread(target=raises, args=(RuntimeError("in a thread"),))
    thread.start()
    thread.join()


def in_a_callback() -> None:
    held = Own()
    weak = weakref.ref(held, lambda _: raises(RuntimeError("in a callback")))
    del held
    assert weak() is None


def in_the_collector() -> None:
    cycle: list[Any] = [RaisesWhenDeleted()]
    cycle.append(cycle)
    del cycle
    gc.collect()


def recursing(op: Any) -> None:
    recursing(op)


def swallowing_everything(op: Any) -> None:
    for _ in range(3):
        try:
            op.comm.recv(source=op.left, tag=44)
        except BaseException:  # noqa: S112 - that is the fault
            continue


def in_a_strategy(error: BaseException) -> Any:
    def draws(draw: Any, ranks: int) -> dict[str, Any]:
        raise error

    return draws


def draws_none(draw: Any, ranks: int) -> Any:
    return None


def draws_arguments_that_nobody_takes(draw: Any, ranks: int) -> dict[str, Any]:
    return blocks(draw, ranks) | {"colour": "red"}


def rejects_all(draw: Any, ranks: int) -> dict[str, Any]:
    hypothesis.assume(False)
    return blocks(draw, ranks)


def draws_an_object(draw: Any, ranks: int) -> dict[str, Any]:
    return blocks(draw, ranks) | {"dtype": object()}


def raising_reference(x: Any, layout: al.Layout) -> NoReturn:
    raise RuntimeError("in a reference")


def in_forward(name: str, error: Any, kind: str, **row: Any) -> RuntimeFault:
    return fault(name, (kind,), first={"forward": lambda op: raises(error)}, **row)


def late(name: str, action: Any, found: tuple[str, ...], **row: Any) -> RuntimeFault:
    """A row whose action takes no operator."""
    return fault(name, found, first={"forward": lambda op: action()}, **row)


def anywhere(name: str, draws: Any, found: tuple[str, ...]) -> RuntimeFault:
    """A row whose strategy is at fault."""
    slug = "row_" + name.replace(" ", "_").replace("-", "_")
    operator = type(slug.removeprefix("row_").title().replace("_", ""), (Shift,), {})
    return RuntimeFault(name, subject_of(operator, draws, slug), found, found, ranks=0)


FAULTS = declared(
    globals(),
    (
        in_forward("own BaseException", Own("own"), "raised Own"),
        in_forward("exception without words", Wordless(), "raised Wordless"),
        in_forward("exception that cannot be pickled", Unpicklable(1, 2), "raised Unpicklable"),
        in_forward("exception with escapes", RuntimeError("\x1b[2J\ud800\x00\u202e"), "raised RuntimeError"),
        in_forward("exception of a megabyte", RuntimeError("x" * 1_000_000), "raised RuntimeError"),
        in_forward(
            "exception group", ExceptionGroup("two", [ValueError("1"), OSError("2")]), "raised ExceptionGroup"
        ),
        in_forward("KeyboardInterrupt raised by code", KeyboardInterrupt(), "raised KeyboardInterrupt"),
        in_forward("GeneratorExit", GeneratorExit(), "raised GeneratorExit"),
        in_forward("StopIteration", StopIteration(3), "raised StopIteration"),
        in_forward("MemoryError", MemoryError(), "raised MemoryError"),
        in_forward("AssertionError", AssertionError("own"), "raised AssertionError"),
        in_forward("asyncio's CancelledError", asyncio.CancelledError(), "raised CancelledError"),
        in_forward("unittest's SkipTest", unittest.SkipTest("not today"), "raised SkipTest"),
        in_forward("Hypothesis's StopTest", hypothesis.errors.StopTest(0), "raised StopTest"),
        fault(
            "the lab's own Inapplicable",
            ("raised RuntimeError", "too few cases judged"),
            first={"forward": lambda op: raises(Inapplicable("none"))},
            ranks=0,
        ),
        fault("unbounded recursion", ("raised RecursionError",), first={"forward": recursing}),
        late("causes in a cycle", with_causes_in_a_cycle, RAISED),
        late("raises in a generator", lambda: list(generated()), RAISED),
        late("raises in the end of a generator", lambda: next(ignoring_its_end()), COHERENT, ranks=0),
        late("raises in a thread", in_a_thread, COHERENT, ranks=0),
        late("raises in a destructor", RaisesWhenDeleted, COHERENT, ranks=0),
        late("raises in the garbage collector", in_the_collector, COHERENT, ranks=0),
        late("raises in a callback of weakref", in_a_callback, COHERENT, ranks=0),
        fault(
            "raises in an operation of reduce",
            RAISED,
            everywhere={
                "forward": lambda op: op.comm.allreduce(1, op=lambda a, b: raises(RuntimeError("in reduce")))
            },
        ),
        fault(
            "raises when pickled",
            RAISED,
            first={"forward": lambda op: op.comm.send(RaisesWhenPickled(), op.rank)},
        ),
        fault(
            "raises when unpickled",
            RAISED,
            everywhere={
                "forward": lambda op: op.comm.bcast(RaisesWhenUnpickled() if op.is_faulty else None, 1)
            },
        ),
        fault(
            "raises in a constructor on one rank",
            RAISED,
            first={"make": lambda op: raises(RuntimeError("late"))},
        ),
        fault(
            "raises in a constructor on all ranks",
            RAISED,
            everywhere={"make": lambda op: raises(RuntimeError("late"))},
        ),
        fault(
            "raises in adjoint after its messages",
            RAISED,
            result={"adjoint": lambda op, x, y: raises(RuntimeError("late"))},
            ranks=1,
        ),
        fault(
            "raises in a property of the operator",
            RAISED,
            members={
                "codomain": property(lambda op: raises(RuntimeError("no codomain")), lambda op, value: None)
            },
            ranks=1,
        ),
        fault(
            "returns what raises as an array",
            OUTPUT,
            result={"forward": lambda op, x, y: RaisesAsArray()},
            ranks=1,
        ),
        fault("catches what ends it, and calls again", DEADLOCK, first={"forward": swallowing_everything}),
        fault("no domain declared", INCOMPLETE, everywhere={"make": lambda op: delattr(op, "domain")}),
        fault("no communicator kept", INCOMPLETE, everywhere={"make": lambda op: delattr(op, "comm")}),
        fault("raises in a reference", RAISED, reference=raising_reference, check="sequential", ranks=1),
        anywhere("raises in a strategy", in_a_strategy(RuntimeError("in a strategy")), STRATEGY),
        anywhere(
            "own BaseException in a strategy", in_a_strategy(Own("in a strategy")), ("raised Own", *STRATEGY)
        ),
        anywhere("strategy that returns nothing", draws_none, INCOMPLETE),
        anywhere("strategy of unknown arguments", draws_arguments_that_nobody_takes, INCOMPLETE),
        anywhere(
            "strategy that rejects all",
            rejects_all,
            ("no case could be drawn: the subject's strategy rejects them all",),
        ),
        anywhere("strategy of arguments that are no data", draws_an_object, INCOMPLETE),
    ),
)
