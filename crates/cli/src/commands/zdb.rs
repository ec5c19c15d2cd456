//! `cenote zdb`: OpenZFS's grammar over `cenote inspect`. The figures are those of `zdb`, the text is that of `inspect`.

use std::path::PathBuf;

use clap::ArgAction;

use crate::commands::inspect::report::Common;
use crate::commands::inspect::reports::{blocks, datasets, dedup, history, object, spacemaps, zil};
use crate::commands::inspect::{bp, config, labels, uberblocks};
use crate::commands::verify;
use crate::prelude::*;

/// Entries of a list: `zdb` has no limit; this one is for hostile pools.
const LIMIT: usize = 1 << 20;

/// Look inside a pool, in the grammar of OpenZFS's zdb; the text is that of `cenote inspect`.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// Count blocks by type; twice: by level too.
    #[arg(short = 'b', action = ArgAction::Count)]
    blocks: u8,
    /// With -b: verify all checksums (`cenote verify`).
    #[arg(short = 'c', action = ArgAction::Count)]
    checksums: u8,
    /// The configuration.
    #[arg(short = 'C')]
    config: bool,
    /// Datasets; twice: objects; with objects: those, with block pointers from -ddddd on.
    #[arg(short = 'd', action = ArgAction::Count)]
    datasets: u8,
    /// Dedup and clone tables; twice: entries.
    #[arg(short = 'D', action = ArgAction::Count)]
    dedup: u8,
    /// History.
    #[arg(short = 'h', action = ArgAction::Count)]
    history: u8,
    /// Intent logs; twice: their records.
    #[arg(short = 'i', action = ArgAction::Count)]
    intent_logs: u8,
    /// Labels of a device; with -u: uberblocks.
    #[arg(short = 'l', action = ArgAction::Count)]
    labels: u8,
    /// Do not load space maps.
    #[arg(short = 'L')]
    no_space: bool,
    /// Metaslabs and space maps; twice: histograms.
    #[arg(short = 'm', action = ArgAction::Count)]
    metaslabs: u8,
    /// The object of a path: DATASET PATH.
    #[arg(short = 'O')]
    path: bool,
    /// Read a block: POOL VDEV:OFFSET:SIZE or VDEV:OFFSET:SIZE:FLAGS.
    #[arg(short = 'R')]
    read: bool,
    /// The uberblock; twice: all of them.
    #[arg(short = 'u', action = ArgAction::Count)]
    uberblocks: u8,
    /// Accepted: pools are looked for in any case.
    #[arg(short = 'e')]
    exported: bool,
    /// Look for devices there.
    #[arg(short = 'p', value_name = "DIR|FILE")]
    paths: Vec<PathBuf>,
    /// Accepted: what is wrong never ends a report.
    #[arg(short = 'A', action = ArgAction::Count)]
    ignore: u8,
    /// Accepted: numbers are exact.
    #[arg(short = 'P')]
    exact: bool,
    /// Accepted: labels are not printed where only their exit status is wanted.
    #[arg(short = 'q')]
    quiet: bool,
    /// More of everything.
    #[arg(short = 'v', action = ArgAction::Count)]
    verbose: u8,
    /// This text.
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
    /// The report as JSON; not an option of OpenZFS's.
    #[arg(long)]
    json: bool,
    /// A pool, dataset or device; then objects, vdevs or a block.
    #[arg(value_name = "POOL|DATASET|DEVICE", required = true, allow_negative_numbers = true)]
    words: Vec<String>,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let context = &context.with(&Search { paths: args.paths.clone(), force: true });
    let common = || Common { search: Search::default(), json: args.json, limit: LIMIT };
    let Some((source, rest)) = args.words.split_first() else { return Err(usage("which pool?")) };
    let source = source.clone();
    // `POOL/` is the root dataset, `POOL` the pool.
    let pool = source.split(['/', '@']).next().unwrap_or(&source).to_owned();
    if args.labels > 0 {
        let uberblocks = args.uberblocks > 0;
        // Scripts know a device without labels by OpenZFS's status 2.
        let text = format!("no valid label on '{source}'");
        return match labels::run(context, labels::Args { common: common(), uberblocks, source }).await {
            Ok(Outcome::Failed) => Err(usage(text)),
            Err(error) => Err(usage(causes(&error))),
            good => good,
        };
    }
    if args.read {
        let [block] = rest else { return Err(usage("-R wants POOL VDEV:OFFSET:SIZE[:FLAGS]")) };
        return bp::run(context, bp::Args::of_place(common(), pool, block.clone())).await;
    }
    if args.path {
        let [path] = rest else { return Err(usage("-O wants DATASET PATH")) };
        let objects = vec![format!("/{}", path.trim_start_matches('/'))];
        let dataset = source.trim_end_matches('/').to_owned();
        let verbose = args.verbose > 0 || args.datasets > 4;
        return object::run(context, object::Args { common: common(), verbose, dump: false, dataset, objects }).await;
    }
    let is_default = args.blocks | args.checksums | args.datasets | args.dedup | args.history | args.intent_logs == 0
        && args.metaslabs == 0
        && args.uberblocks == 0
        && !args.config;
    let mut worst = Outcome::Good;
    let mut note = |outcome: Outcome| {
        if outcome == Outcome::Failed {
            worst = Outcome::Failed;
        }
    };
    if args.config || is_default {
        note(config::run(context, config::Args { common: common(), source: pool.clone() }).await?);
    }
    if args.uberblocks > 0 {
        let limit = if args.uberblocks > 1 { LIMIT } else { 1 };
        let common = Common { limit, ..common() };
        let args = uberblocks::Args { common, verbose: true, check: false, source: pool.clone() };
        note(uberblocks::run(context, args).await?);
    }
    if args.datasets > 0 || is_default {
        let is_dataset = source != pool;
        if args.datasets < 2 && rest.is_empty() && !is_dataset {
            note(datasets::run(context, datasets::Args { common: common(), pool: pool.clone() }).await?);
        } else {
            let dataset = if is_dataset { source.trim_end_matches('/').to_owned() } else { format!("{pool}/$MOS") };
            let objects = rest.iter().map(|range| object_range(range)).collect::<Result<_>>()?;
            let verbose = args.datasets > 4 || args.verbose > 0;
            let args = object::Args { common: common(), verbose, dump: false, dataset, objects };
            note(object::run(context, args).await?);
        }
    }
    if args.metaslabs > 0 {
        let number = |word: &String| word.parse().map_err(|_| usage(format!("'{word}' is not a number")));
        let vdev = rest.first().map(number).transpose()?;
        let metaslabs = rest.iter().skip(1).map(|word| number(word).map(|number| number as usize));
        let args = spacemaps::Args {
            common: common(),
            verbose: args.metaslabs > 1,
            entries: None,
            pool: pool.clone(),
            vdev,
            metaslabs: metaslabs.collect::<Result<_>>()?,
        };
        note(spacemaps::run(context, args).await?);
    }
    if args.intent_logs > 0 {
        let args = zil::Args { common: common(), verbose: args.intent_logs > 1, all: false, source: source.clone() };
        note(zil::run(context, args).await?);
    }
    if args.dedup > 0 {
        let args = dedup::Args { common: common(), verbose: args.dedup > 1, pool: pool.clone() };
        note(dedup::run(context, args).await?);
    }
    if args.history > 0 {
        let args = history::Args { common: common(), verbose: args.history > 1, pool: pool.clone() };
        note(history::run(context, args).await?);
    }
    if args.checksums > 0 {
        note(verify::run(context, verify::Args::of(pool.clone(), args.no_space, args.json)).await?);
    } else if args.blocks > 0 || is_default {
        let verbose = args.blocks > 1;
        let args = blocks::Args { common: common(), verbose, no_space: args.no_space, pool: pool.clone() };
        note(blocks::run(context, args).await?);
    }
    Ok(worst)
}

/// A range in zdb's form, `FROM:TO[:FLAGS]` (an end of -1 is the last object), in that of `inspect object`.
fn object_range(text: &str) -> Result<String> {
    let mut parts = text.split(':');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(_), None, _) => Ok(text.to_owned()),
        (Some(from), Some(to), None) => {
            Ok(format!("{from}-{}", if to == "-1" { u64::MAX.to_string() } else { to.to_owned() }))
        }
        _ => Err(usage(format!("not supported yet: flags in a range of objects ('{text}')"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_objects_are_translated() {
        assert_eq!(object_range("7").unwrap(), "7");
        assert_eq!(object_range("7:9").unwrap(), "7-9");
        assert_eq!(object_range("0:-1").unwrap(), format!("0-{}", u64::MAX));
        assert!(object_range("0:-1:fd").is_err());
    }
}
