//! The macro by which a crate declares its tunables.

/// Declares a struct of tunables: its comment, and for each field the effect as a comment, the type, the default, the unit, the
/// [`Domain`](crate::Domain) and the moment ([`When`](crate::When)). Where the default is computed, its sentence follows.
///
/// ```
/// cenote_kstat::tunables! {
///     /// The tunables of an example.
///     pub struct Tunables {
///         /// Seconds that a txg stays open at most.
///         zfs_txg_timeout: u64 = 5, "s", Number(1, 3600), AtOpen;
///         /// Whether it is checked.
///         cenote_checks: bool = true, "", Switch, AtOpen;
///     }
/// }
/// let mut settings = cenote_kstat::Settings::of(&[Tunables::TABLE]);
/// settings.set_from("zfs_txg_timeout=7s")?;
/// assert_eq!(Tunables::default().with(&settings).zfs_txg_timeout, 7);
/// # Ok::<(), cenote_kstat::TunableError>(())
/// ```
#[macro_export]
macro_rules! tunables {
    (
        $(#[doc = $about:literal])+
        $(#[derive($($derive:ident),+)])?
        $visible:vis struct $name:ident {
            $(
                $(#[doc = $effect:literal])+
                $field:ident: $type:ty = $default:expr, $unit:literal, $domain:expr, $when:ident
                $(, computed $computed:literal)?;
            )+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq, Eq)]
        $(#[derive($($derive),+)])?
        $visible struct $name {
            $($(#[doc = $effect])+ pub $field: $type,)+
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)+ }
            }
        }

        impl $name {
            /// The records.
            $visible const TABLE: &'static [$crate::Tunable] = {
                #[allow(unused_imports, reason = "not all kinds have to occur")]
                use $crate::Domain::{Number, Power, Switch, Words};
                &[$($crate::Tunable {
                    name: stringify!($field),
                    unit: $unit,
                    default: {
                        const DEFAULT: $type = $default;
                        DEFAULT as u64
                    },
                    computed: {
                        let _computed = None::<&'static str>;
                        $(let _computed = Some($computed);)?
                        _computed
                    },
                    domain: $domain,
                    effect: concat!($($effect),+).trim_ascii(),
                    when: $crate::When::$when,
                },)+]
            };

            /// These values, and in the place of some of them those that were given.
            #[must_use]
            $visible fn with(mut self, settings: &$crate::Settings) -> Self {
                $(if let Some(number) = settings.given(stringify!($field)) {
                    self.$field = $crate::TunableValue::from_number(number);
                })+
                self
            }

            /// The values as numbers, by name.
            #[must_use]
            $visible fn numbers(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($field), $crate::TunableValue::number(self.$field)),)+]
            }

            /// Sets one of them.
            ///
            /// # Errors
            /// There is none of that name, or the value is none that it may have; then nothing is changed.
            $visible fn set(&mut self, name: &str, value: &str) -> Result<(), $crate::TunableError> {
                let tunable = $crate::find(&[Self::TABLE], name)?;
                let number = tunable.parse(value)?;
                match tunable.name {
                    $(stringify!($field) => self.$field = $crate::TunableValue::from_number(number),)+
                    _ => {}
                }
                Ok(())
            }
        }
    };
}

/// Declares an enum whose values have words, for a tunable that takes one of them.
#[macro_export]
macro_rules! words {
    (
        $(#[doc = $about:literal])+
        $visible:vis enum $name:ident {
            $($(#[doc = $meaning:literal])+ $variant:ident = $word:literal,)+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $visible enum $name {
            $($(#[doc = $meaning])+ $variant,)+
        }

        impl $name {
            /// The words for the values, in their order.
            $visible const WORDS: &'static [&'static str] = &[$($word),+];
            const ALL: &'static [Self] = &[$(Self::$variant),+];
        }

        impl $crate::TunableValue for $name {
            fn from_number(number: u64) -> Self {
                // The last one for what no tunable accepts.
                Self::ALL[(number as usize).min(Self::ALL.len() - 1)]
            }

            fn number(self) -> u64 {
                self as u64
            }
        }
    };
}
