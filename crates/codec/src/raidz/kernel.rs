//! The inner loop of parity, by several instruction sets: up to three outputs as sums of inputs times constants.

use super::scalar::{Input, scalar};
use crate::kernel::kernels;
use crate::simd;

kernels! {
    /// A way to compute parity that this processor has.
    simd::parity::Kernel
}

impl Kernel {
    /// Sets each output to the sum of the inputs times their coefficients for it. All slices have one length. If
    /// `plain`, the first output's coefficients are all 1.
    pub(super) fn run(self, inputs: &[Input<'_>], outputs: &mut [&mut [u8]], plain: bool) {
        match self.0 {
            Choice::Scalar => scalar(inputs, outputs, 0),
            Choice::Simd(kernel) => kernel.run(inputs, outputs, plain),
        }
    }
}
