//! The meta-objset of a pool that is written, and the layers in it.
//!
//! All that is here is changed by the holder of the syncer's slot alone, in the txg that is synced next; the MOS is written after the datasets
//! of its txg, in passes ([`crate::sync`]).
//!
//! **Invariants.**
//! 1. The directory, the configuration and the ZAPs of features are objects of this objset (asserted by `audit`).
//! 2. The counts of features are those on disk between two txgs (asserted by `audit`).
//! 3. A head in `headers_only` is open, and nothing of it is dirty but its intent log's header (asserted where it is closed).

use std::collections::{BTreeMap, BTreeSet};

use cenote_dmu::{Object, Objset};
use cenote_dsl::{Dsl, LivelistLimits};
use cenote_format::ids::ObjectId;
use cenote_format::needs::Needs;

use super::features::FeatureCounts;
use crate::tunables::LivelistTunables;

/// The meta-objset and the layers in it.
pub(crate) struct Mos {
    pub(crate) objset: Objset,
    /// The object directory, which names the others.
    pub(crate) directory: Object,
    /// The packed configuration.
    pub(crate) config: Object,
    /// The datasets.
    pub(crate) dsl: Dsl,
    /// Counts of uses, written when they change.
    pub(crate) features: FeatureCounts,
    /// For each dataset, the features that are known to be recorded in its ZAP already.
    pub(crate) used_features: BTreeMap<ObjectId, Needs>,
    /// Open heads of which nothing but the header of the intent log may change. They are closed when their txg is on disk.
    pub(crate) headers_only: BTreeSet<ObjectId>,
    /// How long clones' livelists get.
    pub(crate) livelist_limits: LivelistLimits,
}

impl Mos {
    /// As it is when a pool is opened or made.
    pub(crate) fn new(objset: Objset, directory: Object, config: Object, dsl: Dsl, features: FeatureCounts) -> Self {
        Self {
            objset,
            directory,
            config,
            dsl,
            features,
            used_features: BTreeMap::new(),
            headers_only: BTreeSet::new(),
            livelist_limits: LivelistTunables::default().limits(),
        }
    }
}
