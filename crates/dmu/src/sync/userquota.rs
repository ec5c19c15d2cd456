//! User, group and project accounting (`userused@` and the like): kept in an objset whose flags say that it is complete.
//!
//! ```text
//! user's object (ZAP)      1f4 ─► bytes    obj-1f4 ─► objects      the owner in hexadecimal
//! group's, project's       likewise
//! ```
//! An object counts for the bytes that its blocks use and the least size of a dnode, at the owner that its bonus names; its dnode says
//! whether it was counted. So the change of a txg is the count of its objects now, less their count on disk.

use std::collections::BTreeMap;

use cenote_format::dmu_type::DmuType;
use cenote_format::dnode::{DnodeFlags, DnodePhys, SLOT_BYTES};
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::objset::ObjsetFlags;
use cenote_format::sa::SaOwner;
use cenote_format::zap::ZapValue;
use cenote_format::zpl::AccountKey;

use super::trees::Tree;
use crate::geometry::{GROUPUSED, PROJECTUSED, USERUSED};
use crate::object::ObjectSpec;
use crate::objset::Objset;
use crate::zap::Zap;
use crate::{DmuError, DmuErrorKind};

/// Which accounts an objset has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Accounting {
    objects: bool,
    projects: bool,
}

/// The changes of a txg in objects (or bytes), by kind of account and owner.
#[derive(Debug, Default)]
pub(super) struct Changes(BTreeMap<(ObjectId, bool, u64), i64>);

impl Accounting {
    /// Those that the flags say are complete; none where users' are not.
    pub(super) fn of(flags: ObjsetFlags) -> Option<Self> {
        flags.contains(ObjsetFlags::USERACCOUNTING_COMPLETE).then_some(Self {
            objects: flags.contains(ObjsetFlags::USEROBJACCOUNTING_COMPLETE),
            projects: flags.contains(ObjsetFlags::PROJECTQUOTA_COMPLETE),
        })
    }

    /// Counts an object that is being written, and marks its dnode as counted.
    pub(super) fn count(self, tree: &mut Tree, changes: &mut Changes) -> Result<(), DmuErrorKind> {
        if let Some(before) = tree.object.synced().filter(|it| it.flags.contains(DnodeFlags::USERUSED_ACCOUNTED)) {
            self.add(&before, -1, changes)?;
        }
        if !tree.is_freed {
            tree.head.flags |= DnodeFlags::USERUSED_ACCOUNTED;
            tree.head.flags.set(DnodeFlags::USEROBJUSED_ACCOUNTED, self.objects);
            self.add(&tree.head, 1, changes)?;
        }
        Ok(())
    }

    fn add(self, dnode: &DnodePhys, sign: i64, changes: &mut Changes) -> Result<(), DmuErrorKind> {
        let owner = match dnode.bonus_type {
            DmuType::SA => SaOwner::parse(&dnode.bonus)?,
            DmuType::ZNODE => SaOwner::parse_znode(&dnode.bonus, cenote_zio::ORDER)?,
            // It belongs to nobody.
            _ => return Ok(()),
        };
        let bytes = sign * (dnode.used.cast_signed().saturating_add(SLOT_BYTES as i64));
        let counts_objects = dnode.flags.contains(DnodeFlags::USEROBJUSED_ACCOUNTED);
        let accounts = [(USERUSED, owner.uid), (GROUPUSED, owner.gid), (PROJECTUSED, owner.project)];
        for (account, id) in accounts.into_iter().filter(|(account, _)| self.projects || *account != PROJECTUSED) {
            *changes.0.entry((account, false, id)).or_default() += bytes;
            if counts_objects {
                *changes.0.entry((account, true, id)).or_default() += sign;
            }
        }
        Ok(())
    }
}

impl Changes {
    /// Takes others in.
    pub(super) fn append(&mut self, other: Self) {
        if self.0.is_empty() {
            *self = other;
            return;
        }
        other.0.into_iter().for_each(|(account, delta)| *self.0.entry(account).or_default() += delta);
    }

    /// Enters the changes into an objset's accounts, in the order of their names; false if there are none.
    pub(super) async fn enter(self, objset: &Objset, txg: Txg) -> Result<bool, DmuError> {
        let named = |((account, is_objects, id), delta)| {
            let key = if is_objects { AccountKey::Objects(id) } else { AccountKey::Space(id) };
            ((account, key.name()), delta)
        };
        let named: BTreeMap<(ObjectId, String), i64> =
            self.0.into_iter().filter(|(_, delta)| *delta != 0).map(named).collect();
        let mut open: Option<(ObjectId, Zap)> = None;
        let any = !named.is_empty();
        for ((account, name), delta) in named {
            if open.as_ref().is_none_or(|(at, _)| *at != account) {
                if let Some((_, mut zap)) = open.take() {
                    zap.flush(txg).await?;
                }
                open = Some((account, account_zap(objset, txg, account).await?));
            }
            let Some((_, zap)) = &mut open else { continue };
            let before = zap.lookup(name.as_bytes()).await?.and_then(|value| value.as_u64()).unwrap_or(0);
            match before.wrapping_add_signed(delta) {
                0 => drop(zap.remove(name.as_bytes()).await?),
                now => zap.set(name.as_bytes(), &ZapValue::from_u64(now)).await?,
            }
        }
        if let Some((_, mut zap)) = open {
            zap.flush(txg).await?;
        }
        Ok(any)
    }
}

async fn account_zap(objset: &Objset, txg: Txg, account: ObjectId) -> Result<Zap, DmuError> {
    if objset.has(account) {
        return Zap::open(objset.object(account).await?).await;
    }
    Zap::create(objset.create_at(txg, account, &ObjectSpec::new(DmuType::USERGROUP_USED, 512))?)
}
