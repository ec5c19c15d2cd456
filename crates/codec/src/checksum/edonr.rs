//! Edon-R-512, as tweaked by its authors for the second SHA-3 round's rules and as ZFS uses it.
//!
//! ```text
//! state: a double pipe of two 512-bit halves C0, C1          block: 1024 bits, halves M0, M1, little-endian words
//!
//! with x * y the quasigroup product and rev the eight words in opposite order:
//!     x0 = rev M1 * M0     x1 = x0 * M1
//!     y0 = C1 * x0         y1 = y0 * x1
//!     z0 = y0 * C0         z1 = y1 * z0
//!     w0 = rev M0 * z0     w1 = w0 * z1
//!     C0 ^= M1 ^ w0        C1 ^= M0 ^ w1
//!
//! end: a 1 bit, zeros, the message's length in bits as the block's last word; the digest is C1
//! ```

const BLOCK_SIZE: usize = 128;
/// Where the length goes in the last block.
const LENGTH_OFFSET: usize = BLOCK_SIZE - 8;

/// Eight words: half a pipe, half a block.
type Half = [u64; 8];

/// An Edon-R-512 hash in progress.
#[derive(Clone)]
pub(crate) struct EdonR512 {
    pipe: [Half; 2],
    /// Bytes of a block not complete yet; the first `pending_len` count.
    pending: [u8; BLOCK_SIZE],
    pending_len: usize,
    total_len: u64,
}

impl Default for EdonR512 {
    fn default() -> Self {
        Self::new()
    }
}

impl EdonR512 {
    /// A hash of nothing yet.
    #[must_use]
    pub(crate) fn new() -> Self {
        // The initial pipe is the bytes 0x80, 0x81, ... 0xff as big-endian words.
        let mut pipe = [[0; 8]; 2];
        let mut byte = 0x80_u64;
        for word in pipe.as_flattened_mut() {
            for _ in 0..8 {
                *word = *word << 8 | byte;
                byte += 1;
            }
        }
        Self { pipe, pending: [0; BLOCK_SIZE], pending_len: 0, total_len: 0 }
    }

    /// The digest of one message.
    #[must_use]
    pub(crate) fn digest(message: &[u8]) -> [u8; 64] {
        let mut state = Self::new();
        state.update(message);
        state.finish()
    }

    /// Absorbs more of the message.
    pub(crate) fn update(&mut self, mut data: &[u8]) {
        self.total_len = self.total_len.wrapping_add(data.len() as u64);
        if self.pending_len > 0 {
            let taken = data.len().min(BLOCK_SIZE - self.pending_len);
            let (head, rest) = data.split_at(taken);
            self.pending[self.pending_len..self.pending_len + taken].copy_from_slice(head);
            self.pending_len += taken;
            data = rest;
            if self.pending_len < BLOCK_SIZE {
                return;
            }
            compress(&mut self.pipe, &self.pending);
            self.pending_len = 0;
        }
        let (blocks, rest) = data.as_chunks::<BLOCK_SIZE>();
        for block in blocks {
            compress(&mut self.pipe, block);
        }
        self.pending[..rest.len()].copy_from_slice(rest);
        self.pending_len = rest.len();
    }

    /// Pads, absorbs the length and gives the digest.
    #[must_use]
    pub(crate) fn finish(mut self) -> [u8; 64] {
        let mut block = [0; BLOCK_SIZE];
        block[..self.pending_len].copy_from_slice(&self.pending[..self.pending_len]);
        block[self.pending_len] = 0x80;
        if self.pending_len >= LENGTH_OFFSET {
            compress(&mut self.pipe, &block);
            block = [0; BLOCK_SIZE];
        }
        block[LENGTH_OFFSET..].copy_from_slice(&self.total_len.wrapping_mul(8).to_le_bytes());
        compress(&mut self.pipe, &block);
        let mut digest = [0; 64];
        for (bytes, word) in digest.chunks_exact_mut(8).zip(self.pipe[1]) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        digest
    }
}

fn compress(pipe: &mut [Half; 2], block: &[u8; BLOCK_SIZE]) {
    let mut message = [[0; 8]; 2];
    for (word, bytes) in message.as_flattened_mut().iter_mut().zip(block.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    let [m0, m1] = &message;
    let [c0, c1] = *pipe;
    let x0 = product(&reversed(m1), m0);
    let x1 = product(&x0, m1);
    let y0 = product(&c1, &x0);
    let y1 = product(&y0, &x1);
    let z0 = product(&y0, &c0);
    let z1 = product(&y1, &z0);
    let w0 = product(&reversed(m0), &z0);
    let w1 = product(&w0, &z1);
    for i in 0..8 {
        pipe[0][i] ^= m1[i] ^ w0[i];
        pipe[1][i] ^= m0[i] ^ w1[i];
    }
}

#[inline(always)]
fn reversed(half: &Half) -> Half {
    let mut out = *half;
    out.reverse();
    out
}

/// The quasigroup product: each operand passes through a linear map (sums of five of its words, rotated), each output
/// word then adds an exclusive-or of three words from either side.
#[inline(always)]
fn product(x: &Half, y: &Half) -> Half {
    let (s, t) = (left(x), right(y));
    [
        (s[0] ^ s[1] ^ s[4]).wrapping_add(t[0] ^ t[1] ^ t[5]),
        (s[0] ^ s[4] ^ s[7]).wrapping_add(t[2] ^ t[6] ^ t[7]),
        (s[1] ^ s[6] ^ s[7]).wrapping_add(t[0] ^ t[1] ^ t[3]),
        (s[2] ^ s[3] ^ s[4]).wrapping_add(t[0] ^ t[3] ^ t[4]),
        (s[0] ^ s[1] ^ s[7]).wrapping_add(t[1] ^ t[2] ^ t[5]),
        (s[3] ^ s[5] ^ s[6]).wrapping_add(t[3] ^ t[4] ^ t[6]),
        (s[2] ^ s[5] ^ s[6]).wrapping_add(t[2] ^ t[5] ^ t[7]),
        (s[2] ^ s[3] ^ s[5]).wrapping_add(t[4] ^ t[6] ^ t[7]),
    ]
}

/// The constant added to the left map's first word; its complement to the right one's.
const CONSTANT: u64 = 0xaaaa_aaaa_aaaa_aaaa;

/// The left operand's map. Sums of two and of four words occur in several sums of five, and are taken once.
#[inline(always)]
fn left(x: &Half) -> Half {
    let (x04, x17) = (x[0].wrapping_add(x[4]), x[1].wrapping_add(x[7]));
    let (x23, x56) = (x[2].wrapping_add(x[3]), x[5].wrapping_add(x[6]));
    let (outer, inner) = (x04.wrapping_add(x17), x23.wrapping_add(x56));
    [
        sum3(outer, x[2], CONSTANT),
        outer.wrapping_add(x[3]).rotate_left(5),
        outer.wrapping_add(x[6]).rotate_left(15),
        inner.wrapping_add(x[7]).rotate_left(22),
        inner.wrapping_add(x[1]).rotate_left(31),
        sum3(x04, x23, x[5]).rotate_left(40),
        sum3(x17, x56, x[0]).rotate_left(50),
        inner.wrapping_add(x[4]).rotate_left(59),
    ]
}

/// The right operand's map.
#[inline(always)]
fn right(y: &Half) -> Half {
    let (y01, y25) = (y[0].wrapping_add(y[1]), y[2].wrapping_add(y[5]));
    let (y34, y67) = (y[3].wrapping_add(y[4]), y[6].wrapping_add(y[7]));
    let (low, high) = (y01.wrapping_add(y34), y25.wrapping_add(y67));
    let (even, odd) = (y01.wrapping_add(y25), y34.wrapping_add(y67));
    [
        sum3(even, y[7], !CONSTANT),
        low.wrapping_add(y[6]).rotate_left(10),
        even.wrapping_add(y[3]).rotate_left(19),
        odd.wrapping_add(y[2]).rotate_left(29),
        low.wrapping_add(y[5]).rotate_left(36),
        high.wrapping_add(y[4]).rotate_left(44),
        high.wrapping_add(y[1]).rotate_left(48),
        odd.wrapping_add(y[0]).rotate_left(55),
    ]
}

#[inline(always)]
fn sum3(a: u64, b: u64, c: u64) -> u64 {
    a.wrapping_add(b).wrapping_add(c)
}
