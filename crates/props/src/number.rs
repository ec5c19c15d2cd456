//! Numbers as OpenZFS shows them.

const UNITS: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];

/// A number in at most five characters where that is possible: the largest unit of 1024 that is not above it, and as many
/// decimals (two at most) as fit; exact multiples without decimals.
pub fn nicenum(number: u64) -> String {
    nice(number, "")
}

/// As [`nicenum`], with `B` for plain bytes.
pub fn nicebytes(bytes: u64) -> String {
    nice(bytes, "B")
}

/// So many of something: `1 file`, `2 files`.
pub fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

fn nice(number: u64, plain: &str) -> String {
    const LENGTH_MAX: usize = 5;
    let power = (number.checked_ilog2().unwrap_or(0) / 10) as usize;
    if power == 0 {
        return format!("{number}{plain}");
    }
    let (unit, scale) = (UNITS[power], 1_u64 << (10 * power));
    if number.is_multiple_of(scale) {
        return format!("{}{unit}", number / scale);
    }
    let value = number as f64 / scale as f64;
    let tries = (0..=2).rev().map(|decimals| format!("{value:.decimals$}{unit}"));
    tries.reduce(|best, next| if best.len() <= LENGTH_MAX { best } else { next }).unwrap_or_default()
}

/// A percentage of whole numbers, as columns show it.
pub fn percent(number: u64, is_exact: bool) -> String {
    if is_exact { number.to_string() } else { format!("{number}%") }
}

/// A ratio kept in hundredths.
pub fn ratio(hundredths: u64, is_exact: bool) -> String {
    let suffix = if is_exact { "" } else { "x" };
    format!("{}.{:02}{suffix}", hundredths / 100, hundredths % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_fit_in_five_characters() {
        let cases = [
            (0, "0"),
            (1023, "1023"),
            (1024, "1K"),
            (1536, "1.50K"),
            (10239, "10.0K"),
            (24576, "24K"),
            (102_400, "100K"),
            (100 << 20, "100M"),
            (105_381_888, "100M"),
            (1_048_575, "1024K"),
            (12_345_678_901, "11.5G"),
            (u64::MAX, "16.0E"),
        ];
        for (number, text) in cases {
            assert_eq!(nicenum(number), text, "{number}");
        }
        assert_eq!(nicebytes(512), "512B");
        assert_eq!(nicebytes(2048), "2K");
    }

    #[test]
    fn ratios_have_two_decimals() {
        assert_eq!(ratio(100, false), "1.00x");
        assert_eq!(ratio(1234, true), "12.34");
    }
}
