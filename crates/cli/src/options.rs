//! Options of OpenZFS's tools that Cenote's verbs lack.
//!
//! A script that gives one means something by it. So it is refused as wrong usage, status 2, and named as missing with what to do instead:
//! the tip of the parser would name an option that is called alike and does something else.

use std::ffi::OsString;

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// An option that a verb of OpenZFS's has and ours has not: tool, verb (none of `zdb`), option, and what to do instead.
type Missing = (&'static str, &'static str, &'static str, &'static str);

const POWER: &str = "the power of a disk's slot is switched by 'ledctl' or the files of /sys/class/enclosure";
const REWINDS: &str =
    "'zpool export POOL', then 'zpool import -F POOL'; with '-nF' it only says whether that would work";
const CACHE_FILE: &str =
    "the variable CENOTE_CACHE names another list of imported pools, and '-d' a folder or device to look at";
const OF_ZDB: &str = "OpenZFS's 'zdb' has it";

/// Options of the manual pages up to OpenZFS 2.4, and those that its programs take without naming them.
const MISSING: [Missing; 34] = [
    ("zpool", "clear", "-F", REWINDS),
    ("zpool", "clear", "-n", REWINDS),
    ("zpool", "clear", "-X", REWINDS),
    ("zpool", "clear", "--power", POWER),
    ("zpool", "export", "-F", "'-f' exports a pool in use; one that is suspended is given up by it"),
    ("zpool", "import", "-c", CACHE_FILE),
    ("zpool", "import", "-l", "'--key DATASET=FILE' loads a key for each command that needs it"),
    ("zpool", "import", "-V", "'--allow-missing' reads a pool without devices that it would need"),
    ("zpool", "import", "-E", "'zpool import' does not start what keeps a pool; nothing has to be left out"),
    ("zpool", "import", "-i", "name the pool, by its name or guid"),
    ("zpool", "status", "-c", "run the program beside it, for the devices that 'zpool status -P' names"),
    ("zpool", "status", "-d", "'zpool status' counts errors of all reads; none bypass the cache here"),
    ("zpool", "status", "--power", POWER),
    ("zdb", "", "-B", "'zfs send -w' writes a stream that is as raw"),
    ("zdb", "", "-E", "'cenote inspect bp' reads a block by its place; OpenZFS's 'zdb' takes a pointer apart"),
    ("zdb", "", "-F", "'cenote --rewind recent zdb' opens an earlier txg"),
    ("zdb", "", "-G", "'zpool history -i' and messages on standard error tell what was done"),
    ("zdb", "", "-I", "'--tunable' has the limits that this engine knows; 'cenote tunables' lists them"),
    ("zdb", "", "-K", "'--key DATASET=FILE' loads a key"),
    ("zdb", "", "-k", "'cenote --at-checkpoint zdb' opens the pool as of its checkpoint"),
    ("zdb", "", "-M", OF_ZDB),
    ("zdb", "", "-N", "give the dataset's name in place of its number"),
    ("zdb", "", "-o", "'--tunable NAME=VALUE'; 'cenote tunables' lists them"),
    ("zdb", "", "-r", "'cenote cp DATASET PATH FOLDER' copies a file out"),
    ("zdb", "", "-s", "'cenote kstat POOL' counts I/O"),
    ("zdb", "", "-S", OF_ZDB),
    ("zdb", "", "-T", OF_ZDB),
    ("zdb", "", "-t", "'cenote --at-txg TXG zdb' opens the pool as of a txg"),
    ("zdb", "", "-U", CACHE_FILE),
    ("zdb", "", "-V", "no list of imported pools is used where '-p' says where to look"),
    ("zdb", "", "-x", OF_ZDB),
    ("zdb", "", "-X", "'cenote --rewind extreme zdb' goes back as far as it takes"),
    ("zdb", "", "-Y", OF_ZDB),
    ("zdb", "", "-y", "'cenote verify POOL' checks space maps and logs against the blocks in use"),
];

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
        let is_it = |(of_tool, of_verb, name, _): &&Missing| {
            *of_tool == tool.get_name() && *of_verb == verb && (*name == option || is_with_value(option, name))
        };
        MISSING.iter().find(is_it)
    };
    let (tool, verb, name, instead) = (0..words.len()).find_map(of_tool)?;
    let space = if verb.is_empty() { "" } else { " " };
    Some(format!("not supported yet: {tool}{space}{verb} {name}\ninstead: {instead}"))
}

/// Whether it is a long option with its value, `--name=value`.
fn is_with_value(option: &str, name: &str) -> bool {
    option.split_once('=').is_some_and(|(before, _)| before == name)
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
        for (tool, verb, option, instead) in MISSING {
            assert!(instead.len() > 10, "{tool} {verb} {option}");
            let words = |search: &[&'static str], rest: &[&'static str]| {
                let verb = Some(verb).filter(|verb| !verb.is_empty());
                ["cenote"]
                    .into_iter()
                    .chain(search.iter().copied())
                    .chain([tool])
                    .chain(verb)
                    .chain(rest.iter().copied())
                    .collect::<Vec<_>>()
            };
            for line in [words(&[], &[option]), words(&[], &[option, "x"]), words(&["-d", "zfs"], &["tank", option])] {
                // Of a program that takes numbers behind a dataset some options come first.
                if tool == "zdb" && line.last() == Some(&option) && line.len() > 3 {
                    continue;
                }
                let text = told(&line).unwrap_or_else(|| panic!("{line:?}"));
                let space = if verb.is_empty() { "" } else { " " };
                assert!(
                    text.starts_with(&format!("not supported yet: {tool}{space}{verb} {option}\ninstead: ")),
                    "{text}"
                );
            }
        }
    }

    /// Advice that names a verb which is missing itself leads nowhere.
    #[test]
    fn advice_names_only_verbs_that_are_there() {
        let grammar = Request::command();
        let verbs = crate::verbs::advice();
        for text in verbs.chain(MISSING.iter().map(|(.., instead)| *instead)) {
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
        assert!(told(&["cenote", "zpool", "status", "-vc", "script"]).is_some_and(|text| text.contains("status -c\n")));
        assert!(told(&["cenote", "zpool", "status", "-q"]).is_none());
        assert!(told(&["cenote", "zfs", "list", "--power"]).is_none());
        assert!(told(&["cenote", "zpool", "status", "-v"]).is_none());
    }
}
