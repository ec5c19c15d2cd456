//! Setters of options.

/// Declares setters that take options by value: a name, its arguments, and the change.
macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident($self:ident $(, $argument:ident: $type:ty)*) { $change:expr; })*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $name(mut $self $(, $argument: $type)*) -> Self {
            $change;
            $self
        }
    )*};
}
pub(crate) use setters;
