//! `zpool split`.

use std::path::PathBuf;

use anyhow::bail;
use cenote_listing::Names;
use cenote_server::verbs::Splitting;

use crate::pools::NameArgs;
use crate::prelude::*;

/// Make a pool of its own of one leg of each mirror, with all that the first pool has.
///
/// DEVICEs are the legs that the new pool gets: paths, names that `zpool status` shows, or guids. Of each mirror without one it gets the last. All vdevs for
/// data have to be mirrors; log, cache and spare devices stay with the first pool, which may be in use. The new pool is exported, unless -R is given.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    names: NameArgs,
    /// Only show what the new pool would be.
    #[arg(short = 'n')]
    dry_run: bool,
    /// Load the keys of the new pool. No process keeps keys here, so a pool with encrypted datasets is refused; '--key' gives one to a command.
    #[arg(short = 'l', requires = "root")]
    load_keys: bool,
    /// Import the new pool, with mount points below this folder. Nothing is mounted by that.
    #[arg(short = 'R', value_name = "ROOT")]
    root: Option<String>,
    /// Set a property of the new pool.
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    properties: Vec<String>,
    /// The pool.
    pool: String,
    /// The new pool's name.
    #[arg(value_name = "NEWPOOL")]
    new_name: String,
    /// The devices.
    #[arg(value_name = "DEVICE")]
    devices: Vec<String>,
    /// The folder in which the command was given: a server works in another one.
    #[arg(skip = std::env::current_dir().unwrap_or_default())]
    folder: PathBuf,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    if args.properties.iter().any(|setting| !setting.contains('=')) {
        bail!("not supported yet: mount options; nothing is mounted by a split");
    }
    let names = Names::from(args.names);
    let splitting = Splitting {
        pool: args.pool,
        new_name: args.new_name,
        devices: args.devices,
        folder: args.folder,
        settings: args.properties,
        altroot: args.root,
        loads_keys: args.load_keys,
    };
    if args.dry_run {
        let text = splitting.describe(context, &|leaf| names.of(leaf, leaf.path.as_deref(), false)).await?;
        let pool = &splitting.new_name;
        context.out(format!("would create '{pool}' with the following layout:\n\n\t{pool}\n{text}"))?;
    } else {
        splitting.carry_out(context).await?;
    }
    Ok(Outcome::Good)
}
