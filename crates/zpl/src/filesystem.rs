//! An opened file system: the master node and what it names.

use std::sync::Arc;

use cenote_dmu::sa::SaTables;
use cenote_dmu::{Object, Objset, Zap};
use cenote_format::enums::ObjsetType;
use cenote_format::ids::ObjectId;

use crate::ZplError;

/// The master node's object number, fixed by the format.
const MASTER_NODE: ObjectId = ObjectId(1);
/// The newest file system version of OpenZFS.
const VERSION_MAX: u64 = 5;
/// The first version whose attributes are system attributes.
const VERSION_SA: u64 = 5;

/// How names are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaseSensitivity {
    /// Byte by byte (after normalisation, if any).
    Sensitive,
    /// Without regard to case.
    Insensitive,
    /// Sensitive for POSIX clients, insensitive for others.
    Mixed,
}

impl CaseSensitivity {
    /// The word of the property `casesensitivity`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sensitive => "sensitive",
            Self::Insensitive => "insensitive",
            Self::Mixed => "mixed",
        }
    }
}

/// An opened file system or snapshot of one. Cheap to clone.
#[derive(Clone)]
pub struct FileSystem {
    shared: Arc<Shared>,
}

struct Shared {
    objset: Objset,
    version: u64,
    root: ObjectId,
    case: CaseSensitivity,
    normalisation: u64,
    utf8_only: bool,
    sa: SaTables,
    fuid_table: Option<ObjectId>,
    quota_objects: [Option<ObjectId>; 6],
    unlinked_set: Option<ObjectId>,
}

/// Names of the master node's entries for quotas, in the order of `quota_objects`.
const QUOTA_ENTRIES: [&str; 6] =
    ["userquota@", "groupquota@", "projectquota@", "userobjquota@", "groupobjquota@", "projectobjquota@"];

impl FileSystem {
    /// Opens the file system in `objset`.
    pub async fn open(objset: Objset) -> Result<Self, ZplError> {
        if objset.phys().objset_type() != Some(ObjsetType::Zfs) {
            let kind = objset.phys().type_number;
            return Err(ZplError::Unsupported(format!("not a file system (objset type {kind})")));
        }
        let master = Zap::open(objset.object(MASTER_NODE).await?).await?;
        let version = master.lookup_u64("VERSION").await?;
        if version == 0 || version > VERSION_MAX {
            return Err(ZplError::Unsupported(format!("not supported yet: file system version {version}")));
        }
        let root = ObjectId(master.lookup_u64("ROOT").await?);
        let case = match master.find_u64("casesensitivity").await? {
            Some(1) => CaseSensitivity::Insensitive,
            Some(2) => CaseSensitivity::Mixed,
            _ => CaseSensitivity::Sensitive,
        };
        let sa = match master.find_u64("SA_ATTRS").await? {
            Some(id) => SaTables::load(&objset, ObjectId(id)).await?,
            None if version < VERSION_SA => SaTables::legacy(),
            None => return Err(ZplError::Corrupt { object: MASTER_NODE.0, what: "no table of attributes".into() }),
        };
        let mut quota_objects = [None; 6];
        for (slot, name) in quota_objects.iter_mut().zip(QUOTA_ENTRIES) {
            *slot = master.find_u64(name).await?.map(ObjectId);
        }
        let shared = Shared {
            version,
            root,
            case,
            normalisation: master.find_u64("normalization").await?.unwrap_or(0),
            utf8_only: master.find_u64("utf8only").await?.unwrap_or(0) != 0,
            sa,
            fuid_table: master.find_u64("FUID").await?.map(ObjectId),
            quota_objects,
            unlinked_set: master.find_u64("DELETE_QUEUE").await?.map(ObjectId),
            objset,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The objset.
    #[must_use]
    pub fn objset(&self) -> &Objset {
        &self.shared.objset
    }

    /// The file system's version (property `version`).
    #[must_use]
    pub fn version(&self) -> u64 {
        self.shared.version
    }

    /// The root directory.
    #[must_use]
    pub fn root(&self) -> ObjectId {
        self.shared.root
    }

    /// How names are compared.
    #[must_use]
    pub fn case_sensitivity(&self) -> CaseSensitivity {
        self.shared.case
    }

    /// The Unicode normalisation of names, as the ZAP's flag bits; 0 for none.
    #[must_use]
    pub fn normalisation(&self) -> u64 {
        self.shared.normalisation
    }

    /// Whether names must be UTF-8.
    #[must_use]
    pub fn utf8_only(&self) -> bool {
        self.shared.utf8_only
    }

    /// The queue of files that were unlinked while open.
    #[must_use]
    pub fn unlinked_set(&self) -> Option<ObjectId> {
        self.shared.unlinked_set
    }

    /// The table of domains for ids that are not POSIX.
    #[must_use]
    pub fn fuid_table(&self) -> Option<ObjectId> {
        self.shared.fuid_table
    }

    pub(crate) fn quota_objects(&self) -> &[Option<ObjectId>; 6] {
        &self.shared.quota_objects
    }

    pub(crate) fn sa(&self) -> &SaTables {
        &self.shared.sa
    }

    /// The dnode of a file or directory.
    pub async fn dnode(&self, id: ObjectId) -> Result<Object, ZplError> {
        Ok(self.shared.objset.object(id).await?)
    }
}
