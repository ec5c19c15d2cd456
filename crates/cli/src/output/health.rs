//! Colours of `zpool status`, as OpenZFS has them with `ZFS_COLOR`: headings bold, what is wrong in red or yellow.
//!
//! They are put on where the text is shown: it may come from the process that has the pool, which knows nothing of our terminal.

const BOLD: &str = "\x1b[1m";
const RED: &str = "\x1b[31m";
const YELLOW: &str = "\x1b[33m";
const PLAIN: &str = "\x1b[0m";

/// Headings, which end with a colon.
const HEADINGS: [&str; 8] = ["  pool:", " state:", "status:", "action:", "   see:", "  scan:", "config:", "errors:"];

/// The colour of a state.
fn colour_of(state: &str) -> Option<&'static str> {
    match state {
        "FAULTED" | "SUSPENDED" | "UNAVAIL" => Some(RED),
        "DEGRADED" | "OFFLINE" | "REMOVED" => Some(YELLOW),
        _ => None,
    }
}

/// The text with colours.
pub(super) fn coloured(text: &str) -> String {
    let mut shown = String::new();
    let mut section = "";
    for line in text.split_inclusive('\n') {
        let (line, end) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
        if let Some(heading) = HEADINGS.into_iter().find(|heading| line.starts_with(heading)) {
            section = heading;
            let rest = &line[heading.len()..];
            shown.push_str(&format!("{BOLD}{heading}{PLAIN}"));
            let colour = match section {
                "status:" => Some(YELLOW),
                " state:" => colour_of(rest.trim()),
                _ => None,
            };
            push(&mut shown, colour, rest);
        } else if section == "status:" && line.starts_with('\t') {
            push(&mut shown, Some(YELLOW), line);
        } else if section == "config:" && line.starts_with("\tNAME ") {
            push(&mut shown, Some(BOLD), line);
        } else if section == "config:" {
            row(&mut shown, line);
        } else {
            shown.push_str(line);
        }
        shown.push_str(end);
    }
    shown
}

fn push(shown: &mut String, colour: Option<&str>, text: &str) {
    match colour.filter(|_| !text.trim().is_empty()) {
        Some(colour) => shown.push_str(&format!("{colour}{text}{PLAIN}")),
        None => shown.push_str(text),
    }
}

/// A device: its state, and its counts that are not 0. The name is the first word, also where it is called as a state.
fn row(shown: &mut String, line: &str) {
    let mut word = 0;
    let mut rest = line;
    while !rest.is_empty() {
        let blanks = rest.len() - rest.trim_start().len();
        shown.push_str(&rest[..blanks]);
        rest = &rest[blanks..];
        let len = rest.find(char::is_whitespace).unwrap_or(rest.len());
        let text = &rest[..len];
        rest = &rest[len..];
        let is_count = (2..5).contains(&word) && text != "0" && text.starts_with(|first: char| first.is_ascii_digit());
        let colour = match word {
            1 => colour_of(text),
            _ => is_count.then_some(RED),
        };
        push(shown, colour, text);
        word += usize::from(!text.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_has_a_colour_and_the_words_stay() {
        let text = "  pool: DEGRADED\n state: DEGRADED\nstatus: One device is\n\tnot there.\nconfig:\n\n\tNAME  STATE  READ\n\tp  DEGRADED  0  0  0\n\t  a  UNAVAIL  0  3  0\nerrors: none\n";
        let shown = coloured(text);
        let plain = [BOLD, RED, YELLOW, PLAIN].iter().fold(shown.clone(), |text, code| text.replace(code, ""));
        assert_eq!(plain, text);
        for part in [
            "\x1b[1m  pool:\x1b[0m DEGRADED\n",
            "\x1b[1m state:\x1b[0m\x1b[33m DEGRADED\x1b[0m",
            "\x1b[33m\tnot there.\x1b[0m",
            "\tp  \x1b[33mDEGRADED\x1b[0m  0",
            "\x1b[31mUNAVAIL\x1b[0m  0  \x1b[31m3\x1b[0m  0\n",
        ] {
            assert!(shown.contains(part), "{part:?}: {shown:?}");
        }
    }
}
