//! `zfs diff`: what changed in a file system from a snapshot to a later one, or to now.

use std::io;

use cenote_listing::{Change, DiffForm, DiffLines, diff_names, differences};

use crate::files::filesystem;
use crate::output::Colour;
use crate::prelude::*;

/// Show what changed between a snapshot and a later one of the same file system (or of a clone), or its present state.
///
/// One line for each file: M changed, + added, - removed, R renamed; a changed number of links is in parentheses.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// The kind of each: F file, / directory, @ symbolic link, | pipe, = socket, B block device, C character device.
    #[arg(short = 'F')]
    classify: bool,
    /// Tabs in place of arrows.
    #[arg(short = 'H')]
    scripted: bool,
    /// The time of each change in front.
    #[arg(short = 't')]
    times: bool,
    /// Names as they are, nothing escaped.
    #[arg(short = 'h')]
    raw_names: bool,
    /// This text.
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// The earlier snapshot; `@NAME` means the other's file system.
    from: String,
    /// The later snapshot, or the file system; `@NAME` means the other's.
    to: Option<String>,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let (from, to) = diff_names(&args.from, args.to.as_deref())?;
    let pool = context.open_pool(pool_of(&to)).await?;
    let (from, to) = (pool.dsl().dataset(&from).await?, pool.dsl().dataset(&to).await?);
    let (earlier, later) = (filesystem(&pool, &from).await?, filesystem(&pool, &to).await?);
    let form = DiffForm {
        is_classified: args.classify,
        is_scripted: args.scripted,
        has_times: args.times,
        is_raw: args.raw_names,
    };
    let mut printer = Printer { context, failed: false };
    differences(&pool, (&from, &earlier), (&to, &later), form, &mut printer).await?;
    Ok(Outcome::unless(printer.failed))
}

/// Prints what is found, a line each.
struct Printer<'a> {
    context: &'a Context,
    failed: bool,
}

impl DiffLines for Printer<'_> {
    fn line(&mut self, change: Change, line: Vec<u8>) -> io::Result<()> {
        let colour = match change {
            Change::Modified => Colour::Yellow,
            Change::Added => Colour::Green,
            Change::Removed => Colour::Red,
            Change::Renamed => Colour::Blue,
        };
        let mut line = match String::from_utf8(line) {
            Ok(text) => self.context.output().paint(colour, &text).into_bytes(),
            Err(error) => error.into_bytes(),
        };
        line.push(b'\n');
        self.context.output().out(line)
    }

    fn unreadable(&mut self, what: &str) {
        self.failed = true;
        self.context.err(what);
    }
}
