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
    let (number, suffix) = text.split_at(digits);
    let unit = suffix.to_ascii_uppercase();
    let unit = match unit.strip_suffix("IB").or_else(|| unit.strip_suffix('B')) {
        Some(unit) => unit,
        None => &unit,
    };
    let shift = match unit {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        "P" => 50,
        "E" => 60,
        "Z" => 70,
        _ if number.is_empty() => return Err(bad()),
        _ => return Err(invalid(format!("invalid numeric suffix '{suffix}'"))),
    };
    if !number.contains('.') {
        if number.is_empty() {
            return Err(bad());
        }
        // A number of digits alone fails to parse where it is too large only.
        let whole = number.parse::<u64>().map_err(|_| too_large())?;
        let bytes = u128::from(whole).checked_shl(shift).and_then(|bytes| u64::try_from(bytes).ok());
        return bytes.filter(|_| shift < u64::BITS).ok_or_else(too_large);
    }
    let value = number.parse::<f64>().map_err(|_| bad())? * 2_f64.powi(shift.cast_signed());
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
        for wrong in ["", "x", "1X", "16E", "1..5K", "-1"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
