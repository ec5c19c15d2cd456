"""File systems, paths in them, and files and volumes as Python's file objects."""

from __future__ import annotations

import ctypes
import enum
import io
import os
from ctypes import c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import IO, TYPE_CHECKING, Any, Iterator, List, Optional, Tuple, Union

from ._errors import ExistsError, NotFoundError, Place
from ._handle import Handle
from ._native import LIBRARY, UNKNOWN, CMetadata, CTime, data_bytes, name, owned_text, path_bytes
from ._opened import Opened, raise_first

if TYPE_CHECKING:
    from ._pool import Pool

#: What paths are given as. A ``str`` that came from the library may have bytes that are no UTF-8, as ``os.fsdecode`` has them.
AnyPath = Union[str, bytes, "os.PathLike[str]", "Path"]


class FileKind(enum.Enum):
    """The kind of an object in a file system."""

    FILE = 1
    DIRECTORY = 2
    SYMLINK = 3
    PIPE = 4
    SOCKET = 5
    CHAR_DEVICE = 6
    BLOCK_DEVICE = 7


@dataclass(frozen=True)
class DirEntry:
    """An entry of a directory."""

    name: str
    #: None where the entry does not say it: those of old datasets do not.
    kind: Optional[FileKind]
    #: The inode.
    object: int


@dataclass(frozen=True)
class Metadata:
    """Attributes of a file or directory."""

    object: int
    generation: int
    #: In bytes; of a directory, its entries with ``.`` and ``..``.
    size: int
    #: Bytes that it takes, without what is not on disk yet.
    allocated: int
    links: int
    kind: FileKind
    mode: int
    uid: int
    gid: int
    #: Times are in nanoseconds since 1970.
    accessed_ns: int
    modified_ns: int
    changed_ns: int
    created_ns: int


def _nanoseconds(time: CTime) -> int:
    return int(time.seconds) * 1_000_000_000 + int(time.nanoseconds)


def _metadata(found: CMetadata) -> Metadata:
    return Metadata(
        object=found.object,
        generation=found.generation,
        size=found.size,
        allocated=found.allocated,
        links=found.links,
        kind=FileKind(found.kind),
        mode=found.mode,
        uid=found.uid,
        gid=found.gid,
        accessed_ns=_nanoseconds(found.accessed),
        modified_ns=_nanoseconds(found.modified),
        changed_ns=_nanoseconds(found.changed),
        created_ns=_nanoseconds(found.created),
    )


def _encoded(path: AnyPath) -> bytes:
    return path_bytes(str(path) if isinstance(path, Path) else path)


#: Bytes that are read at once of files that are read to their end.
_PIECE = 4 << 20
#: Bytes in the buffer of a file.
_BUFFER = 16 * io.DEFAULT_BUFFER_SIZE


class _Raw(io.RawIOBase):
    """What raw files and volumes share: a position."""

    def __init__(self, handle: Handle, name: str) -> None:
        self._handle = handle
        self._position = 0
        self.name = name

    def seekable(self) -> bool:
        return True

    def size(self) -> int:
        """Its size in bytes."""
        raise NotImplementedError

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._check_open()
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size()}
        if whence not in base:
            raise ValueError(f"invalid whence ({whence})")
        if base[whence] + offset < 0:
            raise ValueError("negative seek position")
        self._position = base[whence] + offset
        return self._position

    def tell(self) -> int:
        self._check_open()
        return self._position

    def readall(self) -> bytes:
        # Python's own reads 8 KiB at a time.
        self._check_open()
        pieces: List[bytes] = []
        while True:
            left = max(0, self.size() - self._position)
            piece = self.read(min(left, _PIECE) or 1)
            if not piece:
                return b"".join(pieces)
            pieces.append(piece)

    def close(self) -> None:
        if not self.closed:
            try:
                super().close()
            finally:
                self._handle.close()

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")


def _target(buffer: Any) -> Tuple[Any, int]:
    view = memoryview(buffer).cast("B")
    return (ctypes.c_char * len(view)).from_buffer(view), len(view)


class RawFile(_Raw):
    """An open file, unbuffered. It stays, whatever becomes of its names, until it is closed."""

    def __init__(
        self, files: "FileSystem", handle: Handle, name: str, can_read: bool, can_write: bool, appends: bool
    ) -> None:
        super().__init__(handle, name)
        #: The file system, which stays open as long as the file is: the pool closes file systems, and these their files.
        self.files = files
        self._can_read, self._can_write, self._appends = can_read, can_write, appends

    @property
    def mode(self) -> str:
        """``rb``, ``wb``, ``ab``, or one of these with ``+``."""
        if self._appends:
            return "ab+" if self._can_read else "ab"
        if self._can_write:
            return "rb+" if self._can_read else "wb"
        return "rb"

    def readable(self) -> bool:
        return self._can_read

    def writable(self) -> bool:
        return self._can_write

    def size(self) -> int:
        return int(self._handle.call("cenote_file_size"))

    def metadata(self) -> Metadata:
        """Its attributes."""
        found = CMetadata()
        self._handle.call("cenote_file_stat", found)
        return _metadata(found)

    def pread(self, size: int, offset: int) -> bytes:
        """Up to ``size`` bytes at an offset; fewer only at the end of the file."""
        room = max(0, min(size, self.size() - offset))
        buffer = ctypes.create_string_buffer(room)
        count = self._read(buffer, room, offset)
        return buffer.raw[:count]

    def pwrite(self, data: Any, offset: int) -> int:
        """Writes all of the data at an offset."""
        self._need(self._can_write, "write")
        source = data_bytes(data)
        self._handle.call("cenote_file_pwrite", source, len(source), offset)
        return len(source)

    def _read(self, buffer: Any, room: int, offset: int) -> int:
        self._need(self._can_read, "read")
        count = c_size_t()
        self._handle.call("cenote_file_pread", buffer, room, offset, count)
        return count.value

    def _need(self, may: bool, what: str) -> None:
        self._check_open()
        if not may:
            raise io.UnsupportedOperation(what)

    def readinto(self, buffer: Any, /) -> int:
        target, room = _target(buffer)
        count = self._read(target, room, self._position)
        self._position += count
        return count

    def write(self, data: Any, /) -> int:
        if self._appends:
            self._position = self.size()
        count = self.pwrite(data, self._position)
        self._position += count
        return count

    def truncate(self, size: Optional[int] = None, /) -> int:
        self._need(self._can_write, "truncate")
        wanted = self._position if size is None else size
        if wanted < 0:
            raise ValueError("negative size")
        self._handle.call("cenote_file_truncate", wanted)
        return wanted

    def next_data(self, offset: int) -> Optional[int]:
        """The first offset at or after this one that is not in a hole."""
        return self._next("cenote_file_next_data", offset)

    def next_hole(self, offset: int) -> Optional[int]:
        """The first offset at or after this one that is in a hole, or the end; None past the end."""
        return self._next("cenote_file_next_hole", offset)

    def _next(self, function: str, offset: int) -> Optional[int]:
        found = c_uint64()
        self._handle.call(function, offset, found)
        return None if found.value == UNKNOWN else found.value

    def sync(self) -> None:
        """Waits until all that was changed of it is on disk, in the intent log at least (``fsync``)."""
        self._handle.call("cenote_file_sync")


class Volume(_Raw):
    """A volume, or a snapshot of one, as an unbuffered file of fixed size. :meth:`open` buffers it.

    A buffer that is made otherwise, as by ``io.BufferedRandom(volume)``, has to be flushed before the pool is exported.
    """

    def __init__(self, pool: "Pool", handle: Handle, name: str) -> None:
        super().__init__(handle, name)
        self.pool = pool

    def open(self, buffering: int = -1) -> IO[bytes]:
        """Buffers it: in so many bytes, if more than 1. The buffer is written when it is closed, which closes the volume too, or the
        pool is exported. Only one is of use at a time.
        """
        self._check_open()
        if buffering == 0:
            raise ValueError("a volume without a buffer is the volume itself")
        size = _BUFFER if buffering < 2 else buffering
        buffered: Any = io.BufferedRandom(self, size) if self.writable() else io.BufferedReader(self, size)
        self.pool._opened.add(buffered)
        result: IO[bytes] = buffered
        return result

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return not bool(self._handle.call("cenote_volume_is_read_only"))

    def size(self) -> int:
        return int(self._handle.call("cenote_volume_size"))

    @property
    def block_size(self) -> int:
        """Writes of whole blocks of this size read nothing."""
        return int(self._handle.call("cenote_volume_block_size"))

    def pread(self, size: int, offset: int) -> bytes:
        """Bytes at an offset, all of which have to lie within the volume."""
        if not 0 <= size <= self.size():
            raise ValueError(f"a volume of {self.size()} bytes has not {size}")
        buffer = ctypes.create_string_buffer(size)
        self._handle.call("cenote_volume_pread", buffer, size, offset)
        return buffer.raw

    def pwrite(self, data: Any, offset: int) -> int:
        """Writes all of the data at an offset."""
        source = data_bytes(data)
        self._handle.call("cenote_volume_pwrite", source, len(source), offset)
        return len(source)

    def readinto(self, buffer: Any, /) -> int:
        self._check_open()
        target, room = _target(buffer)
        count = max(0, min(room, self.size() - self._position))
        if count:
            self._handle.call("cenote_volume_pread", target, count, self._position)
        self._position += count
        return count

    def write(self, data: Any, /) -> int:
        self._check_open()
        source = data_bytes(data)
        room = max(0, self.size() - self._position)
        # At the end nothing is taken, which the library says.
        count = self.pwrite(source[:room] if room else source, self._position)
        self._position += count
        return count

    def trim(self, offset: int, size: int) -> None:
        """Frees a range, which reads as zeros then. Parts of blocks at its ends stay as they are."""
        self._handle.call("cenote_volume_trim", offset, size)

    def sync(self) -> None:
        """Waits until all that was written is on disk, in the intent log at least."""
        self._handle.call("cenote_volume_flush")


class Listing(Iterator[DirEntry]):
    """The entries of a directory, in no particular order. One that is there all the time is listed once."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def __next__(self) -> DirEntry:
        if self._handle.is_closed:
            raise StopIteration
        entry, kind, number = c_void_p(), c_uint32(), c_uint64()
        self._handle.call("cenote_dir_next", entry, kind, number)
        if not entry.value:
            self._handle.close()
            raise StopIteration
        try:
            found = os.fsdecode(ctypes.string_at(entry.value))
        finally:
            LIBRARY.cenote_string_free(entry)
        return DirEntry(found, FileKind(kind.value) if kind.value else None, number.value)

    def close(self) -> None:
        """Ends it early."""
        self._handle.close()

    def __enter__(self) -> "Listing":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FileSystem:
    """The file system of a dataset or snapshot. Any number of threads may use it at once.

    Paths begin at the root directory of the dataset, with or without a slash, and symbolic links are followed within it.
    """

    def __init__(self, pool: "Pool", handle: Handle, dataset: str) -> None:
        self.pool = pool
        #: The name of the dataset or snapshot.
        self.name = dataset
        self._handle = handle
        self._opened = Opened()

    def __repr__(self) -> str:
        return f"<cenote.FileSystem {self.name}>"

    def __truediv__(self, path: AnyPath) -> "Path":
        return self.path(path)

    def path(self, path: AnyPath = "/") -> "Path":
        """A path in it, with the methods of ``pathlib.Path``."""
        return Path(self, os.fsdecode(_encoded(path)))

    @property
    def is_read_only(self) -> bool:
        """Nothing can be changed: a snapshot, a pool that is open read-only, a dataset with ``readonly=on``."""
        return bool(self._handle.call("cenote_filesystem_is_read_only"))

    def space(self) -> Tuple[int, int]:
        """Bytes used and available, as of the last txg, where it is open to be changed."""
        used, available = c_uint64(), c_uint64()
        self._handle.call("cenote_filesystem_space", used, available)
        return used.value, available.value

    def sync(self) -> None:
        """Waits until all that was changed in it is on disk, in the intent log at least."""
        self._handle.call("cenote_filesystem_sync")

    def close(self) -> None:
        """Closes it, and the files that are open in it: all of them, also where the buffer of one cannot be written."""
        try:
            raise_first(self._opened.close())
        finally:
            self._handle.close()

    def __enter__(self) -> "FileSystem":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stat(self, path: AnyPath, *, follow_symlinks: bool = True) -> Metadata:
        """Attributes of what a path leads to."""
        found = CMetadata()
        self._handle.call("cenote_stat", _encoded(path), follow_symlinks, found)
        return _metadata(found)

    def scandir(self, path: AnyPath = "/") -> Listing:
        """Lists a directory."""
        place = c_void_p()
        self._handle.call("cenote_dir_open", _encoded(path), place)
        return Listing(Handle("cenote_dir_free", place.value, "directory"))

    def listdir(self, path: AnyPath = "/") -> List[str]:
        """The names in a directory."""
        return [entry.name for entry in self.scandir(path)]

    def walk(self, top: AnyPath = "/") -> Iterator[Tuple["Path", List[str], List[str]]]:
        """A directory and all below it, as ``os.walk`` has them: path, names of directories, other names."""
        pending = [self.path(top)]
        while pending:
            at = pending.pop()
            directories: List[str] = []
            others: List[str] = []
            for entry in self.scandir(at):
                kind = entry.kind or (at / entry.name).lstat().kind
                (directories if kind is FileKind.DIRECTORY else others).append(entry.name)
            yield at, directories, others
            pending.extend(at / directory for directory in reversed(directories))

    def open(
        self,
        path: AnyPath,
        mode: str = "r",
        buffering: int = -1,
        encoding: Optional[str] = None,
        errors: Optional[str] = None,
        newline: Optional[str] = None,
    ) -> IO[Any]:
        """Opens a file as Python's ``open`` does. With ``x`` another thread may make the file in between."""
        letters = set(mode)
        kinds = letters & set("rwxa")
        if letters - set("rwxabt+") or len(mode) != len(letters) or len(kinds) != 1 or {"b", "t"} <= letters:
            raise ValueError(f"invalid mode: {mode!r}")
        is_binary, updates, kind = "b" in letters, "+" in letters, kinds.pop()
        if is_binary and (encoding is not None or errors is not None or newline is not None):
            raise ValueError("binary mode takes no encoding, errors or newline")
        if buffering == 0 and not is_binary:
            raise ValueError("can't have unbuffered text I/O")
        raw = self._open_raw(path, kind, updates)
        opened: Any = raw
        layers: List[Any] = [raw]
        if buffering != 0:
            size = _BUFFER if buffering < 2 else buffering
            if updates:
                opened = io.BufferedRandom(raw, size)
            else:
                opened = io.BufferedReader(raw, size) if kind == "r" else io.BufferedWriter(raw, size)
            layers.append(opened)
            if not is_binary:
                opened = io.TextIOWrapper(opened, encoding or "utf-8", errors, newline, buffering == 1)
                layers.append(opened)
        self._opened.add(*layers)
        result: IO[Any] = opened
        return result

    def _open_raw(self, path: AnyPath, kind: str, updates: bool) -> RawFile:
        encoded = _encoded(path)
        place = c_void_p()
        if kind == "x":
            self._refuse_present(path)
        if kind == "r":
            self._handle.call("cenote_file_open", encoded, place)
        elif kind == "a":
            try:
                self._handle.call("cenote_file_open", encoded, place)
            except NotFoundError:
                self._handle.call("cenote_file_create", encoded, place)
        else:
            self._handle.call("cenote_file_create", encoded, place)
        handle = Handle("cenote_file_free", place.value, "file")
        return RawFile(self, handle, os.fsdecode(encoded), kind == "r" or updates, kind != "r" or updates, kind == "a")

    def _refuse_present(self, path: AnyPath) -> None:
        try:
            self.stat(path, follow_symlinks=False)
        except NotFoundError:
            return
        shown = os.fsdecode(_encoded(path))
        place = Place(pool=self.pool.name, dataset=self.name, path=shown)
        raise ExistsError(f"{self.name}: {shown}: it is there already", place)

    def mkdir(self, path: AnyPath) -> None:
        """Makes a directory, with mode 755."""
        self._handle.call("cenote_mkdir", _encoded(path), False)

    def makedirs(self, path: AnyPath) -> None:
        """Makes a directory and those above it that are missing. One that is there is left as it is."""
        self._handle.call("cenote_mkdir", _encoded(path), True)

    def remove(self, path: AnyPath) -> None:
        """Removes a name of a file, link, device, pipe or socket."""
        self._handle.call("cenote_remove_file", _encoded(path))

    def rmdir(self, path: AnyPath) -> None:
        """Removes an empty directory."""
        self._handle.call("cenote_remove_dir", _encoded(path))

    def rename(self, source: AnyPath, target: AnyPath) -> None:
        """Gives a file or directory another path. What is there is replaced, if it may be."""
        self._handle.call("cenote_rename", _encoded(source), _encoded(target))

    def link(self, source: AnyPath, target: AnyPath) -> None:
        """Gives a file another name."""
        self._handle.call("cenote_link", _encoded(source), _encoded(target))

    def symlink(self, target: AnyPath, path: AnyPath) -> None:
        """Makes a symbolic link at ``path``."""
        self._handle.call("cenote_symlink", _encoded(target), _encoded(path))

    def readlink(self, path: AnyPath) -> str:
        """The target of a symbolic link."""
        return os.fsdecode(owned_text(lambda *rest: self._handle.call("cenote_readlink", *rest), _encoded(path)))

    def chmod(self, path: AnyPath, mode: int) -> None:
        """Sets the permission bits."""
        self._handle.call("cenote_set_mode", _encoded(path), mode)

    def chown(self, path: AnyPath, uid: int, gid: int) -> None:
        """Sets both owner and group. ``os.chown`` has -1 for what stays as it is: give that of :meth:`stat` here."""
        if -1 in (uid, gid):
            raise ValueError("-1, for an owner or group that stays, is not supported yet: give that of stat()")
        self._handle.call("cenote_set_owner", _encoded(path), uid, gid)

    def set_modified(self, path: AnyPath, nanoseconds: int) -> None:
        """Sets the time of the last change of content, in nanoseconds since 1970."""
        seconds, rest = divmod(nanoseconds, 1_000_000_000)
        self._handle.call("cenote_set_modified", _encoded(path), seconds, rest)

    def getxattr(self, path: AnyPath, attribute: str) -> bytes:
        """An extended attribute."""
        return self._sized("cenote_get_xattr", _encoded(path), name(attribute))

    def setxattr(self, path: AnyPath, attribute: str, value: bytes) -> None:
        """Sets an extended attribute."""
        content = data_bytes(value)
        self._handle.call("cenote_set_xattr", _encoded(path), name(attribute), content, len(content))

    def removexattr(self, path: AnyPath, attribute: str) -> None:
        """Removes an extended attribute."""
        self._handle.call("cenote_remove_xattr", _encoded(path), name(attribute))

    def listxattr(self, path: AnyPath) -> List[str]:
        """The names of extended attributes."""
        return [os.fsdecode(word) for word in self._sized("cenote_list_xattrs", _encoded(path)).split(b"\0")[:-1]]

    def _sized(self, function: str, *arguments: bytes) -> bytes:
        room, size = 1024, c_size_t()
        while True:
            buffer = ctypes.create_string_buffer(room)
            self._handle.call(function, *arguments, buffer, room, size)
            if size.value <= room:
                return buffer.raw[: size.value]
            room = size.value


class Path:
    """A path in a file system, with the methods of ``pathlib.Path``.

    It is no ``os.PathLike``: it means nothing to the file systems of this system.
    """

    __slots__ = ("files", "_pure")

    def __init__(self, files: FileSystem, path: Union[str, PurePosixPath]) -> None:
        #: The file system.
        self.files = files
        self._pure = PurePosixPath("/") / path

    def __str__(self) -> str:
        return str(self._pure)

    def __repr__(self) -> str:
        return f"<cenote.Path {self.files.name}:{self._pure}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Path) and (self.files, self._pure) == (other.files, other._pure)

    def __hash__(self) -> int:
        return hash(self._pure)

    def __lt__(self, other: "Path") -> bool:
        return self._pure < other._pure

    def __truediv__(self, other: Union[str, PurePosixPath]) -> "Path":
        return Path(self.files, self._pure / other)

    def joinpath(self, *others: Union[str, PurePosixPath]) -> "Path":
        return Path(self.files, self._pure.joinpath(*others))

    @property
    def name(self) -> str:
        return self._pure.name

    @property
    def stem(self) -> str:
        return self._pure.stem

    @property
    def suffix(self) -> str:
        return self._pure.suffix

    @property
    def parts(self) -> Tuple[str, ...]:
        return self._pure.parts

    @property
    def parent(self) -> "Path":
        return Path(self.files, self._pure.parent)

    def with_name(self, name: str) -> "Path":
        return Path(self.files, self._pure.with_name(name))

    def with_suffix(self, suffix: str) -> "Path":
        return Path(self.files, self._pure.with_suffix(suffix))

    def relative_to(self, other: "Path") -> PurePosixPath:
        return self._pure.relative_to(other._pure)

    def stat(self, *, follow_symlinks: bool = True) -> Metadata:
        return self.files.stat(self, follow_symlinks=follow_symlinks)

    def lstat(self) -> Metadata:
        return self.stat(follow_symlinks=False)

    def _kind(self, follow: bool = True) -> Optional[FileKind]:
        try:
            return self.stat(follow_symlinks=follow).kind
        except NotFoundError:
            return None

    def exists(self) -> bool:
        return self._kind() is not None

    def is_file(self) -> bool:
        return self._kind() is FileKind.FILE

    def is_dir(self) -> bool:
        return self._kind() is FileKind.DIRECTORY

    def is_symlink(self) -> bool:
        return self._kind(follow=False) is FileKind.SYMLINK

    def iterdir(self) -> Iterator["Path"]:
        for entry in self.files.scandir(self):
            yield self / entry.name

    def open(
        self,
        mode: str = "r",
        buffering: int = -1,
        encoding: Optional[str] = None,
        errors: Optional[str] = None,
        newline: Optional[str] = None,
    ) -> IO[Any]:
        return self.files.open(self, mode, buffering, encoding, errors, newline)

    def read_bytes(self) -> bytes:
        with self.open("rb") as file:
            return bytes(file.read())

    def read_text(self, encoding: Optional[str] = None, errors: Optional[str] = None) -> str:
        with self.open("r", -1, encoding, errors) as file:
            return str(file.read())

    def write_bytes(self, data: bytes) -> int:
        with self.open("wb") as file:
            return int(file.write(data))

    def write_text(self, text: str, encoding: Optional[str] = None, errors: Optional[str] = None) -> int:
        with self.open("w", -1, encoding, errors) as file:
            return int(file.write(text))

    def mkdir(self, parents: bool = False, exist_ok: bool = False) -> None:
        if exist_ok and self.is_dir():
            return
        if parents:
            self.files.makedirs(self.parent)
        try:
            self.files.mkdir(self)
        except ExistsError:
            if not exist_ok or not self.is_dir():
                raise

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            self.files.remove(self)
        except NotFoundError:
            if not missing_ok:
                raise

    def rmdir(self) -> None:
        self.files.rmdir(self)

    def rename(self, target: Union["Path", str]) -> "Path":
        to = target if isinstance(target, Path) else Path(self.files, target)
        self.files.rename(self, to)
        return to

    def symlink_to(self, target: Union["Path", str]) -> None:
        self.files.symlink(target, self)

    def hardlink_to(self, target: Union["Path", str]) -> None:
        self.files.link(target, self)

    def readlink(self) -> str:
        return self.files.readlink(self)

    def chmod(self, mode: int) -> None:
        self.files.chmod(self, mode)
