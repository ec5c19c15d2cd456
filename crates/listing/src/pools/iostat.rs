//! I/O of the vdevs of a pool in use, as `zpool iostat` shows it.
//!
//! A process counts the requests of its leaves since it has the pool. A snapshot of these counts goes to the command that asked as JSON; two of
//! them make the rates of an interval. Vdevs with children have no counts of their own: a mirror has read what its children have, and has
//! written what the one with the most writes has; other vdevs have the sum of their children.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use cenote_format::ids::Guid;
use cenote_props::number::nicenum;
use cenote_vdev::tree::{LeafIo, Waits};
use serde_json::{Value, json};

use super::{ScriptColumns, Tree, Vdev};

/// The class of cache devices.
const CACHE: &str = "cache";
/// The least width of names.
const NAME_WIDTH_MIN: usize = 10;
/// The classes of requests that have queues: the first, most urgent ones have two columns each.
const QUEUES: usize = 5;
/// The histograms of times: two of all, two of the device, one of each queue.
const WAITS: usize = 4 + QUEUES;

/// The counts of a vdev and of those below it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VdevIo {
    name: String,
    /// The class under whose heading it is listed.
    class: String,
    space: u64,
    allocated: u64,
    /// Requests that read, their bytes, and the same of those that wrote.
    totals: Vec<u64>,
    /// Times by powers of two of nanoseconds, as the columns are: in all of reads and of writes, at the device of both, and in the queue of each class.
    waits: Vec<Vec<u64>>,
    /// For each class, requests that wait and that the devices have.
    queued: Vec<u64>,
    /// Sizes of requests by powers of two of bytes: for each class those that went alone, and aggregates.
    sizes: Vec<Vec<u64>>,
    /// A leaf's path.
    path: Option<String>,
    guid: Guid,
    children: Vec<VdevIo>,
}

/// A vdev that a word of a command names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedVdev(Guid);

/// A table that is asked for.
#[derive(Clone, Copy, Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of OpenZFS's")]
pub struct IoTable<'a> {
    /// Each vdev (`-v`).
    pub is_verbose: bool,
    /// Mean times (`-l`).
    pub has_latencies: bool,
    /// Queues (`-q`).
    pub has_queues: bool,
    /// Histograms of times in place of the table (`-w`).
    pub is_histogram: bool,
    /// Histograms of sizes of requests in place of the table (`-r`).
    pub is_of_sizes: bool,
    /// Tabs in place of columns, no heading (`-H`).
    pub is_scripted: bool,
    /// Exact numbers (`-p`).
    pub is_exact: bool,
    /// The words of scripts about devices (`-c`).
    pub scripts: Option<&'a ScriptColumns>,
    /// These vdevs alone, without their pools and those below; if none, all. They are listed as with `-v`.
    pub only: &'a [NamedVdev],
}

fn add(into: &mut Vec<u64>, from: &[u64]) {
    into.resize(into.len().max(from.len()), 0);
    into.iter_mut().zip(from).for_each(|(sum, count)| *sum = sum.saturating_add(*count));
}

fn add_each(into: &mut Vec<Vec<u64>>, from: &[Vec<u64>]) {
    into.resize(into.len().max(from.len()), Vec::new());
    into.iter_mut().zip(from).for_each(|(sum, counts)| add(sum, counts));
}

fn less_each(now: &[Vec<u64>], before: &[Vec<u64>]) -> Vec<Vec<u64>> {
    let earlier = before.iter().map(Vec::as_slice).chain(std::iter::repeat(&[][..]));
    now.iter().zip(earlier).map(|(now, before)| less(now, before)).collect()
}

fn less(now: &[u64], before: &[u64]) -> Vec<u64> {
    now.iter()
        .zip(before.iter().chain(std::iter::repeat(&0)))
        .map(|(now, before)| now.saturating_sub(*before))
        .collect()
}

impl VdevIo {
    /// Of a pool's vdevs, by the counts of its leaves.
    #[must_use]
    pub fn of_tree(tree: &Tree, leaves: Vec<(Guid, LeafIo)>) -> Self {
        let leaves = leaves.into_iter().collect();
        let mut pool = Self::of(&tree.root, &leaves);
        // The pool's own counts are without them.
        pool.children
            .extend(tree.caches.iter().map(|cache| Self { class: CACHE.to_owned(), ..Self::of(cache, &leaves) }));
        pool
    }

    fn of(vdev: &Vdev, leaves: &BTreeMap<Guid, LeafIo>) -> Self {
        let shown = vdev.children.iter().filter(|child| !child.is_placeholder);
        let children: Vec<Self> = shown.map(|child| Self::of(child, leaves)).collect();
        let mut this = Self {
            name: vdev.name.clone(),
            class: vdev.heading().unwrap_or_default().to_owned(),
            space: vdev.sizes.space,
            allocated: vdev.sizes.allocated,
            totals: vec![0; 4],
            path: vdev.path.clone().filter(|_| vdev.children.is_empty()),
            guid: vdev.guid,
            ..Self::default()
        };
        if let Some(io) = leaves.get(&vdev.guid) {
            this.totals = io.totals.to_vec();
            let Waits { total, disk, queue } = &io.waits;
            this.waits = total.iter().chain(disk).chain(queue).cloned().collect();
            this.sizes = io.sizes.iter().flatten().chain([&io.discards]).cloned().collect();
            this.queued = io.queued.iter().flat_map(|(wait, active)| [u64::from(*wait), u64::from(*active)]).collect();
        }
        let is_mirror = matches!(vdev.kind, "mirror" | "replacing" | "spare");
        for child in &children {
            let written = [2, 3].map(|index| this.totals[index].max(child.totals[index]));
            add(&mut this.totals, &child.totals);
            if is_mirror {
                this.totals[2..].copy_from_slice(&written);
            }
            add(&mut this.queued, &child.queued);
            add_each(&mut this.waits, &child.waits);
            add_each(&mut this.sizes, &child.sizes);
        }
        this.children = children;
        this
    }

    /// The name of the pool, or of the vdev.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The paths of its devices.
    pub fn paths(&self) -> Vec<&str> {
        let below = self.children.iter().flat_map(Self::paths);
        self.path.as_deref().into_iter().chain(below).collect()
    }

    /// The vdev below this one that a person means by a word: its name, its guid, its path, or the last part of that.
    #[must_use]
    pub fn named(&self, word: &str) -> Option<NamedVdev> {
        self.children.iter().find_map(|child| {
            let is_of_path = |path: &String| path == word || path.rsplit('/').next() == Some(word);
            let is_it = child.name == word || child.path.as_ref().is_some_and(is_of_path);
            if is_it || child.guid.0.to_string() == word { Some(NamedVdev(child.guid)) } else { child.named(word) }
        })
    }

    /// The counts of one vdev below a root.
    pub(super) fn totals_of(&self, vdev: &Vdev, guid: Guid) -> Option<Vec<u64>> {
        if vdev.guid == guid {
            return Some(self.totals.clone());
        }
        let shown = vdev.children.iter().filter(|child| !child.is_placeholder);
        shown.zip(&self.children).find_map(|(vdev, io)| io.totals_of(vdev, guid))
    }

    /// For another process.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let children: Vec<Value> = self.children.iter().map(Self::to_json).collect();
        json!([
            self.name,
            self.class,
            self.space,
            self.allocated,
            self.totals,
            self.waits,
            self.queued,
            children,
            self.sizes,
            self.path,
            self.guid.0
        ])
    }

    /// From another process; nothing of what is no such form.
    #[must_use]
    pub fn from_json(value: &Value) -> Option<Self> {
        let text = |at: usize| value.get(at)?.as_str().map(str::to_owned);
        let numbers =
            |value: Option<&Value>| -> Option<Vec<u64>> { value?.as_array()?.iter().map(Value::as_u64).collect() };
        let histograms = |at: usize| -> Option<Vec<Vec<u64>>> {
            value.get(at)?.as_array()?.iter().map(|of| numbers(Some(of))).collect()
        };
        Some(Self {
            name: text(0)?,
            class: text(1)?,
            space: value.get(2)?.as_u64()?,
            allocated: value.get(3)?.as_u64()?,
            totals: numbers(value.get(4)).filter(|totals| totals.len() == 4)?,
            waits: histograms(5)?,
            queued: numbers(value.get(6))?,
            children: value.get(7)?.as_array()?.iter().map(Self::from_json).collect::<Option<_>>()?,
            path: text(9),
            guid: Guid(value.get(10)?.as_u64()?),
            sizes: histograms(8)?,
        })
    }

    /// The requests since an earlier snapshot. Space and queues are those of now.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let earlier = |child: &Self| before.children.iter().find(|other| other.name == child.name);
        let children =
            self.children.iter().map(|child| earlier(child).map_or_else(|| child.clone(), |old| child.since(old)));
        Self {
            totals: less(&self.totals, &before.totals),
            waits: less_each(&self.waits, &before.waits),
            sizes: less_each(&self.sizes, &before.sizes),
            children: children.collect(),
            ..self.clone()
        }
    }

    fn width(&self, depth: usize, is_verbose: bool) -> usize {
        let below = self.children.iter().filter(|_| is_verbose).map(|child| child.width(depth + 2, true));
        below.max().unwrap_or(0).max(depth + self.name.chars().count())
    }
}

/// A column: its title, those of the group above it, and its width.
struct Column {
    title: &'static str,
    width: usize,
}

/// Groups of columns: the title of each, and the titles of its columns.
const CAPACITY: &[(&str, &[&str])] =
    &[("capacity", &["alloc", "free"]), ("operations", &["read", "write"]), ("bandwidth", &["read", "write"])];
const LATENCY: &[(&str, &[&str])] = &[
    ("total_wait", &["read", "write"]),
    ("disk_wait", &["read", "write"]),
    ("syncq_wait", &["read", "write"]),
    ("asyncq_wait", &["read", "write"]),
    ("scrub", &["wait"]),
    ("trim", &["wait"]),
    ("rebuild", &["wait"]),
];
const QUEUED: &[(&str, &[&str])] = &[
    ("syncq_read", &["pend", "activ"]),
    ("syncq_write", &["pend", "activ"]),
    ("asyncq_read", &["pend", "activ"]),
    ("asyncq_write", &["pend", "activ"]),
    ("scrubq_read", &["pend", "activ"]),
    ("trimq_write", &["pend", "activ"]),
    ("rebuildq_write", &["pend", "activ"]),
];
const HISTOGRAM: &[(&str, &[&str])] = &[
    ("total_wait", &["read", "write"]),
    ("disk_wait", &["read", "write"]),
    ("syncq_wait", &["read", "write"]),
    ("asyncq_wait", &["read", "write"]),
    ("scrub", &[]),
    ("trim", &[]),
    ("rebuild", &[]),
];

const OF_SIZES: &[(&str, &[&str])] = &[
    ("sync_read", &["ind", "agg"]),
    ("sync_write", &["ind", "agg"]),
    ("async_read", &["ind", "agg"]),
    ("async_write", &["ind", "agg"]),
    ("scrub", &["ind", "agg"]),
    ("trim", &["ind", "agg"]),
    ("rebuild", &["ind", "agg"]),
];
/// The first bucket of sizes that is shown: no request is smaller than 512 bytes.
const SIZE_BUCKET_MIN: usize = 9;
/// The width of a column of a histogram, and of one of exact numbers at least.
const HISTOGRAM_WIDTH: usize = 5;

type Groups = &'static [(&'static str, &'static [&'static str])];

impl IoTable<'_> {
    fn groups(self) -> Vec<(Groups, usize)> {
        let width = |exact| if self.is_exact { exact } else { 5 };
        let mut groups = vec![(CAPACITY, width(15))];
        if self.has_latencies {
            groups.push((LATENCY, width(10)));
        }
        if self.has_queues {
            groups.push((QUEUED, width(6)));
        }
        groups
    }

    /// Whether there is more than a row for each pool.
    #[must_use]
    pub const fn has_vdevs(self) -> bool {
        self.is_verbose || !self.only.is_empty()
    }

    fn columns(self) -> Vec<Column> {
        let groups = self.groups().into_iter();
        let columns = groups.flat_map(|(groups, width)| groups.iter().map(move |group| (group, width)));
        columns.flat_map(|((_, titles), width)| titles.iter().map(move |title| Column { title, width })).collect()
    }

    /// The width of names in a table of these pools.
    #[must_use]
    pub fn name_width<'a>(self, pools: impl IntoIterator<Item = &'a VdevIo>) -> usize {
        pools.into_iter().map(|pool| pool.width(0, self.has_vdevs())).max().unwrap_or(0).max(NAME_WIDTH_MIN)
    }

    /// The heading.
    #[must_use]
    pub fn heading(self, name_width: usize) -> String {
        let mut text = format!("{:name_width$}", "");
        for (groups, width) in self.groups() {
            for (title, columns) in groups {
                centred(&mut text, title, width, columns.len());
            }
        }
        let _ = write!(text, "\n{:name_width$}", if self.only.is_empty() { "pool" } else { "vdev" });
        for column in self.columns() {
            centred(&mut text, column.title, column.width, 1);
        }
        text.extend(self.scripts.map(|scripts| scripts.heading(false)));
        text.push('\n');
        text + &self.line(name_width)
    }

    /// A line of dashes.
    #[must_use]
    pub fn line(self, name_width: usize) -> String {
        let columns = self.columns().into_iter().map(|column| format!("  {}", "-".repeat(column.width)));
        let scripts = self.scripts.map(|scripts| scripts.heading(true)).unwrap_or_default();
        format!("{}{}{scripts}\n", "-".repeat(name_width), columns.collect::<String>())
    }

    /// The rows of a pool: of what came in this time.
    #[must_use]
    pub fn rows(self, pool: &VdevIo, within: Duration, name_width: usize) -> String {
        let mut text = String::new();
        self.vdev(pool, &pool.name, within, name_width, 0, &mut text);
        if self.is_verbose && self.only.is_empty() && !self.is_scripted && !self.has_histograms() {
            text.push_str(&self.line(name_width));
        }
        text
    }

    fn vdev(self, vdev: &VdevIo, pool: &str, within: Duration, name_width: usize, depth: usize, text: &mut String) {
        if !self.only.is_empty() && !self.only.contains(&NamedVdev(vdev.guid)) {
            // Those below it may be meant.
        } else if self.is_of_sizes {
            self.sizes(vdev, name_width, text);
        } else if self.is_histogram {
            self.histogram(vdev, name_width, text);
        } else {
            self.row(vdev, pool, within, name_width, depth, text);
        }
        if !self.has_vdevs() {
            return;
        }
        let of_class =
            |class: &'static str| vdev.children.iter().filter(move |child| depth > 0 || child.class == class);
        for class in ["", super::DEDUP, super::SPECIAL, super::LOGS, CACHE] {
            let mut is_first = depth == 0 && !class.is_empty() && self.only.is_empty();
            for child in of_class(class) {
                if std::mem::take(&mut is_first) && !self.is_scripted && !self.has_histograms() {
                    let _ = write!(text, "{class:name_width$}");
                    for column in self.columns() {
                        let _ = write!(text, "  {:>width$}", "-", width = column.width);
                    }
                    text.push('\n');
                }
                self.vdev(child, pool, within, name_width, depth + 2, text);
            }
            if depth > 0 {
                return;
            }
        }
    }

    fn row(self, vdev: &VdevIo, pool: &str, within: Duration, name_width: usize, depth: usize, text: &mut String) {
        let count = |count: u64| if self.is_exact { count.to_string() } else { nicenum(count) };
        let rate = |total: u64| count((total as f64 / within.as_secs_f64().max(f64::MIN_POSITIVE)) as u64);
        let none = if self.is_exact { "0" } else { "-" };
        let mut values = match vdev.space {
            0 => vec![none.to_owned(); 2],
            space => vec![count(vdev.allocated), count(space.saturating_sub(vdev.allocated))],
        };
        values.extend([0, 2, 1, 3].map(|at| rate(vdev.totals[at])));
        if self.has_latencies {
            let means = vdev.waits.iter().map(|waits| mean(waits)).chain(std::iter::repeat(0));
            // Nothing trims or rebuilds through a queue of its own.
            values.extend(means.take(WAITS + 2).map(|mean| self.time(mean)));
        }
        if self.has_queues {
            let queued = vdev.queued.iter().copied().chain(std::iter::repeat(0)).take(2 * QUEUES);
            // Nothing trims or rebuilds through a queue of its own.
            values.extend(queued.chain([0; 4]).map(count));
        }
        let told = self.scripts.zip(vdev.path.as_deref()).map(|(scripts, path)| scripts.cells(pool, path));
        let told = told.unwrap_or_default();
        if self.is_scripted {
            let _ = writeln!(text, "{}\t{}{told}", vdev.name, values.join("\t"));
            return;
        }
        let _ = write!(text, "{:depth$}{:width$}", "", vdev.name, width = name_width.saturating_sub(depth));
        for (value, column) in values.iter().zip(self.columns()) {
            let _ = write!(text, "  {value:>width$}", width = column.width);
        }
        text.push_str(&told);
        text.push('\n');
    }

    fn time(self, ns: u64) -> String {
        if self.is_exact && ns != 0 { ns.to_string() } else { nicetime(ns) }
    }

    /// Whether there are histograms in place of a table.
    #[must_use]
    pub const fn has_histograms(self) -> bool {
        self.is_histogram || self.is_of_sizes
    }

    /// The times of requests.
    fn histogram(self, vdev: &VdevIo, name_width: usize, text: &mut String) {
        let buckets = vdev.waits.iter().map(Vec::len).max().unwrap_or(0);
        let rows = (0..buckets).map(|bucket| {
            let end = 1_u64.checked_shl(bucket as u32 + 1).map_or(u64::MAX, |end| end - 1);
            let counts = vdev.waits.iter().map(|waits| waits.get(bucket).copied().unwrap_or(0));
            // Nothing trims or rebuilds through a queue of its own.
            (end, counts.chain(std::iter::repeat(0)).take(WAITS + 2).collect())
        });
        let rows: Vec<_> = rows.collect();
        self.buckets(vdev, HISTOGRAM, ("latency", &nicetime), &rows, name_width, text);
    }

    /// The sizes of requests.
    fn sizes(self, vdev: &VdevIo, name_width: usize, text: &mut String) {
        let buckets = vdev.sizes.iter().map(Vec::len).max().unwrap_or(0);
        let rows = (SIZE_BUCKET_MIN..buckets).map(|bucket| {
            let counts = vdev.sizes.iter().map(|sizes| sizes.get(bucket).copied().unwrap_or(0));
            // Trims are not gathered, and nothing rebuilds through a queue of its own.
            let counts = counts.chain(std::iter::repeat(0)).take(2 * OF_SIZES.len());
            (1_u64.checked_shl(bucket as u32).unwrap_or(u64::MAX), counts.collect())
        });
        let rows: Vec<_> = rows.collect();
        self.buckets(vdev, OF_SIZES, ("req_size", &nicenum), &rows, name_width, text);
    }

    /// A histogram: its groups of columns; the title of its buckets, and their form; each bucket's bound, with a count for each column.
    fn buckets(
        self,
        vdev: &VdevIo,
        groups: Groups,
        (title, nice): (&str, &dyn Fn(u64) -> String),
        rows: &[(u64, Vec<u64>)],
        name_width: usize,
        text: &mut String,
    ) {
        let shown = |count: &u64| if self.is_exact { count.to_string() } else { nicenum(*count) };
        let widths = rows.iter().flat_map(|(_, counts)| counts).map(|count| shown(count).len());
        let width = widths.max().unwrap_or(0).max(HISTOGRAM_WIDTH);
        let name_width = name_width.max(title.len());
        let columns: usize = groups.iter().map(|(_, columns)| columns.len().max(1)).sum();
        if self.is_scripted {
            let _ = writeln!(text, "\n{}", vdev.name);
        } else {
            let (mut titles, mut below) = (format!("\n{:name_width$}", vdev.name), format!("{title:name_width$}"));
            for (title, columns) in groups.iter().filter(|(_, columns)| !columns.is_empty()) {
                centred(&mut titles, title, width, columns.len());
                columns.iter().for_each(|column| centred(&mut below, column, width, 1));
            }
            for (title, _) in groups.iter().filter(|(_, columns)| columns.is_empty()) {
                centred(&mut below, title, width, 1);
            }
            let dashes = format!("  {}", "-".repeat(width)).repeat(columns);
            let _ = writeln!(text, "{titles}\n{below}\n{}{dashes}", "-".repeat(name_width));
        }
        for (bound, counts) in rows {
            let counts: Vec<String> = counts.iter().map(shown).collect();
            if self.is_scripted {
                let _ = writeln!(text, "{bound}\t{}", counts.join("\t"));
                continue;
            }
            let bound = if self.is_exact { bound.to_string() } else { nice(*bound) };
            let _ = write!(text, "{bound:name_width$}");
            for count in &counts {
                let _ = write!(text, "  {count:>width$}");
            }
            text.push('\n');
        }
        if !self.is_scripted {
            let _ = writeln!(text, "{}", "-".repeat(name_width + columns * (width + 2)));
        }
    }
}

/// Appends a title over so many columns of a width, where OpenZFS puts it.
fn centred(text: &mut String, title: &str, width: usize, columns: usize) {
    let room = width * columns + 2 * (columns - 1);
    let before = (room / columns).saturating_sub(title.len() / columns);
    let after = room.saturating_sub(before + title.len());
    let _ = write!(text, "  {:before$}{title}{:after$}", "", "");
}

/// The mean of a histogram by powers of two, each value taken for the middle of its bucket.
fn mean(buckets: &[u64]) -> u64 {
    let middle = |bucket: usize| (3_u128 << bucket) >> 1;
    let sum: u128 = buckets.iter().enumerate().map(|(bucket, count)| middle(bucket) * u128::from(*count)).sum();
    let count: u128 = buckets.iter().map(|count| u128::from(*count)).sum();
    u64::try_from(sum.checked_div(count).unwrap_or(0)).unwrap_or(u64::MAX)
}

/// A time with a unit, as OpenZFS's `zfs_nicetime` writes it: `-` for none.
pub(super) fn nicetime(ns: u64) -> String {
    const UNITS: [(&str, u64); 4] = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1000), ("ns", 1)];
    if ns == 0 {
        return "-".to_owned();
    }
    let (unit, size) = UNITS.into_iter().find(|(_, size)| ns >= *size).unwrap_or(("ns", 1));
    format!("{}{unit}", ns / size)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> VdevIo {
        let leaf = |name: &str, totals: [u64; 4]| VdevIo {
            name: name.into(),
            path: Some(format!("/dev/{name}")),
            guid: Guid(name.bytes().last().map_or(0, u64::from)),
            totals: totals.to_vec(),
            waits: [[vec![0, 0, 0, 4], vec![], vec![0, 0, 4], vec![]].to_vec(), vec![vec![0, 4]; QUEUES]].concat(),
            queued: vec![1, 2, 0, 0, 0, 0, 0, 0, 0, 0],
            ..VdevIo::default()
        };
        let leaves = vec![leaf("sda", [10, 1 << 20, 20, 4 << 20]), leaf("sdb", [30, 3 << 20, 22, 4 << 20])];
        let mirror = VdevIo {
            name: "mirror-0".into(),
            totals: vec![40, 4 << 20, 22, 4 << 20],
            children: leaves,
            ..VdevIo::default()
        };
        VdevIo { name: "tank".into(), space: 1 << 30, allocated: 1 << 20, children: vec![mirror.clone()], ..mirror }
    }

    #[test]
    fn the_table_is_that_of_openzfs() {
        let table = IoTable { is_verbose: true, ..IoTable::default() };
        let (pool, second) = (pool(), Duration::from_secs(2));
        let width = table.name_width([&pool]);
        let text = table.heading(width) + &table.rows(&pool, second, width);
        assert_eq!(
            text,
            concat!(
                "              capacity     operations     bandwidth \n",
                "pool        alloc   free   read  write   read  write\n",
                "----------  -----  -----  -----  -----  -----  -----\n",
                "tank           1M  1023M     20     11     2M     2M\n",
                "  mirror-0      -      -     20     11     2M     2M\n",
                "    sda         -      -      5     10   512K     2M\n",
                "    sdb         -      -     15     11  1.50M     2M\n",
                "----------  -----  -----  -----  -----  -----  -----\n",
            )
        );
    }

    #[test]
    fn vdevs_that_are_named_are_listed_without_their_pool() {
        let pool = pool();
        let named = ["sdb", "/dev/sdb", "98"].map(|word| pool.named(word));
        assert_eq!(named, [Some(NamedVdev(Guid(98))); 3]);
        assert_eq!(
            (pool.named("mirror-0"), pool.named("sdc"), pool.named("tank")),
            (Some(NamedVdev(Guid(0))), None, None)
        );
        let table = IoTable { only: &[NamedVdev(Guid(98))], ..IoTable::default() };
        let width = table.name_width([&pool]);
        assert_eq!(
            table.heading(width) + &table.rows(&pool, Duration::from_secs(2), width),
            concat!(
                "              capacity     operations     bandwidth \n",
                "vdev        alloc   free   read  write   read  write\n",
                "----------  -----  -----  -----  -----  -----  -----\n",
                "    sdb         -      -     15     11  1.50M     2M\n",
            )
        );
    }

    #[test]
    fn scripts_get_tabs_and_whole_numbers() {
        let table =
            IoTable { is_scripted: true, is_exact: true, has_latencies: true, has_queues: true, ..IoTable::default() };
        let row = table.rows(&pool().children[0].children[0], Duration::from_secs(1), 10);
        let values: Vec<&str> = row.trim_end().split('\t').collect();
        assert_eq!(values[..7], ["sda", "0", "0", "10", "20", "1048576", "4194304"]);
        assert_eq!(values[7..18], ["12", "-", "6", "-", "3", "3", "3", "3", "3", "-", "-"], "{row}");
        assert_eq!((values.len(), &values[18..20]), (7 + 11 + 14, &["1", "2"][..]), "{row}");
    }

    #[test]
    fn sizes_have_a_row_for_each_power_of_two() {
        let sizes = |at: usize, bucket: usize| {
            let mut sizes = vec![vec![0; 25]; 11];
            sizes[at][bucket] = 3;
            sizes[10][14] = 5;
            sizes
        };
        let io = VdevIo { name: "sda".into(), totals: vec![0; 4], sizes: sizes(7, 17), ..VdevIo::default() };
        let table = IoTable { is_of_sizes: true, ..IoTable::default() };
        let text = table.rows(&io, Duration::from_secs(1), 10);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].starts_with("sda           sync_read    sync_write  "), "{text}");
        assert!(lines[2].starts_with("req_size      ind    agg    ind    agg  "), "{text}");
        assert_eq!((lines.len(), &lines[4][..3], &lines[19][..3]), (21, "512", "16M"), "{text}");
        let row = lines.iter().find(|line| line.starts_with("128K")).unwrap();
        assert_eq!(row.split_whitespace().nth(8), Some("3"), "async_write agg: {text}");
        let row = lines.iter().find(|line| line.starts_with("16K")).unwrap();
        assert_eq!(
            row.split_whitespace().skip(11).collect::<Vec<_>>(),
            ["5", "0", "0", "0"],
            "trim and rebuild: {text}"
        );
        let scripted = IoTable { is_scripted: true, is_exact: true, ..table }.rows(&io, Duration::from_secs(1), 10);
        assert!(scripted.contains("\n131072\t0\t0\t0\t0\t0\t0\t0\t3\t0\t"), "{scripted}");
        let later = VdevIo { sizes: sizes(7, 12), ..io.clone() };
        assert_eq!(later.since(&io).sizes[7][12], 3);
        assert_eq!(VdevIo::from_json(&io.to_json()), Some(io));
    }

    #[test]
    fn a_snapshot_survives_its_way_and_two_make_an_interval() {
        let before = pool();
        assert_eq!(VdevIo::from_json(&before.to_json()).as_ref(), Some(&before));
        assert_eq!(VdevIo::from_json(&json!([1, 2])), None);
        let mut now = before.clone();
        now.children[0].children[0].totals[0] += 7;
        let since = now.since(&before);
        assert_eq!(since.children[0].children[0].totals, [7, 0, 0, 0]);
        assert_eq!((since.children[0].children[1].totals[0], since.allocated), (0, 1 << 20));
    }

    #[test]
    fn means_and_units_are_openzfs_s() {
        assert_eq!((mean(&[0, 0, 4]), mean(&[]), mean(&[0, 1, 1])), (6, 0, 4));
        assert_eq!([0, 999, 1000, 33_500_000, 2_000_000_000].map(nicetime), ["-", "999ns", "1us", "33ms", "2s"]);
    }
}
