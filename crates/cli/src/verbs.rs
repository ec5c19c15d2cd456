//! Verbs of OpenZFS's tools: those that Cenote does not have yet, and the spellings of "help" and "version".
//!
//! Scripts and fingers know OpenZFS's verbs. One that is missing here is named as missing, with status 1 and with what to do instead. A word
//! that no tool has is wrong usage, status 2; where it is a slip of one verb, that is named as a tip, also if it is one that is missing: the
//! nearest of ours may do the opposite.

use std::ffi::{OsStr, OsString};

use cenote_admin::missing;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Tools that the binary is when it is called by their names.
pub(crate) const TOOLS: [&str; 4] = ["zpool", "zfs", "zdb", "zstream"];

/// The text for a verb of OpenZFS's that Cenote lacks, and whether its help was asked for.
pub(crate) struct Lacking {
    pub(crate) text: String,
    pub(crate) is_help: bool,
}

/// The verb of OpenZFS's that an error of the grammar is about and that Cenote lacks, as `zfs program`, with what to do instead.
pub(crate) fn lacking(argv: &[OsString], error: &clap::Error) -> Option<Lacking> {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return None;
    }
    let Some(ContextValue::String(verb)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let at = argv.iter().position(|word| word.to_str() == Some(verb))?;
    // A value of an option behind it may be called as another tool.
    let of_tool = |word: &OsString| {
        let tool = word.to_str()?;
        missing::verbs_of(tool).iter().find(|(name, _)| name == verb).map(|(_, instead)| (tool.to_owned(), *instead))
    };
    let (tool, instead) = argv[..at].iter().find_map(of_tool)?;
    let is_help = argv[at + 1..].iter().any(|word| word == "--help");
    Some(Lacking { text: format!("not supported yet: {tool} {verb}\ninstead: {instead}"), is_help })
}

/// Letters to insert, remove, replace or swap to get from one word to the other.
fn slips(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for line in 0..=a.len() {
        for column in 0..=b.len() {
            rows[line][column] = match (line, column) {
                (0, count) | (count, 0) => count,
                _ => {
                    let replaced = rows[line - 1][column - 1] + usize::from(a[line - 1] != b[column - 1]);
                    let mut least = replaced.min(rows[line - 1][column] + 1).min(rows[line][column - 1] + 1);
                    if line > 1 && column > 1 && a[line - 1] == b[column - 2] && a[line - 2] == b[column - 1] {
                        least = least.min(rows[line - 2][column - 2] + 1);
                    }
                    least
                }
            };
        }
    }
    rows[a.len()][b.len()]
}

/// The verb that a mistyped one of a level is likely to mean: the only one that is as near.
fn meant<'a>(verb: &str, verbs: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    const WORD_MAX: usize = 20;
    if verb.len() > WORD_MAX {
        return None;
    }
    let slips_max = if verb.len() < 4 { 1 } else { 2 };
    let mut found: Vec<(usize, &str)> = verbs.map(|name| (slips(verb, name), name)).collect();
    found.sort_unstable();
    match found[..] {
        [(count, name), (next, _), ..] if count <= slips_max && count < next => Some(name),
        _ => None,
    }
}

/// The error with a tip where a verb is mistyped, and without clap's own, which may be the opposite of a verb that Cenote lacks.
pub(crate) fn with_tip(mut error: clap::Error, argv: &[OsString], grammar: &clap::Command) -> clap::Error {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return error;
    }
    error.remove(ContextKind::SuggestedSubcommand);
    error.remove(ContextKind::Suggested);
    let Some(ContextValue::String(verb)) = error.get(ContextKind::InvalidSubcommand) else { return error };
    let (verb, mut level, mut tool) = (verb.clone(), grammar, "");
    for word in argv.iter().skip(1).filter_map(|word| word.to_str()).take_while(|word| *word != verb) {
        if let Some(below) = level.find_subcommand(word) {
            (level, tool) = (below, below.get_name());
        }
    }
    let ours =
        level.get_subcommands().flat_map(|verb| std::iter::once(verb.get_name()).chain(verb.get_visible_aliases()));
    let all = ours.chain(missing::verbs_of(tool).iter().map(|(name, _)| *name));
    if let Some(name) = meant(&verb, all) {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(vec![name.to_owned()]));
    }
    error
}

/// An argument vector whose first word is the program, with the spellings that OpenZFS's tools have for help and version made
/// ours: `zpool -?` is `zpool --help`, `help VERB` is `VERB --help`, and `-V` and `--version` of a tool are its verb `version`. Behind a
/// verb `-?` and `-h` are no options there ([`is_wrong_help`]).
pub(crate) fn spelt(mut argv: Vec<OsString>) -> Vec<OsString> {
    let is_tool = argv.get(1).and_then(|word| word.to_str()).is_some_and(|word| TOOLS.contains(&word));
    let verb = if is_tool { 2 } else { 1 };
    let is_strict = is_tool && has_strict_options(&argv[1]);
    // After `--` words mean themselves.
    let options = argv.iter().position(|word| word == "--").unwrap_or(argv.len());
    let end = if is_strict { options.min(verb + 1) } else { options };
    argv[..end].iter_mut().filter(|word| *word == "-?").for_each(|word| *word = "--help".into());
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

/// The tools of which scripts expect that a wrong option ends with status 2.
fn has_strict_options(tool: &OsStr) -> bool {
    tool == "zpool" || tool == "zfs"
}

/// Whether help was asked for by a spelling that is a wrong option of `zpool` and `zfs`: they show the usage as an error.
pub(crate) fn is_wrong_help(argv: &[OsString]) -> bool {
    argv.get(1).is_some_and(|tool| has_strict_options(tool)) && !argv.iter().any(|word| word == "--help")
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
    fn no_verb_is_both_here_and_missing_and_each_has_something_instead() {
        for tool in ["zpool", "zfs", "zstream"] {
            let grammar = Request::command();
            let ours = grammar.find_subcommand(tool).unwrap();
            for (verb, instead) in missing::verbs_of(tool) {
                assert!(ours.find_subcommand(verb).is_none(), "{tool} {verb}");
                assert!(instead.len() > 10, "{tool} {verb}");
                let search = if tool == "zstream" { "" } else { "-d zfs " };
                for (rest, is_help) in [("-r x/y@z", false), ("--help", true)] {
                    let (argv, error) = refused(&format!("cenote {tool} {search}{verb} {rest}"));
                    let lacking = super::lacking(&argv, &error).unwrap();
                    assert!(lacking.text.starts_with(&format!("not supported yet: {tool} {verb}\ninstead: ")));
                    assert_eq!(lacking.is_help, is_help, "{tool} {verb} {rest}");
                }
            }
        }
    }

    #[test]
    fn a_typing_slip_gets_usage_and_the_verb_that_is_meant() {
        for (line, tip) in [
            ("cenote zfs sedn p", Some("'send'")),
            ("cenote zfs snapshto p", Some("'snapshot'")),
            ("cenote zpool stauts", Some("'status'")),
            ("cenote zpool atach x", Some("'attach'")),
            ("cenote zpool lits", Some("'list'")),
            ("cenote moutn p", Some("'mount'")),
            ("cenote zstream rwa", Some("'raw'")),
            ("cenote zfs attach x", None),
            ("cenote zfs xyzzy x", None),
            ("cenote zfs se x", Some("'set'")),
        ] {
            let (argv, error) = refused(line);
            assert!(super::lacking(&argv, &error).is_none(), "{line}");
            let text = with_tip(error, &argv, &Request::command()).render().to_string();
            assert!(text.contains("Usage:") && text.contains("tip:") == tip.is_some(), "{line}: {text}");
            assert!(tip.is_none_or(|tip| text.contains(tip)), "{line}: {text}");
        }
    }

    #[test]
    fn help_and_version_are_known_by_all_their_spellings() {
        for (line, same) in [
            ("cenote help", "cenote --help"),
            ("cenote help zfs list", "cenote zfs list --help"),
            ("cenote zfs help list", "cenote zfs list --help"),
            ("cenote zpool -?", "cenote zpool --help"),
            ("cenote zfs list -?", "cenote zfs list -?"),
            ("cenote zfs receive -- -?", "cenote zfs receive -- -?"),
            ("cenote ls -?", "cenote ls --help"),
            ("cenote zfs -V", "cenote zfs version"),
            ("cenote zpool --version", "cenote zpool version"),
            ("cenote zdb -V", "cenote zdb -V"),
            ("cenote ls help -- -?", "cenote ls help -- -?"),
        ] {
            assert_eq!(spelt(words(line)), words(same), "{line}");
        }
    }
}
