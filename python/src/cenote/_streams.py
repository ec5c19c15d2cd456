"""Streams of snapshots through Python's file objects, changes between snapshots, and the history of a pool."""

from __future__ import annotations

import enum
import io
import os
import socket
import threading
from ctypes import c_void_p
from dataclasses import dataclass
from typing import Any, Callable, Iterator, List, Optional, Union

from ._errors import Error
from ._files import FileKind
from ._handle import Handle
from ._native import LIBRARY, UNKNOWN, CChange, CRecord, CTime, text
from ._opened import attempt, raise_first

#: Bytes that are copied at once.
_PIECE = 1 << 20
# Seconds that a thread is waited for which feeds a receive that has failed.
_PATIENCE_S = 1.0


class SentName(enum.Enum):
    """The part of a sent name that is added to the name that is given to ``receive``."""

    #: None of a stream's dataset; of a package, the names below its top.
    REPLACED = 0
    #: All but the pool (``-d``).
    WITHOUT_POOL = 1
    #: The last part of the top's name, and all below (``-e``).
    LAST = 2


class KeyStatus(enum.Enum):
    """The key of a dataset."""

    #: The dataset is not encrypted.
    NONE = 1
    AVAILABLE = 2
    UNAVAILABLE = 3


class ChangeKind(enum.Enum):
    """The way in which a file changed."""

    MODIFIED = 1
    ADDED = 2
    REMOVED = 3
    RENAMED = 4
    #: It has more or fewer names.
    LINKED = 5


@dataclass(frozen=True)
class Hold:
    """A hold of a snapshot."""

    tag: str
    #: The time when it was placed, in seconds since 1970.
    placed: int


@dataclass(frozen=True)
class Change:
    """A file that changed."""

    #: From the root directory of the file system; of one that was renamed, the former path.
    path: str
    kind: ChangeKind
    file_kind: FileKind
    #: The path of one that was renamed.
    to: Optional[str]
    #: More names, or fewer.
    links: int
    #: The time of its last change, in nanoseconds since 1970.
    changed_ns: int


@dataclass(frozen=True)
class HistoryRecord:
    """A record of a pool's history: a command line, or a change by the pool itself."""

    #: In seconds since 1970.
    time: int
    #: The command line; of other records None.
    command: Optional[str]
    #: The name of an internal change, such as ``snapshot``; of other records None.
    name: Optional[str]
    #: More about it.
    text: str
    dataset: Optional[str]
    host: Optional[str]
    #: The txg of an internal change; 0 otherwise.
    txg: int
    uid: Optional[int]


@dataclass(frozen=True)
class Sent:
    """The outcome of a stream that was written."""

    #: Bytes of the stream.
    bytes: int
    #: False if something that was requested was left out; the warnings name it.
    is_whole: bool
    warnings: List[str]


@dataclass(frozen=True)
class Received:
    """The outcome of streams that were received."""

    #: The datasets, in their order, each once.
    datasets: List[str]
    #: True if something that a package's sender has no more could not be destroyed or renamed.
    is_incomplete: bool
    warnings: List[str]


class Options:
    """Options of the library about streams."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.handle = c_void_p()
        getattr(LIBRARY, f"cenote_{kind}_options_new")(self.handle)

    def __enter__(self) -> "Options":
        return self

    def __exit__(self, *_: object) -> None:
        getattr(LIBRARY, f"cenote_{self._kind}_options_free")(self.handle)

    def set(self, option: str, *arguments: Any) -> None:
        getattr(LIBRARY, f"cenote_{self._kind}_options_{option}")(self.handle, *arguments)


def _texts(function: Any, report: c_void_p) -> List[str]:
    found: List[str] = []
    while True:
        following = text(function(report, len(found)))
        if following is None:
            return found
        found.append(following)


def sent(function: Callable[..., Any], file: Union[int, Any], *arguments: Any) -> Sent:
    """Calls a function that writes a stream to a descriptor."""
    place = c_void_p()
    try:
        _to(file, lambda fd: function(*arguments, fd, place))
        warnings = _texts(LIBRARY.cenote_report_warning, place)
        return Sent(LIBRARY.cenote_report_bytes(place), LIBRARY.cenote_report_is_whole(place), warnings)
    finally:
        LIBRARY.cenote_report_free(place)


def received(function: Callable[..., Any], file: Union[int, Any], *arguments: Any) -> Received:
    """Calls a function that reads a stream from a descriptor."""
    place = c_void_p()
    try:
        _from(file, lambda fd: function(*arguments, fd, place))
        datasets, warnings = (
            _texts(each, place) for each in (LIBRARY.cenote_report_dataset, LIBRARY.cenote_report_warning)
        )
        return Received(datasets, not LIBRARY.cenote_report_is_whole(place), warnings)
    finally:
        LIBRARY.cenote_report_free(place)


def _descriptor(file: Union[int, Any]) -> Optional[int]:
    """The descriptor of an object that does nothing but to pass bytes to it, and that waits. Others, such as buffers, compressors and sockets
    with encryption, have one as well, but their bytes are not those of the descriptor.
    """
    if isinstance(file, int):
        return file
    is_plain = type(file) is io.FileIO or (type(file) is socket.socket and file.gettimeout() is None)
    return int(file.fileno()) if is_plain else None


def _to(file: Union[int, Any], write: Callable[[int], Any]) -> None:
    own = _descriptor(file)
    if own is not None:
        write(own)
        return
    reader, writer = os.pipe()

    def serve() -> None:
        with os.fdopen(reader, "rb", buffering=0) as pipe:
            while piece := pipe.read(_PIECE):
                _put(file, piece)

    _served(serve, writer, write, None)


def _from(file: Union[int, Any], read: Callable[[int], Any]) -> None:
    own = _descriptor(file)
    if own is not None:
        read(own)
        return
    reader, writer = os.pipe()

    def serve() -> None:
        try:
            with os.fdopen(writer, "wb", buffering=0) as pipe:
                while piece := _piece(file):
                    _put(pipe, piece)
        except BrokenPipeError:
            # The library reads no more: it says why, or has all of the stream.
            pass

    # The object may wait for a peer that sends nothing more.
    _served(serve, reader, read, _PATIENCE_S)


def _put(file: Any, piece: bytes) -> None:
    """Writes all of a piece. An object without a buffer may take less at a time."""
    if not hasattr(file, "write"):
        file.sendall(piece)
        return
    while piece:
        count = file.write(piece)
        if count is None and isinstance(file, io.RawIOBase):
            raise BlockingIOError("an object that does not wait cannot take a stream")
        piece = piece[count:] if isinstance(count, int) else b""


def _piece(file: Any) -> bytes:
    """Reads what is there next; nothing at the end."""
    if not hasattr(file, "read"):
        return bytes(file.recv(_PIECE))
    piece = getattr(file, "read1", file.read)(_PIECE)
    if piece is None:
        raise BlockingIOError("an object that does not wait cannot give a stream")
    return bytes(piece)


def _served(serve: Callable[[], None], end: int, use: Callable[[int], Any], patience_s: Optional[float]) -> None:
    """Uses one end of a pipe, while a thread serves the other. Where the use fails, the thread is waited for no longer than `patience_s`."""
    errors: List[Exception] = []
    thread = threading.Thread(target=attempt, args=(errors, serve), daemon=True)
    thread.start()
    failed: List[Exception] = []
    is_over = False
    try:
        attempt(failed, use, end)
        is_over = not failed
    finally:
        os.close(end)
        thread.join(None if is_over else patience_s)
    # Where the object fails, the library sees no more than that the pipe broke.
    raise_first(errors + [error for error in failed if not errors or not isinstance(error, Error)])


def _nanoseconds(time: CTime) -> int:
    return int(time.seconds) * 1_000_000_000 + int(time.nanoseconds)


class Changes(Iterator[Change]):
    """The changes between two states of a file system, found while they are taken. One thread at a time uses it."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def __next__(self) -> Change:
        if self._handle.is_closed:
            raise StopIteration
        found = CChange()
        self._handle.call("cenote_changes_next", found)
        if found.path is None:
            self._handle.close()
            raise StopIteration
        return Change(
            path=os.fsdecode(found.path),
            kind=ChangeKind(found.kind),
            file_kind=FileKind(found.file_kind),
            to=None if found.to is None else os.fsdecode(found.to),
            links=found.links,
            changed_ns=_nanoseconds(found.changed),
        )

    def close(self) -> None:
        """Ends it early."""
        self._handle.close()

    def __enter__(self) -> "Changes":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def history(place: c_void_p) -> List[HistoryRecord]:
    """The records of a history, which is freed."""
    try:
        found: List[HistoryRecord] = []
        for index in range(LIBRARY.cenote_history_count(place)):
            record = CRecord()
            LIBRARY.cenote_history_record(place, index, record)
            content = text(record.text) or ""
            found.append(
                HistoryRecord(
                    time=record.time.seconds,
                    command=content if record.kind == 1 else None,
                    name=text(record.name),
                    text=content,
                    dataset=text(record.dataset),
                    host=text(record.host),
                    txg=record.txg,
                    uid=None if record.uid == UNKNOWN else record.uid,
                )
            )
        return found
    finally:
        LIBRARY.cenote_history_free(place)
