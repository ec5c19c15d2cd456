//! How far a long command has come, on terminals' standard error.

use std::time::Duration;

use cenote_listing::nicebytes;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use super::Output;

/// A rate of less time than this says nothing.
const RATED_AFTER: Duration = Duration::from_millis(500);

/// A bar of bytes with its rate, and with the time that is left where the total is known, else that which has passed; nothing where standard
/// error is not a terminal. Sizes are written as everywhere else. Goes away when dropped.
#[derive(Clone)]
pub(crate) struct Progress {
    bar: ProgressBar,
}

/// A rate, as `write` writes so many a second.
fn rate(state: &ProgressState, out: &mut dyn std::fmt::Write, write: impl Fn(u64) -> String) {
    let elapsed = state.elapsed();
    if elapsed >= RATED_AFTER {
        let _ = write!(out, "{}/s", write((state.pos() as f64 / elapsed.as_secs_f64()) as u64));
    }
}

/// The time that is left at the rate until now.
fn left(state: &ProgressState, out: &mut dyn std::fmt::Write) {
    let (elapsed, total) = (state.elapsed(), state.len().unwrap_or(0));
    if elapsed >= RATED_AFTER && state.pos() > 0 {
        let seconds = elapsed.as_secs_f64() * total.saturating_sub(state.pos()) as f64 / state.pos() as f64;
        let _ = write!(out, "{} left", minutes(seconds as u64));
    }
}

fn minutes(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
    }
}

impl Progress {
    /// Shows `label`, and how much of `total_bytes` is done, where the total is known.
    pub(crate) fn bytes(output: &Output, label: &str, total_bytes: Option<u64>) -> Self {
        let template = match total_bytes {
            Some(_) => "{msg} {wide_bar} {done}/{all} {rate} {left}",
            None => "{msg} {done} {rate}, {so_far} so far",
        };
        Self::shown(output, label, total_bytes, template, nicebytes)
    }

    /// Shows `label`, and how many of `total` things are done.
    pub(crate) fn items(output: &Output, label: &str, total: u64) -> Self {
        Self::shown(output, label, Some(total), "{msg} {wide_bar} {done}/{all} {rate} {left}", |count| {
            count.to_string()
        })
    }

    fn shown(output: &Output, label: &str, total: Option<u64>, template: &str, text: fn(u64) -> String) -> Self {
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
        if !output.is_err_terminal() {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        if let Ok(style) = ProgressStyle::with_template(template) {
            let style = style
                .with_key("done", move |state: &ProgressState, out: &mut dyn std::fmt::Write| {
                    let _ = out.write_str(&text(state.pos()));
                })
                .with_key("all", move |state: &ProgressState, out: &mut dyn std::fmt::Write| {
                    let _ = out.write_str(&text(state.len().unwrap_or(0)));
                })
                .with_key("rate", move |state: &ProgressState, out: &mut dyn std::fmt::Write| rate(state, out, text))
                .with_key("left", left)
                .with_key("so_far", |state: &ProgressState, out: &mut dyn std::fmt::Write| {
                    let _ = out.write_str(&minutes(state.elapsed().as_secs()));
                });
            bar.set_style(style);
        }
        bar.set_message(label.to_owned());
        Self { bar }
    }

    /// More is done.
    pub(crate) fn advance(&self, bytes: u64) {
        self.bar.inc(bytes);
    }
}

impl cenote_image::Progress for Progress {
    fn advance(&self, bytes: u64) {
        Self::advance(self, bytes);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
