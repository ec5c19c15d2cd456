//! `zfs create`.

use cenote_admin::CreateRequest;

use crate::prelude::*;

/// Make a file system, or with -V a volume.
///
/// The root directory of a new file system belongs to the user and group of the process that runs this command. For a volume as much is reserved as it takes when all of it is written, unless -s is given.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Make what is missing above it too.
    #[arg(short = 'p')]
    parents: bool,
    /// Accepted for the sake of scripts: nothing is mounted by this.
    #[arg(short = 'u')]
    keep_unmounted: bool,
    /// Set a property.
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    properties: Vec<String>,
    /// Make a volume of this size; up to whole blocks.
    #[arg(short = 'V', value_name = "SIZE")]
    volume: Option<String>,
    /// The volume's block size; 16K where nothing speaks for more.
    #[arg(short = 'b', value_name = "BLOCKSIZE")]
    block_size: Option<String>,
    /// Reserve nothing for the volume.
    #[arg(short = 's')]
    sparse: bool,
    /// Make nothing; with -v or -P say what would be made.
    #[arg(short = 'n')]
    dry_run: bool,
    /// Say what is made, with its properties.
    #[arg(short = 'v')]
    verbose: bool,
    /// Say it for scripts: words between tabs.
    #[arg(short = 'P')]
    parsable: bool,
    /// The file system or volume.
    dataset: String,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    if args.volume.is_none() && (args.sparse || args.block_size.is_some()) {
        return Err(usage("'-s' and '-b' can only be used when creating a volume"));
    }
    if args.volume.is_some() && args.keep_unmounted {
        return Err(usage("'-u' can only be used when creating a filesystem"));
    }
    let tells = |properties: &[(String, String)]| context.output().out(report(&args, properties));
    let request = CreateRequest {
        name: args.dataset.clone(),
        properties: args.properties.clone(),
        volume_size: args.volume.clone(),
        block_size: args.block_size.clone(),
        is_sparse: args.sparse,
        parents: args.parents,
        owner: context.owner(),
        is_dry: args.dry_run,
        tells: if args.verbose || args.parsable { Some(&tells) } else { None },
    };
    context.carry_out(&request).await?;
    Ok(Outcome::Good)
}

/// The text about what is made, or would be.
fn report(args: &Args, properties: &[(String, String)]) -> String {
    let name = &args.dataset;
    let words = |made: &str, text: &str| match (args.parsable, args.dry_run) {
        (true, _) => format!("{made}\t{name}\n"),
        (false, true) => format!("would {text} {name}\n"),
        (false, false) => format!("{text} {name}\n"),
    };
    let mut told = String::new();
    if args.parents {
        told.push_str(&words("create_ancestors", "create ancestors of"));
    }
    told.push_str(&words("create", "create"));
    for (property, value) in properties {
        told.push_str(&match args.parsable {
            true => format!("property\t{property}\t{value}\n"),
            false => format!("\t{property}={value}\n"),
        });
    }
    told
}
