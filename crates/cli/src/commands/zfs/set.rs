//! `zfs set`.

use cenote_admin::SetRequest;

use super::by_pool;
use crate::prelude::*;

/// Set properties of datasets.
///
/// A property of how blocks are written applies to blocks that are written from then on.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// Accepted for the sake of scripts: nothing is mounted by this.
    #[arg(short = 'u')]
    keep_mounts: bool,
    /// Settings, then datasets.
    #[arg(required = true, value_name = "PROPERTY=VALUE… DATASET…")]
    arguments: Vec<String>,
}

impl Args {
    /// The same for each pool alone.
    pub(crate) fn of_pools(&self) -> Vec<Self> {
        let (settings, datasets): (Vec<String>, Vec<String>) =
            self.arguments.iter().cloned().partition(|text| text.contains('='));
        // A fault of the line is told once.
        if settings.is_empty() {
            return Vec::new();
        }
        let of_pool = |own: Vec<String>| Self { arguments: [settings.clone(), own].concat(), ..self.clone() };
        by_pool(&datasets).into_iter().map(of_pool).collect()
    }
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    context.carry_out(&SetRequest { arguments: args.arguments }).await?;
    Ok(Outcome::Good)
}
