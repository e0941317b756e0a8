"""Values that belong to an object for as long as it lives, whether or not it can be hashed or compared."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")


class PerObject(Generic[T]):
    """Makes one value for each object; an object that cannot be referred to weakly gets a new one each time."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._kept: dict[int, tuple[weakref.ref[object], T]] = {}
        self._lock = Lock()

    def of(self, owner: object) -> T:
        """The value of this object."""
        with self._lock:
            reference, value = self._kept.get(id(owner), (None, None))
            if value is None or reference is None or reference() is not owner:
                value = self._make()
                with suppress(TypeError):
                    self._kept[id(owner)] = (weakref.ref(owner, self._forget(id(owner))), value)
        return value

    def _forget(self, place: int) -> Callable[[weakref.ref[object]], None]:
        def forget(reference: weakref.ref[object]) -> None:
            # Without the lock, which the thread that collects garbage may hold; the place may have a new owner.
            if (kept := self._kept.get(place)) and kept[0] is reference:
                del self._kept[place]

        return forget
