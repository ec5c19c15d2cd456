//! House rules that a program can check: `cargo xtask house`. The others are in CONTRIBUTING.md.
//!
//! # Need
//!
//! Reviews measure a house once; this step measures it in every run, so that it gets no worse between reviews. Rules are yes or no: layers,
//! texts, documents. Measures are figures with a limit. Where the wanted figure is not reached yet, the limit is the figure of today, with the
//! wanted one next to it: it can only get better.
//!
//! # Parts
//!
//! * [`layers`]: crates depend on crates below them. [`futures`]: one style of boxed futures. [`texts`]: words and sizes of files. [`documents`]: lengths of documents.
//! * [`source`] reads a crate as modules without comments and tests; [`arrows`], [`counts`], [`doors`] and [`rooms`] measure those.
//! * [`limits`] is the table of limits; [`table`] prints the crates.
//!
//! # Rejected
//!
//! Measures by the compiler's own view of names (`rustdoc` JSON, `cargo metadata`): exact, but they need a build, and this step must take seconds.
//! Ceilings with slack: they would be used up.

mod arrows;
mod counts;
mod documents;
mod doors;
mod futures;
mod layers;
mod limits;
mod rooms;
mod source;
mod table;
mod texts;

use anyhow::Result;
use cenote_testkit::repository_root;

use self::counts::Counts;
use crate::steps::{Context, Outcome, Tally};

/// The step.
pub(crate) fn step(_: &Context) -> Result<Outcome> {
    let root = repository_root();
    let (mut faults, mut tally) = (Vec::new(), Tally::default());
    texts::check(root, &mut faults, &mut tally)?;
    layers::check(root, &mut faults, &mut tally)?;
    futures::check(root, &mut faults, &mut tally)?;
    let crates = Counts::all(root)?;
    table::print(&crates);
    for fault in documents::check(root)? {
        tally.count(fault.is_none());
        faults.extend(fault);
    }
    let unnamed = doors::unnamed(&doors::Doors::all(root, &crates)?);
    for item in &unnamed {
        println!("no other crate names: {item}");
    }
    for limit in limits::limits(&crates, &rooms::rooms(root)?, unnamed.len()) {
        println!("{}", limit.line());
        tally.count(limit.holds());
        faults.extend(limit.fault());
    }
    for fault in &faults {
        println!("{fault}");
    }
    Ok(Outcome::Done(tally))
}
