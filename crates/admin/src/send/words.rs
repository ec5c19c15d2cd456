//! Lines about streams, as OpenZFS writes them.

use cenote_props::number::{nicebytes, nicenum};

/// The line about one stream; `exact`: for programs.
pub(super) fn stream_line(exact: bool, to: &str, from: Option<&str>, bytes: u64) -> String {
    if exact {
        return match from {
            Some(from) => format!("incremental\t{from}\t{to}\t{bytes}"),
            None => format!("full\t{to}\t{bytes}"),
        };
    }
    let mut line = match from {
        Some(from) if from.contains(['@', '#']) => format!("send from {from} to {to}"),
        Some(from) => format!("send from @{from} to {to}"),
        None => format!("full send of {to}"),
    };
    if bytes != 0 {
        line.push_str(&format!(" estimated size is {}", nicebytes(bytes)));
    }
    line
}

/// The line about all of them. OpenZFS writes the bytes of one stream as a number.
pub(super) fn total_line(exact: bool, bytes: u64, is_one: bool) -> String {
    match (exact, is_one) {
        (true, _) => format!("size\t{bytes}"),
        (false, true) => format!("total estimated size is {}", nicenum(bytes)),
        (false, false) => format!("total estimated size is {}", nicebytes(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_openzfs() {
        assert_eq!(stream_line(false, "p@b", None, 1536), "full send of p@b estimated size is 1.50K");
        assert_eq!(stream_line(false, "p@b", None, 0), "full send of p@b");
        assert_eq!(stream_line(false, "p@b", Some("a"), 624), "send from @a to p@b estimated size is 624B");
        assert_eq!(stream_line(false, "p@b", Some("p#a"), 0), "send from p#a to p@b");
        assert_eq!(stream_line(true, "p@b", Some("p@a"), 7), "incremental\tp@a\tp@b\t7");
        assert_eq!(stream_line(true, "p@b", None, 7), "full\tp@b\t7");
        assert_eq!(total_line(true, 7, true), "size\t7");
        assert_eq!(total_line(false, 624, true), "total estimated size is 624");
        assert_eq!(total_line(false, 624, false), "total estimated size is 624B");
    }
}
