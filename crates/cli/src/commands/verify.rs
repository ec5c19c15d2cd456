//! `cenote verify`.

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, bail};
use cenote_inspect::{
    Verification, VerifyOptions, VerifyReport, VerifyStop, ViewError, Views, WalkControl, damaged, verified,
    verified_text, verify,
};
use cenote_server::{BoxFuture, SpaError, View, signals};

use crate::output::Progress;
use crate::prelude::*;

/// Read every block in every copy, check it, and account for every allocated byte.
///
/// Exit status 0 says that all is well: everything readable in every copy, nothing leaked, nothing used twice.
///
/// A pool that a process has open for writing is read as of one txg for as long as that process can keep it. If it cannot, the rest is read as of
/// later txgs: every block that was there all the time is then read, and space is not accounted for.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    search: Search,
    /// Read only what leads to data: fast, and enough for the account of space.
    #[arg(long)]
    metadata_only: bool,
    /// Do not load space maps: no account of space.
    #[arg(long)]
    no_space: bool,
    /// Print the findings as JSON.
    #[arg(short = 'j', long)]
    json: bool,
    /// Go on where an interrupted verify left this file, which goes when all is read. If interrupted (^C), leave it: data before that place
    /// is not read again. If the pool was changed since, space is not accounted for.
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,
    /// The pool's name or guid.
    pool: String,
}

impl Args {
    /// For commands that verify in another grammar.
    pub(crate) fn of(pool: String, no_space: bool, json: bool) -> Self {
        Self { search: Search::default(), metadata_only: false, no_space, json, resume: None, pool }
    }
}

/// The pool, opened anew where the process that has it could not keep the txg that was read.
struct Opened<'a> {
    context: &'a Context,
    pool: &'a str,
    last: Mutex<View>,
    is_first: Mutex<bool>,
}

impl Opened<'_> {
    /// The view that was given out last.
    fn last(&self) -> View {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Views for Opened<'_> {
    fn view(&self) -> BoxFuture<'_, Result<View, ViewError>> {
        Box::pin(async move {
            if !std::mem::take(&mut *self.is_first.lock().unwrap_or_else(PoisonError::into_inner)) {
                // The txg that was given up is let go.
                let _ = self.context.check_views();
                let (context, pool) = (self.context.clone(), self.pool.to_owned());
                // On a thread of its own, since the way to a pool stays on one thread.
                let opened = move || context.handle().block_on(context.open_pool(&pool));
                let view = self.context.handle().spawn_blocking(opened).await??;
                *self.last.lock().unwrap_or_else(PoisonError::into_inner) = view;
            }
            Ok(self.last())
        })
    }

    fn check(&self, view: &View) -> Result<(), SpaError> {
        view.check()?;
        self.context.check_kept().map_err(|error| *error)
    }
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    // Only looks: a pool that some system has left open is judged as it lies there.
    let context = context.with(&Search { force: true, ..args.search });
    let from = match &args.resume {
        Some(file) => stop_in(file)?,
        None => None,
    };
    let (last, is_first) = (Mutex::new(context.open_pool(&args.pool).await?), Mutex::new(true));
    let views = Opened { context: &context, pool: &args.pool, last, is_first };
    let control = WalkControl::new();
    let ended = control.clone();
    let watch = args.resume.as_ref().map(|_| signals::watch(context.handle(), move || ended.cancel()));
    // Until all is told: once it is dropped signals do nothing, and while it is there a second one ends the program.
    let _watch = watch.transpose()?;
    let start = context.handle().now();
    let options = VerifyOptions { data: !args.metadata_only, space: !args.no_space };
    let verification =
        Verification { handle: context.handle(), views: &views, options, control: control.clone(), from };
    let report = verification.run(&mut shown(&context)).await?;
    // All that was found was read of a txg that was kept: it is judged as of the last.
    let _ = context.check_views();
    let pool = views.last();
    if let Some(stop) = &report.stop {
        let Some(file) = &args.resume else { bail!("verify ended early: {}", report.problems.join("; ")) };
        return stopped(&context, &pool, &report, stop, file).await;
    }
    let seconds = context.handle().now().since(start).as_secs_f64();
    let mut places = cenote_inspect::Places::new();
    for (objset, object) in damaged(&report) {
        places.insert((objset, object), cenote_listing::place(&pool, objset, object).await);
    }
    let is_clean = report.is_clean();
    if args.json {
        context.out(format!("{:#}\n", verified(&pool, &report, &places, seconds)))?;
    } else {
        let done_bytes = report.statistics.total.asize_bytes;
        context.out(verified_text(&pool, &report, &places, done_bytes, seconds))?;
    }
    // The report is out: until then the file would be all that is left of hours.
    if let Some(file) = &args.resume {
        match fs::remove_file(file) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", file.display()));
            }
            _ => {}
        }
    }
    // A device that has missed txgs is damage to come, even if every block could be read.
    Ok(Outcome::unless(!is_clean || !pool.tree().status().behind().is_empty()))
}

/// Where an earlier verify stopped, if it left this file.
fn stop_in(file: &Path) -> Result<Option<VerifyStop>> {
    let mut text = String::new();
    // One byte more than there may be, so that a longer file is refused, and is not read whole.
    let read =
        fs::File::open(file).and_then(|opened| opened.take(VerifyStop::TEXT_BYTES_MAX + 1).read_to_string(&mut text));
    match read {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
    }
    let stop = VerifyStop::from_json(&text);
    Ok(Some(stop.with_context(|| format!("{}: remove it to verify from the beginning", file.display()))?))
}

/// Leaves the place in the file, and tells of it.
async fn stopped(
    context: &Context,
    pool: &View,
    report: &VerifyReport,
    stop: &VerifyStop,
    file: &Path,
) -> Result<Outcome> {
    // A file that is half written is none: the old one stays until the new one is whole, also on the disk.
    let new = file.with_added_extension("new");
    let written = fs::File::create(&new).and_then(|mut whole| {
        whole.write_all(stop.to_json().as_bytes())?;
        whole.sync_all()
    });
    written.and_then(|()| fs::rename(&new, file)).with_context(|| format!("cannot write {}", file.display()))?;
    let place = match stop.at() {
        Some(at) => {
            let place = cenote_listing::place(pool, at.objset, at.object).await;
            format!(" at {place}, block {}", at.block)
        }
        None => String::new(),
    };
    // Among them why it stopped, if nobody asked it to.
    for problem in &report.problems {
        context.err(format!("verify: {problem}"));
    }
    let faults = report.error_count.saturating_add(report.bad_copy_count).saturating_add(report.misuse_count);
    let pool = pool.name();
    let file = file.display();
    context.err(format!(
        "verify of '{pool}' stopped{place}, as of txg {}; faults so far: {faults}\n\
         'cenote verify --resume {file} {pool}' goes on from there",
        stop.txg()
    ));
    Ok(Outcome::Failed)
}

/// A bar on terminals.
fn shown(context: &Context) -> impl FnMut(cenote_inspect::Progress) -> bool + Send + '_ {
    let mut bar: Option<Progress> = None;
    let mut done = 0;
    move |progress| {
        let bar = bar.get_or_insert_with(|| context.progress("verifying", Some(progress.total_bytes)));
        bar.advance(progress.done_bytes.saturating_sub(done));
        done = progress.done_bytes;
        true
    }
}

/// Verifies with a bar on terminals: what leads to data, with `data` that too, with `space` the account of it. Returns the bytes read too.
pub(crate) async fn verify_with_progress(
    context: &Context,
    pool: &View,
    data: bool,
    space: bool,
) -> Result<(VerifyReport, u64)> {
    let options = VerifyOptions { data, space };
    let report = verify(context.handle(), pool, options, &mut shown(context)).await?;
    let done_bytes = report.statistics.total.asize_bytes;
    Ok((report, done_bytes))
}
