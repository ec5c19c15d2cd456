//! Sizes as people write them.

use super::{ValueError, invalid};

/// A size in bytes, with an optional suffix: `K`, `M`, `G`, `T`, `P`, `E` (with `B` or `iB` after it if one likes), each
/// 1024 times the one before.
///
/// # Errors
/// It is no size.
pub fn parse_size(text: &str) -> Result<u64, ValueError> {
    let bad = || invalid(format!("'{text}' is not a size"));
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let suffix = suffix.to_ascii_uppercase();
    let suffix = suffix.strip_suffix("IB").or_else(|| suffix.strip_suffix('B')).unwrap_or(&suffix);
    let shift = match suffix {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        "P" => 50,
        "E" => 60,
        _ => return Err(bad()),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1 << shift).ok_or_else(bad);
    }
    let value = number.parse::<f64>().map_err(|_| bad())? * (1_u64 << shift) as f64;
    if value < u64::MAX as f64 { Ok(value as u64) } else { Err(bad()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_suffixes_and_fractions() {
        assert_eq!(parse_size("512"), Ok(512));
        assert_eq!(parse_size("1.5K"), Ok(1536));
        assert_eq!(parse_size("64m"), Ok(64 << 20));
        assert_eq!(parse_size("2GiB"), Ok(2 << 30));
        for wrong in ["", "x", "1X", "16E", "1..5K", "-1"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
