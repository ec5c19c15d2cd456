//! The health of pools and of their devices, as `zpool status` reports it: as text and as JSON.

mod activity;
mod left;
mod scan;
mod suspended;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use cenote_format::ddt::DdtStat;
use cenote_format::ids::Guid;
use cenote_props::number::{nicebytes, nicenum};
use cenote_spa::{Condition, DedupFigures, LeafWorkKind, LoggedError, condition_with};
use cenote_taskq::boxed;
use cenote_vdev::config::VdevConfig;
use cenote_vdev::tree::{VdevState, VdevStatus};
use serde_json::{Map, Value, json};

use self::activity::{Activity, activities};
use self::scan::Scanned;
use super::advice::{MESSAGES, of_status};
use super::places;
use super::vdevs::{Auxiliary, Tree, Vdev};
use crate::error::Result;
use crate::{Facts, Json, Names, ScriptColumns, TimeText};

pub use left::Left;
pub use suspended::{has_hanging, suspended_json, suspended_text};

/// The least width of names.
const NAME_WIDTH_MIN: usize = 10;

/// The options of a report on a pool's health.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of OpenZFS's")]
pub struct StatusOptions {
    /// The form of vdevs' names.
    pub names: Names,
    /// Formats times.
    pub time: TimeText,
    /// List the files with errors.
    pub lists_files: bool,
    /// Show only devices with problems.
    pub only_unhealthy: bool,
    /// Show a column of slow I/Os.
    pub shows_slow: bool,
    /// Show the progress of trimming.
    pub shows_trim: bool,
    /// Show the progress of initializing.
    pub shows_initialize: bool,
    /// Show the deduplication tables.
    pub shows_dedup: bool,
    /// Numbers without units.
    pub is_exact: bool,
    /// In JSON, all devices on one level.
    pub is_flat: bool,
    /// A process has the pool open, and works on it in the background.
    pub is_worked_on: bool,
}

impl StatusOptions {
    /// Whether everything about such an activity is asked for.
    const fn shows(&self, kind: LeafWorkKind) -> bool {
        match kind {
            LeafWorkKind::Initialize => self.shows_initialize,
            LeafWorkKind::Trim => self.shows_trim,
        }
    }
}

/// For each kind, the activity of each leaf.
type Activities = Vec<(LeafWorkKind, BTreeMap<Guid, Activity>)>;

/// The report on a pool's health. The pool is read once, and the states and errors of its devices are taken after that: the report includes
/// the errors that its own reading met.
pub struct Status {
    facts: Facts,
    options: StatusOptions,
    scanned: Result<Scanned>,
    auxiliary: Result<Auxiliary>,
    activities: Result<Activities>,
    errors: Result<Vec<LoggedError>>,
    /// The files with errors, if they are listed.
    places: Vec<String>,
    /// The deduplication tables, if they are shown.
    dedup: Result<Option<DedupFigures>>,
    devices: VdevStatus,
    /// The words of scripts about its devices.
    scripts: Option<ScriptColumns>,
}

impl Status {
    /// Reads everything that the report is made of. An error is reported in its place.
    #[boxed]
    pub async fn read(facts: Facts, options: StatusOptions) -> Self {
        let pool = &facts.pool;
        let (scanned, auxiliary) = (scan::read(&facts).await, facts.auxiliary().await);
        let activities = requested(&facts).await;
        let errors = pool.logged_errors().await.map_err(Into::into);
        let places = match &errors {
            Ok(errors) if options.lists_files => places(pool, errors).await,
            _ => Vec::new(),
        };
        let dedup = match options.shows_dedup {
            true => pool.dedup().await.map(Some).map_err(Into::into),
            false => Ok(None),
        };
        let devices = facts.devices();
        Self { facts, options, scanned, auxiliary, activities, errors, places, dedup, devices, scripts: None }
    }

    /// With columns that scripts told (`-c`).
    #[must_use]
    pub fn with_scripts(self, scripts: Option<ScriptColumns>) -> Self {
        Self { scripts, ..self }
    }

    /// The key of the pool's object in JSON.
    pub fn key(&self, is_guid: bool) -> String {
        self.facts.key(is_guid)
    }

    /// The condition that needs attention, if any.
    #[boxed]
    pub async fn condition(&self) -> Result<Option<Condition>> {
        let condition = condition_with(&self.facts.pool, &self.devices).await?;
        Ok(match condition {
            Some(Condition::MissingDevice) if self.are_missing_devices_there() => Some(Condition::MissingLabel),
            other => other,
        })
    }

    /// Whether each device that is not the pool's any more is there: it has no label of it.
    fn are_missing_devices_there(&self) -> bool {
        fn walk<'a>(config: &'a VdevConfig, status: &VdevStatus, missing: &mut Vec<&'a VdevConfig>) {
            if config.kind.is_leaf() && status.state == VdevState::Unavailable {
                missing.push(config);
            }
            config.children.iter().zip(&status.children).for_each(|(child, status)| walk(child, status, missing));
        }
        let mut missing = Vec::new();
        walk(self.facts.pool.vdevs(), &self.devices, &mut missing);
        let is_there = |leaf: &VdevConfig| leaf.path.as_deref().is_some_and(|path| Path::new(path).exists());
        missing.into_iter().all(is_there)
    }

    /// Appends the report as text for a person.
    ///
    /// # Errors
    /// The pool could not be read. `text` then has the part that was read before.
    pub fn text(self, text: &mut String, condition: Option<Condition>) -> Result<()> {
        let Self { facts, options, .. } = self;
        let _ = writeln!(text, "  pool: {}\n state: {}", facts.pool.name(), facts.state());
        if let Some(condition) = condition {
            let (status, action) = of_status(condition, options.is_worked_on);
            let _ = writeln!(text, "status: {status}\naction: {action}");
            if let Some(message) = condition.message() {
                let _ = writeln!(text, "   see: {MESSAGES}/{message}");
            }
        }
        let scanned = self.scanned?;
        text.push_str(&scan::text(&scanned, options.time));
        let is_resilvering = scanned.is_resilvering();
        let tree = facts.tree_of(&self.auxiliary?, options.names, &self.devices);
        let width = tree.name_width().max(NAME_WIDTH_MIN);
        Rows { options, activities: self.activities?, is_resilvering, width, scripts: self.scripts.as_ref(), text }
            .all(&tree);
        let errors = self.errors?;
        text.push('\n');
        match errors.len() {
            0 => text.push_str("errors: No known data errors\n"),
            count if !options.lists_files => {
                let _ = writeln!(text, "errors: {count} data errors, use '-v' for a list");
            }
            _ => {
                text.push_str("errors: Permanent errors have been detected in the following files:\n\n");
                for place in &self.places {
                    let _ = writeln!(text, "{:7} {place}", "");
                }
            }
        }
        if let Some(figures) = self.dedup? {
            dedup_text(&figures, options.is_exact, text);
        }
        Ok(())
    }

    /// The same in JSON.
    pub fn json(self, json: Json, condition: Option<Condition>) -> Result<Map<String, Value>> {
        let Self { facts, options, .. } = self;
        let exact = options.is_exact;
        let mut object = facts.json(json, false);
        if let Some(condition) = condition {
            let (status, action) = of_status(condition, options.is_worked_on);
            object.insert("status".into(), json!(format!("{status}\n")));
            object.insert("action".into(), json!(format!("{action}\n")));
            if let Some(message) = condition.message() {
                object.insert("msgid".into(), json!(message));
                object.insert("moreinfo".into(), json!(format!("{MESSAGES}/{message}")));
            }
        }
        let scanned = self.scanned?;
        if let Some(scan) = scan::json(&scanned, json, exact, options.time) {
            object.insert("scan_stats".into(), scan);
        }
        if let Some(removal) = scan::removal_json(&scanned, json, exact, options.time) {
            object.insert("removal_stats".into(), removal);
        }
        if let Some(checkpoint) = scan::checkpoint_json(&scanned, json, exact, options.time) {
            object.insert("checkpoint_stats".into(), checkpoint);
        }
        if let Some(expansion) = scan::expansion_json(&scanned, json, exact, options.time) {
            object.insert("raidz_expand_stats".into(), expansion);
        }
        let tree = facts.tree_of(&self.auxiliary?, options.names, &self.devices);
        let (pool, scripts) = (tree.root.name.as_str(), self.scripts.as_ref());
        let writer = JsonTree { options, activities: self.activities?, scripts, pool, json, exact };
        if options.is_flat {
            let mut flat = Map::new();
            writer.flat(&tree.root, None, 0, &mut flat);
            let of_classes = tree.classes().flat_map(|(_, members)| members);
            for vdev in of_classes.chain(&tree.caches).chain(&tree.spares) {
                writer.flat(vdev, None, 2, &mut flat);
            }
            object.insert("vdevs".into(), Value::Object(flat));
        } else {
            let root = writer.vdev(&tree.root, 0);
            object.insert("vdevs".into(), json!({ tree.root.name.clone(): root }));
            let mut group = |heading: &str, members: Vec<&Vdev>| {
                let shown = members.into_iter().filter(|vdev| writer.is_shown(vdev));
                let members: Map<String, Value> = shown.map(|vdev| (vdev.name.clone(), writer.vdev(vdev, 2))).collect();
                if !members.is_empty() {
                    object.insert(heading.to_owned(), Value::Object(members));
                }
            };
            tree.classes().for_each(|(class, members)| group(class, members));
            group("l2cache", tree.caches.iter().collect());
            group("spares", tree.spares.iter().collect());
        }
        if let Some(figures) = self.dedup? {
            object.insert("dedup_stats".into(), dedup_json(&figures, json, exact));
        }
        let errors = self.errors?;
        object.insert("error_count".into(), json.number(errors.len() as u64));
        if options.lists_files && !errors.is_empty() {
            object.insert("errlist".into(), json!(self.places));
        }
        Ok(object)
    }
}

/// The devices that are initialized and trimmed.
async fn requested(facts: &Facts) -> Result<Activities> {
    let space = facts.space().await?;
    let mut found = Vec::new();
    for kind in [LeafWorkKind::Initialize, LeafWorkKind::Trim] {
        found.push((kind, activities(&facts.pool, space, kind).await?));
    }
    Ok(found)
}

fn dedup_text(figures: &DedupFigures, is_exact: bool, text: &mut String) {
    text.push_str("\n dedup: ");
    if figures.entry_count == 0 {
        text.push_str("no DDT entries\n");
        return;
    }
    let number = |number: u64| if is_exact { number.to_string() } else { nicenum(number) };
    let bytes = |bytes: u64| if is_exact { bytes.to_string() } else { nicebytes(bytes) };
    let (on_disk, in_core) = (bytes(figures.table_bytes), bytes(figures.table_lsize_bytes));
    let _ = writeln!(text, "DDT entries {}, size {on_disk} on disk, {in_core} in core", figures.entry_count);
    text.push_str(concat!(
        "\nbucket              allocated                       referenced          \n",
        "______   ______________________________   ______________________________\n",
        "refcnt   blocks   LSIZE   PSIZE   DSIZE   blocks   LSIZE   PSIZE   DSIZE\n",
        "------   ------   -----   -----   -----   ------   -----   -----   -----\n",
    ));
    let mut row = |label: &str, stat: &DdtStat| {
        let _ = writeln!(
            text,
            "{label:>6}   {:>6}   {:>5}   {:>5}   {:>5}   {:>6}   {:>5}   {:>5}   {:>5}",
            number(stat.block_count),
            number(stat.lsize_bytes),
            number(stat.psize_bytes),
            number(stat.dsize_bytes),
            number(stat.reference_count),
            number(stat.referenced_lsize_bytes),
            number(stat.referenced_psize_bytes),
            number(stat.referenced_dsize_bytes),
        );
    };
    for (bucket, stat) in figures.histogram.iter().enumerate().filter(|(_, stat)| stat.block_count > 0) {
        row(&number(1_u64.checked_shl(bucket as u32).unwrap_or(0)), stat);
    }
    row("Total", &figures.total());
    text.push('\n');
}

fn dedup_json(figures: &DedupFigures, json: Json, exact: bool) -> Value {
    let mut map = Map::new();
    let number = |number: u64| if exact { json.number(number) } else { json!(nicenum(number)) };
    let bytes = |number: u64| if exact { json.number(number) } else { json!(nicebytes(number)) };
    map.insert("obj_count".into(), number(figures.entry_count));
    if figures.entry_count == 0 {
        map.insert("ddt_object_stats".into(), json!({}));
        return Value::Object(map);
    }
    map.insert("dspace".into(), number(figures.table_bytes));
    map.insert("mspace".into(), number(figures.table_lsize_bytes));
    // The tables are in memory only while a command runs.
    map.insert("cspace".into(), number(0));
    let stat = |stat: &DdtStat| {
        json!({
            "blocks": number(stat.block_count),
            "logical_size": bytes(stat.lsize_bytes),
            "physical_size": bytes(stat.psize_bytes),
            "deflated_size": bytes(stat.dsize_bytes),
            "ref_blocks": number(stat.reference_count),
            "ref_lsize": bytes(stat.referenced_lsize_bytes),
            "ref_psize": bytes(stat.referenced_psize_bytes),
            "ref_dsize": bytes(stat.referenced_dsize_bytes),
        })
    };
    let buckets = figures.histogram.iter().enumerate().filter(|(_, stat)| stat.block_count > 0);
    let histogram: Map<String, Value> = buckets.map(|(bucket, each)| (bucket.to_string(), stat(each))).collect();
    map.insert("ddt_stats".into(), json!({ "total": stat(&figures.total()), "histogram": histogram }));
    Value::Object(map)
}

/// Appends the lines under `config:` of a pool that cannot be opened.
pub(super) fn rows_of_lost(text: &mut String, tree: &Tree, options: StatusOptions) {
    let width = tree.name_width().max(NAME_WIDTH_MIN);
    Rows { options, activities: Activities::new(), is_resilvering: false, width, scripts: None, text }.all(tree);
}

/// The same in JSON: the root, or all vdevs on one level.
pub(super) fn json_of_lost(tree: &Tree, options: StatusOptions, json: Json) -> Value {
    let pool = tree.root.name.as_str();
    let writer =
        JsonTree { options, activities: Activities::new(), scripts: None, pool, json, exact: options.is_exact };
    if options.is_flat {
        let mut flat = Map::new();
        writer.flat(&tree.root, None, 0, &mut flat);
        return Value::Object(flat);
    }
    json!({ tree.root.name.clone(): writer.vdev(&tree.root, 0) })
}

/// The lines under `config:`.
struct Rows<'a> {
    options: StatusOptions,
    activities: Activities,
    is_resilvering: bool,
    scripts: Option<&'a ScriptColumns>,
    width: usize,
    text: &'a mut String,
}

impl Rows<'_> {
    fn all(&mut self, tree: &Tree) {
        let width = self.width;
        let slow = if self.options.shows_slow { "  SLOW" } else { "" };
        let scripts = self.scripts.map(|scripts| scripts.heading(false)).unwrap_or_default();
        let _ = writeln!(
            self.text,
            "config:\n\n\t{:width$}  {:8} {:>5} {:>5} {:>5}{slow}{scripts}",
            "NAME", "STATE", "READ", "WRITE", "CKSUM"
        );
        let pool = &tree.root.name;
        self.vdev(&tree.root, pool, 0);
        for (class, members) in tree.classes() {
            let _ = writeln!(self.text, "\t{class}\t");
            members.into_iter().for_each(|member| self.vdev(member, pool, 2));
        }
        for (heading, members) in [("cache", &tree.caches), ("spares", &tree.spares)] {
            if !members.is_empty() {
                let _ = writeln!(self.text, "\t{heading}");
                members.iter().for_each(|member| self.vdev(member, pool, 2));
            }
        }
    }

    fn vdev(&mut self, vdev: &Vdev, pool: &str, depth: usize) {
        if self.options.only_unhealthy && depth > 0 && !vdev.is_unhealthy(self.options.shows_slow) {
            return;
        }
        let width = self.width.saturating_sub(depth);
        let _ = write!(self.text, "\t{:depth$}{:width$}  {:8}", "", vdev.name, vdev.state);
        if !vdev.is_listed_spare {
            for count in [vdev.errors.read, vdev.errors.write, vdev.errors.checksum] {
                let count = if self.options.is_exact { count.to_string() } else { nicenum(count) };
                let _ = write!(self.text, " {count:>5}");
            }
            if self.options.shows_slow {
                let slow = match (vdev.children.is_empty(), self.options.is_exact) {
                    // Only leaves are counted, and exact numbers are numbers.
                    (false, true) => "0".to_owned(),
                    (false, false) => "-".to_owned(),
                    (true, true) => vdev.slow_ios.to_string(),
                    (true, false) => nicenum(vdev.slow_ios),
                };
                let _ = write!(self.text, " {slow:>5}");
            }
        }
        if let Some(was) = &vdev.was {
            let _ = write!(self.text, "  was {was}");
        } else if let Some(remark) = vdev.remark() {
            let _ = write!(self.text, "  {remark}");
        }
        if vdev.is_removing {
            self.text.push_str("  (removing)");
        } else if !vdev.is_allocating {
            self.text.push_str("  (non-allocating)");
        }
        if vdev.children.is_empty() {
            if vdev.awaits_resilver {
                self.text.push_str("  (awaiting resilver)");
            } else if self.is_resilvering && (vdev.is_rebuilt || !vdev.missed.is_empty()) {
                self.text.push_str("  (resilvering)");
            }
            let told = self.scripts.zip(vdev.path.as_deref()).map(|(scripts, path)| scripts.cells(pool, path));
            self.text.extend(told);
            for (kind, of_leaves) in &self.activities {
                let activity = of_leaves.get(&vdev.guid).copied().unwrap_or_default();
                let is_unable = *kind == LeafWorkKind::Trim && vdev.is_distributed();
                let told = match activity.text(*kind, self.options.shows(*kind), self.options.time) {
                    Some(_) if is_unable => Some("trim unsupported".to_owned()),
                    told => told,
                };
                self.text.extend(told.map(|told| format!("  ({told})")));
            }
        }
        self.text.push('\n');
        for child in &vdev.children {
            if !child.is_placeholder && (depth > 0 || child.heading().is_none()) {
                self.vdev(child, pool, depth + 2);
            }
        }
    }
}

struct JsonTree<'a> {
    options: StatusOptions,
    activities: Activities,
    scripts: Option<&'a ScriptColumns>,
    pool: &'a str,
    json: Json,
    exact: bool,
}

impl JsonTree<'_> {
    fn is_shown(&self, vdev: &Vdev) -> bool {
        !self.options.only_unhealthy || vdev.is_unhealthy(self.options.shows_slow)
    }

    fn vdev(&self, vdev: &Vdev, depth: usize) -> Value {
        let mut object = self.own(vdev, None);
        let shown = vdev
            .children
            .iter()
            .filter(|child| !child.is_placeholder && (depth > 0 || child.heading().is_none()) && self.is_shown(child));
        let children: Map<String, Value> =
            shown.map(|child| (child.name.clone(), self.vdev(child, depth + 2))).collect();
        if !children.is_empty() {
            object.insert("vdevs".into(), Value::Object(children));
        }
        Value::Object(object)
    }

    /// A vdev after all those below it, each with its parent's name. As in OpenZFS, those below it are its members too.
    fn flat(&self, vdev: &Vdev, parent: Option<&str>, depth: usize, found: &mut Map<String, Value>) {
        if depth > 0 && !self.is_shown(vdev) {
            return;
        }
        let mut below = Map::new();
        let children = vdev.children.iter();
        for child in children.filter(|child| !child.is_placeholder && (depth > 0 || child.heading().is_none())) {
            self.flat(child, Some(&vdev.name), depth + 2, found);
            self.flat(child, Some(&vdev.name), depth + 2, &mut below);
        }
        let mut object = self.own(vdev, parent);
        if !below.is_empty() {
            object.insert("vdevs".into(), Value::Object(below));
        }
        found.insert(vdev.name.clone(), Value::Object(object));
    }

    /// The data about one vdev.
    fn own(&self, vdev: &Vdev, parent: Option<&str>) -> Map<String, Value> {
        let mut object = vdev.json(self.json);
        object.extend(parent.map(|parent| ("parent".to_owned(), json!(parent))));
        let number = |number: u64| if self.exact { self.json.number(number) } else { json!(nicenum(number)) };
        let bytes = |number: u64| if self.exact { self.json.number(number) } else { json!(nicebytes(number)) };
        if vdev.is_listed_spare {
            object.insert("state".into(), json!(vdev.state));
        } else {
            let sizes = &vdev.sizes;
            for (key, size) in [
                ("alloc_space", sizes.allocated),
                ("total_space", sizes.space),
                ("def_space", sizes.deflated),
                ("rep_dev_size", sizes.replacement),
                ("ex_dev_size", sizes.expandable),
                ("phys_space", sizes.device),
            ] {
                if size > 0 {
                    object.insert(key.into(), bytes(size));
                }
            }
            object.insert("read_errors".into(), number(vdev.errors.read));
            object.insert("write_errors".into(), number(vdev.errors.write));
            object.insert("checksum_errors".into(), number(vdev.errors.checksum));
            if sizes.checkpoint > 0 {
                object.insert("checkpoint_space".into(), bytes(sizes.checkpoint));
            }
            if vdev.children.is_empty() {
                object.insert("slow_ios".into(), number(vdev.slow_ios));
            }
        }
        if let Some(was) = &vdev.was {
            object.insert("not_present".into(), self.json.number(1));
            object.insert("was".into(), json!(was));
        } else if let Some(word) = vdev.reason_word() {
            object.insert("aux".into(), json!(word));
        }
        if !vdev.missed.is_empty() {
            object.insert("missed_txgs".into(), json!(vdev.missed.to_string()));
        }
        if vdev.is_removing {
            object.insert("removing".into(), self.json.number(1));
        } else if !vdev.is_allocating {
            object.insert("noalloc".into(), self.json.number(1));
        }
        if let (Some(scripts), Some(path)) = (self.scripts, &vdev.path) {
            scripts.json(self.pool, path, &mut object);
        }
        let is_asked = |kind: &LeafWorkKind| vdev.children.is_empty() && self.options.shows(*kind);
        for (kind, of_leaves) in self.activities.iter().filter(|(kind, _)| is_asked(kind)) {
            let activity = of_leaves.get(&vdev.guid).copied().unwrap_or_default();
            let is_unable = *kind == LeafWorkKind::Trim && vdev.is_distributed();
            if !is_unable {
                activity.json(*kind, self.json, self.exact, self.options.time, &mut object);
            }
            if *kind == LeafWorkKind::Trim {
                // Another device that cannot discard says so when it is asked to.
                object.insert("trim_notsup".into(), self.json.number(u64::from(is_unable)));
            }
        }
        object
    }
}
