//! Which constant each known column is multiplied with for each missing one.
//!
//! With `U` the unknown data columns and as many known parity rows `r` of generator `g(r)`:
//!
//! ```text
//! sum over U of g(r)^e(u) D(u)  =  parity(r) + sum over known data of g(r)^e(i) D(i)         e(i) = n-1-i
//!           [A] D(U)            =  syndrome
//!               D(U)            =  [A]^-1 syndrome
//! ```
//!
//! Each unknown is thus a sum of known parity and known data. A missing parity column is the sum of its definition, with
//! the unknowns replaced by those sums.

use super::gf::{inverse, multiply, power_of_two};
use super::{Column, PARITY_MAX, RaidzError};

/// The coefficients of one row's reconstruction. Outputs are numbered in the order of the missing columns.
pub(super) struct Plan {
    parity_count: usize,
    data_count: usize,
    /// For output `o`, the factor of parity row `r` in `0..3` (zero if it is not used).
    parity_factors: [[u8; PARITY_MAX]; PARITY_MAX],
    /// For output `o`, the factor that each syndrome's data part has: a known data column counts with the sum over `r`
    /// of `data_factors[o][r] * g(r)^e`.
    data_factors: [[u8; PARITY_MAX]; PARITY_MAX],
}

impl Plan {
    pub(super) fn new(parity_count: usize, columns: &[Column<'_>]) -> Result<Self, RaidzError> {
        let (parity, data) = columns.split_at(parity_count);
        let data_count = data.len();
        let mut unknown = [0; PARITY_MAX];
        let mut unknown_count = 0;
        for (index, column) in data.iter().enumerate() {
            if !matches!(column, Column::Known(_)) {
                if let Some(slot) = unknown.get_mut(unknown_count) {
                    *slot = index;
                }
                unknown_count += 1;
            }
        }
        let mut rows = [0; PARITY_MAX];
        let mut row_count = 0;
        for (row, column) in parity.iter().enumerate() {
            if matches!(column, Column::Known(_)) {
                rows[row_count] = row;
                row_count += 1;
            }
        }
        if unknown_count > row_count {
            return Err(RaidzError::TooManyMissing { unknown: unknown_count, parity: row_count });
        }
        let (unknown, rows) = (&unknown[..unknown_count], &rows[..unknown_count]);
        let mut matrix = [[0; PARITY_MAX]; PARITY_MAX];
        for (line, row) in matrix.iter_mut().zip(rows) {
            for (cell, column) in line.iter_mut().zip(unknown) {
                *cell = weight(*row, data_count, *column);
            }
        }
        let solved = invert(matrix, unknown_count);

        let mut plan =
            Self { parity_count, data_count, parity_factors: Default::default(), data_factors: Default::default() };
        // The factors of unknown `u`, spread from the used rows to all rows.
        let spread = |u: usize| {
            let mut factors = [0; PARITY_MAX];
            for (slot, row) in rows.iter().enumerate() {
                factors[*row] = solved[u][slot];
            }
            factors
        };
        let missing = columns.iter().enumerate().filter(|(_, column)| matches!(column, Column::Missing(_)));
        for (output, (index, _)) in missing.enumerate() {
            let (Some(of_parity), Some(of_data)) =
                (plan.parity_factors.get_mut(output), plan.data_factors.get_mut(output))
            else {
                // Missing parity plus missing data is at most the parity there is, or the check above has failed.
                return Err(RaidzError::Shape("more missing columns than parity columns"));
            };
            if let Some(data_index) = index.checked_sub(parity_count) {
                let u = unknown.iter().position(|column| *column == data_index).unwrap_or_default();
                *of_parity = spread(u);
                *of_data = spread(u);
            } else {
                of_data[index] = 1;
                for (u, column) in unknown.iter().enumerate() {
                    let by = weight(index, data_count, *column);
                    for (row, factor) in spread(u).into_iter().enumerate() {
                        of_parity[row] ^= multiply(by, factor);
                        of_data[row] ^= multiply(by, factor);
                    }
                }
            }
        }
        Ok(plan)
    }

    /// For the known column at `index`, its factor in each output.
    pub(super) fn coefficients(&self, index: usize) -> [u8; PARITY_MAX] {
        let Some(data_index) = index.checked_sub(self.parity_count) else {
            return self.parity_factors.map(|factors| factors[index]);
        };
        let weights: [u8; PARITY_MAX] = std::array::from_fn(|row| weight(row, self.data_count, data_index));
        self.data_factors.map(|factors| {
            factors.into_iter().zip(weights).fold(0, |sum, (factor, weight)| sum ^ multiply(factor, weight))
        })
    }
}

/// The weight of data column `column` of `data_count` in parity row `row`: `(2^row)^(n-1-column)`.
fn weight(row: usize, data_count: usize, column: usize) -> u8 {
    power_of_two(row * (data_count - 1 - column))
}

/// The inverse of the leading `size` x `size` part, which is invertible (see the theory), by Gauss and Jordan.
fn invert(mut matrix: [[u8; PARITY_MAX]; PARITY_MAX], size: usize) -> [[u8; PARITY_MAX]; PARITY_MAX] {
    let mut result = [[0; PARITY_MAX]; PARITY_MAX];
    for (i, line) in result.iter_mut().enumerate() {
        line[i] = 1;
    }
    for pivot in 0..size {
        if let Some(other) = (pivot..size).find(|line| matrix[*line][pivot] != 0) {
            matrix.swap(pivot, other);
            result.swap(pivot, other);
        }
        let scale = inverse(matrix[pivot][pivot]);
        for i in 0..size {
            matrix[pivot][i] = multiply(matrix[pivot][i], scale);
            result[pivot][i] = multiply(result[pivot][i], scale);
        }
        for line in (0..size).filter(|line| *line != pivot) {
            let by = matrix[line][pivot];
            for i in 0..size {
                matrix[line][i] ^= multiply(matrix[pivot][i], by);
                result[line][i] ^= multiply(result[pivot][i], by);
            }
        }
    }
    result
}
