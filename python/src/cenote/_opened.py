"""What is open in a pool or file system, and is closed with it.

A buffer that is not flushed before the export is lost, so every layer of a file is known here: a text layer can be detached from its
buffer, and a volume can be in a buffer. All are held weakly; each layer holds the one below it, a raw file its file system, and that
its pool.
"""

from __future__ import annotations

import io
import threading
import weakref
from typing import Any, Callable, List, Sequence


class Opened:
    """Objects that are closed with the one that they belong to, if they are still there then."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._objects: "weakref.WeakSet[Any]" = weakref.WeakSet()

    def add(self, *opened: Any) -> None:
        """Adds layers of a file, or a file system."""
        with self._lock:
            for each in opened:
                self._objects.add(each)

    def close(self) -> List[Exception]:
        """Closes all of them, whichever of them fail, and gives the errors."""
        with self._lock:
            found = list(self._objects)
        # Outer layers come first, since they write into inner ones.
        found.sort(key=_depth)
        errors: List[Exception] = []
        for each in found:
            if not _is_detached(each):
                attempt(errors, each.close)
        return errors


def _depth(opened: Any) -> int:
    layers = (io.TextIOBase, io.BufferedIOBase, io.RawIOBase)
    return next((depth for depth, layer in enumerate(layers) if isinstance(opened, layer)), len(layers))


def _is_detached(opened: Any) -> bool:
    try:
        return isinstance(opened, io.IOBase) and opened.closed
    except ValueError:
        # A layer whose lower layer was taken away has nothing to write, and closing it would fail.
        return True


def attempt(errors: List[Exception], function: Callable[..., Any], *arguments: Any) -> None:
    """Calls a function, and keeps its error for :func:`raise_first`."""
    try:
        function(*arguments)
    except Exception as error:  # noqa: BLE001
        errors.append(error)


def raise_first(errors: Sequence[Exception]) -> None:
    """Raises the first error. The others are notes of it, or before Python 3.11 its context."""
    if not errors:
        return
    first, *others = errors
    add_note = getattr(first, "add_note", None)
    if add_note is not None:
        for other in others:
            add_note(f"{type(other).__name__} as well: {other}")
        raise first
    # A chain of contexts has to be without circles.
    last = first
    for other in others:
        if other is not last and other.__context__ is None:
            last.__context__ = other
            last = other
    raise first
