//! `zpool list`: pools and their space.

use cenote_listing::{Facts, LostPool, Names, list_pools, parse_pool_columns};
use cenote_server::{ServerError, Shown};

use crate::pools::{JsonArgs, NameArgs, facts_of_several, lost_pool};
use crate::prelude::*;
use crate::time;

/// The columns that are shown unless others are asked for.
const COLUMNS: &str = "name,size,allocated,free,checkpoint,expandsize,fragmentation,capacity,dedupratio,health,altroot";

/// List pools.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Also the vdevs.
    #[arg(short = 'v')]
    verbose: bool,
    /// Tabs in place of columns, no heading.
    #[arg(short = 'H')]
    scripted: bool,
    /// Exact numbers.
    #[arg(short = 'p')]
    exact: bool,
    #[command(flatten)]
    names: NameArgs,
    #[command(flatten)]
    json: JsonArgs,
    /// Show the time first: u in seconds since 1970, d as a date.
    #[arg(short = 'T', value_name = "u|d")]
    timestamp: Option<String>,
    /// The properties to show, separated by commas; `all` for all.
    #[arg(short = 'o', value_name = "PROPERTIES", default_value = COLUMNS)]
    columns: String,
    /// The pools; and behind them after how many seconds it is done again, and how often, such as `tank 5 10`.
    #[arg(value_name = "POOL")]
    pub(super) pools: Vec<String>,
    /// It was done before: the heading is there.
    #[arg(skip)]
    #[serde(default)]
    pub(super) is_again: bool,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let form = args.json.form(args.scripted, args.exact)?;
    let stamp = args.timestamp.as_deref().map(|how| time::stamp(context.handle(), how)).transpose()?;
    let columns = parse_pool_columns(&args.columns)?;
    let (shown, mut failed) = context.open_to_show(&args.pools, false).await?;
    let (mut views, mut lost): (Vec<Facts>, Vec<LostPool>) = (Vec::new(), Vec::new());
    for pool in shown {
        match pool {
            Shown::Open(pool) => views.push(facts_of_several(context, pool)),
            Shown::Lost(pool) => lost.push(lost_pool(pool)),
            // It was not to be asked.
            Shown::Owned(owned) => return Err(ServerError::Owned(owned).into()),
        }
    }
    let trees = args.verbose.then(|| Names::from(args.names));
    let listed =
        list_pools(&views, &lost, columns, trees, form, stamp.as_deref(), &mut |text| context.err(text)).await?;
    failed |= !listed.is_whole;
    match (form.json, stamp) {
        (Some(_), _) if failed || (views.is_empty() && lost.is_empty()) => return Ok(Outcome::unless(failed)),
        (None, Some(stamp)) => context.out(format!("{stamp}\n"))?,
        _ => {}
    }
    match views.is_empty() && lost.is_empty() {
        true if args.pools.is_empty() && !args.scripted && !failed => context.out("no pools available\n")?,
        true => {}
        false if args.is_again && !args.scripted && !args.verbose && form.json.is_none() => {
            let (_, rows) = listed.text.split_once('\n').unwrap_or_default();
            context.out(rows)?;
        }
        false => context.out(listed.text)?,
    }
    Ok(Outcome::unless(failed))
}
