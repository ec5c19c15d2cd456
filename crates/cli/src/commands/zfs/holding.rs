//! `zfs hold` and `zfs release`.

use cenote_server::verbs::{HoldRequest, change_holds};
use cenote_server::writing::Writing;

use crate::prelude::*;

/// The snapshots, and the tag.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Held {
    /// Also snapshots of the same name of all datasets below.
    #[arg(short = 'r')]
    recursive: bool,
    /// The tag.
    tag: String,
    /// The snapshots.
    #[arg(value_name = "SNAPSHOT", required = true)]
    snapshots: Vec<String>,
}

/// The verb that keeps snapshots.
pub(super) mod hold {
    use super::*;

    /// Keep snapshots from being destroyed, until all holds on them are released.
    #[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
    pub(crate) struct Args {
        #[command(flatten)]
        held: Held,
    }

    pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
        change(context, args.held, false).await
    }
}

/// The verb that lets go of them.
pub(super) mod release {
    use super::*;

    /// Take holds off snapshots.
    #[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
    pub(crate) struct Args {
        #[command(flatten)]
        held: Held,
    }

    pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
        change(context, args.held, true).await
    }
}

async fn change(context: &Context, held: Held, releases: bool) -> Result<Outcome> {
    if !releases && held.tag.starts_with('.') {
        return Err(usage("tag may not start with '.'"));
    }
    let pool = Writing::open(context, pool_of(&held.snapshots[0])).await?;
    let Held { recursive, tag, snapshots } = held;
    let request = HoldRequest { releases, recursive, tag, snapshots };
    Ok(Outcome::unless(!change_holds(context, pool, &request).await?))
}
