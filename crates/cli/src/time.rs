//! Times as OpenZFS shows them, in the local time zone.

use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;

/// `Mon Jan  1 10:00 2025`: the `%a %b %e %k:%M %Y` of properties and holds.
pub(crate) fn long(seconds: u64) -> String {
    format(seconds, "%a %b %e %k:%M %Y")
}

/// In a form of `strftime`; the number where it is no time.
pub(crate) fn format(seconds: u64, form: &str) -> String {
    i64::try_from(seconds).map_or_else(|_| seconds.to_string(), |seconds| signed(seconds, form))
}

/// The same, of times before 1970 too.
pub(crate) fn signed(seconds: i64, form: &str) -> String {
    match Timestamp::from_second(seconds) {
        Ok(time) => time.to_zoned(TimeZone::system()).strftime(form).to_string(),
        Err(_) => seconds.to_string(),
    }
}

/// The seconds since 1970 of a date, or a date with hours and minutes, of local time, as `zpool scrub -S` takes them; `is_end`: of the end of that
/// day or minute.
pub(crate) fn of_date(text: &str, is_end: bool) -> anyhow::Result<u64> {
    let with_time = DateTime::strptime("%Y-%m-%d %H:%M", text).map(|time| (time, 60));
    let parsed = with_time.or_else(|_| Date::strptime("%Y-%m-%d", text).map(|date| (date.into(), 24 * 60 * 60)));
    let time =
        parsed.and_then(|(time, unit_s)| Ok((time.to_zoned(TimeZone::system())?.timestamp().as_second(), unit_s)));
    let (seconds, unit_s) =
        time.map_err(|error| crate::outcome::usage(format!("Failed to parse the date '{text}': {error}")))?;
    let seconds = if is_end { seconds + unit_s } else { seconds };
    Ok(u64::try_from(seconds).unwrap_or(0))
}

/// The time now for `-T`: `u` in seconds since 1970, `d` as `date` writes it.
pub(crate) fn stamp(handle: &cenote_server::Handle, how: &str) -> anyhow::Result<String> {
    let seconds = handle.unix_time().as_secs();
    match how.bytes().next() {
        Some(b'u') => Ok(seconds.to_string()),
        Some(b'd') => Ok(format(seconds, "%a %b %e %H:%M:%S %Z %Y")),
        _ => Err(crate::outcome::usage(format!("invalid timestamp format '{how}': u or d"))),
    }
}
