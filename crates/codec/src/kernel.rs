//! The choice between portable code and the instruction sets of this processor, once for all that have kernels.

/// Declares the type `Kernel` of a module: portable code, or a kernel of this type that the processor has. The only values there are come
/// from `Kernel::available`, so holding one proves that its instructions exist.
macro_rules! kernels {
    ($(#[$doc:meta])* $simd:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Kernel(Choice);

        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum Choice {
            Scalar,
            Simd($simd),
        }

        impl Kernel {
            /// Portable code.
            pub(crate) const SCALAR: Self = Self(Choice::Scalar);

            /// Every kernel of this processor, slowest first.
            #[must_use]
            pub fn available() -> Vec<Self> {
                let simd = <$simd>::available().into_iter().map(|kernel| Self(Choice::Simd(kernel)));
                std::iter::once(Self::SCALAR).chain(simd).collect()
            }

            /// The fastest, chosen once.
            #[must_use]
            pub fn best() -> Self {
                static BEST: std::sync::LazyLock<Kernel> =
                    std::sync::LazyLock::new(|| Kernel::available().last().copied().unwrap_or(Kernel::SCALAR));
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
        }
    };
}

pub(crate) use kernels;
