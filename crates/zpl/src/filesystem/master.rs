//! The master node: what a file system is, and where its tables and its root are. Every file system is opened, refused and made here.

use cenote_dmu::sa::SaTables;
use cenote_dmu::{Object, ObjectSpec, Objset, Zap};
use cenote_format::dmu_type::DmuType;
use cenote_format::enums::ObjsetType;
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::zap::ZapValue;
use cenote_format::zpl::{MASTER_NODE, master_node, version};

use crate::ZplError;
use crate::names::{CaseSensitivity, NameRules};

/// The content of the master node.
pub(crate) struct Master {
    pub(crate) version: u64,
    pub(crate) root: ObjectId,
    pub(crate) names: NameRules,
    pub(crate) tables: SaTables,
    pub(crate) fuid_table: Option<ObjectId>,
    /// In the order of [`master_node::QUOTAS`].
    pub(crate) quota_objects: [Option<ObjectId>; 6],
    pub(crate) unlinked_set: Option<ObjectId>,
}

impl Master {
    /// Opens the file system of an objset.
    pub(crate) async fn open(objset: &Objset) -> Result<Self, ZplError> {
        if objset.phys().objset_type() != Some(ObjsetType::Zfs) {
            let kind = objset.phys().type_number;
            return Err(ZplError::Unsupported(format!("not a file system (objset type {kind})")));
        }
        let zap = Zap::open(objset.object(MASTER_NODE).await?).await?;
        let version = zap.lookup_u64(master_node::VERSION).await?;
        if version == 0 || version > version::CURRENT {
            return Err(ZplError::Unsupported(format!("not supported yet: file system version {version}")));
        }
        let case = match zap.find_u64(master_node::CASE_SENSITIVITY).await? {
            Some(1) => CaseSensitivity::Insensitive,
            Some(2) => CaseSensitivity::Mixed,
            _ => CaseSensitivity::Sensitive,
        };
        let names = NameRules {
            case,
            normalisation: zap.find_u64(master_node::NORMALIZATION).await?.unwrap_or(0),
            utf8_only: zap.find_u64(master_node::UTF8_ONLY).await?.unwrap_or(0) != 0,
        };
        let tables = match zap.find_u64(master_node::SA_ATTRIBUTES).await? {
            Some(id) => SaTables::load(objset, ObjectId(id)).await?,
            None if version < version::SA => SaTables::legacy(),
            None => return Err(missing("table of attributes")),
        };
        let mut quota_objects = [None; 6];
        for (slot, name) in quota_objects.iter_mut().zip(master_node::QUOTAS) {
            *slot = zap.find_u64(name).await?.map(ObjectId);
        }
        Ok(Self {
            version,
            root: ObjectId(zap.lookup_u64(master_node::ROOT).await?),
            names,
            tables,
            fuid_table: zap.find_u64(master_node::FUID_TABLE).await?.map(ObjectId),
            quota_objects,
            unlinked_set: zap.find_u64(master_node::UNLINKED_SET).await?.map(ObjectId),
        })
    }

    /// Refuses file systems that can be read but not changed yet; returns the delete queue's number.
    pub(crate) fn changeable(&self) -> Result<ObjectId, ZplError> {
        let unsupported = |what: &str| Err(ZplError::Unsupported(format!("not supported yet: {what}")));
        if self.version != version::CURRENT {
            return unsupported("changing a file system of an older version");
        }
        for (name, is_set) in [
            (master_node::NORMALIZATION, self.names.normalisation != 0),
            (master_node::UTF8_ONLY, self.names.utf8_only),
            (master_node::CASE_SENSITIVITY, self.names.case != CaseSensitivity::Sensitive),
        ] {
            if is_set {
                return unsupported(&format!("changing a file system with the property '{name}'"));
            }
        }
        self.unlinked_set.ok_or_else(|| missing("delete queue"))
    }
}

fn missing(what: &str) -> ZplError {
    ZplError::Corrupt { object: MASTER_NODE.0, what: format!("no {what}") }
}

/// A master node in the making: all but the root.
pub(crate) struct NewMaster {
    object: Object,
    pub(crate) tables: SaTables,
    sa_master: ObjectId,
    queue: ObjectId,
}

impl NewMaster {
    /// Makes the master node, the tables of attributes and the delete queue of a new objset.
    pub(crate) async fn create(objset: &Objset, txg: Txg) -> Result<Self, ZplError> {
        let object = objset.create_at(txg, MASTER_NODE, &ObjectSpec::new(DmuType::MASTER_NODE, 512))?;
        let (tables, sa_master) = SaTables::create(objset, txg).await?;
        let queue = Zap::create_object(objset, txg, DmuType::UNLINKED_SET, &[]).await?.id();
        Ok(Self { object, tables, sa_master, queue })
    }

    /// Names everything, the root too.
    pub(crate) async fn finish(self, txg: Txg, root: ObjectId) -> Result<Master, ZplError> {
        let own = [self.object.id(), self.sa_master, self.queue];
        assert!(root.0 != 0 && !own.contains(&root), "the root directory is an object of its own");
        let mut zap = Zap::create(self.object)?;
        for (name, value) in [
            (master_node::NORMALIZATION, 0),
            (master_node::UTF8_ONLY, 0),
            (master_node::CASE_SENSITIVITY, 0),
            (master_node::VERSION, version::CURRENT),
            (master_node::SA_ATTRIBUTES, self.sa_master.0),
            (master_node::UNLINKED_SET, self.queue.0),
            (master_node::ROOT, root.0),
        ] {
            zap.insert(name.as_bytes(), &ZapValue::from_u64(value)).await?;
        }
        zap.flush(txg).await?;
        Ok(Master {
            version: version::CURRENT,
            root,
            names: NameRules { case: CaseSensitivity::Sensitive, normalisation: 0, utf8_only: false },
            tables: self.tables,
            fuid_table: None,
            quota_objects: [None; 6],
            unlinked_set: Some(self.queue),
        })
    }
}
