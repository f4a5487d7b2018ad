"""How a blocking method is made of an async one: same name, same parameters, same documentation."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Concatenate, Generic, NoReturn, ParamSpec, TypeVar

from dsec.sync.portal import iterate, run

__all__ = ["Mirror", "blocking", "blocking_as", "iterating", "plain", "refused"]

C = TypeVar("C")
A = TypeVar("A")
T = TypeVar("T")
U = TypeVar("U")
P = ParamSpec("P")


class Mirror(Generic[C]):
    """A blocking view of ``core``, its async counterpart."""

    def __init__(self, core: C) -> None:
        self._core = core

    def __repr__(self) -> str:
        return repr(self._core)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and bool(other._core == self._core)

    def __hash__(self) -> int:
        return hash(self._core)

    def __reduce__(self) -> tuple[Any, ...]:
        return _around, (type(self), self._core)


def _around(kind: type[Mirror[Any]], core: Any) -> Mirror[Any]:
    made = kind.__new__(kind)
    Mirror.__init__(made, core)
    return made


def blocking(method: Callable[Concatenate[A, P], Awaitable[T]]) -> Callable[Concatenate[Any, P], T]:
    """The blocking form of a coroutine method."""

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run(method(self._core, *args, **kwargs))

    return call


def blocking_as(
    wrap: Callable[[T], U], method: Callable[Concatenate[A, P], Awaitable[T]]
) -> Callable[Concatenate[Any, P], U]:
    """The same where the result needs a blocking view of its own."""

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> U:
        return wrap(run(method(self._core, *args, **kwargs)))

    return call


def iterating(method: Callable[Concatenate[A, P], AsyncIterator[T]]) -> Callable[Concatenate[Any, P], Iterator[T]]:
    """The iterator of a method that gives an async iterator."""

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return iterate(method(self._core, *args, **kwargs))

    return call


def plain(wrap: Callable[[T], U], method: Callable[Concatenate[A, P], T]) -> Callable[Concatenate[Any, P], U]:
    """A method that waits for nothing; only its result needs a blocking view."""

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> U:
        return wrap(method(self._core, *args, **kwargs))

    return call


def refused(method: Callable[Concatenate[A, P], NoReturn]) -> Callable[Concatenate[Any, P], NoReturn]:
    """A method that is not in this version."""

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> NoReturn:
        method(self._core, *args, **kwargs)

    return call
