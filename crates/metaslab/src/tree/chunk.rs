//! A window of [`CHUNK_UNITS`] units: a list of runs while they are few, a bitmap when they are many.

/// Units of a chunk. A bitmap of it is 4 KiB; positions fit 16 bits.
pub(super) const CHUNK_UNITS: u32 = 1 << 15;
/// Power-of-two classes of a run's length within a chunk: 2^0 to 2^15.
pub(super) const CLASSES: usize = 16;
/// A list longer than this would take more memory than the bitmap.
const RUNS_MAX: usize = WORDS * 8 / size_of::<Run>();
/// Runs at which a bitmap becomes a list again: half of the limit, so that one change does not turn it back and forth.
const RUNS_BACK: u32 = RUNS_MAX as u32 / 2;
const WORDS: usize = CHUNK_UNITS as usize / 64;

/// First and last unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    first: u16,
    last: u16,
}

impl Run {
    fn new(start: u32, end: u32) -> Self {
        debug_assert!(start < end);
        debug_assert!(end <= CHUNK_UNITS);
        Self { first: start as u16, last: (end - 1) as u16 }
    }

    fn span(self) -> (u32, u32) {
        (u32::from(self.first), u32::from(self.last) + 1)
    }
}

#[derive(Clone, Debug)]
enum Body {
    Runs(Vec<Run>),
    Bits(Box<[u64; WORDS]>),
}

/// Which units of a window are in the set. Positions count from the window's start; ranges are half open.
#[derive(Clone, Debug)]
pub(super) struct Chunk {
    body: Body,
    units: u32,
    runs: u32,
    /// Runs that lie in this chunk alone, by length. The tree keeps it, since only the tree knows which do.
    pub(super) lengths: [u16; CLASSES],
}

/// By how much a full list grows: by half, but never past the size of a bitmap.
const fn growth(len: usize) -> usize {
    let (half, left) = (len / 2 + 2, RUNS_MAX - len);
    if half < left { half } else { left }
}

/// Bits `start..end` of a word, both at most 64.
const fn mask(start: u32, end: u32) -> u64 {
    let upto = if end >= 64 { u64::MAX } else { (1 << end) - 1 };
    upto & (u64::MAX << start)
}

fn next_one(bits: &[u64; WORDS], from: u32) -> Option<u32> {
    if from >= CHUNK_UNITS {
        return None;
    }
    let mut word = from as usize / 64;
    let mut left = bits[word] & (u64::MAX << (from % 64));
    while left == 0 {
        word += 1;
        left = *bits.get(word)?;
    }
    Some(word as u32 * 64 + left.trailing_zeros())
}

/// The first unit not in the set from `from` on; the window's end if there is none.
fn next_zero(bits: &[u64; WORDS], from: u32) -> u32 {
    if from >= CHUNK_UNITS {
        return CHUNK_UNITS;
    }
    let mut word = from as usize / 64;
    let mut left = !bits[word] & (u64::MAX << (from % 64));
    while left == 0 {
        word += 1;
        match bits.get(word) {
            Some(next) => left = !next,
            None => return CHUNK_UNITS,
        }
    }
    word as u32 * 64 + left.trailing_zeros()
}

/// Where the run that holds `at` begins.
fn start_of(bits: &[u64; WORDS], at: u32) -> u32 {
    let mut word = at as usize / 64;
    let mut left = !bits[word] & mask(0, at % 64);
    while left == 0 {
        if word == 0 {
            return 0;
        }
        word -= 1;
        left = !bits[word];
    }
    word as u32 * 64 + 64 - left.leading_zeros()
}

fn fill(bits: &mut [u64; WORDS], start: u32, end: u32, value: bool) {
    let mut at = start;
    while at < end {
        let word = at / 64;
        let stop = end.min(word * 64 + 64);
        let mask = mask(at % 64, stop - word * 64);
        if value {
            bits[word as usize] |= mask;
        } else {
            bits[word as usize] &= !mask;
        }
        at = stop;
    }
}

impl Chunk {
    pub(super) const fn new() -> Self {
        Self { body: Body::Runs(Vec::new()), units: 0, runs: 0, lengths: [0; CLASSES] }
    }

    pub(super) const fn units(&self) -> u32 {
        self.units
    }

    /// Memory beside the struct itself.
    pub(super) fn heap_bytes(&self) -> usize {
        match &self.body {
            Body::Runs(runs) => runs.capacity() * size_of::<Run>(),
            Body::Bits(_) => WORDS * 8,
        }
    }

    /// The run that ends after `at`: the one that holds it, or the first after it.
    pub(super) fn next(&self, at: u32) -> Option<(u32, u32)> {
        match &self.body {
            Body::Runs(runs) => {
                let index = runs.partition_point(|run| u32::from(run.last) < at);
                runs.get(index).map(|run| run.span())
            }
            Body::Bits(bits) => {
                let found = next_one(bits, at)?;
                let start = if found == at { start_of(bits, at) } else { found };
                Some((start, next_zero(bits, found)))
            }
        }
    }

    /// The run that holds `at`.
    pub(super) fn run_at(&self, at: u32) -> Option<(u32, u32)> {
        self.next(at).filter(|(start, _)| *start <= at)
    }

    /// Adds a range of which nothing is there.
    pub(super) fn set(&mut self, start: u32, end: u32) {
        debug_assert!(start < end && end <= CHUNK_UNITS, "a change lies in its chunk");
        debug_assert!(self.next(start).is_none_or(|(first, _)| first >= end), "nothing of what is added is there");
        if let Body::Runs(runs) = &mut self.body {
            let index = runs.partition_point(|run| u32::from(run.last) < start);
            let left = index > 0 && runs[index - 1].span().1 == start;
            let right = runs.get(index).is_some_and(|run| u32::from(run.first) == end);
            match (left, right) {
                (true, true) => {
                    runs[index - 1].last = runs[index].last;
                    runs.remove(index);
                }
                (true, false) => runs[index - 1].last = (end - 1) as u16,
                (false, true) => runs[index].first = start as u16,
                (false, false) if runs.len() < RUNS_MAX => {
                    if runs.len() == runs.capacity() {
                        runs.reserve_exact(growth(runs.len()));
                    }
                    runs.insert(index, Run::new(start, end));
                }
                (false, false) => self.make_bits(),
            }
        }
        match &mut self.body {
            Body::Runs(runs) => self.runs = runs.len() as u32,
            Body::Bits(bits) => {
                let left = start > 0 && bits[(start - 1) as usize / 64] >> ((start - 1) % 64) & 1 == 1;
                let right = end < CHUNK_UNITS && bits[end as usize / 64] >> (end % 64) & 1 == 1;
                fill(bits, start, end, true);
                self.runs = self.runs + 1 - u32::from(left) - u32::from(right);
                if self.runs <= RUNS_BACK {
                    self.make_runs();
                }
            }
        }
        self.units += end - start;
        debug_assert!(self.units <= CHUNK_UNITS, "a chunk has no more than all of its units");
        debug_assert!(self.runs > 0 && self.runs <= self.units, "a run has a unit");
        debug_assert!(self.heap_bytes() <= WORDS * 8, "a chunk takes no more than its bitmap would (invariant 3)");
    }

    /// Removes a range of which all is there.
    pub(super) fn clear(&mut self, start: u32, end: u32) {
        if let Body::Runs(runs) = &mut self.body {
            let index = runs.partition_point(|run| u32::from(run.last) < start);
            let (first, stop) = runs[index].span();
            debug_assert!(first <= start && end <= stop);
            match (first < start, end < stop) {
                (false, false) => {
                    runs.remove(index);
                    if runs.len() * 4 < runs.capacity() {
                        runs.shrink_to(runs.len() * 2);
                    }
                }
                (true, false) => runs[index].last = (start - 1) as u16,
                (false, true) => runs[index].first = end as u16,
                (true, true) if runs.len() < RUNS_MAX => {
                    runs[index].last = (start - 1) as u16;
                    if runs.len() == runs.capacity() {
                        runs.reserve_exact(growth(runs.len()));
                    }
                    runs.insert(index + 1, Run::new(end, stop));
                }
                (true, true) => self.make_bits(),
            }
        }
        match &mut self.body {
            Body::Runs(runs) => self.runs = runs.len() as u32,
            Body::Bits(bits) => {
                let left = start > 0 && bits[(start - 1) as usize / 64] >> ((start - 1) % 64) & 1 == 1;
                let right = end < CHUNK_UNITS && bits[end as usize / 64] >> (end % 64) & 1 == 1;
                fill(bits, start, end, false);
                self.runs = self.runs + u32::from(left) + u32::from(right) - 1;
                if self.runs <= RUNS_BACK {
                    self.make_runs();
                }
            }
        }
        debug_assert!(end - start <= self.units, "what is removed was there");
        self.units -= end - start;
        debug_assert_eq!(self.units == 0, self.runs == 0, "units are in runs");
        debug_assert!(self.heap_bytes() <= WORDS * 8, "a chunk takes no more than its bitmap would (invariant 3)");
    }

    fn make_bits(&mut self) {
        let Body::Runs(runs) = &self.body else { return };
        let mut bits = Box::new([0; WORDS]);
        for run in runs {
            let (start, end) = run.span();
            fill(&mut bits, start, end, true);
        }
        self.body = Body::Bits(bits);
    }

    fn make_runs(&mut self) {
        let mut runs = Vec::with_capacity(self.runs as usize);
        let mut at = 0;
        while let Some((start, end)) = self.next(at) {
            runs.push(Run::new(start, end));
            at = end;
        }
        debug_assert_eq!(runs.len(), self.runs as usize);
        self.body = Body::Runs(runs);
    }
}
