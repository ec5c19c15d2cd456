//! `zfs inherit`.

use cenote_admin::inherit_property;
use cenote_admin::values::inherited_property;
use cenote_server::writing::{Writing, line};

use super::by_pool;
use crate::prelude::*;

/// Have datasets inherit a property from above.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Also the datasets below.
    #[arg(short = 'r')]
    recursive: bool,
    /// Go back to the received value; inherit where there is none.
    #[arg(short = 'S')]
    received: bool,
    /// The property.
    property: String,
    /// The datasets.
    #[arg(required = true, value_name = "DATASET")]
    datasets: Vec<String>,
}

impl Args {
    /// The same for each pool alone.
    pub(crate) fn of_pools(&self) -> Vec<Self> {
        by_pool(&self.datasets).into_iter().map(|datasets| Self { datasets, ..self.clone() }).collect()
    }
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let property = inherited_property(&args.property, args.received)?;
    let name = pool_of(&args.datasets[0]).to_owned();
    if let Some(other) = args.datasets.iter().find(|dataset| pool_of(dataset) != name) {
        return Err(usage(format!("not supported yet: datasets of several pools in one command, as '{other}'")));
    }
    let pool = Writing::open(context, &name).await?;
    inherit_property(pool.pool(), &args.datasets, &property, args.recursive, args.received).await?;
    let flag = |is_set: bool, flag| if is_set { flag } else { "" };
    let words = ["zfs", "inherit", flag(args.recursive, "-r"), flag(args.received, "-S"), &args.property];
    pool.finish(line(words.into_iter().chain(args.datasets.iter().map(String::as_str)))).await?;
    context.properties_changed(&[property], &args.datasets).await;
    Ok(Outcome::Good)
}
