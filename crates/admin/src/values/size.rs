//! Sizes as people write them.

use super::{ValueError, invalid};

/// A size in bytes, with an optional suffix: `K`, `M`, `G`, `T`, `P`, `E`, `Z` (with `B` or `iB` after it if one likes), each
/// 1024 times the one before.
///
/// # Errors
/// It is no size, in OpenZFS's words.
pub fn parse_size(text: &str) -> Result<u64, ValueError> {
    let bad = || invalid(format!("bad numeric value '{text}'"));
    let too_large = || invalid("numeric value is too large");
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, written) = text.split_at(digits);
    let suffix = written.to_ascii_uppercase();
    let suffix = suffix.strip_suffix("IB").or_else(|| suffix.strip_suffix('B')).unwrap_or(&suffix);
    let shift = match suffix {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        "P" => 50,
        "E" => 60,
        // No number of bytes of these fits.
        "Z" | "Y" if number.parse::<f64>().is_ok() => return Err(too_large()),
        _ if number.is_empty() => return Err(bad()),
        _ => return Err(invalid(format!("invalid numeric suffix '{written}'"))),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1 << shift).ok_or_else(too_large);
    }
    let value = number.parse::<f64>().map_err(|_| bad())? * (1_u64 << shift) as f64;
    if value < u64::MAX as f64 { Ok(value as u64) } else { Err(too_large()) }
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
        for (wrong, why) in [
            ("", "bad numeric value ''"),
            ("x", "bad numeric value 'x'"),
            ("1X", "invalid numeric suffix 'X'"),
            ("8Gi", "invalid numeric suffix 'Gi'"),
            ("1GG", "invalid numeric suffix 'GG'"),
            ("16E", "numeric value is too large"),
            ("1z", "numeric value is too large"),
            ("99999999999999999999", "numeric value is too large"),
            ("1..5K", "bad numeric value '1..5K'"),
            ("-1", "bad numeric value '-1'"),
        ] {
            assert_eq!(parse_size(wrong).unwrap_err().to_string(), why);
        }
    }
}
