//! Text for terminals: names, properties and messages may come from pools, and a pool's maker chooses them.
//!
//! A terminal obeys control characters: they set its title, move its cursor over what stands there, answer as if the user had typed.
//! So none gets there but line ends, tabs, and the colours that this program sets itself. All that a command writes goes through
//! [`super::Output`], which does this; a name that stands in a line of its own form goes through `one_line` as well, so that
//! it cannot make a second one.

use std::borrow::Cow;

use cenote_listing::lines;

/// The colours of [`super::Output::paint`] and of errors.
const COLOURS: [&str; 5] = ["\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[34m", "\x1b[0m"];

/// Bytes for a terminal: as [`lines`], with colours kept, and what is not UTF-8 escaped.
pub(super) fn for_terminal(bytes: &[u8]) -> Cow<'_, [u8]> {
    let is_plain = |byte: &u8| matches!(byte, b'\n' | b'\t' | b' '..=b'~');
    if bytes.iter().all(is_plain) {
        return Cow::Borrowed(bytes);
    }
    let mut shown = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        let mut rest = chunk.valid();
        while let Some(at) = rest.find('\x1b') {
            shown.push_str(&lines(&rest[..at]));
            rest = &rest[at..];
            let colour = COLOURS.iter().find(|colour| rest.starts_with(**colour)).copied();
            shown.push_str(colour.unwrap_or("\\u{1b}"));
            rest = &rest[colour.map_or(1, str::len)..];
        }
        shown.push_str(&lines(rest));
        for byte in chunk.invalid() {
            shown.push_str(&format!("\\x{byte:02x}"));
        }
    }
    Cow::Owned(shown.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_line_ends_tabs_and_our_colours_and_no_other_control() {
        let shown = |bytes: &[u8]| String::from_utf8(for_terminal(bytes).into_owned()).unwrap();
        assert_eq!(shown(b"pool\tONLINE\n"), "pool\tONLINE\n");
        assert_eq!(shown("\x1b[31merror\x1b[0m: é\n".as_bytes()), "\x1b[31merror\x1b[0m: é\n");
        assert_eq!(shown(b"a\x1b]0;pwn\x07b"), "a\\u{1b}]0;pwn\\u{7}b");
        assert_eq!(shown(b"\x1b[2J\x1b[8m\r\x08\x7f"), "\\u{1b}[2J\\u{1b}[8m\\r\\u{8}\\u{7f}");
        // The one-byte form of ESC [, as a character and as a byte.
        assert_eq!(shown("\u{9b}1m".as_bytes()), "\\u{9b}1m");
        assert_eq!(shown(b"\x9b1m"), "\\x9b1m");
    }
}
