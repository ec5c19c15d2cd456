//! The rooms of the syncer: the fields of each, and the files that add functions to it.

use std::path::Path;

use anyhow::Result;

use super::source::modules;

/// The rooms, by the names of their types.
const ROOMS: &[&str] = &["Syncer", "Mos", "Blocks", "Devices", "Jobs", "Zil", "InTxg"];

/// A room, measured.
pub(super) struct Room {
    pub(super) name: &'static str,
    pub(super) fields: usize,
    /// Files with an `impl` block of its own, not of a trait.
    pub(super) files: usize,
}

/// Measures the rooms in `crates/spa`.
pub(super) fn rooms(root: &Path) -> Result<Vec<Room>> {
    let modules = modules(&root.join("crates/spa"))?;
    let codes: Vec<&str> = modules.values().map(|source| source.code.as_str()).collect();
    let room = |name: &&'static str| Room {
        name,
        fields: codes.iter().find_map(|code| fields(code, name)).unwrap_or(0),
        files: codes.iter().filter(|code| has_functions(code, name)).count(),
    };
    Ok(ROOMS.iter().map(room).collect())
}

/// The fields of the struct `name`, if the code defines it.
fn fields(code: &str, name: &str) -> Option<usize> {
    let mut lines =
        code.lines().skip_while(|line| !line.split_once("struct ").is_some_and(|(_, rest)| opens(rest, name)));
    lines.next()?;
    // Attributes and continued types are indented further or begin with other signs.
    let is_field = |line: &&str| {
        let name = line.strip_prefix("    ").and_then(|rest| rest.split(':').next()).unwrap_or_default();
        line.contains(':') && name.starts_with(|letter: char| letter.is_alphabetic())
    };
    Some(lines.take_while(|line| *line != "}").filter(is_field).count())
}

fn has_functions(code: &str, name: &str) -> bool {
    code.lines().any(|line| {
        let rest = line.strip_prefix("impl").unwrap_or_default();
        let rest =
            if rest.starts_with('<') { rest.split_once("> ").map_or("", |(_, rest)| rest) } else { rest.trim_start() };
        opens(rest, name)
    })
}

/// True if a text is `name`, with or without parameters, and the brace of its block.
fn opens(text: &str, name: &str) -> bool {
    let rest = text.strip_prefix(name).unwrap_or_default();
    rest.ends_with('{') && !rest.contains(" for ") && rest.starts_with([' ', '<'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_and_functions_of_a_type_are_counted_and_no_traits() {
        let code = "pub(crate) struct Mos<'a> {\n    #[allow(x)]\n    pub(crate) a: A<\n        b::C,\n    >,\n    d: D,\n}\nimpl<'a> Mos<'a> {\n}";
        assert_eq!(fields(code, "Mos"), Some(2));
        assert_eq!(fields(code, "Mo"), None);
        assert!(has_functions(code, "Mos") && !has_functions("impl Drop for Mos {", "Mos"));
        assert!(has_functions("impl InTxg<'_> {", "InTxg") && !has_functions("impl Moss {", "Mos"));
    }
}
