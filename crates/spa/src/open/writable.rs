//! Reasons that forbid writing to an existing pool, checked before anything is opened for writing.
//!
//! A feature in use is a promise about structures that a writer keeps up. Those that only matter when one dataset
//! is changed are not looked at here: that dataset is refused later, before anything of its txg is the pool's.

use cenote_format::ids::{Txg, VdevId};
use cenote_vdev::config::VdevKind;
use cenote_vdev::layout::raidz::Reflow;

use crate::features::FeatureState;
use crate::jobs::expansion::Running;
use crate::placed::REMOVAL_RUNS;
use crate::view::FeatureName;
use crate::{Rewind, SpaError, View};

/// Features whose structures are kept up by what is written, or that writing to the pool's own objects does not touch.
const WRITABLE: [&str; 44] = [
    "async_destroy",
    "empty_bpobj",
    "lz4_compress",
    "multi_vdev_crash_dump",
    "spacemap_histogram",
    "enabled_txg",
    "zpool_checkpoint",
    "hole_birth",
    "spacemap_v2",
    "extensible_dataset",
    "bookmarks",
    "filesystem_limits",
    "embedded_data",
    "livelist",
    "log_spacemap",
    "large_blocks",
    "large_dnode",
    "sha512",
    "skein",
    "edonr",
    "redaction_bookmarks",
    "redacted_datasets",
    "bookmark_written",
    "userobj_accounting",
    "bookmark_v2",
    "encryption",
    "project_quota",
    "allocation_classes",
    "resilver_defer",
    "device_rebuild",
    "zstd_compress",
    "draid",
    "raidz_expansion",
    "device_removal",
    "obsolete_counts",
    "zilsaxattr",
    "head_errlog",
    "blake3",
    "vdev_zaps_v2",
    "block_cloning",
    "block_cloning_endian",
    "fast_dedup",
    "longname",
    "large_microzap",
];

/// The last txg that a pool is opened at for writing: each has one after it.
const TXG_MAX: Txg = Txg(1 << 62);

impl View {
    /// Whether this version can write to the pool at all. `missing_log`: intent logs that cannot be read are given up.
    ///
    /// # Errors
    /// [`PoolError::Unsupported`](crate::PoolError::Unsupported) says what it has that cannot be written.
    pub(crate) async fn check_writable(&self, rewind: Rewind, missing_log: bool) -> Result<(), SpaError> {
        let refuse = |what: String| Err(SpaError::unsupported(what));
        if rewind != Rewind::None {
            return refuse("writing to a pool that is opened as it was before (rewound)".into());
        }
        if self.txg() > TXG_MAX {
            return refuse(format!("pools at txg {}, which no pool comes to", self.txg()));
        }
        if self.uberblock().version != crate::config::VERSION {
            return refuse(format!("pools of version {} (without feature flags)", self.uberblock().version));
        }
        if self.mos().phys().endian() != cenote_zio::ORDER {
            return refuse("pools that a big-endian machine wrote".into());
        }
        for (name, state) in self.features().await? {
            match name {
                _ if state != FeatureState::Active => {}
                FeatureName::Known(feature) => {
                    if !WRITABLE.contains(&feature.name) {
                        return refuse(format!("the feature {} ({})", feature.name, feature.guid));
                    }
                }
                FeatureName::Unknown(guid) => return refuse(format!("the feature {guid}")),
            }
        }
        let removing = self.removal().await?.filter(|removing| removing.state == REMOVAL_RUNS);
        for (vdev, top) in (0..).map(VdevId).zip(&self.vdevs().children) {
            let name = top.display_name();
            match &top.kind {
                VdevKind::Hole => continue,
                VdevKind::Indirect(_) => {
                    if let Err(error) = self.shared.tree_mappings.mapping(vdev) {
                        return refuse(format!("the vdev {name}, which was removed: {error}"));
                    }
                }
                VdevKind::Missing => return refuse(format!("the vdev {name}")),
                VdevKind::Raidz { expanding: true, .. } => {
                    let others = self.vdevs().children.iter();
                    let count =
                        others.filter(|top| matches!(top.kind, VdevKind::Raidz { expanding: true, .. })).count();
                    if count > 1 {
                        return refuse("two vdevs that are being expanded".to_owned());
                    }
                    Running::new(vdev, top, Reflow::of(self.uberblock()), 0)?;
                }
                _ => {}
            }
            let is_evacuated = removing.as_ref().is_some_and(|removing| removing.removing_vdev == Some(vdev));
            if top.removing != is_evacuated {
                return refuse(format!("the vdev {name}, of which it is not certain whether it is being removed"));
            }
            if is_evacuated && self.shared.mappings.mapping(vdev).is_err() {
                return refuse(format!("the vdev {name}, which is being removed, and whose mapping cannot be read"));
            }
            if top.top_zap.0 == 0 {
                return refuse(format!("the vdev {name}, which has no table of its own (made before OpenZFS 0.7)"));
            }
        }
        if self.is_checkpoint_view() {
            // They are dropped.
            return Ok(());
        }
        self.check_logs(missing_log).await
    }
}
