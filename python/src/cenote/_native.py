"""The shared library: its functions with their types, and its structs. ``include/cenote.h`` says what each does."""

from __future__ import annotations

import ctypes
import operator
import os
from ctypes import (
    CDLL,
    POINTER,
    Structure,
    c_bool,
    c_char_p,
    c_int,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple, Union

from ._errors import KINDS, Error, InternalError, Place

#: The interface that this package was written for.
ABI = 0
#: A number that is not known.
UNKNOWN = 2**64 - 1


class CPlace(Structure):
    """``cenote_place``"""

    _fields_ = [
        ("pool", c_char_p),
        ("dataset", c_char_p),
        ("path", c_char_p),
        ("device", c_char_p),
        ("offset", c_uint64),
        ("objset", c_uint64),
        ("object", c_uint64),
        ("block", c_uint64),
        ("level", c_uint64),
    ]


class CTime(Structure):
    """``cenote_time``"""

    _fields_ = [("seconds", c_int64), ("nanoseconds", c_uint32), ("reserved", c_uint32)]


class CMetadata(Structure):
    """``cenote_metadata``"""

    _fields_ = [
        ("object", c_uint64),
        ("generation", c_uint64),
        ("size", c_uint64),
        ("allocated", c_uint64),
        ("links", c_uint64),
        ("kind", c_uint32),
        ("mode", c_uint32),
        ("uid", c_uint32),
        ("gid", c_uint32),
        ("accessed", CTime),
        ("modified", CTime),
        ("changed", CTime),
        ("created", CTime),
    ]


class CVdev(Structure):
    """``cenote_vdev``"""

    _fields_ = [
        ("name", c_char_p),
        ("guid", c_uint64),
        ("read_errors", c_uint64),
        ("write_errors", c_uint64),
        ("checksum_errors", c_uint64),
        ("health", c_uint32),
        ("depth", c_uint32),
        ("is_behind", c_bool),
    ]


class CChange(Structure):
    """``cenote_change``"""

    _fields_ = [
        ("path", c_char_p),
        ("to", c_char_p),
        ("links", c_int64),
        ("changed", CTime),
        ("kind", c_uint32),
        ("file_kind", c_uint32),
    ]


class CRecord(Structure):
    """``cenote_record``"""

    _fields_ = [
        ("text", c_char_p),
        ("name", c_char_p),
        ("dataset", c_char_p),
        ("host", c_char_p),
        ("txg", c_uint64),
        ("uid", c_uint64),
        ("time", CTime),
        ("kind", c_uint32),
    ]


# The types of arguments and answers, one letter each:
#   h handle or buffer      H place for a handle or an owned string      s string      w array of strings
#   b bool   i int   u uint32_t   U uint64_t   I int64_t   z size_t   B, N, L, Z: places for bool, uint32_t, uint64_t, size_t
#   P, M, V, C, R: places for a cenote_place, a cenote_metadata, a cenote_vdev, a cenote_change, a cenote_record
#   v nothing   e an error, which is raised
_TYPES: dict[str, Any] = {
    "h": c_void_p,
    "H": POINTER(c_void_p),
    "s": c_char_p,
    "w": POINTER(c_char_p),
    "b": c_bool,
    "i": c_int,
    "u": c_uint32,
    "U": c_uint64,
    "I": c_int64,
    "z": c_size_t,
    "B": POINTER(c_bool),
    "N": POINTER(c_uint32),
    "L": POINTER(c_uint64),
    "Z": POINTER(c_size_t),
    "P": POINTER(CPlace),
    "M": POINTER(CMetadata),
    "V": POINTER(CVdev),
    "C": POINTER(CChange),
    "R": POINTER(CRecord),
    "v": None,
    "e": c_void_p,
}

# The numbers that each type holds. ctypes itself cuts off what is too large.
_RANGES: dict[str, Tuple[int, int]] = {
    "i": (-(2**31), 2**31 - 1),
    "u": (0, 2**32 - 1),
    "U": (0, 2**64 - 1),
    "I": (-(2**63), 2**63 - 1),
    "z": (0, 2 ** (8 * ctypes.sizeof(c_size_t)) - 1),
}

#: The functions that are used here: the letter of the answer, then those of the arguments.
SIGNATURES: dict[str, str] = {
    "cenote_abi": "u",
    "cenote_version": "s",
    "cenote_string_free": "vh",
    "cenote_error_kind": "uh",
    "cenote_error_message": "sh",
    "cenote_error_place": "vhP",
    "cenote_error_free": "vh",
    "cenote_list_count": "zh",
    "cenote_list_name": "shz",
    "cenote_list_kind": "uhz",
    "cenote_list_guid": "Uhz",
    "cenote_list_time": "Uhz",
    "cenote_list_free": "vh",
    "cenote_options_new": "eH",
    "cenote_options_search": "ehs",
    "cenote_options_write": "ehb",
    "cenote_options_force": "ehb",
    "cenote_options_allow_missing": "ehb",
    "cenote_options_rewind": "eh",
    "cenote_options_at_txg": "ehU",
    "cenote_options_cache_bytes": "ehz",
    "cenote_options_tunable": "ehss",
    "cenote_options_key": "ehshz",
    "cenote_options_free": "vh",
    "cenote_find": "ehH",
    "cenote_open": "ehsH",
    "cenote_create": "ehswUwwH",
    "cenote_pool_name": "sh",
    "cenote_pool_guid": "Uh",
    "cenote_pool_txg": "Uh",
    "cenote_pool_is_read_only": "bh",
    "cenote_pool_load_key": "ehshz",
    "cenote_pool_sync": "eh",
    "cenote_pool_resume": "eh",
    "cenote_pool_export": "eh",
    "cenote_pool_free": "vh",
    "cenote_pool_status": "ehH",
    "cenote_status_suspended": "sh",
    "cenote_status_count": "zh",
    "cenote_status_vdev": "ehzV",
    "cenote_status_free": "vh",
    "cenote_datasets": "ehH",
    "cenote_snapshots": "ehsH",
    "cenote_dataset_kind": "ehsN",
    "cenote_dataset_space": "ehsLL",
    "cenote_create_filesystem": "ehsw",
    "cenote_create_volume": "ehsUw",
    "cenote_get_property": "ehssH",
    "cenote_set_property": "ehsss",
    "cenote_rename_dataset": "ehss",
    "cenote_destroy": "ehsb",
    "cenote_snapshot": "ehs",
    "cenote_rollback": "ehsb",
    "cenote_clone": "ehssw",
    "cenote_bookmark": "ehss",
    "cenote_bookmarks": "ehsH",
    "cenote_hold": "ehss",
    "cenote_release": "ehss",
    "cenote_holds": "ehsH",
    "cenote_key_status": "ehsN",
    "cenote_unload_key": "ehs",
    "cenote_change_key": "ehshz",
    "cenote_changes_open": "ehssH",
    "cenote_changes_next": "ehC",
    "cenote_changes_free": "vh",
    "cenote_pool_history": "ehH",
    "cenote_pool_record_command": "ehs",
    "cenote_history_count": "zh",
    "cenote_history_record": "ehzR",
    "cenote_history_free": "vh",
    "cenote_send_options_new": "eH",
    "cenote_send_options_since": "ehsb",
    "cenote_send_options_replicate": "ehb",
    "cenote_send_options_exclude": "ehs",
    "cenote_send_options_skip_missing": "ehb",
    "cenote_send_options_properties": "ehb",
    "cenote_send_options_holds": "ehb",
    "cenote_send_options_raw": "ehb",
    "cenote_send_options_compressed": "ehb",
    "cenote_send_options_large_blocks": "ehb",
    "cenote_send_options_free": "vh",
    "cenote_send": "ehshiH",
    "cenote_send_resume": "ehshiH",
    "cenote_receive_options_new": "eH",
    "cenote_receive_options_force": "ehb",
    "cenote_receive_options_resumable": "ehb",
    "cenote_receive_options_skip_holds": "ehb",
    "cenote_receive_options_sent_name": "ehu",
    "cenote_receive_options_origin": "ehs",
    "cenote_receive_options_property": "ehss",
    "cenote_receive_options_exclude": "ehs",
    "cenote_receive_options_free": "vh",
    "cenote_receive": "ehshiH",
    "cenote_receive_resume_token": "ehsH",
    "cenote_receive_abort": "ehs",
    "cenote_report_bytes": "Uh",
    "cenote_report_is_whole": "bh",
    "cenote_report_dataset": "shz",
    "cenote_report_warning": "shz",
    "cenote_report_free": "vh",
    "cenote_filesystem_open": "ehsH",
    "cenote_filesystem_is_read_only": "bh",
    "cenote_filesystem_space": "ehLL",
    "cenote_filesystem_sync": "eh",
    "cenote_filesystem_free": "vh",
    "cenote_stat": "ehsbM",
    "cenote_mkdir": "ehsb",
    "cenote_remove_file": "ehs",
    "cenote_remove_dir": "ehs",
    "cenote_rename": "ehss",
    "cenote_link": "ehss",
    "cenote_symlink": "ehss",
    "cenote_readlink": "ehsH",
    "cenote_set_mode": "ehsu",
    "cenote_set_owner": "ehsuu",
    "cenote_set_modified": "ehsIu",
    "cenote_get_xattr": "ehsshzZ",
    "cenote_set_xattr": "ehsshz",
    "cenote_remove_xattr": "ehss",
    "cenote_list_xattrs": "ehshzZ",
    "cenote_dir_open": "ehsH",
    "cenote_dir_next": "ehHNL",
    "cenote_dir_free": "vh",
    "cenote_file_open": "ehsH",
    "cenote_file_create": "ehsH",
    "cenote_file_size": "Uh",
    "cenote_file_stat": "ehM",
    "cenote_file_pread": "ehhzUZ",
    "cenote_file_pwrite": "ehhzU",
    "cenote_file_truncate": "ehU",
    "cenote_file_next_data": "ehUL",
    "cenote_file_next_hole": "ehUL",
    "cenote_file_sync": "eh",
    "cenote_file_free": "vh",
    "cenote_volume_open": "ehsH",
    "cenote_volume_size": "Uh",
    "cenote_volume_block_size": "Uh",
    "cenote_volume_is_read_only": "bh",
    "cenote_volume_pread": "ehhzU",
    "cenote_volume_pwrite": "ehhzU",
    "cenote_volume_trim": "ehUU",
    "cenote_volume_flush": "eh",
    "cenote_volume_free": "vh",
}


def text(given: Optional[bytes]) -> Optional[str]:
    """UTF-8 of the library; bytes of names that are none survive as ``os.fsdecode`` has them."""
    return None if given is None else given.decode("utf-8", "surrogateescape")


def _number(given: int) -> Optional[int]:
    return None if given == UNKNOWN else given


def _raise(error: Optional[int], _function: Any, _arguments: Any) -> None:
    if not error:
        return
    try:
        place = CPlace()
        LIBRARY.cenote_error_place(error, place)
        kind = KINDS.get(LIBRARY.cenote_error_kind(error), InternalError)
        message = text(LIBRARY.cenote_error_message(error)) or ""
        found = Place(
            pool=text(place.pool),
            dataset=text(place.dataset),
            path=None if place.path is None else os.fsdecode(place.path),
            device=text(place.device),
            offset=_number(place.offset),
            objset=_number(place.objset),
            object=_number(place.object),
            block=_number(place.block),
            level=_number(place.level),
        )
    finally:
        LIBRARY.cenote_error_free(error)
    raised: Error = kind(message, found)
    raise raised


def _checked(name: str, function: Any, letters: str) -> Any:
    """The function, which takes no number that its type does not hold, and no text for a buffer."""
    limits = [(index, *_RANGES[letter]) for index, letter in enumerate(letters) if letter in _RANGES]
    buffers = [index for index, letter in enumerate(letters) if letter == "h"]

    def call(*arguments: Any) -> Any:
        for index in buffers:
            if isinstance(arguments[index], str):
                raise TypeError("a bytes-like object is required, not 'str'")
        for index, least, most in limits:
            number = operator.index(arguments[index])
            if not least <= number <= most:
                raise OverflowError(f"{name}: {number} is not in the range from {least} to {most}")
        return function(*arguments)

    return call


def _load() -> SimpleNamespace:
    # A library elsewhere is used as it is: for those who build their own.
    path = os.environ.get("CENOTE_LIBRARY") or str(Path(__file__).with_name("libcenote.so"))
    try:
        library = CDLL(path)
    except OSError as error:
        raise ImportError(
            f"cannot load Cenote's library: {error}; 'cargo build --release -p cenote-capi' makes it, and the environment variable "
            "CENOTE_LIBRARY names it"
        ) from error
    checked = SimpleNamespace()
    for name, letters in SIGNATURES.items():
        function = getattr(library, name)
        function.restype = _TYPES[letters[0]]
        function.argtypes = [_TYPES[letter] for letter in letters[1:]]
        if letters[0] == "e":
            function.errcheck = _raise
        setattr(checked, name, _checked(name, function, letters[1:]))
    if library.cenote_abi() != ABI:
        raise ImportError(f"{path} has the interface {library.cenote_abi()}, not {ABI}")
    return checked


LIBRARY = _load()


def words(given: Sequence[str]) -> Any:
    """An array of strings that ends with ``NULL``."""
    encoded: List[Optional[bytes]] = [name(word) for word in given]
    return (c_char_p * (len(encoded) + 1))(*encoded, None)


def name(given: str) -> bytes:
    """A name for the library. Zero bytes, at which it would end, are refused."""
    return _whole(given.encode("utf-8", "surrogateescape"))


def path_bytes(given: "os.PathLike[Any] | str | bytes") -> bytes:
    """A path for the library."""
    return _whole(os.fsencode(given))


def _whole(given: bytes) -> bytes:
    if b"\0" in given:
        raise ValueError("embedded null byte")
    return given


def data_bytes(data: Any) -> bytes:
    """The bytes of an object that is like bytes. Text is none: its encoding would be a guess."""
    return data if isinstance(data, bytes) else bytes(memoryview(data).cast("B"))


def secret_bytes(key: Union[str, Any]) -> bytes:
    """A key for the library: a passphrase in UTF-8, or bytes."""
    return key.encode("utf-8", "surrogateescape") if isinstance(key, str) else data_bytes(key)


def owned_text(function: Callable[..., Any], *arguments: Any) -> bytes:
    """Calls a function that gives a string, which is freed."""
    place = c_void_p()
    function(*arguments, place)
    try:
        return ctypes.string_at(place.value) if place.value else b""
    finally:
        LIBRARY.cenote_string_free(place)


class Row(NamedTuple):
    """A row of a list."""

    name: str
    kind: int
    guid: int
    time: int


def rows(function: Callable[..., Any], *arguments: Any) -> List[Row]:
    """Calls a function that gives a list, which is freed."""
    place = c_void_p()
    function(*arguments, place)
    try:
        count = LIBRARY.cenote_list_count(place)
        return [
            Row(
                text(LIBRARY.cenote_list_name(place, index)) or "",
                LIBRARY.cenote_list_kind(place, index),
                LIBRARY.cenote_list_guid(place, index),
                LIBRARY.cenote_list_time(place, index),
            )
            for index in range(count)
        ]
    finally:
        LIBRARY.cenote_list_free(place)
