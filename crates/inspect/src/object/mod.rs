//! Everything about objects of an objset.

mod bonus;
mod contents;
mod tree;

use std::ops::RangeInclusive;

use cenote_dmu::sa::SaTables;
use cenote_dmu::{DmuError, Object, Zap};
use cenote_format::dmu_type::DmuType;
use cenote_format::enums::{Checksum, Compress, ObjsetType};
use cenote_format::ids::ObjectId;
use cenote_format::zpl::{GROUP_USED_OBJECT, MASTER_NODE, PROJECT_USED_OBJECT, USER_USED_OBJECT, master_node};
use cenote_props::WrongUse;
use cenote_taskq::boxed;
use cenote_zpl::{FileSystem, PathFinder, ZplError, path_parts, shown};
use serde_json::{Map, Value};

use crate::objects::{Objects, summary};
use crate::report::first;
use crate::{Report, Target, values};

pub(crate) use bonus::bpobj as bpobj_fields;
pub(crate) use contents::{each_entry, space_map_entries};
use tree::pointers;

/// The parts of an object that are wanted beside its dnode and the contents of metadata.
#[derive(Clone, Copy, Debug, Default)]
pub struct ObjectParts {
    /// The tree of its block pointers.
    pub pointers: bool,
    /// Its data as a dump: as many bytes as the report's limit, times 16.
    pub data: bool,
}

/// Objects of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chosen {
    /// A path in a file system.
    Path(Vec<u8>),
    /// A special object by the number that counts down from zero: 1, 2, 3 are the accounts of users, groups and projects.
    Special(u64),
    /// Numbers from one to another; 0 alone is the array of dnodes.
    Range(RangeInclusive<u64>),
}

impl Chosen {
    /// From a number, a range FROM-TO, a path that begins with a slash, or a number after a minus sign.
    pub fn parse(text: &str) -> Result<Self, WrongUse> {
        let number = |text: &str| {
            let parsed = crate::parse_number(text);
            parsed.ok_or_else(|| WrongUse::new(format!("'{text}' is not a number")))
        };
        if text.starts_with('/') {
            return Ok(Self::Path(text.as_bytes().to_vec()));
        }
        if let Some(special) = text.strip_prefix('-') {
            return Ok(Self::Special(number(special)?));
        }
        let (from, to) = match text.split_once('-') {
            Some((from, to)) => (number(from)?, number(to)?),
            None => (number(text)?, number(text)?),
        };
        if from > to {
            return Err(WrongUse::new(format!("'{text}': the range ends before it begins")));
        }
        Ok(Self::Range(from..=to))
    }
}

/// Objects of an objset; all of them in a row each where none are chosen.
#[boxed]
pub async fn objects(report: &mut Report, target: &Target, chosen: &[Chosen], parts: ObjectParts) {
    let root = target.objset.root();
    report.put("dataset", target.name.clone());
    report.put("objset", target.objset.id().0);
    let phys = target.objset.phys();
    report.put("type", phys.objset_type().map_or_else(|| phys.type_number.to_string(), |kind| kind.to_string()));
    report.put("rootbp", root.to_string());
    if target.is_locked {
        report.put("key", "not loaded: attributes and contents are not shown (--key gives it)");
    }
    if chosen.is_empty() {
        list(report, target).await;
        return;
    }
    let looker = Looker::new(report, target, parts).await;
    let mut shown = Vec::new();
    for selection in chosen {
        match looker.select(selection).await {
            Selection::Special(dnode) => shown.push(Value::Object(looker.object(report, &dnode).await)),
            Selection::Range(range) => looker.range(report, range, &mut shown).await,
            Selection::Missing(what) => report.problem(what),
        }
    }
    report.first("objects", shown);
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

/// The inputs for inspecting objects of one objset.
struct Looker<'a> {
    target: &'a Target,
    parts: ObjectParts,
    attributes: Option<SaTables>,
    filesystem: Option<FileSystem>,
}

impl<'a> Looker<'a> {
    async fn new(report: &mut Report, target: &'a Target, parts: ObjectParts) -> Self {
        let mut looker = Self { target, parts, attributes: None, filesystem: None };
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

    async fn select(&self, chosen: &Chosen) -> Selection {
        match chosen {
            Chosen::Path(path) => self.path(path).await,
            Chosen::Special(number) => {
                let id = ObjectId(number.wrapping_neg());
                let object = special_dnodes(self.target).into_iter().find(|object| object.id() == id);
                let missing = || Selection::Missing(format!("{} has no object -{number}", self.target.name));
                object.map_or_else(missing, Selection::Special)
            }
            Chosen::Range(range) if *range.end() == 0 => Selection::Special(self.target.objset.meta_dnode()),
            Chosen::Range(range) => Selection::Range(range.clone()),
        }
    }

    async fn path(&self, path: &[u8]) -> Selection {
        let Some(filesystem) = &self.filesystem else {
            let path = String::from_utf8_lossy(path);
            return Selection::Missing(format!("{path}: paths need a file system that can be read"));
        };
        let path = path_parts(path).collect::<Vec<_>>().join(&b'/');
        match filesystem.follow(&path, false).await {
            Ok(attributes) => Selection::Range(attributes.object.0..=attributes.object.0),
            Err(ZplError::LinkOutside(target)) => {
                let (path, target) = (shown(&path), shown(&target));
                Selection::Missing(format!("{path}: a link to {target}, which is outside of the dataset"))
            }
            Err(error) => Selection::Missing(format!("{}: {error}", shown(&path))),
        }
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
        shown.insert("byte_order".into(), values::order(phys.endian).into());
        if let Some(spill) = phys.spill {
            shown.insert("spill".into(), spill.to_string().into());
        }
        if !(self.target.is_locked && phys.bonus_type.is_encrypted()) {
            bonus::show(report, dnode, self.attributes.as_ref(), &mut shown).await;
            if let Some(filesystem) = &self.filesystem {
                let has_path = matches!(phys.bonus_type, DmuType::SA | DmuType::ZNODE);
                if has_path {
                    let path = PathFinder::new(filesystem).path(dnode.id()).await;
                    let path = path.map_or_else(
                        |error| format!("??? ({error})"),
                        |path| String::from_utf8_lossy(&path).into_owned(),
                    );
                    shown.insert("path".into(), path.into());
                }
            }
        }
        if !(self.target.is_locked && phys.object_type.is_encrypted()) {
            contents::show(report, dnode, &mut shown).await;
            if self.parts.data {
                let max = report.limit.saturating_mul(16).min(1 << 24);
                let size = usize::try_from(shown["lsize_bytes"].as_u64().unwrap_or(0)).unwrap_or(max);
                if let Some(bytes) = report.take("data", dnode.read(0, size.min(max)).await) {
                    shown.insert("data".into(), values::dump(&bytes, max).into());
                }
            }
        }
        if self.parts.pointers {
            let rows = pointers(report, dnode).await;
            let mut rows: Vec<Value> = rows;
            first(&mut shown, "pointers", &mut rows, report.limit);
        }
        shown
    }
}
