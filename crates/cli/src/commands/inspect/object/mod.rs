//! `cenote inspect object`: everything about objects of a dataset.

mod bonus;
mod contents;
mod tree;

use std::ops::RangeInclusive;

use anyhow::Result;
use cenote_dmu::sa::SaTables;
use cenote_dmu::{DmuError, Object, Zap};
use cenote_format::dmu_type::DmuType;
use cenote_format::dnode::SLOT_BYTES;
use cenote_format::enums::{Checksum, Compress, ObjsetType};
use cenote_format::ids::ObjectId;
use cenote_format::zpl::{GROUP_USED_OBJECT, MASTER_NODE, PROJECT_USED_OBJECT, USER_USED_OBJECT, master_node};
use cenote_zpl::{FileSystem, PathFinder};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::objects::{Objects, summary};
use super::open::{self, Target};
use super::report::{Common, Report};
use super::values;
use crate::context::Context;
use crate::files::{bytes_of, follow};
use crate::outcome::{Outcome, usage};

pub(crate) use bonus::bpobj as bpobj_fields;
pub(crate) use contents::each_entry;
pub(crate) use contents::space_map_entries;
pub(crate) use tree::pointers;

/// Objects of a dataset: dnode, attributes, contents of ZAPs and other metadata, block pointers with -v.
///
/// Without objects all are listed. DATASET may be a file system, volume or snapshot; POOL/$MOS is the MOS, and
/// POOL/objset-NUMBER the dataset that object NUMBER of the MOS describes, whatever its name.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    /// The tree of block pointers of each object.
    #[arg(short = 'v', long)]
    pub(crate) verbose: bool,
    /// The data itself, as a dump: as many bytes as --limit has entries, times 16.
    #[arg(short = 'x', long)]
    pub(crate) dump: bool,
    /// File system, volume or snapshot; a device of a pool means its root dataset.
    pub(crate) dataset: String,
    /// Objects: a number, a range FROM-TO, or a path that begins with a slash; -1, -2, -3 are the accounts of users, groups
    /// and projects, 0 is the array of dnodes.
    #[arg(value_name = "OBJECT", allow_negative_numbers = true)]
    pub(crate) objects: Vec<String>,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
    let (context, mut report, pool) = open::opened(context, &args.common, &args.dataset).await?;
    // Of a device alone the pool's name is not known before: its root dataset is meant.
    let dataset = if open::is_file(&args.dataset) { pool.name() } else { args.dataset.as_str() };
    let target = open::target(&pool, dataset).await?;
    let root = target.objset.root();
    report.put("dataset", target.name.clone());
    report.put("objset", target.objset.id().0);
    let phys = target.objset.phys();
    report.put("type", phys.objset_type().map_or_else(|| phys.type_number.to_string(), |kind| kind.to_string()));
    report.put("rootbp", root.to_string());
    if target.is_locked {
        report.put("key", "not loaded: attributes and contents are not shown (--key gives it)");
    }
    if args.objects.is_empty() {
        list(&mut report, &target).await;
        return report.finish(&context);
    }
    let looker = Looker::new(&mut report, &target, &args).await;
    let mut shown = Vec::new();
    for selection in &args.objects {
        match looker.select(selection).await? {
            Selection::Special(dnode) => shown.push(Value::Object(looker.object(&mut report, &dnode).await)),
            Selection::Range(range) => looker.range(&mut report, range, &mut shown).await,
            Selection::Missing(what) => report.problem(what),
        }
    }
    report.first("objects", shown);
    report.finish(&context)
}

/// A row for each object.
pub(crate) async fn list(report: &mut Report, target: &Target) {
    let mut rows = vec![Value::Object(summary(&target.objset.meta_dnode()))];
    for dnode in special_dnodes(target) {
        rows.push(Value::Object(summary(&dnode)));
    }
    let mut objects = Objects::new(&target.objset, ObjectId(1));
    let (mut count, mut used_bytes) = (0_u64, 0_u64);
    while let Some(next) = objects.next().await {
        match next {
            Ok(dnode) => {
                count += 1;
                used_bytes = used_bytes.saturating_add(dnode.phys().used_bytes());
                if rows.len() < report.limit {
                    rows.push(Value::Object(summary(&dnode)));
                }
            }
            Err(error) => report.problem(format_args!("{}: {error}", target.name)),
        }
    }
    report.put("object_count", count);
    report.put("used_bytes", used_bytes);
    let total = count + 1 + special_dnodes(target).len() as u64;
    report.list_of(total, "objects", rows);
}

fn special_dnodes(target: &Target) -> Vec<Object> {
    let phys = target.objset.phys();
    let special = [
        (USER_USED_OBJECT, &phys.userused_dnode),
        (GROUP_USED_OBJECT, &phys.groupused_dnode),
        (PROJECT_USED_OBJECT, &phys.projectused_dnode),
    ];
    let all = special.into_iter().filter_map(|(id, phys)| Some((id, phys.as_ref()?)));
    all.filter(|(_, phys)| phys.object_type != DmuType::NONE)
        .map(|(id, phys)| target.objset.special_dnode(id, phys))
        .collect()
}

enum Selection {
    Range(RangeInclusive<u64>),
    Special(Object),
    Missing(String),
}

/// What looking at objects of one objset needs.
struct Looker<'a> {
    target: &'a Target,
    args: &'a Args,
    attributes: Option<SaTables>,
    filesystem: Option<FileSystem>,
}

impl<'a> Looker<'a> {
    async fn new(report: &mut Report, target: &'a Target, args: &'a Args) -> Self {
        let mut looker = Self { target, args, attributes: None, filesystem: None };
        if target.is_locked || target.objset.phys().objset_type() != Some(ObjsetType::Zfs) {
            return looker;
        }
        match FileSystem::open(target.objset.clone()).await {
            Ok(filesystem) => looker.filesystem = Some(filesystem),
            Err(error) => report.problem(format_args!("{}: {error}", target.name)),
        }
        looker.attributes = report.take("attribute tables", looker.table().await).flatten();
        looker
    }

    async fn table(&self) -> Result<Option<SaTables>, DmuError> {
        let objset = &self.target.objset;
        let master = Zap::open(objset.object(MASTER_NODE).await?).await?;
        Ok(Some(match master.find_u64(master_node::SA_ATTRIBUTES).await? {
            Some(object) => SaTables::load(objset, ObjectId(object)).await?,
            None => SaTables::legacy(),
        }))
    }

    async fn select(&self, text: &str) -> Result<Selection> {
        if text.starts_with('/') {
            let Some(filesystem) = &self.filesystem else {
                return Ok(Selection::Missing(format!("{text}: paths need a file system that can be read")));
            };
            let path = bytes_of(std::ffi::OsStr::new(text));
            return Ok(match follow(filesystem, &path, false).await {
                Ok(attributes) => Selection::Range(attributes.object.0..=attributes.object.0),
                Err(error) => Selection::Missing(format!("{error:#}")),
            });
        }
        if let Some(number) = text.strip_prefix('-') {
            let id = ObjectId(open::parse_number(number)?.wrapping_neg());
            let dnode = special_dnodes(self.target).into_iter().find(|dnode| dnode.id() == id);
            return Ok(dnode.map_or_else(
                || Selection::Missing(format!("{} has no object {text}", self.target.name)),
                Selection::Special,
            ));
        }
        let (from, to) = match text.split_once('-') {
            Some((from, to)) => (open::parse_number(from)?, open::parse_number(to)?),
            None => {
                let number = open::parse_number(text)?;
                (number, number)
            }
        };
        if from > to {
            return Err(usage(format!("'{text}': the range ends before it begins")));
        }
        if to == 0 {
            return Ok(Selection::Special(self.target.objset.meta_dnode()));
        }
        Ok(Selection::Range(from..=to))
    }

    async fn range(&self, report: &mut Report, range: RangeInclusive<u64>, shown: &mut Vec<Value>) {
        let objset = &self.target.objset;
        if range.start() == range.end() {
            let id = ObjectId(*range.start());
            if let Some(dnode) = report.take(&self.target.name, objset.object(id).await) {
                shown.push(Value::Object(self.object(report, &dnode).await));
            }
            return;
        }
        let mut objects = Objects::new(objset, ObjectId(*range.start()));
        while let Some(next) = objects.next().await {
            match next {
                Ok(dnode) if dnode.id().0 > *range.end() || shown.len() > report.limit => break,
                Ok(dnode) => shown.push(Value::Object(self.object(report, &dnode).await)),
                Err(error) => report.problem(format_args!("{}: {error}", self.target.name)),
            }
        }
    }

    async fn object(&self, report: &mut Report, dnode: &Object) -> Map<String, Value> {
        let phys = dnode.phys();
        let mut shown = summary(dnode);
        shown.insert("slots".into(), phys.slots().into());
        shown.insert("bonus_type".into(), phys.bonus_type.to_string().into());
        shown.insert("block_pointers".into(), phys.blkptr_count.into());
        shown.insert("max_block_id".into(), phys.max_block_id.into());
        let flags: Vec<Value> = phys.flags.iter_names().map(|(name, _)| name.to_lowercase().into()).collect();
        shown.insert("flags".into(), flags.into());
        let checksum = Checksum::from_number(phys.checksum).map(Checksum::name);
        let compress = Compress::from_number(phys.compress).map(Compress::name);
        shown.insert("checksum".into(), checksum.map_or_else(|| phys.checksum.to_string(), str::to_owned).into());
        shown.insert("compression".into(), compress.map_or_else(|| phys.compress.to_string(), str::to_owned).into());
        shown.insert("byte_order".into(), values::order(dnode.byte_order()).into());
        if let Some(spill) = phys.spill {
            shown.insert("spill".into(), spill.to_string().into());
        }
        if !(self.target.is_locked && phys.bonus_type.is_encrypted()) {
            bonus::show(report, dnode, self.attributes.as_ref(), &mut shown).await;
            if let Some(filesystem) = &self.filesystem {
                let has_path = matches!(phys.bonus_type, DmuType::SA | DmuType::ZNODE);
                if has_path {
                    let path = PathFinder::new(filesystem).path(dnode.id()).await;
                    let path =
                        path.map_or_else(|error| format!("??? ({error})"), |path| crate::files::shown(&path, false));
                    shown.insert("path".into(), path.into());
                }
            }
        }
        if !(self.target.is_locked && phys.object_type.is_encrypted()) {
            contents::show(report, dnode, &mut shown).await;
            if self.args.dump {
                let max = report.limit.saturating_mul(16).min(1 << 24);
                let size = usize::try_from(shown["lsize_bytes"].as_u64().unwrap_or(0)).unwrap_or(max);
                if let Some(bytes) = report.take("data", dnode.read(0, size.min(max)).await) {
                    shown.insert("data".into(), values::dump(&bytes, max).into());
                }
            }
        }
        if self.args.verbose {
            let rows = pointers(report, dnode).await;
            let mut rows: Vec<Value> = rows;
            super::report::first(&mut shown, "pointers", &mut rows, report.limit);
        }
        shown
    }
}

/// The sizes that go with a number of slots.
pub(crate) fn dnode_bytes(slots: usize) -> u64 {
    (slots * SLOT_BYTES) as u64
}
