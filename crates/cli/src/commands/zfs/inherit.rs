//! `zfs inherit`.

use anyhow::bail;
use cenote_admin::inherit_property;
use cenote_admin::values::inherited_property;
use cenote_server::writing::{Writing, line};

use crate::prelude::*;

/// Have datasets inherit a property from above.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Also the datasets below.
    #[arg(short = 'r')]
    recursive: bool,
    /// Go back to the received value.
    #[arg(short = 'S')]
    received: bool,
    /// The property.
    property: String,
    /// Datasets of one pool.
    #[arg(required = true, value_name = "DATASET")]
    datasets: Vec<String>,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    if args.received {
        bail!("not supported yet: -S");
    }
    let property = inherited_property(&args.property)?;
    let name = pool_of(&args.datasets[0]).to_owned();
    if let Some(other) = args.datasets.iter().find(|dataset| pool_of(dataset) != name) {
        let (name, other) = (&args.datasets[0], other.as_str());
        return Err(usage(format!(
            "not supported yet: datasets of several pools in one command, as '{name}' and '{other}' are (one property is inherited)"
        )));
    }
    if let Some(snapshot) = args.datasets.iter().find(|dataset| dataset.contains('@')) {
        bail!("cannot inherit '{property}' for '{snapshot}': not supported yet: changing properties of snapshots");
    }
    let pool = Writing::open(context, &name).await?;
    inherit_property(pool.pool(), &args.datasets, &property, args.recursive).await?;
    let words = ["zfs", "inherit", if args.recursive { "-r" } else { "" }, &args.property];
    pool.finish(line(words.into_iter().chain(args.datasets.iter().map(String::as_str)))).await?;
    context.properties_changed(&[property], &args.datasets).await;
    Ok(Outcome::Good)
}
