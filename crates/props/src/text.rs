//! Text for tables: names and messages may come from pools, and a pool's maker chooses them.

use std::borrow::Cow;
use std::error::Error;

/// Text that stays in its line, so that it cannot make a second one: control characters are escaped, line ends and tabs among them.
pub fn one_line(text: &str) -> Cow<'_, str> {
    without(text, char::is_control)
}

/// Text of several lines: control characters but line ends and tabs are escaped.
pub fn lines(text: &str) -> Cow<'_, str> {
    without(text, |c| c.is_control() && c != '\n' && c != '\t')
}

fn without(text: &str, is_bad: fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(is_bad) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_bad(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    Cow::Owned(shown)
}

/// An error with all its causes.
pub fn chain(error: &dyn Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| (*cause).source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_makes_no_second_line() {
        assert_eq!(one_line("tank\n  pool: other\x07"), "tank\\n  pool: other\\u{7}");
        assert_eq!(one_line("tänk"), "tänk");
        assert_eq!(lines("a\tb\n\u{1b}]0;x\u{7}\r\u{9b}é"), "a\tb\n\\u{1b}]0;x\\u{7}\\r\\u{9b}é");
    }
}
