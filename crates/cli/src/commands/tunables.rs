//! `cenote tunables`.

use anyhow::bail;
use cenote_listing::{TunableList, tunables};
use cenote_server::tunables::settings;

use crate::prelude::*;

/// List the tunables with their values, or explain some of them.
///
/// A tunable is given another value by '--tunable NAME=VALUE', in front of the command that is to use it or behind it. With that
/// option this command shows the values that such a command would have. 'at open': a value counts from the opening of a pool on; 'live': it can also
/// be changed in a pool that a mount or a server has ('--pool').
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
    /// Give tunables of this pool, which a mount or a server has, other values: those that count 'live', until the pool is closed.
    #[arg(long = "pool", value_name = "POOL", requires = "names")]
    pool: Option<String>,
    /// Explain these; with --pool: NAME=VALUE.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
}

impl Args {
    /// True if the process that has the pool does it.
    pub(crate) const fn is_for_server(&self) -> bool {
        self.pool.is_some()
    }
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let Args { is_scripted, is_exact, is_json, pool, names } = args;
    if let Some(name) = pool {
        let mut settings = settings();
        if let Err(error) = names.iter().try_for_each(|text| settings.set_from(text)) {
            return Err(usage(error.to_string()));
        }
        let Some(pool) = context.served() else {
            context.check_reachable(&name).await?;
            bail!("no mount or server has '{name}': give '--tunable' to a command that opens it");
        };
        context.check_served(&name)?;
        pool.tune(settings).await?;
        return Ok(Outcome::Good);
    }
    let form = TunableList { is_scripted, is_exact, is_json };
    context.out(tunables(context.tunables(), context.memory_bytes(), &names, form)?)?;
    Ok(Outcome::Good)
}
