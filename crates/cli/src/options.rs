//! Options of OpenZFS's tools that Cenote's verbs lack.
//!
//! A script that gives one means something by it. So it is refused as wrong usage, status 2, and named as missing with what to do instead:
//! the tip of the parser would name an option that is called alike and does something else.

use std::ffi::OsString;

use cenote_admin::missing::{MissingOption, OPTIONS};
use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// The text for an option of OpenZFS's that Cenote lacks, where an error of the grammar is about one.
pub(crate) fn missing(argv: &[OsString], error: &clap::Error, grammar: &Command) -> Option<String> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else { return None };
    let words: Vec<&str> = argv.iter().skip(1).filter_map(|word| word.to_str()).collect();
    // A value of an option before it may be called as another tool.
    let of_tool = |at: usize| {
        let tool = grammar.find_subcommand(words[at])?;
        let verb = words[at + 1..].iter().find_map(|word| tool.find_subcommand(word)).map_or("", Command::get_name);
        // A long option may come with its value, `--name=value`.
        let given = option.split_once('=').map_or(option.as_str(), |(name, _)| name);
        let is_it = |(of_tool, of_verb, name, _): &&MissingOption| {
            *of_tool == tool.get_name() && *of_verb == verb && *name == given
        };
        OPTIONS.iter().find(is_it)
    };
    let (tool, verb, name, instead) = (0..words.len()).find_map(of_tool)?;
    let space = if verb.is_empty() { "" } else { " " };
    Some(format!("not supported yet: {tool}{space}{verb} {name}\ninstead: {instead}"))
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::request::Request;

    fn told(line: &[&str]) -> Option<String> {
        let argv: Vec<OsString> = line.iter().map(OsString::from).collect();
        let error = Request::try_parse_from(&argv).err()?;
        missing(&argv, &error, &Request::command())
    }

    #[test]
    fn each_option_that_is_missing_is_named_as_such_with_something_instead() {
        for (tool, verb, option, instead) in OPTIONS {
            assert!(instead.len() > 10, "{tool} {verb} {option}");
            let verb_words = if verb.is_empty() { &[][..] } else { &[verb] };
            let words = |search: &[&'static str], rest: &[&'static str]| {
                [&["cenote"], search, &[tool], verb_words, rest].concat()
            };
            for line in [words(&[], &[option]), words(&[], &[option, "x"]), words(&["-d", "zfs"], &["tank", option])] {
                // Of a program that takes numbers behind a dataset some options come first.
                if tool == "zdb" && line.last() == Some(&option) && line.len() > 3 {
                    continue;
                }
                let text = told(&line).unwrap_or_else(|| panic!("{line:?}"));
                let space = if verb.is_empty() { "" } else { " " };
                let wanted = format!("not supported yet: {tool}{space}{verb} {option}\ninstead: ");
                assert!(text.starts_with(&wanted), "{text}");
            }
        }
    }

    /// Advice that names a verb which is missing itself leads nowhere.
    #[test]
    fn advice_names_only_verbs_that_are_there() {
        let grammar = Request::command();
        for text in cenote_admin::missing::advice() {
            for quoted in text.split('\'').skip(1).step_by(2) {
                let mut words = quoted.split(' ');
                let level = match words.next() {
                    Some("cenote") => Some(&grammar),
                    Some(tool @ ("zpool" | "zfs")) => grammar.find_subcommand(tool),
                    _ => None,
                };
                let verb = words.next().filter(|word| !word.starts_with('-'));
                if let (Some(level), Some(verb)) = (level, verb) {
                    assert!(level.find_subcommand(verb).is_some(), "'{quoted}' in: {text}");
                }
            }
        }
    }

    #[test]
    fn an_option_within_others_is_found_and_one_that_nobody_has_is_not() {
        assert!(told(&["cenote", "zpool", "clear", "-nF", "tank"]).is_some_and(|text| text.contains("clear -n\n")));
        assert!(told(&["cenote", "zpool", "status", "-vd", "tank"]).is_some_and(|text| text.contains("status -d\n")));
        assert!(told(&["cenote", "zpool", "status", "-q"]).is_none());
        assert!(told(&["cenote", "zfs", "list", "--power"]).is_none());
        assert!(told(&["cenote", "zpool", "status", "-v"]).is_none());
    }
}
