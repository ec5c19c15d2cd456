//! The findings of an inspection ([`Report`]), printed as JSON or text. Problems go to standard error where the report is text, and make
//! the exit status 1.

use std::ops::{Deref, DerefMut};

use cenote_inspect::Report;
use cenote_server::View;

use crate::prelude::*;

/// Options that all inspections share.
#[derive(Clone, Debug, Default, clap::Args, Serialize, Deserialize)]
pub(crate) struct Common {
    #[command(flatten)]
    pub(crate) search: Search,
    /// Print the report as JSON.
    #[arg(short = 'j', long)]
    pub(crate) json: bool,
    /// Entries of each list at most.
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    pub(crate) limit: usize,
}

impl Common {
    /// An empty report.
    pub(crate) fn report(&self) -> Shown {
        Shown { report: Report::new(self.limit, crate::time::format), is_json: self.json }
    }
}

/// The context of an inspection, which looks into pools that another system has open.
pub(crate) fn context_of(context: &Context, common: &Common) -> Context {
    context.with(&Search { force: true, ..common.search.clone() })
}

/// The beginning of most inspections: the context, an empty report, and the pool as [`open`] opens it.
pub(crate) async fn opened(context: &Context, common: &Common, name: &str) -> Result<(Context, Shown, View)> {
    let context = context_of(context, common);
    let mut report = common.report();
    let pool = open(&context, &mut report, name).await?;
    Ok((context, report, pool))
}

/// Opens a pool, as far back as it takes. Messages about the opening go into the report as problems.
pub(crate) async fn open(context: &Context, report: &mut Report, name: &str) -> Result<View> {
    let mut told = Vec::new();
    let opened = context.open_damaged(name, &mut |line| told.push(line)).await;
    told.iter().for_each(|line| report.problem(line));
    Ok(opened?)
}

/// A report that is printed in the end.
pub(crate) struct Shown {
    report: Report,
    is_json: bool,
}

impl Deref for Shown {
    type Target = Report;

    fn deref(&self) -> &Report {
        &self.report
    }
}

impl DerefMut for Shown {
    fn deref_mut(&mut self) -> &mut Report {
        &mut self.report
    }
}

impl Shown {
    /// Prints the report.
    pub(crate) fn finish(self, context: &Context) -> Result<Outcome> {
        let report = self.report;
        if self.is_json {
            context.out(format!("{:#}\n", serde_json::to_value(&report)?))?;
            return Ok(Outcome::unless(!report.is_clean()));
        }
        context.out(report.text())?;
        for problem in report.problems() {
            context.err(problem);
        }
        let left_out = report.problems_left_out();
        if left_out > 0 {
            context.err(format!("... and {left_out} more problems"));
        }
        Ok(Outcome::unless(!report.is_clean()))
    }
}
