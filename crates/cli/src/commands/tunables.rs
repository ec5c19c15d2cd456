//! `cenote tunables`.

use cenote_listing::{TunableList, tunables};

use crate::prelude::*;

/// List the tunables with their values, or explain some of them.
///
/// A tunable is given another value by '--tunable NAME=VALUE', in front of the command that is to use it or behind it. With that
/// option this command shows the values that such a command would have. 'at open': a value counts from the opening of a pool on.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// For scripts: no headings, and tabs between columns.
    #[arg(short = 'H')]
    is_scripted: bool,
    /// Exact numbers.
    #[arg(short = 'p', long = "parsable")]
    is_exact: bool,
    /// As JSON, with the documentation.
    #[arg(short = 'j', long = "json")]
    is_json: bool,
    /// Explain these.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let Args { is_scripted, is_exact, is_json, names } = args;
    let form = TunableList { is_scripted, is_exact, is_json };
    context.out(tunables(context.tunables(), context.memory_bytes(), &names, form)?)?;
    Ok(Outcome::Good)
}
