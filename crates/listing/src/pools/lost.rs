//! Imported pools that cannot be opened, as `zpool list` and `zpool status` show them: from the labels of their remaining devices, or else from
//! the cache file; with the reason for each.

use std::fmt::Write as _;
use std::path::PathBuf;

use cenote_props::one_line;
use cenote_spa::{Condition, FoundPool, SpaError};
use serde_json::{Map, Value, json};

use super::advice::{MESSAGES, of_status};
use super::importable::{problem_of, refusal};
use super::status::{StatusOptions, json_of_lost, rows_of_lost};
use super::vdevs::{Reason, Tree, found_tree};
use crate::Json;

const STATE: &str = "UNAVAIL";
/// The least width of names.
const NAME_WIDTH_MIN: usize = 10;

/// An imported pool that cannot be opened.
#[derive(Debug)]
pub struct LostPool {
    /// Its name here.
    pub name: String,
    /// Its guid.
    pub guid: u64,
    /// The devices that it was imported from.
    pub paths: Vec<PathBuf>,
    /// The devices of it that exist, with the data about the others in their labels.
    pub found: Option<FoundPool>,
    /// The reason.
    pub why: WhyLost,
}

/// The reason why an imported pool cannot be opened.
#[derive(Debug)]
pub enum WhyLost {
    /// None of its devices is at its place.
    Gone,
    /// This user may not open this device of it.
    Denied(PathBuf),
    /// The contents of its devices prevent opening it.
    Pool(Box<SpaError>),
    /// Another reason, as text.
    Other(String),
}

/// The texts about such a pool.
struct Account {
    status: String,
    action: String,
    message: Option<&'static str>,
    reason: Reason,
}

impl Account {
    fn of_devices() -> Self {
        let condition = Condition::LostDevices;
        let (status, action) = of_status(condition, false);
        let (status, action) = (status.to_owned(), action.to_owned());
        Self { status, action, message: condition.message(), reason: Reason::NoReplicas }
    }

    fn other(status: String, action: &str) -> Self {
        Self { status, action: action.to_owned(), message: None, reason: Reason::CannotOpen }
    }
}

impl LostPool {
    fn account(&self) -> Account {
        let name = one_line(&self.name);
        match &self.why {
            WhyLost::Gone => Account::of_devices(),
            WhyLost::Denied(path) => Account::other(
                format!("This user may not open a device of the pool:\n\t{}", one_line(&path.display().to_string())),
                "Run the command as root, or as a user who may read the pool's devices.",
            ),
            WhyLost::Other(why) => Account::other(
                format!("The pool cannot be opened:\n\t{}", one_line(why)),
                "Mend what the status names, and try again.",
            ),
            WhyLost::Pool(error) => match &**error {
                SpaError::MissingDevices { .. } => Account::of_devices(),
                SpaError::MissingLog { device, .. } => Account {
                    status: format!("A log device is missing, with what it holds:\n\t{}", one_line(device)),
                    action: format!(
                        "Attach it, and have the pool opened again.  To go on without what it\n\tholds: 'zpool export {name}', then 'zpool import -m {name}'."
                    ),
                    message: None,
                    reason: Reason::NoReplicas,
                },
                error => {
                    let reason = problem_of(error);
                    let (advice, lines) = refusal(error);
                    let mut status = advice.status.unwrap_or("The pool cannot be opened:").to_owned();
                    lines.iter().for_each(|line| {
                        let _ = write!(status, "\n\t{}", one_line(line));
                    });
                    let action = match reason {
                        Reason::Corrupt => format!(
                            "Restore the pool from a backup source, or go back to an earlier txg:\n\t'zpool export {name}', then 'zpool import -F {name}'; with '-nF'\n\tit only says whether that would work."
                        ),
                        _ => advice.action.to_owned(),
                    };
                    Account { status, action, message: advice.message, reason }
                }
            },
        }
    }

    /// The tree of its vdevs, if a label describes it.
    fn tree(&self, options: StatusOptions, reason: Reason) -> Option<Tree> {
        let mut tree = found_tree(self.found.as_ref()?, &self.name, options.names)?;
        tree.root.state = STATE;
        tree.root.reason = tree.root.reason.or(Some(reason));
        Some(tree)
    }

    fn devices(&self) -> impl Iterator<Item = (String, &'static str)> {
        self.paths.iter().map(|path| {
            let is_there = path.exists();
            // It is not known if an existing device would be usable.
            (one_line(&path.display().to_string()).to_string(), if is_there { "UNKNOWN" } else { STATE })
        })
    }

    /// Appends it as text for a person.
    pub fn text(&self, text: &mut String, options: StatusOptions) {
        let account = self.account();
        let (status, action) = (&account.status, &account.action);
        let _ = writeln!(text, "  pool: {}\n state: {STATE}\nstatus: {status}\naction: {action}", one_line(&self.name));
        if let Some(message) = account.message {
            let _ = writeln!(text, "   see: {MESSAGES}/{message}");
        }
        if let Some(tree) = self.tree(options, account.reason) {
            rows_of_lost(text, &tree, options);
            return;
        }
        let devices: Vec<_> = self.devices().collect();
        let widths = devices.iter().map(|(path, _)| path.chars().count() + 2);
        let width = widths.chain([self.name.chars().count()]).max().unwrap_or(0).max(NAME_WIDTH_MIN);
        let row = |text: &mut String, name: &str, state: &str, why: &str| {
            let _ = writeln!(text, "\t{name:width$}  {state:8} {:>5} {:>5} {:>5}{why}", "0", "0", "0");
        };
        let _ =
            writeln!(text, "config:\n\n\t{:width$}  {:8} {:>5} {:>5} {:>5}", "NAME", "STATE", "READ", "WRITE", "CKSUM");
        row(text, &one_line(&self.name), STATE, &format!("  {}", account.reason.text()));
        for (path, state) in devices {
            row(text, &format!("  {path}"), state, if state == STATE { "  cannot open" } else { "" });
        }
    }

    /// The same in JSON.
    #[must_use]
    pub fn json(&self, json: Json, options: StatusOptions) -> Map<String, Value> {
        let account = self.account();
        let mut map = Map::new();
        map.insert("name".into(), json!(self.name));
        map.insert("state".into(), json!(STATE));
        map.insert("pool_guid".into(), json.number(self.guid));
        map.insert("status".into(), json!(format!("{}\n", account.status)));
        map.insert("action".into(), json!(format!("{}\n", account.action)));
        if let Some(message) = account.message {
            map.insert("msgid".into(), json!(message));
            map.insert("moreinfo".into(), json!(format!("{MESSAGES}/{message}")));
        }
        let vdevs = match self.tree(options, account.reason) {
            Some(tree) => json_of_lost(&tree, options, json),
            None => {
                let vdev = |(path, state): (String, &str)| {
                    (path.clone(), json!({ "name": path, "path": path, "state": state }))
                };
                let vdevs: Map<String, Value> = self.devices().map(vdev).collect();
                let root = json!({ "name": self.name, "vdev_type": "root", "state": "CANT_OPEN", "vdevs": vdevs });
                json!({ self.name.clone(): root })
            }
        };
        map.insert("vdevs".into(), vdevs);
        map
    }
}
