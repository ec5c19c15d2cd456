//! Verbs of OpenZFS's tools: those that Cenote does not have yet, and the spellings of "help" and "version".
//!
//! Scripts and fingers know OpenZFS's verbs. One that is missing here is named as missing, with status 1 and no proposal: the
//! nearest verb by spelling may do the opposite (`send` is near `set`). Words that no tool has are wrong usage, status 2.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Tools that the binary is when it is called by their names.
pub(crate) const TOOLS: [&str; 4] = ["zpool", "zfs", "zdb", "zstream"];

/// Verbs of `zpool` up to OpenZFS 2.4, short forms included, that are not among our commands.
const ZPOOL: [&str; 19] = [
    "attach",
    "checkpoint",
    "condense",
    "ddtprune",
    "detach",
    "events",
    "initialize",
    "iostat",
    "offline",
    "online",
    "prefetch",
    "reguid",
    "reopen",
    "replace",
    "resilver",
    "scrub",
    "split",
    "trim",
    "wait",
];

/// Verbs of `zfs` up to OpenZFS 2.4, short forms included, that are not among our commands.
const ZFS: [&str; 16] = [
    "allow",
    "change-key",
    "jail",
    "load-key",
    "program",
    "project",
    "rewrite",
    "share",
    "unallow",
    "unjail",
    "unload-key",
    "unshare",
    "unzone",
    "upgrade",
    "wait",
    "zone",
];

/// Verbs of `zstream` up to OpenZFS 2.4 that are not among our commands.
const ZSTREAM: [&str; 1] = ["raw"];

/// The verb of OpenZFS's that an error of the grammar is about and that Cenote lacks, as `zfs program`.
pub(crate) fn missing(argv: &[OsString], error: &clap::Error) -> Option<String> {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return None;
    }
    let Some(ContextValue::String(verb)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let at = argv.iter().position(|word| word.to_str() == Some(verb))?;
    let has_verb = |tool: &&str| match *tool {
        "zpool" => ZPOOL.contains(&verb.as_str()),
        "zfs" => ZFS.contains(&verb.as_str()),
        "zstream" => ZSTREAM.contains(&verb.as_str()),
        _ => false,
    };
    let tool = argv[..at].iter().rev().filter_map(|word| word.to_str()).find(has_verb)?;
    Some(format!("{tool} {verb}"))
}

/// The error without proposals of other verbs.
pub(crate) fn without_proposals(mut error: clap::Error) -> clap::Error {
    if error.kind() == ErrorKind::InvalidSubcommand {
        error.remove(ContextKind::SuggestedSubcommand);
        error.remove(ContextKind::Suggested);
    }
    error
}

/// An argument vector whose first word is the program, with the spellings that OpenZFS's tools have for help and version made
/// ours: `-?` is `--help`, `help VERB` is `VERB --help`, and `-V` and `--version` of a tool are its verb `version`.
pub(crate) fn spelt(mut argv: Vec<OsString>) -> Vec<OsString> {
    // After `--` words mean themselves.
    let options = argv.iter().position(|word| word == "--").unwrap_or(argv.len());
    argv[..options].iter_mut().filter(|word| *word == "-?").for_each(|word| *word = "--help".into());
    let is_tool = argv.get(1).and_then(|word| word.to_str()).is_some_and(|word| TOOLS.contains(&word));
    let verb = if is_tool { 2 } else { 1 };
    match argv.get(verb).and_then(|word| word.to_str()) {
        Some("help") => {
            argv.remove(verb);
            argv.push("--help".into());
        }
        Some("-V" | "--version") if is_tool && argv[1] != "zdb" => argv[verb] = "version".into(),
        _ => {}
    }
    argv
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::request::Request;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    fn refused(line: &str) -> (Vec<OsString>, clap::Error) {
        let argv = words(line);
        let error = Request::try_parse_from(&argv).unwrap_err();
        (argv, error)
    }

    #[test]
    fn no_verb_is_both_here_and_missing() {
        for (tool, verbs) in [("zpool", &ZPOOL[..]), ("zfs", &ZFS), ("zstream", &ZSTREAM)] {
            let grammar = Request::command();
            let ours = grammar.find_subcommand(tool).unwrap();
            for verb in verbs {
                assert!(ours.find_subcommand(verb).is_none(), "{tool} {verb}");
                let search = if tool == "zstream" { "" } else { "-d zfs " };
                let (argv, error) = refused(&format!("cenote {tool} {search}{verb} -r x/y@z"));
                assert!(missing(&argv, &error).is_some_and(|name| name.ends_with(verb)), "{tool} {verb}");
            }
        }
    }

    #[test]
    fn a_typing_slip_gets_usage_and_no_other_verb() {
        for line in ["cenote zfs sedn p", "cenote zpool lits", "cenote zfs attach x", "cenote lss x"] {
            let (argv, error) = refused(line);
            assert_eq!(missing(&argv, &error), None, "{line}");
            let text = without_proposals(error).render().to_string();
            assert!(text.contains("Usage:") && !text.contains("tip:"), "{line}: {text}");
        }
    }

    #[test]
    fn help_and_version_are_known_by_all_their_spellings() {
        for (line, same) in [
            ("cenote help", "cenote --help"),
            ("cenote help zfs list", "cenote zfs list --help"),
            ("cenote zfs help list", "cenote zfs list --help"),
            ("cenote zpool -?", "cenote zpool --help"),
            ("cenote zfs list -?", "cenote zfs list --help"),
            ("cenote zfs -V", "cenote zfs version"),
            ("cenote zpool --version", "cenote zpool version"),
            ("cenote zdb -V", "cenote zdb -V"),
            ("cenote ls help -- -?", "cenote ls help -- -?"),
        ] {
            assert_eq!(spelt(words(line)), words(same), "{line}");
        }
    }
}
