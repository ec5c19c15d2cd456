//! The portable inner loop of parity, and its input.

use super::PARITY_MAX;
use super::gf::REDUCTION;

/// A known column's bytes over some span, and its factor in each output.
#[derive(Clone, Copy)]
pub(crate) struct Input<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) coefficients: [u8; PARITY_MAX],
}

/// The portable kernel, from byte `start` on. Written over small arrays that compilers turn into vector code.
pub(crate) fn scalar(inputs: &[Input<'_>], outputs: &mut [&mut [u8]], start: usize) {
    const STEP: usize = 64;
    for (row, output) in outputs.iter_mut().enumerate() {
        let rest = output.get_mut(start..).unwrap_or_default();
        for (index, target) in rest.chunks_mut(STEP).enumerate() {
            let at = start + index * STEP;
            let mut sums = [0_u8; STEP];
            for input in inputs {
                let mut product = [0_u8; STEP];
                match input.bytes[at..].first_chunk::<STEP>() {
                    Some(chunk) => product = *chunk,
                    None => product[..target.len()].copy_from_slice(&input.bytes[at..at + target.len()]),
                }
                let mut coefficient = input.coefficients[row];
                loop {
                    if coefficient & 1 == 1 {
                        sums.iter_mut().zip(&product).for_each(|(sum, byte)| *sum ^= byte);
                    }
                    coefficient >>= 1;
                    if coefficient == 0 {
                        break;
                    }
                    for byte in &mut product {
                        *byte = (*byte << 1) ^ (REDUCTION & (*byte >> 7).wrapping_neg());
                    }
                }
            }
            target.copy_from_slice(&sums[..target.len()]);
        }
    }
}
