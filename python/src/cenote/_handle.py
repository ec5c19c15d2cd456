"""Handles of the library: counted while they are used, so that none is freed under another thread's feet."""

from __future__ import annotations

import threading
from typing import Any, Optional

from ._native import LIBRARY


class Handle:
    """A handle, which is freed once: when it is closed and no thread uses it any more."""

    def __init__(self, free: str, value: Optional[int], what: str) -> None:
        self._free = getattr(LIBRARY, free)
        self._value = value
        self._what = what
        self._lock = threading.Lock()
        self._users = 0
        self._is_closed = False

    def call(self, function: str, *arguments: Any) -> Any:
        """Calls a function with this handle before the other arguments."""
        with self._lock:
            if self._is_closed:
                raise ValueError(f"I/O operation on a closed {self._what}")
            self._users += 1
        try:
            return getattr(LIBRARY, function)(self._value, *arguments)
        finally:
            with self._lock:
                self._users -= 1
                is_last = self._is_closed and self._users == 0
            if is_last:
                self._free(self._value)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        """Frees the handle, at once or when those who use it are done."""
        with self._lock:
            is_first, self._is_closed = not self._is_closed, True
            is_free = is_first and self._users == 0
        if is_free:
            self._free(self._value)

    def __del__(self) -> None:
        # Nobody can use it any more. Where making it has failed there is nothing to free.
        if hasattr(self, "_lock"):
            self.close()
