//! `zpool add`.

use std::path::PathBuf;

use cenote_listing::Names;
use cenote_server::verbs::AddRequest;

use crate::args::parse_size;
use crate::pools::NameArgs;
use crate::prelude::*;

/// Add vdevs, spares and cache devices to a pool.
///
/// VDEV is as for `zpool create`. Vdevs other than log devices stay in the pool for good.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of OpenZFS's")]
pub(crate) struct Args {
    /// As all options that begin with --allow together.
    #[arg(short = 'f')]
    force: bool,
    /// Only show what the pool would be.
    #[arg(short = 'n')]
    dry_run: bool,
    /// Set a property of the new vdevs: ashift.
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    properties: Vec<String>,
    /// Add devices that are part of another pool.
    #[arg(long)]
    allow_in_use: bool,
    /// Add vdevs that are not as redundant as the rest.
    #[arg(long)]
    allow_replication_mismatch: bool,
    /// Add vdevs with another sector size than the rest.
    #[arg(long)]
    allow_ashift_mismatch: bool,
    /// Make files that do not exist, of this size.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    #[command(flatten)]
    names: NameArgs,
    /// The pool.
    pool: String,
    /// The vdevs.
    #[arg(required = true, value_name = "VDEV")]
    vdevs: Vec<String>,
    /// The folder in which the command was given: a server works in another one.
    #[arg(skip = std::env::current_dir().unwrap_or_default())]
    folder: PathBuf,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let names = Names::from(args.names);
    let request = AddRequest {
        pool: args.pool,
        vdevs: args.vdevs,
        folder: args.folder,
        properties: args.properties,
        size_bytes: args.size,
        allow_in_use: args.force || args.allow_in_use,
        allow_replication_mismatch: args.force || args.allow_replication_mismatch,
        allow_ashift_mismatch: args.force || args.allow_ashift_mismatch,
    };
    if args.dry_run {
        let text = request.describe(context, &|leaf| names.of(leaf, leaf.path.as_deref(), false)).await?;
        let pool = &request.pool;
        context.out(format!("would update '{pool}' to the following configuration:\n\n\t{pool}\n{text}"))?;
    } else {
        request.add(context).await?;
    }
    Ok(Outcome::Good)
}
