"""Errors: one class for each kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Optional, Type


@dataclass(frozen=True)
class Place:
    """The place of an error, as far as it is known."""

    pool: Optional[str] = None
    #: Dataset or snapshot, with its whole name.
    dataset: Optional[str] = None
    #: The path in the file system, or of a file of this system.
    path: Optional[str] = None
    #: The device that failed first.
    device: Optional[str] = None
    #: The offset on that device in bytes.
    offset: Optional[int] = None
    #: The number of the objset; 0 is the pool's own.
    objset: Optional[int] = None
    #: The object's number: the inode of a file.
    object: Optional[int] = None
    #: The block's number in the object, and its level; level 0 is data.
    block: Optional[int] = None
    level: Optional[int] = None


class Error(OSError):
    """Something could not be done. ``str()`` is the whole message; it ends with advice where there is some."""

    def __init__(self, message: str, place: Place) -> None:
        super().__init__(message)
        #: Where it happened.
        self.place = place


class InternalError(Error):
    """A bug of Cenote."""


class CorruptError(Error):
    """Bytes were read that are not what was written, and no redundancy made up for them."""


class DeviceError(Error):
    """A device failed."""


class UnavailableError(Error):
    """Too few devices are there, or take what is written."""


class NotFoundError(Error, FileNotFoundError):
    """There is no such pool, dataset, file, attribute or property."""


class ExistsError(Error, FileExistsError):
    """It is there already; or a directory that is to go has entries."""


class BusyError(Error):
    """Somebody uses it: another process or system, an open file system, a snapshot or clone."""


class NoSpaceError(Error):
    """No space is left in the pool; or, as :class:`QuotaError`, below a quota."""


class ReadOnlyError(Error):
    """The pool, the dataset or the snapshot is not open to be changed."""


class DeniedError(Error, PermissionError):
    """A flag of the file forbids it."""


class KeyMissingError(Error):
    """The dataset is encrypted and its key is missing, or a key is not the dataset's."""


class NotSupportedError(Error):
    """Cenote cannot do that yet."""


class MisuseError(Error, ValueError):
    """The request makes no sense: a bad name or value, a file where a directory is needed."""


class ClosedError(Error):
    """The pool was exported, or a txg could not be written: the object is of no use any more."""


class QuotaError(NoSpaceError):
    """A quota of the dataset, of one above it or of a user is used up. The pool may have space."""


class GivenUpError(Error):
    """It was given up before its end, and can be tried again."""


class StaleError(Error):
    """The file or directory that was open is gone: its dataset was rolled back."""


#: The classes by the numbers of ``enum cenote_error_kind``.
KINDS: Dict[int, Type[Error]] = {
    1: InternalError,
    2: CorruptError,
    3: DeviceError,
    4: UnavailableError,
    5: NotFoundError,
    6: ExistsError,
    7: BusyError,
    8: NoSpaceError,
    9: ReadOnlyError,
    10: DeniedError,
    11: KeyMissingError,
    12: NotSupportedError,
    13: MisuseError,
    14: ClosedError,
    15: QuotaError,
    16: GivenUpError,
    17: StaleError,
}
