//! Pools that could be imported, as `zpool import` describes them.

use std::fmt::Write as _;

use cenote_props::one_line;
use cenote_spa::{
    Condition, FoundPool, ImportOptions, PoolError, PoolState, SpaError, View, condition, device_condition,
};

use super::advice::{self, ImportAdvice, MESSAGES};
use super::vdevs::{Reason, Tree, Vdev, found_tree};
use crate::{Facts, Names};

/// The kind of a top-level vdev without a description in a label.
const MISSING: &str = "missing";
/// The least width of names.
const NAME_WIDTH_MIN: usize = 10;

/// A pool that could be imported.
pub struct Importable {
    /// The pool, as its labels describe it.
    pub found: FoundPool,
    /// The open pool, or the reason why it did not open with [`Importable::looking`].
    pub opened: Result<View, SpaError>,
    /// It is imported by force alone ([`FoundPool::needs_force`]).
    pub needs_force: bool,
}

impl Importable {
    /// Options that open as many pools as possible: the report is to show the obstacles to an import.
    pub fn looking(options: ImportOptions) -> ImportOptions {
        ImportOptions { force: true, destroyed: true, missing_log: true, missing_tops: true, ..options }
    }

    /// Appends its description.
    pub async fn describe(self, text: &mut String) {
        let Self { found, opened, needs_force } = self;
        let (name, guid) = (found.name().to_owned(), found.guid.0);
        let is_destroyed = found.state() == PoolState::Destroyed;
        let names = Names::default().with_paths();
        let mut action = None;
        let mut problem = Reason::Corrupt;
        let (tree, state, mut advice, mut lines) = match opened {
            Ok(pool) => {
                let status = pool.tree().status();
                let state = status.state.name();
                let condition = condition(&pool).await.ok().flatten();
                let condition = device_condition(&status).or(condition);
                let advice = advice::of_import(condition, state == "ONLINE", state == "UNAVAIL");
                let view = Facts::new(pool);
                (view.tree(names).await.ok(), state, advice, Vec::new())
            }
            Err(error) => {
                if let SpaError::Active { hostname, hostid, .. } = &error {
                    action = Some(format!(
                        "The pool must be exported from {hostname} (hostid={hostid:x})\n\tbefore it can be safely imported."
                    ));
                }
                let too_small: Vec<String> = found.too_small().into_values().collect();
                let too_small_is_none = too_small.is_empty();
                let is_of_devices = matches!(error, SpaError::NoRoot { .. } | SpaError::MissingDevices { .. });
                let (advice, lines) = match is_of_devices && !too_small.is_empty() {
                    true => (advice::DAMAGED_DEVICE, too_small),
                    false => {
                        problem = problem_of(&error);
                        refusal(&error)
                    }
                };
                let tree = found_tree(&found, &name, names);
                if matches!(error, SpaError::MissingLog { .. }) {
                    // The pool can do without it, as its state says.
                    (tree, "DEGRADED", advice::MISSING_LOG, lines)
                } else {
                    let is_described = |tree: &Tree| tree.root.children.iter().all(|top| top.kind != MISSING);
                    let advice = match &error {
                        // Labels describe each device.
                        SpaError::MissingDevices { .. }
                            if too_small_is_none && tree.as_ref().is_some_and(is_described) =>
                        {
                            advice::of_import(Some(Condition::LostDevices), false, true)
                        }
                        _ => advice,
                    };
                    (tree, "UNAVAIL", advice, lines)
                }
            }
        };
        if needs_force && state != "UNAVAIL" && advice.status != advice::MISSING_LOG.status {
            advice = advice::OTHER_SYSTEM;
            lines = Vec::new();
        }
        // The text of a label is unverified, and may be anything.
        let _ = writeln!(text, "  pool: {}\n    id: {guid}", one_line(&name));
        let _ = writeln!(text, " state: {state}{}", if is_destroyed { " (DESTROYED)" } else { "" });
        if let Some(status) = advice.status {
            let _ = writeln!(text, "status: {status}");
            for line in lines {
                let _ = writeln!(text, "\t{}", one_line(&line));
            }
        }
        let _ = writeln!(text, "action: {}", action.as_deref().unwrap_or(advice.action));
        if let Some(comment) = found.newest().and_then(|leaf| leaf.config.str("comment")) {
            let _ = writeln!(text, "comment: {}", one_line(comment));
        }
        if is_destroyed {
            text.push_str("\tThe pool was destroyed, but can be imported: 'zpool import -D POOL'.\n");
        }
        if let Some(message) = advice.message {
            let _ = writeln!(text, "   see: {MESSAGES}/{message}");
        }
        text.push_str("config:\n\n");
        if let Some(tree) = &tree {
            let mut rows = Rows { width: tree.name_width().max(NAME_WIDTH_MIN), text };
            rows.all(tree, state, problem);
        }
        if advice.message == advice::UNKNOWN_DEVICES.message {
            text.push_str(
                "\n\tAdditional devices are known to be part of this pool, though their\n\texact configuration cannot be determined.\n",
            );
        }
    }
}

/// The reason why a pool is unavailable, if that is not one of its devices.
pub(super) const fn problem_of(error: &SpaError) -> Reason {
    match error {
        SpaError::Active { .. } | SpaError::InKernel { .. } => Reason::Active,
        SpaError::UnsupportedFeatures { .. } => Reason::Features,
        SpaError::UnsupportedVersion { .. } => Reason::Version,
        SpaError::MissingDevices { .. } | SpaError::MissingLog { .. } => Reason::NoReplicas,
        error if is_of_data(error) => Reason::Corrupt,
        _ => Reason::CannotOpen,
    }
}

/// True if a pool does not open because the data on its devices cannot be read.
const fn is_of_data(error: &SpaError) -> bool {
    matches!(
        error,
        SpaError::NoRoot { .. }
            | SpaError::Pool {
                error: PoolError::Contradiction(_)
                    | PoolError::Dmu(_)
                    | PoolError::Dsl(_)
                    | PoolError::Zio(_)
                    | PoolError::Vdev(_)
                    | PoolError::Space(_)
                    | PoolError::Format(_),
                ..
            }
    )
}

/// The advice for a pool that does not open, and lines with more about the reason.
pub(super) fn refusal(error: &SpaError) -> (ImportAdvice, Vec<String>) {
    match error {
        SpaError::Active { .. } => (advice::ACTIVE, Vec::new()),
        SpaError::UnsupportedFeatures { features, .. } => (advice::UNKNOWN_FEATURES, features.clone()),
        SpaError::UnsupportedVersion { .. } => (advice::UNKNOWN_VERSION, Vec::new()),
        SpaError::MissingDevices { .. } => (advice::UNKNOWN_DEVICES, Vec::new()),
        SpaError::MissingLog { device, .. } => (advice::MISSING_LOG, vec![device.clone()]),
        SpaError::NoRoot { last, .. } => (advice::DAMAGED_ROOT, vec![last.clone()]),
        SpaError::Pool { error: PoolError::Contradiction(what), .. } => (advice::DAMAGED_ROOT, vec![what.clone()]),
        error if is_of_data(error) => (advice::DAMAGED_ROOT, vec![error.to_string()]),
        error => (advice::REFUSED, error.to_string().lines().map(str::to_owned).collect()),
    }
}

/// The lines under `config:`.
struct Rows<'a> {
    width: usize,
    text: &'a mut String,
}

impl Rows<'_> {
    /// `problem` says why the pool is unavailable if its devices do not.
    fn all(&mut self, tree: &Tree, state: &str, problem: Reason) {
        let width = self.width;
        let root = &tree.root;
        let _ = write!(self.text, "\t{:width$}  {state}", one_line(&root.name));
        match root.reason {
            Some(reason) => {
                let _ = writeln!(self.text, "  {}", reason.text());
            }
            None if state == "UNAVAIL" => {
                let _ = writeln!(self.text, "  {}", problem.text());
            }
            None => self.text.push('\n'),
        }
        let is_there = |top: &&Vdev| top.kind != MISSING;
        tree.plain().filter(is_there).for_each(|top| self.vdev(top, 2));
        for (heading, members) in [("cache", &tree.caches), ("spares", &tree.spares)] {
            if !members.is_empty() {
                let _ = writeln!(self.text, "\t{heading}");
                members.iter().for_each(|member| {
                    let _ = writeln!(self.text, "\t  {}", one_line(&member.name));
                });
            }
        }
        for (class, members) in tree.classes() {
            let mut members = members.into_iter().filter(is_there).peekable();
            if members.peek().is_some() {
                let _ = writeln!(self.text, "\t{class}\t");
                members.for_each(|member| self.vdev(member, 2));
            }
        }
    }

    fn vdev(&mut self, vdev: &Vdev, depth: usize) {
        let width = self.width.saturating_sub(depth);
        let _ = write!(self.text, "\t{:depth$}{:width$}  {}", "", one_line(&vdev.name), vdev.state);
        if let Some(remark) = vdev.remark() {
            let _ = write!(self.text, "  {remark}");
        }
        self.text.push('\n');
        vdev.children.iter().for_each(|child| self.vdev(child, depth + 2));
    }
}
