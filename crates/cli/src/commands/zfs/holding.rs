//! `zfs hold` and `zfs release`.

use cenote_admin::HoldRequest;

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
    let Held { recursive, tag, snapshots } = held;
    let failed = context.carry_out(&HoldRequest { releases, recursive, tag, snapshots }).await?;
    Ok(Outcome::unless(failed > 0))
}
