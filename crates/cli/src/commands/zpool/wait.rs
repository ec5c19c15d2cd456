//! `zpool wait`.

use cenote_admin::{Activity, wait};

use crate::prelude::*;

/// Wait until work in the background of a pool is done.
///
/// Only a pool that a mount or a server has works in the background; of others there is nothing to wait for.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    /// The activities, with commas between them: discard, free, initialize, replace, remove, resilver, scrub, trim, raidz_expand. All of them if none is given.
    #[arg(short = 't', value_delimiter = ',', value_parser = activity)]
    activities: Vec<String>,
    /// The pool.
    pool: String,
}

/// A word for an activity.
fn activity(word: &str) -> std::result::Result<String, String> {
    match Activity::WORDS.iter().any(|(known, _)| *known == word) {
        true => Ok(word.to_owned()),
        false => Err(format!("invalid activity '{word}'")),
    }
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let Some(pool) = context.served() else {
        context.check_reachable(&args.pool).await?;
        return Ok(Outcome::Good);
    };
    context.check_served(&args.pool)?;
    let is_meant = |word: &str| args.activities.is_empty() || args.activities.iter().any(|meant| meant == word);
    let activities: Vec<Activity> =
        Activity::WORDS.iter().filter(|(word, _)| is_meant(word)).filter_map(|(_, activity)| *activity).collect();
    wait(pool, &activities).await?;
    Ok(Outcome::Good)
}
