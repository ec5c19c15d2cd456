//! `cenote man`: manual pages from the grammar.

use std::path::PathBuf;

use anyhow::Context as _;

use crate::prelude::*;

/// Write manual pages into a directory.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// The directory.
    dir: PathBuf,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    std::fs::create_dir_all(&args.dir).with_context(|| args.dir.display().to_string())?;
    clap_mangen::generate_to(with_synopsis(context.program()?.grammar(), "cenote"), &args.dir)
        .with_context(|| args.dir.display().to_string())?;
    Ok(Outcome::Good)
}

/// A grammar whose verbs have a synopsis with the names of values, and without the options of the whole line.
fn with_synopsis(command: clap::Command, name: &str) -> clap::Command {
    let command = command.mut_subcommands(|below| {
        let name = format!("{name} {}", below.get_name());
        with_synopsis(below, &name)
    });
    if command.has_subcommands() {
        return command;
    }
    let shown = |arg: &&clap::Arg| !arg.is_hide_set() && !arg.is_hide_long_help_set();
    let words = command.get_arguments().filter(shown).map(|arg| {
        let name = match (arg.get_short(), arg.get_long()) {
            (Some(short), _) => format!("-{short}"),
            (None, Some(long)) => format!("--{long}"),
            (None, None) => String::new(),
        };
        let takes_value = arg.is_positional() || arg.get_action().takes_values();
        let value = takes_value.then(|| match arg.get_value_names() {
            Some(names) => names.join(" "),
            None => arg.get_id().as_str().to_uppercase(),
        });
        let many = if arg.is_positional() && arg.get_num_args().is_some_and(|count| count.max_values() > 1) {
            "..."
        } else {
            ""
        };
        let word =
            [name, value.unwrap_or_default()].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ");
        if arg.is_required_set() { format!("{word}{many}") } else { format!("[{word}]{many}") }
    });
    let usage = std::iter::once(name.to_owned()).chain(words).collect::<Vec<_>>().join(" ");
    command.override_usage(usage)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_synopsis_names_values_and_leaves_out_what_any_verb_has() {
        use clap::{Arg, ArgAction, Command};
        let verb = Command::new("verb").args([
            Arg::new("dir").short('d').value_name("DIR|FILE"),
            Arg::new("all").short('a').long("all").action(ArgAction::SetTrue),
            Arg::new("memory").long("memory").hide_long_help(true),
            Arg::new("size").long("size"),
            Arg::new("pool").required(true).value_name("POOL").num_args(1..),
        ]);
        let command = with_synopsis(Command::new("tool").subcommand(verb), "tool");
        let usage = command.find_subcommand("verb").unwrap().get_overridden_usage().unwrap().to_string();
        assert_eq!(usage, "tool verb [-d DIR|FILE] [-a] [--size SIZE] POOL...");
    }
}
