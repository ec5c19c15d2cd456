# A session with libnbd's Python module; the names between @ are filled in.
import nbd

h = nbd.NBD()
expected = open("@EXPECTED@", "rb").read()

h.add_meta_context("base:allocation")
h.connect_uri("@SOURCE@")
assert h.get_size() == len(expected)
assert h.is_read_only() and h.can_multi_conn() and h.can_df() and h.can_cache() and not h.can_trim()
assert h.get_block_size(nbd.SIZE_PREFERRED) == 4096

# Structured: data and holes come apart, and cover the request.
chunks = []
def chunk(buf, offset, status, error):
    chunks.append((offset, len(buf), status))
buf = h.pread_structured(65536, 0, chunk)
assert buf == expected[:65536]
assert {status for _, _, status in chunks} == {nbd.READ_DATA, nbd.READ_HOLE}, chunks
chunks.clear()
buf = h.pread_structured(65536, 0, chunk, nbd.CMD_FLAG_DF)
assert buf == expected[:65536] and len(chunks) == 1, chunks

# Block status: all of it, then one extent only.
extents = []
def extent(metacontext, offset, entries, error):
    assert metacontext == "base:allocation"
    extents.extend(zip(entries[::2], entries[1::2]))
h.block_status(len(expected), 0, extent)
assert sum(length for length, _ in extents) == len(expected)
assert extents[0] == (20480, 0) and extents[1] == (20480, 3), extents[:3]
extents.clear()
h.block_status(1 << 20, 20480 - 512, extent, nbd.CMD_FLAG_REQ_ONE)
assert extents == [(512, 0)], extents

# Errors that must not end the connection.
def refused(call, errno):
    try:
        call()
    except nbd.Error as error:
        assert error.errno == errno, (error.errno, errno)
    else:
        assert False, "not refused"
h.set_strict_mode(0)
refused(lambda: h.pread(512, len(expected)), "EINVAL")
refused(lambda: h.pwrite(b"x" * 512, 0), "EPERM")
refused(lambda: h.trim(512, 0), "EPERM")
refused(lambda: h.zero(512, 0), "EPERM")
refused(lambda: h.block_status(512, len(expected), extent), "EINVAL")
h.cache(65536, 0)
h.flush()
assert h.pread(512, 0) == expected[:512]

# Many in flight, of many sizes.
pending = []
for i in range(400):
    offset = (i * 7919 * 512) % (len(expected) - 70000)
    length = 1 + (i * 2654435761) % 70000
    buffer = nbd.Buffer(length)
    pending.append((h.aio_pread(buffer, offset), buffer, offset, length))
while h.aio_in_flight() > 0:
    h.poll(-1)
for cookie, buffer, offset, length in pending:
    assert h.aio_command_completed(cookie)
    assert buffer.to_bytearray() == expected[offset:offset + length], (offset, length)
h.shutdown()

# A second handle without structured replies, on the export that can be written.
w = nbd.NBD()
w.set_request_structured_replies(False)
w.connect_uri("@SCRATCH@")
assert not w.is_read_only() and w.can_trim() and w.can_zero() and w.can_fua() and not w.can_df()
w.pwrite(expected[:100000], 12345, nbd.CMD_FLAG_FUA)
assert w.pread(100000, 12345) == expected[:100000]
w.zero(4096, 12345)
assert w.pread(4096, 12345) == bytes(4096)
w.trim(8192, 16384)
w.flush()
w.set_strict_mode(0)
refused(lambda: w.pwrite(b"x" * 512, w.get_size() - 511), "ENOSPC")
refused(lambda: w.pread(33 << 20, 0), "EINVAL")
assert w.pread(512, 1 << 20) == bytes(512)
w.shutdown()

# What one connection flushed, another sees.
one, two = nbd.NBD(), nbd.NBD()
one.connect_uri("@SCRATCH@")
two.connect_uri("@SCRATCH@")
one.pwrite(b"shared", 1 << 21)
one.flush()
assert two.pread(6, 1 << 21) == b"shared"
one.shutdown()
two.shutdown()
print("all good")
