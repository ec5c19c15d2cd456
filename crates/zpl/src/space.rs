//! Space and objects by user, group and project, with their quotas.
//!
//! The objset's accounting objects are ZAPs from an id (hexadecimal) to bytes used, and from `obj-` and the id to objects
//! used; quotas are in ZAPs that the master node names. Ids of other systems are a domain index and a relative id.

use std::collections::BTreeMap;

use cenote_dmu::Zap;
use cenote_format::nvlist::NvList;
use cenote_format::objset::ObjsetFlags;
use cenote_format::zpl::{GROUP_USED_OBJECT, OBJECT_COUNT_PREFIX, PROJECT_USED_OBJECT, USER_USED_OBJECT, fuid_table};
use cenote_taskq::boxed;

use crate::ZplError;
use crate::filesystem::FileSystem;

/// The size of a table of domains at most: OpenZFS's own is some KiB.
const DOMAINS_MAX_BYTES: u64 = 16 << 20;

/// The kind of id that space is counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SpaceKind {
    /// By owner.
    User,
    /// By group.
    Group,
    /// By project.
    Project,
}

/// The space and objects that one id uses and may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceUse {
    /// Bytes used.
    pub used_bytes: u64,
    /// Bytes allowed; 0 for no quota.
    pub quota_bytes: u64,
    /// Objects used; `None` where the dataset does not count them (yet).
    pub used_objects: Option<u64>,
    /// Objects allowed; 0 for no quota.
    pub quota_objects: u64,
}

impl FileSystem {
    /// Windows domains by index, of the file system's table.
    ///
    /// # Errors
    /// The table cannot be read, or is none.
    #[boxed]
    pub async fn domains(&self) -> Result<BTreeMap<u64, String>, ZplError> {
        let Some(object) = self.fuid_table() else { return Ok(BTreeMap::new()) };
        let dnode = self.dnode(object).await?;
        let size = dnode.bonus_word().unwrap_or(0);
        if size == 0 {
            return Ok(BTreeMap::new());
        }
        if size > DOMAINS_MAX_BYTES {
            let what = format!("a table of domains of {size} bytes");
            return Err(ZplError::Corrupt { object: object.0, what });
        }
        let list = NvList::parse(&dnode.read(0, size as usize).await?);
        let list = list.map_err(|error| ZplError::Format { object: object.0, error })?;
        let entries = list.lists(fuid_table::ARRAY).unwrap_or_default();
        let entry = |entry: &NvList| Some((entry.u64(fuid_table::INDEX)?, entry.str(fuid_table::DOMAIN)?.to_owned()));
        Ok(entries.iter().filter_map(entry).collect())
    }

    /// Space by user, group or project: id to use. Empty where the dataset has no accounting.
    #[boxed]
    pub async fn space(&self, kind: SpaceKind) -> Result<BTreeMap<u64, SpaceUse>, ZplError> {
        let phys = self.objset().phys();
        let (id, dnode, quota, object_quota) = match kind {
            SpaceKind::User => (USER_USED_OBJECT, &phys.userused_dnode, 0, 2),
            SpaceKind::Group => (GROUP_USED_OBJECT, &phys.groupused_dnode, 1, 3),
            SpaceKind::Project => (PROJECT_USED_OBJECT, &phys.projectused_dnode, 4, 5),
        };
        let mut uses: BTreeMap<u64, SpaceUse> = BTreeMap::new();
        // Until a dataset's accounting is complete what there is of it is not to be shown.
        let complete = match kind {
            SpaceKind::User | SpaceKind::Group => ObjsetFlags::USERACCOUNTING_COMPLETE,
            SpaceKind::Project => ObjsetFlags::PROJECTQUOTA_COMPLETE,
        };
        if !phys.flags.contains(complete) {
            return Ok(uses);
        }
        let counts_objects = phys.flags.contains(ObjsetFlags::USEROBJACCOUNTING_COMPLETE);
        if let Some(dnode) = dnode {
            let zap = Zap::open(self.objset().special_dnode(id, dnode)).await?;
            let mut listing = zap.listing();
            while let Some(batch) = listing.next().await? {
                for entry in batch {
                    let Some(value) = entry.value.as_u64() else { continue };
                    match entry.name().strip_prefix(OBJECT_COUNT_PREFIX.as_bytes()) {
                        Some(name) if counts_objects => {
                            with_id(name, |id| uses.entry(id).or_default().used_objects = Some(value));
                        }
                        Some(_) => {}
                        None => with_id(entry.name(), |id| uses.entry(id).or_default().used_bytes = value),
                    }
                }
            }
        }
        for (index, is_objects) in [(quota, false), (object_quota, true)] {
            let Some(object) = self.shared.master.quota_objects[index] else { continue };
            let zap = Zap::open(self.dnode(object).await?).await?;
            let mut listing = zap.listing();
            while let Some(batch) = listing.next().await? {
                for entry in batch {
                    let Some(value) = entry.value.as_u64() else { continue };
                    with_id(entry.name(), |id| {
                        let use_ = uses.entry(id).or_default();
                        if is_objects {
                            use_.quota_objects = value;
                        } else {
                            use_.quota_bytes = value;
                        }
                    });
                }
            }
        }
        if counts_objects {
            uses.values_mut().for_each(|space| space.used_objects = Some(space.used_objects.unwrap_or(0)));
        }
        Ok(uses)
    }
}

fn with_id(name: &[u8], mut action: impl FnMut(u64)) {
    if let Some(id) = std::str::from_utf8(name).ok().and_then(|name| u64::from_str_radix(name, 16).ok()) {
        action(id);
    }
}
