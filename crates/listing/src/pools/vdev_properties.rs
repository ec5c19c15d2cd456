//! Properties of vdevs, as `zpool get PROPERTY POOL VDEV` shows them (`vdevprops(7)`).
//!
//! Those that a person sets are in the vdev's ZAP; the others come from the configuration, the devices and the process that has the pool. A
//! property that nothing here knows the value of is `-`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use cenote_dsl::property::Value;
use cenote_format::ids::Guid;
use cenote_props::number::nicenum;
use cenote_props::{WrongUse, is_user_property};
use cenote_taskq::boxed;
use cenote_vdev::config::{AllocationClass, VdevConfig, VdevKind};
use cenote_vdev::tree::LeafIo;
use serde_json::{Map, json};

use super::iostat::VdevIo;
use super::{Facts, Names, Tree, Vdev};
use crate::datasets::{Cell, Source};
use crate::error::{ListError, Result};
use crate::gettable::{Field, Got, Gotten};
use crate::tables::{Form, Listed};

/// All properties, in the order in which OpenZFS lists them.
const ALL: [&str; 61] = [
    "capacity",
    "state",
    "guid",
    "asize",
    "psize",
    "ashift",
    "size",
    "free",
    "allocated",
    "comment",
    "expandsize",
    "fragmentation",
    "bootsize",
    "parity",
    "path",
    "devid",
    "physpath",
    "encpath",
    "fru",
    "parent",
    "children",
    "numchildren",
    "read_errors",
    "write_errors",
    "checksum_errors",
    "initialize_errors",
    "null_ops",
    "read_ops",
    "write_ops",
    "free_ops",
    "claim_ops",
    "trim_ops",
    "null_bytes",
    "read_bytes",
    "write_bytes",
    "free_bytes",
    "claim_bytes",
    "trim_bytes",
    "removing",
    "allocating",
    "failfast",
    "checksum_n",
    "checksum_t",
    "io_n",
    "io_t",
    "raidz_expanding",
    "slow_io_n",
    "slow_io_t",
    "trim_support",
    "trim_errors",
    "slow_ios",
    "sit_out",
    "autosit",
    "slow_io_events",
    "scheduler",
    "failure_domain",
    "failure_group",
    "alloc_bias",
    "rotational",
    "class",
    "name",
];
/// Those at the end that are shown only where they are asked for.
const NOT_OF_ALL: usize = 2;
/// The class of a top-level vdev in its ZAP (`VDEV_TOP_ZAP_ALLOCATION_BIAS`).
const ALLOCATION_BIAS: &str = "org.zfsonlinux:allocation_bias";
/// The word for all vdevs of a pool.
const ALL_VDEVS: &str = "all-vdevs";
/// The name of a pool's root.
const ROOT: &str = "root-0";

/// A vdev with all that is known of it.
struct Known<'a> {
    vdev: &'a Vdev,
    config: &'a VdevConfig,
    parent: Option<&'a Vdev>,
    /// The sector size of its top-level vdev, and whether it is one.
    ashift: u32,
    is_top: bool,
    is_rotational: Option<bool>,
    /// Requests that its process counted.
    io: Option<Vec<u64>>,
    /// Of a leaf of a raidz or draid: whether it sits out.
    sits_out: Option<bool>,
    set: BTreeMap<String, Value>,
}

/// The properties that a list names; none for `all`.
///
/// # Errors
/// One is none.
fn asked(list: &str) -> std::result::Result<Option<Vec<&str>>, WrongUse> {
    if list == "all" {
        return Ok(None);
    }
    let names: Vec<&str> = list.split(',').map(canonical).collect();
    match names.iter().find(|name| !ALL.contains(name) && !is_user_property(name)) {
        Some(wrong) => Err(WrongUse::new(format!("bad property list: invalid property '{wrong}'"))),
        None => Ok(Some(names)),
    }
}

/// Names of columns that are names of properties too.
fn canonical(name: &str) -> &str {
    match name {
        "alloc" => "allocated",
        "cap" => "capacity",
        "expandsz" => "expandsize",
        "frag" => "fragmentation",
        other => other,
    }
}

/// The vdevs of a tree that words name: by what `zpool status` shows, a path, a device's file name, or a guid. A word that names none.
///
/// # Errors
/// The first such word.
fn named_vdevs<'a>(tree: &'a Tree, words: &[String]) -> std::result::Result<Vec<&'a Vdev>, String> {
    fn walk<'a>(vdev: &'a Vdev, all: &mut Vec<&'a Vdev>) {
        for child in vdev.children.iter().filter(|child| !child.is_placeholder) {
            all.push(child);
            walk(child, all);
        }
    }
    let mut all = Vec::new();
    walk(&tree.root, &mut all);
    let mut found = Vec::new();
    for word in words {
        if word == ALL_VDEVS {
            found.push(&tree.root);
            found.extend(&all);
            continue;
        }
        let is_it = |vdev: &&&Vdev| {
            let path = vdev.path.as_deref().map(Path::new);
            let is_at = path.is_some_and(|path| {
                path == Path::new(word) || path.file_name().is_some_and(|name| name == word.as_str())
            });
            vdev.name == *word || is_at || word.parse() == Ok(vdev.guid.0) || *word == kernel_name(vdev)
        };
        match all.iter().find(is_it) {
            Some(vdev) => found.push(*vdev),
            None if word == ROOT => found.push(&tree.root),
            None => return Err(word.clone()),
        }
    }
    Ok(found)
}

/// The name of a vdev among the properties of its parent and of its children: a path, or its type and its number, without the parity.
fn kernel_name(vdev: &Vdev) -> String {
    let number = vdev.name.rsplit_once('-').map_or("", |(_, number)| number);
    match &vdev.path {
        Some(path) => path.clone(),
        None if vdev.kind == "root" => vdev.name.clone(),
        None => format!("{}-{number}", vdev.kind),
    }
}

/// Properties of vdevs of a pool, one per row. `counted`: the requests of leaves, from the process that has the pool.
///
/// # Errors
/// A word names no vdev or no property; or the pool cannot be read.
#[boxed]
pub async fn get_vdevs(
    facts: &Facts,
    names: Names,
    words: &[String],
    list: &str,
    fields: Vec<Field>,
    form: Form,
    counted: Option<Vec<(Guid, LeafIo)>>,
) -> Result<Listed> {
    let asked = asked(list).map_err(ListError::Property)?;
    let tree = facts.tree(names).await?;
    let vdevs = named_vdevs(&tree, words).map_err(|word| {
        WrongUse::new(format!("Cannot get properties of {word}: no such vdev in pool '{}'", facts.pool.name()))
    })?;
    let sitting: BTreeSet<Guid> =
        counted.iter().flatten().filter(|(_, io)| io.sits_out).map(|(guid, _)| *guid).collect();
    let io = counted.map(|counted| VdevIo::of_tree(&tree, counted));
    let of_stripes: BTreeSet<Guid> = tree.root.children.iter().filter(|top| is_stripe(top)).flat_map(leaves).collect();
    let shown = |vdev: &Vdev| if vdev.guid == tree.root.guid { ROOT.to_owned() } else { vdev.name.clone() };
    let all_names: Vec<String> = vdevs.iter().map(|vdev| shown(vdev)).collect();
    let of_all = asked.clone().unwrap_or_else(|| ALL[..ALL.len() - NOT_OF_ALL].to_vec());
    let widths = of_all.iter().map(|name| (*name, 1));
    let mut gotten = Gotten::new(fields, form.json, all_names.iter().map(String::as_str), widths);
    for (vdev, name) in vdevs.into_iter().zip(&all_names) {
        let Some(mut known) = known(facts, &tree, vdev) else { continue };
        known.io = io.as_ref().and_then(|io| io.totals_of(&tree.root, vdev.guid));
        known.sits_out = of_stripes.contains(&vdev.guid).then(|| sitting.contains(&vdev.guid));
        known.set = facts.pool.vdev_properties(known.config).await?;
        // Entries of jobs are numbers, and the class has a name of its own.
        let is_user = |(name, value): &(&String, &Value)| {
            is_user_property(name) && matches!(value, Value::Text(_)) && *name != ALLOCATION_BIAS
        };
        let users: Vec<String> = known.set.iter().filter(is_user).map(|(name, _)| name.clone()).collect();
        let mut values = Vec::new();
        for property in of_all.iter().copied().chain(users.iter().filter(|_| asked.is_none()).map(String::as_str)) {
            match known.cell(property, form.is_exact) {
                Some(cell) => values.push(Got { property, cell, is_fixed: false, is_chosen: true }),
                // One that this kind of vdev does not have.
                None if asked.is_none() => {}
                None => {
                    values.push(Got { property, cell: Cell::new("-", Source::None), is_fixed: false, is_chosen: true });
                }
            }
        }
        let object = |json| {
            let mut object = Map::from_iter([("name".to_owned(), json!(name)), ("type".to_owned(), json!("VDEV"))]);
            object.extend(vdev.json(json).into_iter().filter(|(key, _)| key != "name"));
            object
        };
        gotten.add(name, name, object, values);
    }
    let pool = form.json.map(|json| ("pool", serde_json::Value::Object(facts.json(json, false))));
    Ok(Listed { text: gotten.text_of("zpool get", "vdevs", form.is_scripted, pool), is_whole: true })
}

fn known<'a>(facts: &'a Facts, tree: &'a Tree, vdev: &'a Vdev) -> Option<Known<'a>> {
    let root = facts.pool.vdevs();
    let (mut config, mut ashift, mut is_top) = (None, 0, false);
    if root.guid == vdev.guid {
        config = Some(root);
    }
    for top in &root.children {
        top.walk(&mut |of| {
            if of.guid == vdev.guid {
                (config, ashift, is_top) = (Some(of), top.ashift, top.guid == of.guid);
            }
        });
    }
    fn parent_of(at: &Vdev, guid: Guid) -> Option<&Vdev> {
        if at.children.iter().any(|child| child.guid == guid) {
            return Some(at);
        }
        at.children.iter().find_map(|child| parent_of(child, guid))
    }
    let disk = facts.pool.found().leaves.get(&vdev.guid).map(|leaf| leaf.disk.device().is_rotational());
    Some(Known {
        vdev,
        config: config?,
        parent: parent_of(&tree.root, vdev.guid),
        ashift,
        is_top,
        is_rotational: disk,
        io: None,
        sits_out: None,
        set: BTreeMap::new(),
    })
}

impl Known<'_> {
    /// A property's value; nothing of one that such a vdev does not have.
    fn cell(&self, name: &str, is_exact: bool) -> Option<Cell> {
        let vdev = self.vdev;
        let is_leaf = vdev.children.is_empty();
        let fixed = |text: String| Some(Cell::new(text, Source::None));
        let count = |count: u64| fixed(if is_exact { count.to_string() } else { nicenum(count) });
        let unknown = || Some(Cell::new("-", Source::Default));
        let text = |text: &Option<String>| text.clone().map_or_else(unknown, fixed);
        let switch = |is_on: bool| fixed(if is_on { "on" } else { "off" }.to_owned());
        let sizes = &vdev.sizes;
        let asize =
            if is_leaf { sizes.device.saturating_sub(super::vdevs::LABEL_BYTES) } else { self.config.asize_bytes };
        match name {
            "name" => fixed(vdev.name.clone()),
            "class" => fixed(vdev.class.to_owned()),
            "capacity" => {
                let percent = (sizes.allocated.saturating_mul(100)).checked_div(sizes.deflated).unwrap_or(0);
                fixed(if is_exact { percent.to_string() } else { format!("{percent}%") })
            }
            "state" => fixed(vdev.state.to_owned()),
            "guid" => fixed(vdev.guid.0.to_string()),
            "asize" => count(asize),
            "psize" => count(if is_leaf { sizes.device } else { 0 }),
            "ashift" => fixed(self.ashift.to_string()),
            "size" => count(sizes.deflated),
            "free" => count(sizes.deflated.saturating_sub(sizes.allocated)),
            "allocated" => count(sizes.allocated),
            "expandsize" if sizes.expandable == 0 => fixed("-".to_owned()),
            "expandsize" => count(sizes.expandable),
            "fragmentation" => match sizes.fragmentation {
                Some(percent) if is_exact => fixed(percent.to_string()),
                Some(percent) => fixed(format!("{percent}%")),
                None if self.is_top => fixed("-".to_owned()),
                None => fixed(if is_exact { "0" } else { "0%" }.to_owned()),
            },
            "parity" => fixed(parity(self.config).to_string()),
            "path" => text(&vdev.path),
            "devid" => text(&vdev.devid),
            "physpath" => text(&vdev.phys_path),
            "encpath" => text(&self.config.enclosure_path.as_deref().map(str::to_owned)),
            "fru" => text(&self.config.fru.as_deref().map(str::to_owned)),
            "parent" => text(&self.parent.map(kernel_name)),
            "children" if is_leaf => unknown(),
            "children" => {
                let children = vdev.children.iter().filter(|child| !child.is_placeholder);
                fixed(children.map(kernel_name).collect::<Vec<_>>().join(","))
            }
            "numchildren" => fixed(vdev.children.iter().filter(|child| !child.is_placeholder).count().to_string()),
            "read_errors" => count(vdev.errors.read),
            "write_errors" => count(vdev.errors.write),
            "checksum_errors" => count(vdev.errors.checksum),
            "slow_ios" => count(vdev.slow_ios),
            // Nothing here initializes or trims through counted requests, and there are no requests of the other kinds.
            "initialize_errors" | "trim_errors" | "null_ops" | "free_ops" | "claim_ops" | "trim_ops" | "null_bytes"
            | "free_bytes" | "claim_bytes" | "trim_bytes" => count(0),
            "bootsize" => Some(Cell::new("0", Source::Default)),
            "read_ops" | "read_bytes" | "write_ops" | "write_bytes" => {
                let at = ["read_ops", "read_bytes", "write_ops", "write_bytes"].iter().position(|of| *of == name)?;
                match &self.io {
                    Some(io) => count(io.get(at).copied().unwrap_or(0)),
                    None => fixed("-".to_owned()),
                }
            }
            "removing" => switch(vdev.is_removing),
            "allocating" if !self.is_top && self.config.kind != VdevKind::Root => fixed("-".to_owned()),
            "allocating" => Some(match vdev.is_allocating {
                true => Cell::new("on", Source::Default),
                false => Cell::new("off", Source::Local),
            }),
            "raidz_expanding" => match self.config.kind {
                VdevKind::Raidz { expanding, .. } => switch(expanding),
                _ => None,
            },
            "rotational" => self.is_rotational.map_or_else(unknown, switch),
            "alloc_bias" if !self.is_top => None,
            // The class is what it is used for, and this what it will be when the pool is opened again.
            "alloc_bias" if self.config.class == AllocationClass::Log => fixed("log".to_owned()),
            "alloc_bias" => Some(match self.set.get(ALLOCATION_BIAS) {
                Some(Value::Text(class)) => Cell::new(class.clone(), Source::Local),
                _ => Cell::new("none", Source::Default),
            }),
            // A device that cannot discard says so when it is asked to.
            "trim_support" if is_leaf => switch(vdev.sizes.device > 0 && !vdev.is_distributed()),
            "trim_support" => fixed("-".to_owned()),
            "sit_out" => self.sits_out.and_then(switch),
            "autosit" if !matches!(self.config.kind, VdevKind::Raidz { .. } | VdevKind::Draid { .. }) => None,
            "autosit" => Some(match self.set.get(name) {
                Some(Value::Number(0)) => Cell::new("off", Source::Local),
                Some(Value::Number(_)) => Cell::new("on", Source::Local),
                _ => Cell::new("on", Source::Default),
            }),
            "scheduler" => Some(match self.set.get(name) {
                Some(Value::Number(1)) => Cell::new("on", Source::Local),
                Some(Value::Number(2)) => Cell::new("off", Source::Local),
                _ => Cell::new("auto", Source::Default),
            }),
            "failure_domain" | "failure_group" => unknown(),
            "failfast" | "slow_io_events" => {
                let usual = match name {
                    "failfast" if self.config.kind != VdevKind::Root => "inherit",
                    _ => "on",
                };
                Some(match self.set.get(name) {
                    Some(Value::Number(0)) => Cell::new("off", Source::Local),
                    Some(Value::Number(1)) if usual == "inherit" => Cell::new("on", Source::Local),
                    _ => Cell::new(usual, Source::Default),
                })
            }
            // Numbers and texts that a person sets.
            _ => Some(match self.set.get(name) {
                Some(Value::Number(number)) if *number != u64::MAX => Cell::new(number.to_string(), Source::Local),
                Some(Value::Text(text)) => Cell::new(text.clone(), Source::Local),
                _ => Cell::new("-", Source::Default),
            }),
        }
    }
}

fn is_stripe(vdev: &Vdev) -> bool {
    matches!(vdev.kind, "raidz" | "draid")
}

/// The guids of a vdev's leaves.
fn leaves(vdev: &Vdev) -> Vec<Guid> {
    match vdev.children.is_empty() {
        true => vec![vdev.guid],
        // As deep as the configuration was let become.
        false => vdev.children.iter().flat_map(leaves).collect(),
    }
}

fn parity(config: &VdevConfig) -> u64 {
    match config.kind {
        VdevKind::Raidz { parity, .. } | VdevKind::Draid { parity, .. } => parity,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_name_properties_of_vdevs_and_of_users_alone() {
        assert_eq!(asked("all").unwrap(), None);
        assert_eq!(asked("io_n,frag,my:own").unwrap(), Some(vec!["io_n", "fragmentation", "my:own"]));
        assert!(asked("io_n,health").unwrap_err().to_string().contains("invalid property 'health'"));
        let mut names = ALL.to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
    }
}
