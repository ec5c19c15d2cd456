//! Vector kernels: the one module of this crate with `unsafe`.
//!
//! Two things here are unsafe: calling a function compiled for instructions that the processor may lack, and loading or
//! storing a vector through a pointer. The first is settled by kernel values that can only be had after asking the
//! processor; the second by cutting slices to lengths that the loops divide evenly, asserted before each loop.
//!
//! Every kernel has a scalar twin elsewhere in the crate and falls back on it for the bytes after its last whole step.

#[cfg(target_arch = "x86_64")]
pub(crate) mod fletcher;
#[cfg(target_arch = "x86_64")]
pub(crate) mod parity;

#[cfg(not(target_arch = "x86_64"))]
pub(crate) mod fletcher {
    //! No vector kernels on this architecture yet; the portable one is used.

    /// Never made.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Kernel {}

    impl Kernel {
        pub(crate) fn available() -> Vec<Self> {
            Vec::new()
        }

        pub(crate) fn name(self) -> &'static str {
            match self {}
        }

        pub(crate) fn run(
            self,
            _: &[u8],
            _: Option<&mut [u8]>,
            _: cenote_format::Endian,
        ) -> (crate::checksum::words::Words, usize) {
            match self {}
        }
    }
}
#[cfg(not(target_arch = "x86_64"))]
pub(crate) mod parity {
    //! No vector kernels on this architecture yet; the portable ones are used.

    /// Never made.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Kernel {}

    impl Kernel {
        pub(crate) fn available() -> Vec<Self> {
            Vec::new()
        }

        pub(crate) fn name(self) -> &'static str {
            match self {}
        }

        pub(crate) fn run(self, _: &[crate::raidz::scalar::Input<'_>], _: &mut [&mut [u8]], _: bool) {
            match self {}
        }
    }
}
