//! Times as OpenZFS shows them, in the local time zone.

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// `Mon Jan  1 10:00 2025`: the `%a %b %e %k:%M %Y` of properties and holds.
pub(crate) fn long(seconds: u64) -> String {
    format(seconds, "%a %b %e %k:%M %Y")
}

/// In a form of `strftime`; the number where it is no time.
pub(crate) fn format(seconds: u64, form: &str) -> String {
    let time = i64::try_from(seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    match time {
        Some(time) => time.to_zoned(TimeZone::system()).strftime(form).to_string(),
        None => seconds.to_string(),
    }
}
