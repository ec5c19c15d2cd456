"""Pools and datasets."""

from __future__ import annotations

import enum
import os
import warnings
from ctypes import c_uint32, c_uint64, c_void_p
from dataclasses import dataclass, field
from typing import Any, List, Mapping, Optional, Sequence, Union

from ._errors import MisuseError, NotFoundError, Place
from ._files import FileSystem, Volume
from ._handle import Handle
from ._native import LIBRARY, CVdev, name, owned_text, path_bytes, rows, secret_bytes, text, words
from ._opened import Opened, attempt, raise_first
from ._streams import (
    Changes,
    HistoryRecord,
    Hold,
    KeyStatus,
    Options,
    Received,
    Sent,
    SentName,
    history,
    received,
    sent,
)

HostPath = Union[str, bytes, "os.PathLike[Any]"]
Properties = Mapping[str, str]


class DatasetKind(enum.Enum):
    """The kind of a dataset."""

    FILESYSTEM = 3
    VOLUME = 4
    SNAPSHOT = 5
    BOOKMARK = 6


class Health(enum.Enum):
    """The health of a vdev, in the words of ``zpool status``."""

    ONLINE = 1
    DEGRADED = 2
    UNAVAIL = 3
    OFFLINE = 4
    FAULTED = 5


@dataclass(frozen=True)
class FoundPool:
    """A pool that was found."""

    name: str
    guid: int
    #: It was exported: nobody has it.
    is_exported: bool


@dataclass
class Vdev:
    """A vdev and those that it is made of."""

    name: str
    guid: int
    health: Health
    read_errors: int
    write_errors: int
    checksum_errors: int
    #: It has missed writes that it has not made up for.
    is_behind: bool
    children: List["Vdev"] = field(default_factory=list)

    def devices(self) -> List["Vdev"]:
        """The devices: the vdevs that have none below them."""
        return [device for child in self.children for device in child.devices()] if self.children else [self]


@dataclass(frozen=True)
class Status:
    """The health of a pool."""

    root: Vdev
    #: Why nothing is written at present: too few devices take it. What was changed waits in memory.
    suspended: Optional[str]


@dataclass(frozen=True)
class Space:
    """The space of a dataset in bytes."""

    #: Used by it, its snapshots and all below it.
    used: int
    referenced: int


def _settings(properties: Optional[Properties]) -> Any:
    return words([f"{key}={value}" for key, value in (properties or {}).items()])


#: Where streams go to and come from: a descriptor, or an object with ``write`` or ``read`` (a socket: ``sendall`` and ``recv``). A descriptor has to
#: wait for its peer. A raw file or a socket without a time limit is used as it is; for all others, subclasses among them, a thread passes the
#: bytes on. A receive may read past the end of its stream.
Stream = Union[int, Any]


class Dataset:
    """A file system, volume, snapshot or bookmark, by its name. It holds nothing in the pool."""

    def __init__(self, pool: "Pool", dataset: str, kind: DatasetKind, guid: int) -> None:
        self.pool = pool
        #: Its whole name.
        self.name = dataset
        self.kind = kind
        self.guid = guid

    def __repr__(self) -> str:
        return f"<cenote.Dataset {self.name} ({self.kind.name.lower()})>"

    def get(self, property: str) -> str:
        """A property's value, in OpenZFS's words; numbers in digits. Not of snapshots."""
        given = name(self.name), name(property)
        return owned_text(lambda *rest: self.pool._handle.call("cenote_get_property", *rest), *given).decode()

    def set(self, property: str, value: str) -> None:
        """Sets a property."""
        self.pool._handle.call("cenote_set_property", name(self.name), name(property), name(value))

    def space(self) -> Space:
        """Its space. Not of snapshots."""
        used, referenced = c_uint64(), c_uint64()
        self.pool._handle.call("cenote_dataset_space", name(self.name), used, referenced)
        return Space(used.value, referenced.value)

    def filesystem(self) -> FileSystem:
        """Opens it as a file system."""
        return self.pool.filesystem(self.name)

    def volume(self) -> Volume:
        """Opens it as a volume."""
        return self.pool.volume(self.name)

    def snapshots(self) -> List["Dataset"]:
        """Its snapshots, the oldest first."""
        found = rows(lambda *rest: self.pool._handle.call("cenote_snapshots", *rest), name(self.name))
        return [Dataset(self.pool, row.name, DatasetKind(row.kind), row.guid) for row in found]

    def snapshot(self, snapshot: str) -> "Dataset":
        """Takes a snapshot: ``dataset.snapshot("monday")``."""
        whole = f"{self.name}@{snapshot}"
        self.pool._handle.call("cenote_snapshot", name(whole))
        return next(found for found in self.snapshots() if found.name == whole)

    def rollback(self, *, over_newer: bool = False) -> None:
        """Has the dataset of this snapshot be as it was; destroys newer snapshots if ``over_newer``."""
        self.pool._handle.call("cenote_rollback", name(self.name), over_newer)

    def clone_to(self, dataset: str, properties: Optional[Properties] = None) -> "Dataset":
        """Makes a dataset that begins as this snapshot is."""
        self.pool._handle.call("cenote_clone", name(self.name), name(dataset), _settings(properties))
        return self.pool.dataset(dataset)

    def rename(self, to: str) -> "Dataset":
        """Renames it. Not snapshots."""
        self.pool._handle.call("cenote_rename_dataset", name(self.name), name(to))
        return self.pool.dataset(to)

    def bookmarks(self) -> List["Dataset"]:
        """Its bookmarks, the oldest first."""
        found = rows(lambda *rest: self.pool._handle.call("cenote_bookmarks", *rest), name(self.name))
        return [Dataset(self.pool, row.name, DatasetKind(row.kind), row.guid) for row in found]

    def bookmark(self, bookmark: str) -> "Dataset":
        """Makes a bookmark of this snapshot or bookmark: ``snapshot.bookmark("sent")``."""
        self.pool._handle.call("cenote_bookmark", name(self.name), name(bookmark))
        whole = f"{self.name.replace('#', '@').split('@')[0]}#{bookmark}"
        return Dataset(self.pool, whole, DatasetKind.BOOKMARK, self.guid)

    def hold(self, tag: str) -> None:
        """Holds this snapshot: it is not destroyed before :meth:`release` with the same tag."""
        self.pool._handle.call("cenote_hold", name(self.name), name(tag))

    def release(self, tag: str) -> None:
        """Releases a hold of this snapshot."""
        self.pool._handle.call("cenote_release", name(self.name), name(tag))

    def holds(self) -> List[Hold]:
        """The holds of this snapshot, in the order of their tags."""
        found = rows(lambda *rest: self.pool._handle.call("cenote_holds", *rest), name(self.name))
        return [Hold(row.name, row.time) for row in found]

    def changes_since(self, earlier: "Dataset") -> Changes:
        """The changes from an earlier snapshot to this one, or to the present state of this file system."""
        place = c_void_p()
        self.pool._handle.call("cenote_changes_open", name(earlier.name), name(self.name), place)
        return Changes(Handle("cenote_changes_free", place.value, "list of changes"))

    def send(
        self,
        file: Stream,
        *,
        since: Optional[str] = None,
        with_between: bool = False,
        replicate: bool = False,
        exclude: Sequence[str] = (),
        skip_missing: bool = False,
        properties: bool = False,
        holds: bool = False,
        raw: bool = False,
        compressed: bool = False,
        large_blocks: bool = False,
    ) -> Sent:
        """Writes the stream of this snapshot, as ``zfs send``.

        ``since``: only the changes since this snapshot or bookmark, ``@monday`` or ``tank/home@monday``; ``with_between``: all snapshots
        between too. ``replicate``: all datasets below too, with their snapshots and properties. ``raw``: encrypted blocks as they are on
        disk, without their key.
        """
        with Options("send") as options:
            if since is not None:
                options.set("since", name(since), with_between)
            for dataset in exclude:
                options.set("exclude", name(dataset))
            options.set("replicate", replicate)
            options.set("skip_missing", skip_missing)
            options.set("properties", properties)
            options.set("holds", holds)
            options.set("raw", raw)
            if not raw:
                options.set("compressed", compressed)
                options.set("large_blocks", large_blocks)
            call = self.pool._handle.call
            return sent(lambda *rest: call("cenote_send", *rest), file, name(self.name), options.handle)

    def receive_resume_token(self) -> Optional[str]:
        """The token by which a sender resumes a stream that broke off (:meth:`Pool.resume_send`); None if nothing was received in part."""
        call = self.pool._handle.call
        return owned_text(lambda *rest: call("cenote_receive_resume_token", *rest), name(self.name)).decode() or None

    def abort_receive(self) -> None:
        """Gives up the part of a stream that was received (``zfs receive -A``)."""
        self.pool._handle.call("cenote_receive_abort", name(self.name))

    def key_status(self) -> KeyStatus:
        """The status of its key."""
        status = c_uint32()
        self.pool._handle.call("cenote_key_status", name(self.name), status)
        return KeyStatus(status.value)

    def change_key(self, key: Union[str, bytes]) -> None:
        """Not supported yet; the error says what to do instead."""
        secret = secret_bytes(key)
        self.pool._handle.call("cenote_change_key", name(self.name), secret, len(secret))

    def destroy(self, *, all_below: bool = False) -> None:
        """Destroys it, with its snapshots and all below it if ``all_below``."""
        self.pool._handle.call("cenote_destroy", name(self.name), all_below)


class Pool:
    """A pool that is open. Leaving its ``with`` exports it: everything is written, and its devices are let go.

    A pool that is dropped without :meth:`export` is as after a crash: whole as of its last txg.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._opened = Opened()
        #: Its name.
        self.name: str = text(handle.call("cenote_pool_name")) or ""
        self.guid: int = handle.call("cenote_pool_guid")
        self.is_read_only: bool = handle.call("cenote_pool_is_read_only")

    def __repr__(self) -> str:
        return f"<cenote.Pool {self.name}>"

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        if not self._handle.is_closed:
            self.export()

    def __del__(self) -> None:
        handle = getattr(self, "_handle", None)
        if handle is not None and not handle.is_closed:
            if not getattr(self, "is_read_only", True):
                warnings.warn(f"pool '{self.name}' was not exported", ResourceWarning, stacklevel=2)
            handle.close()

    @property
    def txg(self) -> int:
        """The last txg that is on disk."""
        return int(self._handle.call("cenote_pool_txg"))

    def export(self) -> None:
        """Closes all that is open in it, writes everything, marks it as exported and lets go of its devices.

        Where the buffer of a file cannot be written, everything else is done all the same, and then the error is raised.
        """
        try:
            errors = self._opened.close()
            attempt(errors, self._handle.call, "cenote_pool_export")
        finally:
            self._handle.close()
        raise_first(errors)

    def sync(self) -> None:
        """Waits until all that was changed is on disk."""
        self._handle.call("cenote_pool_sync")

    def resume(self) -> None:
        """Has a suspended pool go on, and forgets the errors that were counted (``zpool clear``)."""
        self._handle.call("cenote_pool_resume")

    def load_key(self, dataset: str, key: Union[str, bytes]) -> None:
        """Gives the key of an encrypted dataset, which opens all datasets that share it. A passphrase may be a ``str``."""
        secret = secret_bytes(key)
        self._handle.call("cenote_pool_load_key", name(dataset), secret, len(secret))

    def unload_key(self, dataset: str) -> None:
        """Forgets the key of an encrypted dataset and of all that share it. Busy if one of them is open; the error says who uses it."""
        self._handle.call("cenote_unload_key", name(dataset))

    def history(self) -> List[HistoryRecord]:
        """Its history, the oldest record first."""
        place = c_void_p()
        self._handle.call("cenote_pool_history", place)
        return history(place)

    def record_command(self, line: str) -> None:
        """Records a line in its history, as commands of OpenZFS do."""
        self._handle.call("cenote_pool_record_command", name(line))

    def receive(
        self,
        target: str,
        file: Stream,
        *,
        force: bool = False,
        resumable: bool = False,
        skip_holds: bool = False,
        sent_name: SentName = SentName.REPLACED,
        origin: Optional[str] = None,
        properties: Optional[Properties] = None,
        exclude: Sequence[str] = (),
    ) -> Received:
        """Receives a stream, or a package of them, as the dataset or snapshot ``target``, as ``zfs receive``.

        ``force``: changes and later snapshots that are in the way are destroyed. ``resumable``: what was received of a stream that breaks
        off is kept, see :meth:`Dataset.receive_resume_token`. ``properties`` are set in place of those that come, and those of ``exclude``
        are left out.
        """
        with Options("receive") as options:
            options.set("force", force)
            options.set("resumable", resumable)
            options.set("skip_holds", skip_holds)
            options.set("sent_name", sent_name.value)
            if origin is not None:
                options.set("origin", name(origin))
            for key, value in (properties or {}).items():
                options.set("property", name(key), name(value))
            for key in exclude:
                options.set("exclude", name(key))
            call = self._handle.call
            return received(lambda *rest: call("cenote_receive", *rest), file, name(target), options.handle)

    def resume_send(self, token: str, file: Stream) -> Sent:
        """Writes the rest of a stream whose receiver was interrupted, from its token."""
        call = self._handle.call
        return sent(lambda *rest: call("cenote_send_resume", *rest), file, name(token), None)

    def status(self) -> Status:
        """The health of its devices, with the errors that were counted since it was opened."""
        place = c_void_p()
        self._handle.call("cenote_pool_status", place)
        try:
            above: List[Vdev] = []
            for index in range(LIBRARY.cenote_status_count(place)):
                found = CVdev()
                LIBRARY.cenote_status_vdev(place, index, found)
                vdev = Vdev(
                    name=text(found.name) or "",
                    guid=found.guid,
                    health=Health(found.health),
                    read_errors=found.read_errors,
                    write_errors=found.write_errors,
                    checksum_errors=found.checksum_errors,
                    is_behind=found.is_behind,
                )
                del above[found.depth :]
                if above:
                    above[-1].children.append(vdev)
                above.append(vdev)
            return Status(above[0], text(LIBRARY.cenote_status_suspended(place)))
        finally:
            LIBRARY.cenote_status_free(place)

    def datasets(self) -> List[Dataset]:
        """All file systems and volumes, from the top down."""
        found = rows(lambda *rest: self._handle.call("cenote_datasets", *rest))
        return [Dataset(self, row.name, DatasetKind(row.kind), row.guid) for row in found]

    def dataset(self, dataset: str) -> Dataset:
        """The file system or volume of this name."""
        kind = c_uint32()
        self._handle.call("cenote_dataset_kind", name(dataset), kind)
        for found in self.datasets():
            if found.name == dataset:
                return found
        raise NotFoundError(f"there is no dataset '{dataset}'", Place(pool=self.name, dataset=dataset))

    def create_filesystem(self, dataset: str, properties: Optional[Properties] = None) -> Dataset:
        """Makes a file system."""
        self._handle.call("cenote_create_filesystem", name(dataset), _settings(properties))
        return self.dataset(dataset)

    def create_volume(self, dataset: str, size: int, properties: Optional[Properties] = None) -> Dataset:
        """Makes a volume of so many bytes."""
        self._handle.call("cenote_create_volume", name(dataset), size, _settings(properties))
        return self.dataset(dataset)

    def filesystem(self, dataset: Optional[str] = None) -> FileSystem:
        """Opens the file system of a dataset or snapshot; of the pool's root dataset, without a name."""
        whole = dataset or self.name
        place = c_void_p()
        self._handle.call("cenote_filesystem_open", name(whole), place)
        opened = FileSystem(self, Handle("cenote_filesystem_free", place.value, "file system"), whole)
        self._opened.add(opened)
        return opened

    def volume(self, dataset: str) -> Volume:
        """Opens a volume, or a snapshot of one."""
        place = c_void_p()
        self._handle.call("cenote_volume_open", name(dataset), place)
        opened = Volume(self, Handle("cenote_volume_free", place.value, "volume"), dataset)
        self._opened.add(opened)
        return opened


class _Options:
    """Options of the library."""

    def __init__(self) -> None:
        place = c_void_p()
        LIBRARY.cenote_options_new(place)
        self.handle = place

    def __enter__(self) -> "_Options":
        return self

    def __exit__(self, *_: object) -> None:
        LIBRARY.cenote_options_free(self.handle)

    def set(self, option: str, *arguments: Any) -> None:
        getattr(LIBRARY, f"cenote_options_{option}")(self.handle, *arguments)

    def search(self, paths: Sequence[HostPath]) -> None:
        for path in paths:
            self.set("search", path_bytes(path))

    def found(self) -> List[FoundPool]:
        found = rows(LIBRARY.cenote_find, self.handle)
        return [FoundPool(row.name, row.guid, row.kind == 1) for row in found]


def find(*paths: HostPath) -> List[FoundPool]:
    """The pools on these devices, image files or in these folders; without any, in the usual places."""
    with _Options() as options:
        options.search(paths)
        return options.found()


def open(
    *paths: HostPath,
    pool: Optional[str] = None,
    write: bool = False,
    force: bool = False,
    allow_missing: bool = False,
    rewind: bool = False,
    at_txg: Optional[int] = None,
    cache_bytes: Optional[int] = None,
    tunables: Optional[Mapping[str, Union[str, int]]] = None,
    keys: Optional[Mapping[str, Union[str, bytes]]] = None,
) -> Pool:
    """Opens the pool on these devices, image files or in these folders; read-only, unless ``write``.

    ``pool`` is its name or guid; without it there must be one pool. Without paths it is looked for in the usual places.
    ``force`` opens a pool that was not exported, and may be in use (``zpool import -f``). ``allow_missing`` goes on where a whole
    top-level vdev is missing. ``rewind`` goes back a few txgs where the newest does not hold, and ``at_txg`` to a certain one;
    both read-only. ``keys`` are those of encrypted datasets, by their names; passphrases may be ``str``.
    """
    with _Options() as options:
        options.search(paths)
        options.set("write", write)
        options.set("force", force)
        options.set("allow_missing", allow_missing)
        if rewind:
            options.set("rewind")
        if at_txg is not None:
            options.set("at_txg", at_txg)
        if cache_bytes is not None:
            options.set("cache_bytes", cache_bytes)
        for tunable, value in (tunables or {}).items():
            options.set("tunable", name(tunable), name(str(value)))
        for dataset, key in (keys or {}).items():
            secret = secret_bytes(key)
            options.set("key", name(dataset), secret, len(secret))
        if pool is None:
            pool = _the_one(options.found())
        place = c_void_p()
        LIBRARY.cenote_open(options.handle, name(pool), place)
        return Pool(Handle("cenote_pool_free", place.value, "pool"))


def _the_one(found: List[FoundPool]) -> str:
    if not found:
        raise NotFoundError("no pool can be found there", Place())
    if len(found) > 1:
        listed = ", ".join(f"{pool.name} ({pool.guid})" for pool in found)
        raise MisuseError(f"several pools are there, so `pool` has to name one: {listed}", Place())
    return str(found[0].guid)


def create(
    pool: str,
    vdevs: Sequence[str],
    *,
    file_bytes: int = 0,
    properties: Optional[Properties] = None,
    root_properties: Optional[Properties] = None,
    force: bool = False,
    cache_bytes: Optional[int] = None,
) -> Pool:
    """Makes a pool on vdevs in the words of ``zpool create``, and opens it to be changed.

    With ``file_bytes``, image files of that size are made for vdevs that are not there.
    """
    with _Options() as options:
        options.set("force", force)
        if cache_bytes is not None:
            options.set("cache_bytes", cache_bytes)
        place = c_void_p()
        LIBRARY.cenote_create(
            options.handle,
            name(pool),
            words(list(vdevs)),
            file_bytes,
            _settings(properties),
            _settings(root_properties),
            place,
        )
        return Pool(Handle("cenote_pool_free", place.value, "pool"))
