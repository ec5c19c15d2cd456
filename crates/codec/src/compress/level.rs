//! Levels, and the values and names of the `compression` property.

use cenote_format::enums::Compress;

/// A level as ZFS numbers it on disk (`enum zio_zstd_levels`); only zstd has any.
///
/// ```text
/// 0          inherit: none given        1..=19    zstd-1 .. zstd-19
/// 103..=123  zstd-fast-1 .. 10, then 20 .. 100 by tens, 500, 1000
/// 255        the default, zstd-3
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CompressLevel(pub u8);

const LEVEL_MAX: u8 = 19;
const FAST_FIRST: u8 = 103;
/// The fast levels in the order of their numbers.
const FAST: [i16; 21] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 500, 1000];

impl CompressLevel {
    /// None given; as a property's level it means the default.
    pub const INHERIT: Self = Self(0);
    /// The algorithm's default.
    pub const DEFAULT: Self = Self(255);

    /// The ZFS number for a level of the zstd library: 1 to 19, or the negative of a fast level.
    #[must_use]
    pub fn zstd(level: i32) -> Option<Self> {
        match u8::try_from(level) {
            Ok(level @ 1..=LEVEL_MAX) => Some(Self(level)),
            Ok(_) => None,
            Err(_) => {
                let index = FAST.iter().position(|fast| i32::from(-fast) == level)?;
                Some(Self(FAST_FIRST + index as u8))
            }
        }
    }

    /// The zstd library's level, with the default for 255. `None` for numbers that name no level.
    #[must_use]
    pub fn zstd_level(self) -> Option<i32> {
        self.resolved().zstd_level_named()
    }

    /// As [`zstd_level`](Self::zstd_level), but 255 names none: block headers hold resolved levels.
    #[must_use]
    pub(super) fn zstd_level_named(self) -> Option<i32> {
        match self.0 {
            level @ 1..=LEVEL_MAX => Some(i32::from(level)),
            level => FAST.get(usize::from(level.checked_sub(FAST_FIRST)?)).map(|fast| -i32::from(*fast)),
        }
    }

    /// The level with the default put in.
    #[must_use]
    pub fn resolved(self) -> Self {
        if self == Self::DEFAULT { Self(3) } else { self }
    }
}

/// A value of the `compression` property: an algorithm and perhaps a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Compression {
    /// The algorithm; may be `On`.
    pub kind: Compress,
    /// The level; [`CompressLevel::INHERIT`] if none was given.
    pub level: CompressLevel,
}

/// Bits of the property's value that hold the algorithm (`SPA_COMPRESSBITS`); the level stands above them.
const KIND_BITS: u32 = 7;

impl Compression {
    /// An algorithm without a level.
    #[must_use]
    pub(crate) const fn of(kind: Compress) -> Self {
        Self { kind, level: CompressLevel::INHERIT }
    }

    /// From the property's stored value.
    #[must_use]
    pub fn from_property(value: u64) -> Option<Self> {
        let kind = Compress::from_number((value & ((1 << KIND_BITS) - 1)) as u8)?;
        let level = CompressLevel(u8::try_from(value >> KIND_BITS).ok()?);
        if kind == Compress::Zstd {
            (level == CompressLevel::INHERIT || level.zstd_level().is_some()).then_some(Self { kind, level })
        } else {
            (level == CompressLevel::INHERIT).then_some(Self { kind, level })
        }
    }

    /// The property's stored value.
    #[must_use]
    #[cfg(test)]
    pub(crate) fn to_property(self) -> u64 {
        u64::from(self.kind.number()) | u64::from(self.level.0) << KIND_BITS
    }

    /// From the property's text (`on`, `gzip`, `zstd-fast-10`, ...).
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        if let Some(rest) = name.strip_prefix("zstd") {
            let level = match rest {
                "" => CompressLevel::INHERIT,
                "-fast" => CompressLevel(FAST_FIRST),
                _ => match rest.strip_prefix("-fast-") {
                    Some(number) => CompressLevel::zstd(-plain_number(number)?)?,
                    None => CompressLevel::zstd(plain_number(rest.strip_prefix('-')?)?)?,
                },
            };
            return Some(Self { kind: Compress::Zstd, level });
        }
        match name {
            "off" => Some(Self::of(Compress::Off)),
            "gzip" => Some(Self::of(Compress::Gzip6)),
            // `uncompressed`, `inherit` and `empty` are names of the number, not of the property.
            "uncompressed" | "inherit" | "empty" => None,
            _ => Compress::ALL.iter().find(|kind| kind.name() == name).map(|kind| Self::of(*kind)),
        }
    }

    /// The algorithm and level that blocks are written with: `on` is lz4 (lzjb in a pool without that feature), a
    /// level not given is the default.
    #[must_use]
    pub fn resolved(self, has_lz4: bool) -> Self {
        let kind = match self.kind {
            Compress::On if has_lz4 => Compress::Lz4,
            Compress::On => Compress::Lzjb,
            kind => kind,
        };
        let level = match kind {
            Compress::Zstd if self.level == CompressLevel::INHERIT => CompressLevel::DEFAULT,
            Compress::Zstd => self.level,
            _ => CompressLevel::INHERIT,
        };
        Self { kind, level }
    }
}

/// A number without sign or leading zero.
fn plain_number(text: &str) -> Option<i32> {
    (text.starts_with(|first: char| matches!(first, '1'..='9')) && text.bytes().all(|byte| byte.is_ascii_digit()))
        .then(|| text.parse().ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_those_of_openzfs() {
        let value = |name| Compression::from_name(name).map(Compression::to_property);
        assert_eq!(value("on"), Some(1));
        assert_eq!(value("off"), Some(2));
        assert_eq!(value("gzip"), value("gzip-6"));
        assert_eq!(value("zstd"), Some(16));
        assert_eq!(value("zstd-19"), Some(16 | 19 << 7));
        assert_eq!(value("zstd-fast"), Some(16 | 103 << 7));
        assert_eq!(value("zstd-fast-10"), Some(16 | 112 << 7));
        assert_eq!(value("zstd-fast-100"), Some(16 | 121 << 7));
        assert_eq!(value("zstd-fast-1000"), Some(16 | 123 << 7));
        for unknown in
            ["zstd-20", "zstd-0", "zstd-fast-11", "zstd-fast-", "zstd--1", "zstd-03", "gzip-0", "empty", "ON", ""]
        {
            assert_eq!(value(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn on_means_lz4_where_the_pool_has_it() {
        let on = Compression::of(Compress::On);
        assert_eq!(on.resolved(true).kind, Compress::Lz4);
        assert_eq!(on.resolved(false).kind, Compress::Lzjb);
        assert_eq!(Compression::of(Compress::Zstd).resolved(true).level.zstd_level(), Some(3));
    }
}
