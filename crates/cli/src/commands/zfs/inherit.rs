//! `zfs inherit`.

use cenote_admin::InheritRequest;

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
    let Args { recursive, received, property, datasets } = args;
    context.carry_out(&InheritRequest { property, recursive, received, datasets }).await?;
    Ok(Outcome::Good)
}
