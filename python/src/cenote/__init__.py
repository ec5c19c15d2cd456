"""OpenZFS pools without a kernel module: read, written, made and watched by an ordinary process.

    import cenote

    with cenote.open("/images/tank.img", write=True) as pool:
        for dataset in pool.datasets():
            print(dataset.name, dataset.kind.name)
        home = pool.filesystem("tank/home")
        note = home.path("notes/today")
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text("water the plants")
        with home.open("notes/today") as file:
            print(file.read())

Leaving the ``with`` exports the pool. Errors are classes by kind, such as :class:`NotFoundError` and :class:`CorruptError`, all of them
:class:`Error`, with the place of the failure. Any number of threads may use the same objects. After ``os.fork`` the child cannot use the
library if the parent has: ``multiprocessing`` wants its start method ``spawn``.
"""

from ._errors import (
    BusyError,
    ClosedError,
    CorruptError,
    DeniedError,
    DeviceError,
    Error,
    ExistsError,
    GivenUpError,
    InternalError,
    KeyMissingError,
    MisuseError,
    NoSpaceError,
    NotFoundError,
    NotSupportedError,
    Place,
    QuotaError,
    ReadOnlyError,
    StaleError,
    UnavailableError,
)
from ._files import DirEntry, FileKind, FileSystem, Listing, Metadata, Path, RawFile, Volume
from ._native import LIBRARY as _LIBRARY
from ._native import text as _text
from ._pool import (
    Dataset,
    DatasetKind,
    FoundPool,
    Health,
    Pool,
    Space,
    Status,
    Vdev,
    create,
    find,
    open,
)
from ._streams import (
    Change,
    ChangeKind,
    Changes,
    HistoryRecord,
    Hold,
    KeyStatus,
    Received,
    Sent,
    SentName,
)

__version__ = _text(_LIBRARY.cenote_version()) or ""

__all__ = [
    "BusyError",
    "Change",
    "ChangeKind",
    "Changes",
    "ClosedError",
    "CorruptError",
    "Dataset",
    "DatasetKind",
    "DeniedError",
    "DeviceError",
    "DirEntry",
    "Error",
    "ExistsError",
    "FileKind",
    "FileSystem",
    "FoundPool",
    "GivenUpError",
    "Health",
    "HistoryRecord",
    "Hold",
    "InternalError",
    "KeyMissingError",
    "KeyStatus",
    "Listing",
    "Metadata",
    "MisuseError",
    "NoSpaceError",
    "NotFoundError",
    "NotSupportedError",
    "Path",
    "Place",
    "Pool",
    "QuotaError",
    "RawFile",
    "ReadOnlyError",
    "Received",
    "Sent",
    "SentName",
    "Space",
    "StaleError",
    "Status",
    "UnavailableError",
    "Vdev",
    "Volume",
    "create",
    "find",
    "open",
]
