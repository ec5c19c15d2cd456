//! How far a long command has come, on terminals' standard error.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::Output;

/// A bar of bytes with rate and time left; nothing where standard error is not a terminal. Goes away when dropped.
#[derive(Clone)]
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Shows `label`, and how much of `total_bytes` is done, where the total is known.
    pub(crate) fn bytes(output: &Output, label: &str, total_bytes: Option<u64>) -> Self {
        let template = match total_bytes {
            Some(_) => "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
            None => "{msg} {bytes} {bytes_per_sec} {elapsed}",
        };
        Self::shown(output, label, total_bytes, template)
    }

    /// Shows `label`, and how many of `total` things are done.
    pub(crate) fn items(output: &Output, label: &str, total: u64) -> Self {
        Self::shown(output, label, Some(total), "{msg} {wide_bar} {pos}/{len} {per_sec} {eta}")
    }

    fn shown(output: &Output, label: &str, total: Option<u64>, template: &str) -> Self {
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
        if !output.is_err_terminal() {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        if let Ok(style) = ProgressStyle::with_template(template) {
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
