# Sessions with libnbd's Python module: `session` does everything once and compares with an array of bytes, `write` writes and flushes
# until the server goes away, `check` looks whether what was flushed is there, `obey` does what it is told line by line.
import random
import sys
import nbd

what, uri = sys.argv[1:3]
BLOCK = 4096


def connect():
    h = nbd.NBD()
    h.add_meta_context("base:allocation")
    h.connect_uri(uri)
    return h


def refused(call, errno):
    try:
        call()
    except nbd.Error as error:
        assert error.errno == errno, (error.errno, errno)
    else:
        assert False, "not refused"


def session():
    h, other = connect(), connect()
    size = h.get_size()
    assert not h.is_read_only() and h.can_flush() and h.can_fua() and h.can_trim() and h.can_zero() and h.can_multi_conn()
    h.set_strict_mode(0)
    refused(lambda: h.pwrite(b"x" * 512, size - 511), "ENOSPC")
    model = bytearray(size)
    # What was there before is read, so that this can be run again.
    for at in range(0, size, 1 << 22):
        length = min(1 << 22, size - at)
        model[at : at + length] = h.pread(length, at)
    dice = random.Random(7)
    for step in range(300):
        at = dice.randrange(size)
        length = min(dice.choice([1, 511, 512, 4096, 16384, 70000, 1 << 20]), size - at)
        kind = dice.randrange(8)
        flags = nbd.CMD_FLAG_FUA if dice.randrange(20) == 0 else 0
        if kind == 0:
            h.zero(length, at, flags | (nbd.CMD_FLAG_NO_HOLE if dice.randrange(2) else 0))
            model[at : at + length] = bytes(length)
        elif kind == 1:
            h.trim(length, at, flags)
            model[at : at + length] = h.pread(length, at)
        elif kind == 2:
            h.flush()
        else:
            data = dice.randbytes(length) if dice.randrange(4) else bytes(length)
            h.pwrite(data, at, flags)
            model[at : at + length] = data
        at = dice.randrange(size)
        length = min(1 << 18, size - at)
        assert other.pread(length, at) == model[at : at + length], (step, at)
    # Many at once, parts of the same blocks among them.
    pending = []
    for i in range(400):
        at = (i * 512) % (1 << 17)
        data = bytes([i % 251]) * 512
        model[at : at + 512] = data
        if at == 0:
            while h.aio_in_flight() > 0:
                h.poll(-1)
        pending.append(h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(data)), at))
    while h.aio_in_flight() > 0:
        h.poll(-1)
    assert all(h.aio_command_completed(cookie) for cookie in pending)
    h.flush()
    extents = []

    def extent(metacontext, offset, entries, error):
        extents.extend(zip(entries[::2], entries[1::2]))

    at = 0
    while at < size:
        extents.clear()
        other.block_status(size - at, at, extent)
        for length, flags in extents:
            assert flags in (0, 3)
            assert flags == 0 or not any(model[at : at + length]), at
            at += length
    for at in range(0, size, 1 << 22):
        length = min(1 << 22, size - at)
        assert other.pread(length, at) == model[at : at + length], at
    with open(sys.argv[3], "wb") as f:
        f.write(model)
    h.shutdown()
    other.shutdown()


def obey():
    h = connect()
    for line in sys.stdin:
        word, *numbers = line.split()
        numbers = [int(number) for number in numbers]
        try:
            if word == "size":
                said = h.get_size()
            elif word == "read":
                at, length = numbers
                found = set(h.pread(length, at))
                said = found.pop() if len(found) == 1 else "mixed"
            elif word == "write":
                at, length, byte = numbers
                h.pwrite(bytes([byte]) * length, at)
                said = "done"
            elif word == "flush":
                h.flush()
                said = "done"
        except nbd.Error as error:
            said = error.errno
        print(said, flush=True)
    h.shutdown()


def write():
    h = connect()
    blocks = h.get_size() // BLOCK
    dice = random.Random(11)
    number = 0
    while True:
        for _ in range(dice.randrange(1, 40)):
            number += 1
            h.pwrite(number.to_bytes(8, "little") * (BLOCK // 8), (number % blocks) * BLOCK)
        h.flush()
        print(number, flush=True)


def check():
    # Numbers went around the blocks; of each block the last flushed number at least is there.
    flushed = int(sys.argv[3])
    h = connect()
    blocks = h.get_size() // BLOCK
    for block in range(blocks):
        data = h.pread(BLOCK, block * BLOCK)
        number = int.from_bytes(data[:8], "little")
        assert data == number.to_bytes(8, "little") * (BLOCK // 8), f"block {block} is torn"
        want = flushed - (flushed - block) % blocks
        if want > 0:
            assert number >= want and number % blocks == block, (block, number, want)
    h.shutdown()


{"session": session, "write": write, "check": check, "obey": obey}[what]()
print("all good")
