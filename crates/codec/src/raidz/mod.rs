//! RAID-Z parity: making it, and rebuilding any missing columns from what is left.
//!
//! # Theory
//!
//! **Need.** A RAID-Z row is up to three parity columns P, Q, R over `n` data columns D(0) .. D(n-1):
//!
//! ```text
//! P = sum of            D(i)
//! Q = sum of 2^(n-1-i)  D(i)          in GF(2^8) over 0x11d, byte by byte
//! R = sum of 4^(n-1-i)  D(i)
//!
//! columns of one row (a data column may be shorter: its missing tail counts as zeros)
//!     P  ████████
//!     Q  ████████
//!     D0 ████████
//!     D1 ████████
//!     D2 ██████
//! ```
//!
//! **Shape.** Every task is one linear map: outputs (missing columns, at most three) as sums of inputs (known columns)
//! times constants. [`plan`] finds the constants by inverting a matrix of at most 3 x 3; making parity is the case where
//! all parity is missing. Rows of generators 1, 2, 4 with distinct exponents form a Vandermonde matrix, so any choice of
//! as many parity columns as there are unknown data columns can be solved.
//!
//! The bytes are then covered by spans over which the set of present columns is constant (at most one more than there
//! are distinct lengths), each done by a *kernel* in one pass: read each input once, keep all outputs in registers, write
//! each output once. So nothing needs blocking for the cache.
//!
//! **Invariants.** Kernels differ in speed alone. A known column is never written. Lengths are checked before the
//! kernels run.
//!
//! **Rejected.** One function for each combination of missing columns, as OpenZFS has: with an instruction that
//! multiplies by a constant, Horner's scheme saves nothing.

pub(crate) mod gf;
mod kernel;
mod plan;
pub(crate) mod scalar;

pub use kernel::Kernel;
use scalar::Input;

/// The most parity columns that a row can have.
pub(crate) const PARITY_MAX: usize = 3;
/// The most data columns that a row can have (one less than the field has elements, more than a vdev can have children).
pub(crate) const DATA_MAX: usize = 255;

/// One column of a row, as handed to [`reconstruct`].
#[derive(Debug)]
pub enum Column<'a> {
    /// Read and trusted.
    Known(&'a [u8]),
    /// Lost; to be rebuilt into this space, whose length is the column's.
    Missing(&'a mut [u8]),
    /// Neither known nor wanted: parity that was not read, or a lost column that the caller does not need. An unread data
    /// column still costs one parity column.
    Unread,
}

/// Why a row cannot be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RaidzError {
    /// More data columns are unknown than parity columns are known.
    #[error("{unknown} data columns are unknown, but only {parity} parity columns are known")]
    TooManyMissing {
        /// Data columns missing or unread.
        unknown: usize,
        /// Parity columns known.
        parity: usize,
    },
    /// The columns cannot form a row.
    #[error("impossible row: {0}")]
    Shape(&'static str),
}

/// Computes the parity of `data`. `parity` holds P, then Q, then R: as many as are wanted, all as long as the longest
/// data column or longer.
pub fn generate(data: &[&[u8]], parity: &mut [&mut [u8]]) -> Result<(), RaidzError> {
    generate_with(Kernel::best(), data, parity)
}

/// [`generate`] by a chosen kernel.
pub fn generate_with(kernel: Kernel, data: &[&[u8]], parity: &mut [&mut [u8]]) -> Result<(), RaidzError> {
    let parity_count = parity.len();
    let mut columns = Vec::with_capacity(parity_count + data.len());
    columns.extend(parity.iter_mut().map(|column| Column::Missing(column)));
    columns.extend(data.iter().map(|column| Column::Known(column)));
    reconstruct_with(kernel, parity_count, &mut columns)
}

/// Rebuilds every [`Column::Missing`], parity and data alike. `columns` holds `parity_count` parity columns (P, Q, R in
/// this order), then the data columns.
pub fn reconstruct(parity_count: usize, columns: &mut [Column<'_>]) -> Result<(), RaidzError> {
    reconstruct_with(Kernel::best(), parity_count, columns)
}

/// [`reconstruct`] by a chosen kernel.
pub fn reconstruct_with(kernel: Kernel, parity_count: usize, columns: &mut [Column<'_>]) -> Result<(), RaidzError> {
    check(parity_count, columns)?;
    let plan = plan::Plan::new(parity_count, columns)?;
    let mut inputs = Vec::with_capacity(columns.len());
    let mut outputs: [&mut [u8]; PARITY_MAX] = Default::default();
    let mut output_count = 0;
    for (index, column) in columns.iter_mut().enumerate() {
        match column {
            Column::Known(bytes) => {
                let coefficients = plan.coefficients(index);
                if coefficients != [0; PARITY_MAX] {
                    inputs.push(Input { bytes, coefficients });
                }
            }
            Column::Missing(bytes) => {
                outputs[output_count] = bytes;
                output_count += 1;
            }
            Column::Unread => {}
        }
    }
    let outputs = &mut outputs[..output_count];
    // Commonly all columns are of one length, and one span covers them whole.
    let len = outputs.first().map_or(0, |output| output.len());
    if inputs.iter().all(|input| input.bytes.len() == len) && outputs.iter().all(|output| output.len() == len) {
        run_span(kernel, &mut inputs, outputs);
        return Ok(());
    }
    let mut span = Vec::with_capacity(inputs.len());
    let mut start = 0;
    loop {
        let input_ends = inputs.iter().map(|input| input.bytes.len());
        let output_ends = outputs.iter().map(|output| start + output.len());
        let Some(end) = input_ends.chain(output_ends).filter(|end| *end > start).min() else {
            return Ok(());
        };
        // The outputs that reach into this span, cut off what remains of them.
        let mut targets: [&mut [u8]; PARITY_MAX] = Default::default();
        let mut rows = [0; PARITY_MAX];
        let mut count = 0;
        for (row, rest) in outputs.iter_mut().enumerate() {
            if rest.len() >= end - start {
                let (head, tail) = std::mem::take(rest).split_at_mut(end - start);
                *rest = tail;
                targets[count] = head;
                rows[count] = row;
                count += 1;
            }
        }
        span.clear();
        span.extend(inputs.iter().filter_map(|input| {
            let coefficients = std::array::from_fn(|i| if i < count { input.coefficients[rows[i]] } else { 0 });
            Some(Input { bytes: input.bytes.get(start..end)?, coefficients })
        }));
        run_span(kernel, &mut span, &mut targets[..count]);
        start = end;
    }
}

/// Runs the kernel where all slices have one length. An all-ones row is put first: kernels do that one without
/// multiplying.
fn run_span(kernel: Kernel, inputs: &mut [Input<'_>], outputs: &mut [&mut [u8]]) {
    let plain = (0..outputs.len()).find(|row| inputs.iter().all(|input| input.coefficients[*row] == 1));
    if let Some(plain) = plain
        && plain != 0
    {
        outputs.swap(0, plain);
        inputs.iter_mut().for_each(|input| input.coefficients.swap(0, plain));
    }
    kernel.run(inputs, outputs, plain.is_some());
}

/// Everything about the shapes that the rest relies on.
fn check(parity_count: usize, columns: &[Column<'_>]) -> Result<(), RaidzError> {
    if !(1..=PARITY_MAX).contains(&parity_count) {
        return Err(RaidzError::Shape("a row has one to three parity columns"));
    }
    let Some((parity, data)) = columns.split_at_checked(parity_count) else {
        return Err(RaidzError::Shape("fewer columns than parity columns"));
    };
    if data.is_empty() || data.len() > DATA_MAX {
        return Err(RaidzError::Shape("a row has 1 to 255 data columns"));
    }
    let len = |column: &Column<'_>| match column {
        Column::Known(bytes) => Some(bytes.len()),
        Column::Missing(bytes) => Some(bytes.len()),
        Column::Unread => None,
    };
    let mut parity_lens = parity.iter().filter_map(len);
    let Some(parity_len) = parity_lens.next() else {
        // Without any parity column there is nothing to make and nothing to rebuild from.
        let unknown = data.iter().filter(|column| !matches!(column, Column::Known(_))).count();
        return if unknown == 0 { Ok(()) } else { Err(RaidzError::TooManyMissing { unknown, parity: 0 }) };
    };
    if parity_lens.any(|other| other != parity_len) {
        return Err(RaidzError::Shape("parity columns differ in length"));
    }
    if data.iter().filter_map(len).any(|data_len| data_len > parity_len) {
        return Err(RaidzError::Shape("a data column is longer than the parity"));
    }
    Ok(())
}
