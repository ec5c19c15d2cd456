//! `-s` and `-S`, whose order on the line counts.

use clap::{Arg, ArgAction, ArgMatches, Command, Error};
use serde::{Deserialize, Serialize};

const ASCENDING: &str = "sort-ascending";
const DESCENDING: &str = "sort-descending";

/// Properties to sort by, the most important first, and whether each sorts downwards. Spelled out, since a derived
/// definition would give two lists that do not say how they interleave.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SortKeys {
    pub(crate) keys: Vec<(String, bool)>,
}

impl clap::FromArgMatches for SortKeys {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut found = Vec::new();
        for (id, is_descending) in [(ASCENDING, false), (DESCENDING, true)] {
            let (Some(values), Some(indices)) = (matches.get_many::<String>(id), matches.indices_of(id)) else {
                continue;
            };
            found.extend(indices.zip(values).map(|(index, value)| (index, value.clone(), is_descending)));
        }
        found.sort_by_key(|(index, ..)| *index);
        Ok(Self { keys: found.into_iter().map(|(_, name, is_descending)| (name, is_descending)).collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for SortKeys {
    fn augment_args(command: Command) -> Command {
        let arg = |id: &'static str, short, help: &'static str| {
            Arg::new(id).short(short).value_name("PROPERTY").action(ArgAction::Append).help(help)
        };
        command
            .arg(arg(ASCENDING, 's', "Sort by this property; may be given several times, the most important first"))
            .arg(arg(DESCENDING, 'S', "Sort by this property downwards"))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args, FromArgMatches};

    use super::*;

    #[test]
    fn keys_keep_their_order_on_the_line() {
        let command = SortKeys::augment_args(Command::new("list"));
        let matches = command.get_matches_from(["list", "-S", "used", "-s", "name", "-S", "refer"]);
        let keys = SortKeys::from_arg_matches(&matches).unwrap().keys;
        assert_eq!(keys, [("used".to_owned(), true), ("name".to_owned(), false), ("refer".to_owned(), true)]);
    }
}
