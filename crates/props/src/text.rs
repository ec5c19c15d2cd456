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

/// An error with all its causes that say something new: many an error's text is that of its cause.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    for cause in std::iter::successors(error.source(), |cause| (*cause).source()) {
        add_cause(&mut text, &cause.to_string());
    }
    text
}

/// Adds a cause to the text of an error, if it adds something: of two places, one in the other, only the inner one is kept.
pub fn add_cause(text: &mut String, cause: &str) {
    if text.contains(cause) {
        return;
    }
    let at = text.rfind(": ").map_or(0, |at| at + 2);
    match cause.strip_prefix(&text[at..]) {
        Some(rest) if at > 0 && rest.starts_with(' ') => text.truncate(at),
        _ => text.push_str(": "),
    }
    text.push_str(cause);
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

    #[test]
    fn a_place_is_named_once() {
        let told = |text: &str, cause: &str| {
            let mut text = text.to_owned();
            add_cause(&mut text, cause);
            text
        };
        let inner = "objset 25 object 7 level 0 block 383: no space";
        assert_eq!(told("pool 'o': objset 25 object 7", inner), format!("pool 'o': {inner}"));
        assert_eq!(told("'x' does not fit", inner), format!("'x' does not fit: {inner}"));
        assert_eq!(
            told("pool 'o': objset 25 object 7", "objset 25 object 71: x"),
            "pool 'o': objset 25 object 7: objset 25 object 71: x"
        );
        assert_eq!(told("a: b", "b"), "a: b");
    }
}
