"""Tests of the package: ``python3 -m unittest discover -s python/tests``.

The package is the one that is installed, or that in ``python/src`` with the library that ``CENOTE_LIBRARY`` names.
"""

import ctypes
import gc
import gzip
import io
import os
import re
import runpy
import shutil
import socket
import sys
import tempfile
import threading
import unittest
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, Callable, Iterator, List

import cenote
from cenote import _errors, _native

ROOT = Path(__file__).resolve().parents[2]
HEADER = ROOT / "crates" / "capi" / "include" / "cenote.h"
CACHE = 16 << 20


class OnPool(unittest.TestCase):
    """A pool for each test."""

    def setUp(self) -> None:
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        os.environ["CENOTE_CACHE"] = os.path.join(self.folder, "cache.json")
        self.image = os.path.join(self.folder, "a.img")
        self.pool: Any = cenote.create("tank", [self.image], file_bytes=64 << 20, cache_bytes=CACHE)
        self.addCleanup(self.end)

    def end(self) -> None:
        if self.pool is not None and not self.pool._handle.is_closed:
            self.pool.export()

    def reopened(self, **options: Any) -> cenote.Pool:
        self.end()
        self.pool = opened = cenote.open(self.image, cache_bytes=CACHE, **options)
        return opened


class Pools(OnPool):
    def test_what_was_written_is_there_after_an_export(self) -> None:
        with self.pool as pool:
            pool.create_filesystem("tank/home", {"compression": "zstd"})
            pool.filesystem("tank/home").path("note").write_text("water the plants")
        with cenote.open(self.folder, cache_bytes=CACHE) as pool:
            self.assertTrue(pool.is_read_only)
            self.assertEqual(pool.filesystem("tank/home").path("note").read_text(), "water the plants")
        self.assertEqual(cenote.find(self.folder), [cenote.FoundPool("tank", pool.guid, True)])

    def test_open_wants_one_pool_or_its_name(self) -> None:
        with self.pool:
            pass
        other = os.path.join(self.folder, "b.img")
        with cenote.create("other", [other], file_bytes=64 << 20, cache_bytes=CACHE):
            pass
        with self.assertRaisesRegex(cenote.MisuseError, r"other \(\d+\), tank \(\d+\)"):
            cenote.open(self.folder)
        with cenote.open(self.folder, pool="other", cache_bytes=CACHE) as pool:
            self.assertEqual(pool.name, "other")
        empty = os.path.join(self.folder, "empty")
        os.mkdir(empty)
        with self.assertRaises(cenote.NotFoundError):
            cenote.open(empty)
        with self.assertRaises(cenote.NotFoundError):
            cenote.open(self.folder, pool="third")

    def test_options_that_make_no_sense_are_refused(self) -> None:
        with self.assertRaises(cenote.MisuseError):
            cenote.open(self.image, pool="tank", tunables={"no_such": 1})
        with self.assertRaises(ValueError):
            cenote.open("a\0b")
        with self.assertRaises(cenote.MisuseError):
            cenote.create("tank", ["mirror"])

    def test_status_is_a_tree(self) -> None:
        status = self.pool.status()
        self.assertIsNone(status.suspended)
        self.assertIs(status.root.health, cenote.Health.ONLINE)
        (device,) = status.root.devices()
        self.assertTrue(device.name.endswith("a.img"))
        self.assertEqual((device.read_errors, device.write_errors, device.checksum_errors), (0, 0, 0))

    def test_a_closed_pool_says_so(self) -> None:
        files = self.pool.filesystem()
        file = files.open("x", "w")
        file.write("flushed by the export")
        self.pool.export()
        self.assertTrue(file.closed)
        for use in (self.pool.sync, self.pool.datasets, files.listdir, lambda: file.write("x")):
            with self.assertRaises(ValueError):
                use()
        files.close()
        self.assertEqual(self.reopened().filesystem().path("x").read_text(), "flushed by the export")

    def test_a_file_that_cannot_be_flushed_keeps_nothing_else_from_being_written(self) -> None:
        def fails(_data: Any) -> int:
            raise OSError("the buffer cannot be written")

        files, other = self.pool.filesystem(), self.pool.filesystem()
        opened: Any = [files.open(f"file{number}", "wb") for number in range(5)] + [other.open("last", "w")]
        for file in opened[1], opened[3]:
            file.raw.write = fails
        for file in opened[:5]:
            file.write(b"flushed")
        opened[5].write("flushed")
        with self.assertRaisesRegex(OSError, "the buffer cannot be written") as raised:
            self.pool.export()
        if sys.version_info >= (3, 11):
            self.assertEqual(raised.exception.__notes__, ["OSError as well: the buffer cannot be written"])
        self.assertTrue(all(file.closed for file in opened))
        self.assertTrue(cenote.find(self.folder)[0].is_exported)
        files = self.reopened().filesystem()
        self.assertEqual([files.path(f"file{number}").read_bytes() for number in (0, 2, 4)], [b"flushed"] * 3)
        self.assertEqual(files.path("last").read_text(), "flushed")

    def test_a_file_system_closes_all_its_files_although_one_fails(self) -> None:
        def fails(_data: Any) -> int:
            raise OSError("the buffer cannot be written")

        files = self.pool.filesystem()
        opened: Any = [files.open(f"file{number}", "wb") for number in range(3)]
        opened[0].raw.write = opened[2].raw.write = fails
        for file in opened:
            file.write(b"flushed")
        with self.assertRaisesRegex(OSError, "the buffer cannot be written"):
            files.close()
        self.assertTrue(all(file.closed for file in opened))
        with self.assertRaises(ValueError):
            files.listdir()
        self.assertEqual(self.pool.filesystem().path("file1").read_bytes(), b"flushed")

    def test_buffers_are_written_at_the_export_whose_file_systems_were_dropped(self) -> None:
        self.pool.create_volume("tank/disk", 8 << 20)
        text = self.pool.filesystem().open("text", "w")
        text.write("in the text layer")
        detached: Any = self.pool.filesystem().open("detached", "w")
        detached = detached.detach()
        detached.write(b"in the buffer")
        buffered = self.pool.volume("tank/disk").open()
        buffered.write(b"in the volume's buffer")
        gc.collect()
        self.pool.export()
        self.assertTrue(text.closed and detached.closed and buffered.closed)
        files = self.reopened().filesystem()
        self.assertEqual(files.path("text").read_text(), "in the text layer")
        self.assertEqual(files.path("detached").read_bytes(), b"in the buffer")
        with self.pool.volume("tank/disk").open() as buffered:
            self.assertFalse(buffered.writable())
            self.assertEqual(buffered.read(22), b"in the volume's buffer")

    def test_keys_may_be_text(self) -> None:
        for given in ("water the plänts", "water the plänts".encode(), bytearray("water the plänts".encode())):
            self.assertEqual(_native.secret_bytes(given), "water the plänts".encode())
            # The library has it, and says that it is not needed.
            with self.assertRaises(cenote.MisuseError):
                self.pool.load_key("tank", given)
        not_a_key: Any = 5
        with self.assertRaises(TypeError):
            self.pool.load_key("tank", not_a_key)
        with self.assertRaises(TypeError):
            cenote.open(self.image, keys={"tank": not_a_key})

    def test_a_pool_that_is_dropped_warns(self) -> None:
        pool, self.pool = self.reopened(write=True), None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del pool
            gc.collect()
        self.assertIn("was not exported", str(caught[0].message))


class Datasets(OnPool):
    def test_datasets_have_properties_and_snapshots(self) -> None:
        home = self.pool.create_filesystem("tank/home")
        self.assertEqual([found.name for found in self.pool.datasets()], ["tank", "tank/home"])
        self.assertIs(home.kind, cenote.DatasetKind.FILESYSTEM)
        home.set("compression", "lz4")
        self.assertEqual(home.get("compression"), "lz4")
        self.assertGreater(home.space().used, 0)
        with home.filesystem() as files:
            files.path("a").write_text("1")
            monday = home.snapshot("monday")
            files.path("a").write_text("2")
        self.assertEqual([found.name for found in home.snapshots()], ["tank/home@monday"])
        with monday.filesystem() as then:
            self.assertEqual(then.path("a").read_text(), "1")
            with self.assertRaises(cenote.ReadOnlyError):
                then.mkdir("x")
        monday.rollback()
        clone = monday.clone_to("tank/clone")
        with clone.filesystem() as files:
            self.assertEqual(files.path("a").read_text(), "1")
        with self.assertRaises(cenote.BusyError):
            monday.destroy()
        clone.destroy()
        house = home.rename("tank/house")
        house.destroy(all_below=True)
        with self.assertRaises(cenote.NotFoundError) as raised:
            self.pool.dataset("tank/house")
        self.assertEqual(raised.exception.place.dataset, "tank/house")
        self.assertIsInstance(raised.exception, FileNotFoundError)

    def test_a_volume_is_a_file_of_fixed_size(self) -> None:
        disk = self.pool.create_volume("tank/disk", 8 << 20, {"volblocksize": "8K", "refreservation": "none"})
        with self.assertRaises(cenote.MisuseError):
            disk.filesystem()
        with disk.volume() as volume:
            self.assertEqual((volume.size(), volume.block_size, volume.writable()), (8 << 20, 8192, True))
            self.assertEqual(volume.seek(-4, os.SEEK_END), (8 << 20) - 4)
            self.assertEqual(volume.write(b"abcdefgh"), 4)
            with self.assertRaises(cenote.MisuseError):
                volume.write(b"e")
            volume.seek(-8, os.SEEK_END)
            self.assertEqual(volume.read(), b"\0\0\0\0abcd")
            self.assertEqual(volume.read(5), b"")
            volume.sync()
            with self.assertRaises(cenote.MisuseError):
                volume.pread(5, (8 << 20) - 4)
            with self.assertRaises(ValueError):
                volume.pread(1 << 40, 0)
            volume.trim((8 << 20) - 8192, 8192)
            self.assertEqual(volume.pread(4, (8 << 20) - 4), bytes(4))
        with self.assertRaises(ValueError):
            disk.volume().open(0)
        buffered: Any = disk.volume().open()
        buffered.write(b"x" * 100_000)
        buffered.seek(99_999)
        self.assertEqual(buffered.read(2), b"x\0")
        buffered.close()


class Streams(OnPool):
    def setUp(self) -> None:
        super().setUp()
        self.home = self.pool.create_filesystem("tank/home", {"compression": "zstd"})
        self.home.filesystem().path("note").write_text("one")
        self.one = self.home.snapshot("one")

    def test_snapshots_go_through_any_file_object(self) -> None:
        memory = io.BytesIO()
        told = self.one.send(memory, properties=True)
        self.assertEqual(told, cenote.Sent(len(memory.getvalue()), True, []))
        compressed = io.BytesIO()
        with gzip.open(compressed, "wb") as packed:
            self.assertEqual(self.one.send(packed, properties=True).bytes, told.bytes)
        self.assertLess(len(compressed.getvalue()), told.bytes)
        path = os.path.join(self.folder, "stream")
        with open(path, "wb", buffering=0) as raw:
            self.one.send(raw, properties=True)
        self.assertEqual(Path(path).read_bytes(), memory.getvalue())
        with gzip.open(io.BytesIO(compressed.getvalue())) as packed:
            got = self.pool.receive("tank/a", packed, properties={"atime": "off"}, exclude=["compression"])
        self.assertEqual(got, cenote.Received(["tank/a"], False, []))
        with open(path, "rb") as file:
            self.pool.receive("tank/b", file)
        one, other = socket.socketpair()
        thread = threading.Thread(target=lambda: (self.one.send(one), one.close()))
        thread.start()
        with other:
            self.pool.receive("tank/c", other)
        thread.join()
        for dataset in ("tank/a", "tank/b", "tank/c"):
            self.assertEqual(self.pool.filesystem(f"{dataset}@one").path("note").read_text(), "one")
        self.assertEqual(self.pool.dataset("tank/a").get("atime"), "off")
        self.assertEqual(self.pool.dataset("tank/b").get("compression"), "zstd")

    def test_objects_that_change_bytes_or_take_few_of_them_get_all(self) -> None:
        class Little(io.RawIOBase):
            taken = b""

            def write(self, data: Any) -> int:
                self.taken += bytes(data[:1000])
                return min(len(data), 1000)

        class Counted(io.FileIO):
            count = 0

            def write(self, data: Any) -> int:
                self.count += len(data)
                return super().write(data) or 0

        class Sealed(socket.socket):
            """A socket whose bytes are not those of its descriptor, as one with encryption."""

            def sendall(self, data: Any, *_: Any) -> None:
                super().sendall(bytes(byte ^ 0x55 for byte in data))

            def recv(self, size: int, *_: Any) -> bytes:
                return bytes(byte ^ 0x55 for byte in super().recv(size))

        memory, little = io.BytesIO(), Little()
        told = self.one.send(memory)
        self.assertEqual((self.one.send(little), little.taken), (told, memory.getvalue()))
        with Counted(os.path.join(self.folder, "stream"), "wb") as counted:
            self.one.send(counted)
            self.assertEqual(counted.count, told.bytes)
        ends = [Sealed(fileno=end.detach()) for end in socket.socketpair()]
        ends[1].settimeout(60)
        thread = threading.Thread(target=lambda: (self.one.send(ends[0]), ends[0].close()))
        thread.start()
        with ends[1]:
            self.pool.receive("tank/sealed", ends[1])
        thread.join()
        self.assertEqual(self.pool.filesystem("tank/sealed@one").path("note").read_text(), "one")

    def test_a_refused_receive_does_not_wait_for_more_bytes(self) -> None:
        memory = io.BytesIO()
        self.one.send(memory)
        reader, writer = os.pipe()
        thread = threading.Thread(target=lambda: os.write(writer, memory.getvalue()))
        thread.start()
        file = os.fdopen(reader, "rb")
        with self.assertRaises(cenote.Error):
            self.pool.receive("tank/home", file)
        thread.join()
        # The object is read until its peer ends.
        os.close(writer)
        file.close()

    def test_changes_are_sent_since_a_bookmark_and_a_tree_as_a_package(self) -> None:
        whole, changes, tree = io.BytesIO(), io.BytesIO(), io.BytesIO()
        self.one.send(whole)
        sent = self.one.bookmark("sent")
        copy = sent.bookmark("copy")
        self.assertEqual({found.name for found in self.home.bookmarks()}, {"tank/home#sent", "tank/home#copy"})
        copy.destroy()
        self.assertIs(self.home.bookmarks()[0].kind, cenote.DatasetKind.BOOKMARK)
        self.one.destroy()
        with self.home.filesystem() as files:
            files.path("note").write_text("two")
        two = self.home.snapshot("two")
        two.send(changes, since="#sent")
        for stream in (whole, changes):
            self.pool.receive("tank/copy", io.BytesIO(stream.getvalue()))
        self.assertEqual(self.pool.filesystem("tank/copy").path("note").read_text(), "two")
        self.pool.create_filesystem("tank/home/below").snapshot("two")
        two.send(tree, replicate=True, exclude=["tank/home/none"])
        tree.seek(0)
        got = self.pool.receive("tank/copy", tree, sent_name=cenote.SentName.LAST)
        self.assertEqual(got.datasets, ["tank/copy/home", "tank/copy/home/below"])

    def test_an_interrupted_stream_is_resumed_or_given_up(self) -> None:
        whole, rest = io.BytesIO(), io.BytesIO()
        self.one.send(whole)
        half = whole.getvalue()[: len(whole.getvalue()) // 2]
        with self.assertRaises(cenote.CorruptError):
            self.pool.receive("tank/copy", io.BytesIO(half), resumable=True)
        copy = self.pool.dataset("tank/copy")
        token = copy.receive_resume_token()
        self.pool.resume_send(token, rest)
        rest.seek(0)
        self.pool.receive("tank/copy", rest)
        self.assertIsNone(copy.receive_resume_token())
        with self.assertRaises(cenote.NotFoundError):
            copy.abort_receive()

    def test_errors_of_both_sides_are_told(self) -> None:
        class Broken(io.RawIOBase):
            def write(self, _data: Any) -> int:
                raise RuntimeError("the object takes nothing")

            def read(self, _size: int = -1) -> bytes:
                raise RuntimeError("the object has nothing")

        with self.assertRaisesRegex(RuntimeError, "takes nothing"):
            self.one.send(Broken())
        with self.assertRaisesRegex(RuntimeError, "has nothing"):
            self.pool.receive("tank/copy", Broken())
        with self.assertRaises(cenote.CorruptError):
            self.pool.receive("tank/copy", io.BytesIO(b"no stream" * 1_000_000))
        with self.assertRaises(cenote.NotFoundError):
            self.one.send(io.BytesIO(), since="@none")
        with self.assertRaises(cenote.MisuseError):
            self.one.send(-1)
        with self.assertRaises(OverflowError):
            self.one.send(1 << 40)

    def test_holds_keep_snapshots(self) -> None:
        self.one.hold("mine")
        (hold,) = self.one.holds()
        self.assertEqual(hold.tag, "mine")
        self.assertGreater(hold.placed, 1_700_000_000)
        with self.assertRaises(cenote.BusyError):
            self.one.destroy()
        self.one.release("mine")
        self.one.destroy()

    def test_changes_and_history_are_listed(self) -> None:
        with self.home.filesystem() as files:
            files.path("note").rename("/other")
            files.path("new").write_text("x")
        found = {change.path: change for change in self.home.changes_since(self.one)}
        self.assertEqual((found["/note"].kind, found["/note"].to), (cenote.ChangeKind.RENAMED, "/other"))
        self.assertIs(found["/new"].kind, cenote.ChangeKind.ADDED)
        self.assertIs(found["/new"].file_kind, cenote.FileKind.FILE)
        with self.home.changes_since(self.one) as changes:
            next(changes)
        self.assertEqual(list(changes), [])
        self.pool.record_command("nightly")
        history = self.pool.history()
        self.assertEqual((history[-1].command, history[-1].uid), ("nightly", os.getuid()))
        taken = next(record for record in history if record.name == "snapshot")
        self.assertEqual((taken.dataset, taken.command, taken.uid), ("tank/home@one", None, None))
        self.assertGreater(taken.txg, 0)

    def test_a_full_quota_is_told_from_a_full_pool(self) -> None:
        self.pool.create_filesystem("tank/small", {"quota": "2M", "compression": "off"})
        with self.pool.filesystem("tank/small") as files, self.assertRaises(cenote.QuotaError) as raised:
            for number in range(16):
                files.path(f"file{number}").write_bytes(os.urandom(1 << 20))
                self.pool.sync()
        self.assertIsInstance(raised.exception, cenote.NoSpaceError)

    def test_keys_to_come_say_what_to_do_instead(self) -> None:
        self.assertIs(self.home.key_status(), cenote.KeyStatus.NONE)
        with self.assertRaisesRegex(cenote.NotSupportedError, "not supported yet: .*; "):
            self.home.change_key("x")
        with self.assertRaises(cenote.MisuseError):
            self.pool.unload_key("tank/home")


class Files(OnPool):
    def setUp(self) -> None:
        super().setUp()
        self.files = self.pool.filesystem()

    def test_modes_are_those_of_open(self) -> None:
        files = self.files
        with files.open("a", "w") as file:
            self.assertEqual(file.write("one\ntwo\n"), 8)
        with files.open("a", "a") as file:
            file.write("three\n")
        with files.open("a") as file:
            self.assertEqual(list(file), ["one\n", "two\n", "three\n"])
        with files.open("a", "r+b") as binary:
            binary.seek(4)
            binary.write(b"TWO")
            binary.seek(0)
            self.assertEqual(binary.read(), b"one\nTWO\nthree\n")
            binary.truncate(3)
        self.assertEqual(files.path("a").read_bytes(), b"one")
        with self.assertRaises(FileExistsError):
            files.open("a", "x")
        files.open("b", "xb").close()
        with self.assertRaises(FileNotFoundError):
            files.open("nothing")
        with files.open("a", "rb") as binary, self.assertRaises(io.UnsupportedOperation):
            binary.write(b"x")
        for mode in ("", "rw", "q", "rbt", "rr"):
            with self.assertRaises(ValueError):
                files.open("a", mode)
        with self.assertRaises(ValueError):
            files.open("a", "rb", encoding="utf-8")

    def test_raw_files_read_and_write_at_offsets(self) -> None:
        raw = self.files.open("raw", "w+b", buffering=0)
        assert isinstance(raw, cenote.RawFile)
        self.assertEqual(raw.pwrite(memoryview(b"hello"), 1 << 20), 5)
        self.assertEqual(raw.pread(100, (1 << 20) + 1), b"ello")
        self.assertEqual(raw.pread(100, 2 << 20), b"")
        raw.sync()
        self.assertEqual((raw.size(), raw.metadata().links), ((1 << 20) + 5, 1))
        self.assertIsNone(raw.next_data(2 << 20))
        self.files.remove("raw")
        self.assertEqual(raw.pread(5, 1 << 20), b"hello", "an open file outlives its names")
        with self.assertRaises(ValueError):
            raw.seek(-1)
        target = bytearray(3)
        raw.seek(1 << 20)
        self.assertEqual((raw.readinto(target), bytes(target), raw.tell()), (3, b"hel", (1 << 20) + 3))
        raw.close()
        raw.close()
        for use in (raw.tell, lambda: raw.pread(1, 0), lambda: raw.pwrite(b"x", 0)):
            with self.assertRaises(ValueError):
                use()

    def test_large_files_go_through_python_s_buffers(self) -> None:
        content = bytes(range(256)) * 40_000
        with self.files.open("large", "wb") as file:
            shutil.copyfileobj(io.BytesIO(content), file)
        with self.files.open("large", "rb") as file:
            self.assertEqual(file.read(), content)
        raw: Any = self.files.open("large", "rb", buffering=0)
        reads, readinto = [], raw.readinto

        def counted(buffer: Any) -> int:
            reads.append(len(buffer))
            return int(readinto(buffer))

        raw.readinto = counted
        self.assertEqual(raw.read(), content)
        self.assertLess(len(reads), 6)
        self.assertEqual(raw.readall(), b"")
        raw.close()
        with self.assertRaises(ValueError):
            raw.readall()

    def test_numbers_that_the_library_cannot_hold_are_refused(self) -> None:
        path = self.files.path("file")
        path.write_bytes(b"12345")
        raw: Any = self.files.open("file", "r+b", buffering=0)
        uses: List[Callable[[], Any]] = [
            lambda: raw.pread(2, -1),
            lambda: raw.pwrite(b"x", 1 << 64),
            lambda: raw.truncate((1 << 64) + 1),
            lambda: raw.next_data(-1),
            lambda: path.chmod(1 << 32),
            lambda: self.files.chown(path, -2, 0),
            lambda: self.files.chown(path, 0, 1 << 32),
            lambda: self.files.set_modified(path, 1 << 100),
            lambda: self.pool.create_volume("tank/disk", -1),
            lambda: cenote.open(self.image, at_txg=-1),
            lambda: cenote.open(self.image, cache_bytes=1 << 64),
        ]
        for use in uses:
            with self.assertRaises(OverflowError):
                use()
        for owner in ((-1, 0), (0, -1)):
            with self.assertRaisesRegex(ValueError, "not supported yet"):
                self.files.chown(path, *owner)
        with self.assertRaises(TypeError):
            raw.pwrite(b"x", 1.5)
        self.assertEqual((path.read_bytes(), path.stat().uid), (b"12345", os.getuid()))

    def test_text_is_no_data(self) -> None:
        path = self.files.path("file")
        path.write_bytes(b"12345")
        raw: Any = self.files.open("file", "r+b", buffering=0)
        volume: Any = self.pool.create_volume("tank/disk", 8 << 20).volume()
        setxattr: Any = self.files.setxattr
        uses: List[Callable[[], Any]] = [
            lambda: raw.write("abc"),
            lambda: raw.pwrite("abc", 0),
            lambda: volume.write("abc"),
            lambda: volume.pwrite("abc", 0),
            lambda: setxattr(path, "user.a", "abc"),
            lambda: _native.LIBRARY.cenote_file_pwrite(raw._handle._value, "abc", 3, 0),
        ]
        for use in uses:
            with self.assertRaises(TypeError):
                use()
        self.assertEqual((path.read_bytes(), self.files.listxattr(path)), (b"12345", []))
        for number, value in enumerate((b"abc", bytearray(b"abc"), memoryview(b"xabc")[1:])):
            setxattr(path, f"user.{number}", value)
            self.assertEqual(self.files.getxattr(path, f"user.{number}"), b"abc")

    def test_paths_are_as_in_pathlib(self) -> None:
        root = self.files.path()
        deep = root / "a" / "b"
        deep.mkdir(parents=True)
        deep.mkdir(parents=True, exist_ok=True)
        with self.assertRaises(cenote.ExistsError):
            deep.mkdir()
        note = deep / "note.txt"
        note.write_text("grün")
        self.assertEqual((note.name, note.stem, note.suffix, str(note.parent)), ("note.txt", "note", ".txt", "/a/b"))
        self.assertTrue(note.is_file() and deep.is_dir() and note.exists() and not (deep / "x").exists())
        (root / "link").symlink_to("a/b")
        self.assertTrue((root / "link").is_symlink() and (root / "link").is_dir())
        self.assertEqual((root / "link").readlink(), "a/b")
        (deep / "hard").hardlink_to(note)
        self.assertEqual(note.stat().links, 2)
        moved = (deep / "hard").rename(root / "moved")
        self.assertEqual(moved.read_text(), "grün")
        self.assertEqual(sorted(path.name for path in root.iterdir()), ["a", "link", "moved"])
        walked = [(str(at), sorted(dirs), sorted(names)) for at, dirs, names in self.files.walk()]
        self.assertEqual(walked, [("/", ["a"], ["link", "moved"]), ("/a", ["b"], []), ("/a/b", [], ["note.txt"])])
        moved.unlink()
        moved.unlink(missing_ok=True)
        with self.assertRaises(cenote.NotFoundError):
            moved.unlink()
        with self.assertRaises(cenote.ExistsError):
            deep.rmdir()
        self.assertEqual(note.relative_to(root / "a").as_posix(), "b/note.txt")
        self.assertLess(root / "a", root / "b")
        self.assertEqual({root / "a"}, {self.files / "a"})
        with self.assertRaises(TypeError):
            os.fspath(root)

    def test_attributes_are_set_and_kept(self) -> None:
        path = self.files.path("file")
        path.write_bytes(b"x")
        path.chmod(0o600)
        self.files.chown(path, 5, 6)
        self.files.set_modified(path, -1)
        found = path.stat()
        self.assertEqual((found.mode, found.uid, found.gid, found.modified_ns, found.size), (0o600, 5, 6, -1, 1))
        self.assertIs(found.kind, cenote.FileKind.FILE)
        self.files.setxattr(path, "user.long", b"y" * 5000)
        self.assertEqual(self.files.getxattr(path, "user.long"), b"y" * 5000)
        self.assertEqual(self.files.listxattr(path), ["user.long"])
        self.files.removexattr(path, "user.long")
        with self.assertRaises(cenote.NotFoundError):
            self.files.getxattr(path, "user.long")

    def test_names_are_any_bytes(self) -> None:
        self.files.path(b"\xff\xfe").write_bytes(b"1")
        (name,) = self.files.listdir()
        self.assertEqual(os.fsencode(name), b"\xff\xfe")
        self.assertEqual(self.files.path(name).read_bytes(), b"1")
        with self.assertRaises(ValueError):
            self.files.mkdir("a\0b")
        with self.assertRaises(cenote.NotFoundError) as raised:
            self.files.stat(b"\xfd")
        self.assertEqual(os.fsencode(raised.exception.place.path or ""), b"\xfd")

    def test_a_listing_may_end_early(self) -> None:
        for number in range(300):
            self.files.open(f"file{number}", "wb").close()
        with self.files.scandir() as listing:
            self.assertIs(next(listing).kind, cenote.FileKind.FILE)
        self.assertEqual(list(listing), [])
        self.assertEqual(len(set(self.files.listdir())), 300)
        with self.assertRaises(cenote.MisuseError):
            self.files.listdir("file1")

    def test_many_threads_use_one_file_system(self) -> None:
        failures = []

        def work(number: int) -> None:
            try:
                for turn in range(20):
                    path = self.files.path(f"{number}-{turn}")
                    path.write_bytes(bytes([number]) * 1000)
                    assert path.read_bytes() == bytes([number]) * 1000
            except BaseException as error:  # noqa: BLE001
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        self.assertEqual(len(self.files.listdir()), 120)

    def test_a_file_closed_while_it_is_read_ends_in_an_error(self) -> None:
        self.files.path("x").write_bytes(bytes(4 << 20))
        for _ in range(10):
            raw = self.files.open("x", "rb", buffering=0)
            assert isinstance(raw, cenote.RawFile)

            def read(raw: cenote.RawFile = raw) -> None:
                try:
                    while True:
                        raw.pread(1 << 20, 0)
                except ValueError:
                    pass

            thread = threading.Thread(target=read)
            thread.start()
            raw.close()
            thread.join()

    def test_the_program_of_the_documentation_says_what_it_does(self) -> None:
        self.pool.create_filesystem("tank/home")
        self.pool.filesystem("tank/home").path("note").write_text("water the plants\n")
        self.end()
        page = (ROOT / "docs" / "PACKAGES.md").read_text()
        program = re.search(r"```python\n(.*?)```", page, re.S).group(1)  # type: ignore[union-attr]
        shown = io.StringIO()
        with redirect_stdout(shown):
            exec(program.replace("/images", self.folder), {})
        self.assertRegex(
            shown.getvalue(),
            r"^tank FILESYSTEM \d+\ntank/home FILESYSTEM \d+\nwater the plants\nnothing\n$",
        )
        (monday,) = self.reopened().dataset("tank/home").snapshots()
        self.assertEqual(monday.filesystem().path("diary").read_text(), "watered\n")

    def test_the_example_copies_a_folder(self) -> None:
        source = os.path.join(self.folder, "source")
        os.makedirs(os.path.join(source, "deep"))
        Path(source, "deep", "one").write_bytes(b"12345")
        self.pool.create_filesystem("tank/home")
        self.end()
        example = runpy.run_path(str(ROOT / "python" / "examples" / "tree.py"))
        shown = io.StringIO()
        with redirect_stdout(shown):
            example["main"](self.image, "tank/home", source)
        self.assertEqual(shown.getvalue(), "/deep/one 5\n")


class Border(unittest.TestCase):
    """The package and the header say the same."""

    header = HEADER.read_text()

    def declared(self) -> Iterator[Any]:
        for line in re.findall(r"^CENOTE_API (?:CENOTE_CHECKED )?([^;]+);", self.header, re.M):
            head, arguments = re.sub(r"\s+", " ", line).rstrip(")").split("(")
            answer, name = re.fullmatch(r"(.*?)(cenote_\w+)", head).groups()  # type: ignore[union-attr]
            types = [] if arguments == "void" else [re.sub(r"\w+$", "", it).strip() for it in arguments.split(", ")]
            yield name, answer.strip(), types

    def test_functions_have_the_types_of_the_header(self) -> None:
        plain = {"bool": "b", "uint32_t": "u", "uint64_t": "U", "int64_t": "I", "size_t": "z", "void": "v", "int": "i"}
        plain.update({"const char *": "s", "const char *const *": "w", "char **": "H", "char *": "h"})
        plain.update({"void *": "h", "const void *": "h", "bool *": "B", "uint32_t *": "N", "uint64_t *": "L"})
        plain.update({"cenote_change *": "C", "cenote_record *": "R"})
        plain.update({"size_t *": "Z", "cenote_place *": "P", "cenote_metadata *": "M", "cenote_vdev *": "V"})

        def letter(spelt: str, is_answer: bool) -> str:
            if spelt in plain:
                return plain[spelt]
            self.assertRegex(spelt, r"^(const )?cenote_\w+ \*\*?$")
            if spelt == "cenote_error *" and is_answer:
                return "e"
            return "H" if spelt.endswith("**") else "h"

        found = {
            name: letter(answer, True) + "".join(letter(it, False) for it in types)
            for name, answer, types in self.declared()
        }
        self.assertGreater(len(found), 70)
        self.assertEqual(found, _native.SIGNATURES)

    def test_structs_and_numbers_are_those_of_the_header(self) -> None:
        for name, ours in (
            ("cenote_place", _native.CPlace),
            ("cenote_time", _native.CTime),
            ("cenote_metadata", _native.CMetadata),
            ("cenote_vdev", _native.CVdev),
            ("cenote_change", _native.CChange),
            ("cenote_record", _native.CRecord),
        ):
            body = re.search(rf"typedef struct {name} {{(.*?)}} {name};", self.header, re.S).group(1)  # type: ignore
            body = re.sub(r"/\*.*?\*/", "", body, flags=re.S)
            fields = re.findall(r"(const char \*|\w+ )\s*(\w+);", body)
            spelt = {"const char *": ctypes.c_char_p, "uint64_t": ctypes.c_uint64, "uint32_t": ctypes.c_uint32}
            spelt.update({"int64_t": ctypes.c_int64, "bool": ctypes.c_bool, "cenote_time": _native.CTime})
            expected = [(field, spelt[kind.strip()]) for kind, field in fields]
            self.assertEqual(expected, ours._fields_)
        self.assertIn(f"#define CENOTE_ABI {_native.ABI}\n", self.header)
        kinds = re.search(r"enum cenote_error_kind {(.*?)};", self.header, re.S).group(1)  # type: ignore
        numbers = {int(number): name for name, number in re.findall(r"CENOTE_(\w+) = (\d+)", kinds)}
        self.assertEqual(sorted(numbers), sorted(_errors.KINDS))
        for number, kind in _errors.KINDS.items():
            words = {"IO": "DEVICE", "KEY": "KEYMISSING", "INTERRUPTED": "GIVENUP"}.get(numbers[number], numbers[number].replace("_", ""))
            self.assertEqual(kind.__name__.upper(), words + "ERROR")

    def test_a_child_that_was_forked_is_refused(self) -> None:
        cenote.find(tempfile.gettempdir())
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            try:
                cenote.find(tempfile.gettempdir())
            except cenote.MisuseError:
                os._exit(7)
            os._exit(1)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 7)

    def test_the_version_is_the_library_s(self) -> None:
        self.assertRegex(cenote.__version__, r"^\d+\.\d+\.\d+$")


if __name__ == "__main__":
    unittest.main()
