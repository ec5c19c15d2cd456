//! The inner loop of parity, by several instruction sets: up to three outputs as sums of inputs times constants.

use std::sync::LazyLock;

use super::PARITY_MAX;
use super::gf::REDUCTION;
use crate::simd;

/// A known column's bytes over some span, and its factor in each output.
#[derive(Clone, Copy)]
pub(crate) struct Input<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) coefficients: [u8; PARITY_MAX],
}

/// A way to compute parity that this processor has. The only values there are come from [`Kernel::available`], so
/// holding one proves that its instructions exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel(Choice);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    Scalar,
    Simd(simd::parity::Kernel),
}

impl Kernel {
    /// Portable code.
    pub const SCALAR: Self = Self(Choice::Scalar);

    /// Every kernel of this processor, slowest first.
    #[must_use]
    pub fn available() -> Vec<Self> {
        std::iter::once(Self::SCALAR)
            .chain(simd::parity::Kernel::available().into_iter().map(|kernel| Self(Choice::Simd(kernel))))
            .collect()
    }

    /// The fastest, chosen once.
    #[must_use]
    pub fn best() -> Self {
        static BEST: LazyLock<Kernel> = LazyLock::new(|| Kernel::available().last().copied().unwrap_or(Kernel::SCALAR));
        *BEST
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.0 {
            Choice::Scalar => "scalar",
            Choice::Simd(kernel) => kernel.name(),
        }
    }

    /// Sets each output to the sum of the inputs times their coefficients for it. All slices have one length. If
    /// `plain`, the first output's coefficients are all 1.
    pub(super) fn run(self, inputs: &[Input<'_>], outputs: &mut [&mut [u8]], plain: bool) {
        match self.0 {
            Choice::Scalar => scalar(inputs, outputs, 0),
            Choice::Simd(kernel) => kernel.run(inputs, outputs, plain),
        }
    }
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
