//! Pools that are imported and do not let themselves be opened, as `zpool list` and `zpool status` show them: by what was noted of them.

use std::fmt::Write as _;
use std::path::PathBuf;

use cenote_props::one_line;
use cenote_spa::Condition;
use serde_json::{Map, Value, json};

use super::advice::{MESSAGES, of_status};
use crate::Json;

const STATE: &str = "UNAVAIL";
/// The least width of names.
const NAME_WIDTH_MIN: usize = 10;
const CONDITION: Condition = Condition::LostDevices;

/// A pool that is imported and cannot be opened.
#[derive(Clone, Debug)]
pub struct LostPool {
    /// Its name here.
    pub name: String,
    /// Its guid.
    pub guid: u64,
    /// The devices that it was imported from.
    pub paths: Vec<PathBuf>,
}

impl LostPool {
    fn devices(&self) -> impl Iterator<Item = (String, &'static str)> {
        self.paths.iter().map(|path| {
            let is_there = path.exists();
            // Of one that is there it is not known whether it would do.
            (one_line(&path.display().to_string()).to_string(), if is_there { "UNKNOWN" } else { STATE })
        })
    }

    /// As a person reads it.
    pub fn text(&self, text: &mut String) {
        let (status, action) = of_status(CONDITION);
        let _ = writeln!(text, "  pool: {}\n state: {STATE}\nstatus: {status}\naction: {action}", self.name);
        if let Some(message) = CONDITION.message() {
            let _ = writeln!(text, "   see: {MESSAGES}/{message}");
        }
        let devices: Vec<_> = self.devices().collect();
        let widths = devices.iter().map(|(path, _)| path.chars().count() + 2);
        let width = widths.chain([self.name.chars().count()]).max().unwrap_or(0).max(NAME_WIDTH_MIN);
        let row = |text: &mut String, name: &str, state: &str, why: &str| {
            let _ = writeln!(text, "\t{name:width$}  {state:8} {:>5} {:>5} {:>5}{why}", "0", "0", "0");
        };
        let _ =
            writeln!(text, "config:\n\n\t{:width$}  {:8} {:>5} {:>5} {:>5}", "NAME", "STATE", "READ", "WRITE", "CKSUM");
        row(text, &self.name, STATE, "  insufficient replicas");
        for (path, state) in devices {
            row(text, &format!("  {path}"), state, if state == STATE { "  cannot open" } else { "" });
        }
    }

    /// The same for programs.
    #[must_use]
    pub fn json(&self, json: Json) -> Map<String, Value> {
        let (status, action) = of_status(CONDITION);
        let vdev =
            |(path, state): (String, &str)| (path.clone(), json!({ "name": path, "path": path, "state": state }));
        let vdevs: Map<String, Value> = self.devices().map(vdev).collect();
        let mut map = Map::new();
        map.insert("name".into(), json!(self.name));
        map.insert("state".into(), json!(STATE));
        map.insert("pool_guid".into(), json.number(self.guid));
        map.insert("status".into(), json!(format!("{status}\n")));
        map.insert("action".into(), json!(format!("{action}\n")));
        if let Some(message) = CONDITION.message() {
            map.insert("msgid".into(), json!(message));
            map.insert("moreinfo".into(), json!(format!("{MESSAGES}/{message}")));
        }
        let root = json!({ "name": self.name, "vdev_type": "root", "state": "CANT_OPEN", "vdevs": vdevs });
        map.insert("vdevs".into(), json!({ self.name.clone(): root }));
        map
    }
}
