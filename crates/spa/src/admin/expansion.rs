//! Expanding a raidz vdev: how it begins and ends, and what the syncer does for a batch ([`crate::jobs::expansion`] has the theory and the work between).

use cenote_dmu::Zap;
use cenote_format::dmu_type::DmuType;
use cenote_format::ids::{Guid, ObjectId, Txg, VdevId};
use cenote_format::label::BOOT_AREA_OFFSET;
use cenote_format::nvlist::{NvList, NvValue};
use cenote_format::zap::{ZapValue, int_key_name};
use cenote_taskq::buf::Buf;
use cenote_vdev::config::{VdevConfig, VdevKind};
use cenote_vdev::layout::raidz::Reflow;

use super::attach::{Attachment, DTL_TXGS, ashift_fits, can_be_opened};
use super::expand::possible_bytes;
use crate::jobs::expansion::{BYTES_COPIED, Running, Step};
use crate::open::vdevs::{DiskSpec, METASLABS_MAX, refuse};
use crate::small::too_small;
use crate::sync::ScrubSince;
use crate::sync::Syncer;
use crate::{FoundLeaf, Refusal, SpaError};

/// States of an expansion (`dsl_scan_state_t`).
const SCANNING: u64 = 1;
const FINISHED: u64 = 2;

/// Fields of a vdev that is being expanded, or was.
const EXPANDING: &str = "raidz_expanding";
const EXPAND_TXGS: &str = "raidz_expand_txgs";

/// Entries of the vdev's table.
const STATE: &str = "org.openzfs:raidz_expand_state";
const START_TIME: &str = "org.openzfs:raidz_expand_start_time";
const END_TIME: &str = "org.openzfs:raidz_expand_end_time";

/// States in a reflow word: the scratch area is valid; or it is not used any more, and the reflow has gone on.
const VALID: u64 = 1;
const REFLOW: u64 = 4;

/// The reflow word of an uberblock.
fn word(reflow: Reflow) -> u64 {
    let state = match (reflow.scratch_valid, reflow.synced_bytes) {
        (true, _) => VALID,
        (false, 0) => 0,
        (false, _) => REFLOW,
    };
    state << 55 | reflow.synced_bytes >> 9
}

/// The reason for which an expansion waits because of a child, with what a person can do.
fn reason_of(child: Option<&VdevConfig>) -> String {
    let Some(child) = child else { return "waits until all devices are there".to_owned() };
    let names: Vec<String> = child.leaves().into_iter().map(VdevConfig::display_name).collect();
    match (&child.kind, &names[..]) {
        (VdevKind::Spare, [old, .., spare]) => {
            format!(
                "waits until {old} has all of its data and {spare} does not stand for it any more ('zpool detach' of either)"
            )
        }
        (_, [old, .., new]) => format!("waits until {new} has replaced {old}"),
        _ => format!("waits until {} is there and has all of its data", child.display_name()),
    }
}

impl Syncer {
    /// Finds out whether a raidz vdev can have a further child; changes nothing.
    pub(super) async fn plan_expansion(
        &self,
        raidz: Guid,
        guid: Guid,
        spec: DiskSpec,
        ashift: Option<u32>,
    ) -> Result<Attachment, SpaError> {
        let root_vdev = &self.devices.root_vdev;
        let Some((vdev, top)) = root_vdev.top_of(raidz).filter(|(_, top)| top.guid == raidz) else {
            return Err(refuse("can only attach to mirrors and top-level disks"));
        };
        if !self.mos.features.has("raidz_expansion") {
            return Err(SpaError::refused(
                Refusal::NeedsFeature,
                "raidz_expansion feature must be enabled in order to attach a device to raidz",
            ));
        }
        self.check_may_expand(vdev, top)?;
        self.check_boot_areas(top).await?;
        ashift_fits(&spec, ashift, top)?;
        let mut leaf = NvList::new();
        leaf.push("type", if spec.is_file { "file" } else { "disk" });
        leaf.push("id", 0_u64);
        leaf.push("guid", guid.0);
        leaf.push("path", spec.path.as_str());
        if !spec.is_file {
            leaf.push("whole_disk", 0_u64);
        }
        leaf.push("create_txg", top.create_txg.0);
        let mut next = root_vdev.clone();
        next.widen(raidz, &leaf, spec.disk.clone(), EXPANDING)?;
        if too_small(&next.config, &[(guid, spec.disk.clone())].into()).contains_key(&guid) {
            return Err(SpaError::refused(Refusal::NoSpace, "device is too small"));
        }
        let wider = next.top(vdev).expect("a vdev that is wider has its place");
        Running::new(vdev, wider, Reflow::at(0, false), 0)?;
        can_be_opened(&next.config)?;
        let mut labels = self.leaf_commits_of(&next, Txg(0), true);
        labels.retain(|leaf| leaf.guid == guid);
        assert_eq!(labels.len(), 1, "a new disk gets labels");
        Ok(Attachment {
            old: raidz,
            guid,
            event: format!("attach vdev={} to vdev={}", spec.path, top.display_name()),
            disk: Some(spec.disk),
            above: None,
            leaf,
            label: labels.pop().and_then(|leaf| leaf.config),
            before: root_vdev.tree().clone(),
            is_sequential: false,
            is_expansion: true,
        })
    }

    /// Refuses what OpenZFS refuses.
    fn check_may_expand(&self, vdev: VdevId, top: &VdevConfig) -> Result<(), SpaError> {
        if self.jobs.expansion.running.is_some() {
            return Err(SpaError::refused(Refusal::Busy, "raidz expansion is in progress: wait for its end"));
        }
        let is_leaf = |child: &VdevConfig| child.kind.is_leaf();
        let lost = self.devices.root_vdev.lost();
        if let Some(child) = top.children.iter().find(|child| !is_leaf(child) || lost.contains(&child.guid)) {
            let name = child.display_name();
            return Err(SpaError::refused(Refusal::Busy, format!("{name} is not in use, or is being replaced")));
        }
        if let Some(child) = self.devices.tree.reflow_obstacle(vdev) {
            let name =
                top.children.iter().find(|of| of.guid == child).map(VdevConfig::display_name).unwrap_or_default();
            return Err(SpaError::refused(
                Refusal::Busy,
                format!(
                    "{name} does not have all of its data, or does not take what is written: resilver the pool first"
                ),
            ));
        }
        if top.children.iter().any(|child| self.jobs.leaf_work.is_active_on(child.guid)) {
            return Err(SpaError::refused(
                Refusal::Busy,
                "a device of it is being initialized or trimmed: wait, or 'zpool initialize -s' and 'zpool trim -s'",
            ));
        }
        Ok(())
    }

    /// Refuses children from which FreeBSD boots by a loader in the area that is to be the scratch area (`vdev_check_boot_reserve`).
    async fn check_boot_areas(&self, top: &VdevConfig) -> Result<(), SpaError> {
        /// How the header of that loader begins.
        const BTX: &[u8] = b"\xeb\x0eBTX";
        for child in &top.children {
            let Some(disk) = self.devices.root_vdev.disks.get(&child.guid) else { continue };
            let (read, bytes) = disk.read(BOOT_AREA_OFFSET, Buf::zeroed(1 << top.ashift)).await;
            let name = child.display_name();
            if let Err(error) = read {
                return Err(refuse(format!("{name}: {error}")));
            }
            if bytes.starts_with(BTX) {
                let what = format!("the reserved boot area of {name} is in use, by a boot loader of FreeBSD");
                return Err(SpaError::refused(Refusal::Busy, what));
            }
        }
        Ok(())
    }

    /// Makes a further child of a raidz part of the open txg, together with the state that has sectors be looked for at their old places.
    pub(super) async fn begin_expansion(&mut self, plan: Attachment) -> Result<Txg, SpaError> {
        let (txg, guid, raidz) = (self.txg, plan.guid, plan.old);
        let Some((vdev, top)) = self.devices.root_vdev.top_of(raidz).map(|(vdev, top)| (vdev, top.clone())) else {
            return Err(SpaError::refused(Refusal::NotThere, "no such device in pool"));
        };
        self.check_no_checkpoint()?;
        self.check_may_expand(vdev, &top)?;
        let disk = plan.disk.expect("a further child of a raidz is a disk");
        let mut leaf = plan.leaf;
        if let Some(all) = self.vdev_zaps().await? {
            let zap = Zap::create_object(&self.mos.objset, txg, DmuType::ZAP_METADATA, &[]).await?.id();
            Zap::put_entry(&all, txg, &int_key_name(zap.0), Some(&ZapValue::from_u64(zap.0))).await?;
            leaf.push("com.delphix:vdev_zap_leaf", zap.0);
        }
        let mut next = self.devices.root_vdev.clone();
        next.widen(raidz, &leaf, disk.clone(), EXPANDING)?;
        let begin = Reflow::at(0, false);
        let wider = next.top(vdev).expect("a vdev that is wider has its place");
        let running = Running::new(vdev, wider, begin, 0)?;
        let table = top.top_zap;
        let start = self.time_s();
        self.set_entries(
            table,
            [(STATE, Some(SCANNING)), (START_TIME, Some(start)), (END_TIME, None), (BYTES_COPIED, None)],
        )
        .await?;
        self.mos.features.change("raidz_expansion", 1);
        let paused = self.devices.tree.pause_mends().await;
        // Before the topology that goes by it.
        self.devices.tree.set_reflow(begin);
        self.devices.tree.change(&next.config, [(guid, disk.clone())])?;
        drop(paused);
        self.devices.root_vdev = next;
        self.devices.raidz_reflow = word(begin);
        self.jobs.expansion.begin(running);
        let config = plan.label.unwrap_or_default().into();
        let found = FoundLeaf { guid, disk, config, txg, uberblocks: Vec::new(), bad_labels: 0 };
        self.devices.found.leaves.insert(guid, found);
        self.record_event("vdev attach", &plan.event, None).await?;
        let what = format!("{} vdev {vdev} new width {}", self.name, top.children.len() + 1);
        self.record_event("raidz vdev expansion started", &what, None).await?;
        self.vdevs_changed().await?;
        Ok(txg)
    }

    /// Sets or removes entries of a vdev's table.
    async fn set_entries<const N: usize>(
        &self,
        table: ObjectId,
        entries: [(&str, Option<u64>); N],
    ) -> Result<(), SpaError> {
        let table = self.mos.objset.object(table).await?;
        for (name, value) in entries {
            Zap::put_entry(&table, self.txg, name, value.map(ZapValue::from_u64).as_ref()).await?;
        }
        Ok(())
    }

    /// Takes an expansion a step further, at the beginning of a txg's sync, after the slices of jobs.
    pub(crate) async fn settle_expansion(&mut self) -> Result<(), SpaError> {
        self.go_on_expanding().await?;
        if let Some(vdev) = self.jobs.expansion.running.as_ref().map(|running| running.vdev) {
            let allocated = self.blocks.space.with(|allocator| allocator.evacuation(vdev).allocated_bytes);
            self.jobs.expansion.note(allocated);
        }
        Ok(())
    }

    async fn go_on_expanding(&mut self) -> Result<(), SpaError> {
        let Some(running) = &mut self.jobs.expansion.running else { return Ok(()) };
        let vdev = running.vdev;
        if let Some(child) = self.devices.tree.reflow_obstacle(vdev) {
            if matches!(running.step, Step::Idle) {
                running.waits_for = Some(reason_of(self.devices.root_vdev.vdev(child).map(|(_, child)| child)));
                // If a device failed before, it was this one.
                running.not_before = None;
                return Ok(());
            }
        } else if running.not_before.is_none_or(|then| self.handle.now() >= then) {
            running.waits_for = None;
            running.not_before = None;
        } else {
            return Ok(());
        }
        if running.is_moved() {
            return self.end_expansion().await;
        }
        if matches!(running.step, Step::Copied(_)) {
            return self.claim_batch().await;
        }
        let (rooms, jobs) = self.in_txg_with_jobs();
        let tunables = jobs.expansion.tunables;
        let Some(running) = &mut jobs.expansion.running else { return Ok(()) };
        if let Some(during) = running.announce(&rooms, &tunables).await? {
            self.devices.tree.set_reflow(during);
        }
        Ok(())
    }

    /// Whether an expansion that waits has nothing to wait for any more. It looks for that when a txg begins, and nobody may want one.
    pub(crate) fn expansion_may_go_on(&self) -> bool {
        let Some(running) = &self.jobs.expansion.running else { return false };
        running.waits_for.is_some()
            && running.not_before.is_none_or(|then| self.handle.now() >= then)
            && self.devices.tree.reflow_obstacle(running.vdev).is_none()
    }

    /// Has the txg that syncs say that a batch has moved.
    async fn claim_batch(&mut self) -> Result<(), SpaError> {
        let Some(running) = &mut self.jobs.expansion.running else { return Ok(()) };
        let Step::Copied(batch) = std::mem::replace(&mut running.step, Step::Idle) else { return Ok(()) };
        self.devices.raidz_reflow = word(batch.after);
        let copied_bytes = running.copied_bytes + batch.in_use_bytes;
        let table = self.devices.root_vdev.top(running.vdev).map(|top| top.top_zap);
        running.step = Step::Claimed(batch);
        match table {
            Some(table) => self.set_entries(table, [(BYTES_COPIED, Some(copied_bytes))]).await,
            None => Err(SpaError::contradiction("a vdev that is expanded has no table")),
        }
    }

    /// Looks, when the devices have been flushed and before the uberblock is written, whether what the word claims is on all of them.
    pub(crate) fn confirm_batch(&mut self) {
        let Some(running) = &mut self.jobs.expansion.running else { return };
        if let Step::Claimed(batch) = &running.step
            && !running.is_on_devices(&self.devices.tree, batch)
        {
            // It is done again.
            running.step = Step::Idle;
        }
        if !matches!(running.step, Step::Claimed(_)) {
            self.devices.raidz_reflow = word(running.reflow);
        }
        self.devices.ring.is_set_back = self.devices.raidz_reflow >> 55 == VALID;
    }

    /// The txg whose word claims a batch is on disk.
    pub(crate) fn batch_moved(&mut self, txg: Txg) {
        let Some(running) = &mut self.jobs.expansion.running else { return };
        let Step::Claimed(batch) = &running.step else { return };
        let batch = batch.clone();
        running.step = Step::Idle;
        self.devices.tree.set_reflow(batch.after);
        self.jobs.expansion.moved(&batch, txg);
    }

    /// All sectors have moved, and the uberblock on disk says so: the vdev is as wide as it has children.
    async fn end_expansion(&mut self) -> Result<(), SpaError> {
        let txg = self.txg;
        let running = self.jobs.expansion.running.take().expect("an expansion that ends is under way");
        let vdev = running.vdev;
        let top = self.devices.root_vdev.top(vdev).cloned().expect("a vdev that is expanded is there");
        let VdevKind::Raidz { expand_txgs, .. } = &top.kind else {
            return Err(SpaError::contradiction("a vdev that was expanded is no raidz"));
        };
        let mut txgs: Vec<u64> = expand_txgs.iter().map(|txg| txg.0).collect();
        // Blocks of the txgs that are open may have been placed by the old width.
        txgs.push(txg.0 + DTL_TXGS);
        txgs.sort_unstable();
        let mut next = self.devices.root_vdev.clone();
        next.set_field(running.guid, EXPAND_TXGS, NvValue::Uint64Array(txgs))?;
        next.clear_field(running.guid, EXPANDING)?;
        let wide = next.top(vdev).expect("a vdev that was expanded has its place");
        let count = |bytes: u64| bytes >> top.metaslab_shift;
        let grown = possible_bytes(wide, wide.ashift, &next.disks)
            .filter(|bytes| count(*bytes) > count(top.asize_bytes) && count(*bytes) <= METASLABS_MAX);
        if let Some(bytes) = grown {
            next.set_field(running.guid, "asize", bytes)?;
        }
        let paused = self.devices.tree.pause_mends().await;
        self.devices.tree.change(&next.config, [])?;
        // After the topology that went by it.
        self.devices.tree.set_reflow(Reflow::COMPLETE);
        drop(paused);
        self.devices.root_vdev = next;
        self.devices.raidz_reflow = 0;
        self.devices.ring.is_set_back = false;
        if let Some(bytes) = grown {
            self.blocks.space.with(|allocator| allocator.grow_vdev(vdev, bytes))?;
        }
        let end = self.time_s();
        self.set_entries(top.top_zap, [(STATE, Some(FINISHED)), (END_TIME, Some(end))]).await?;
        let what = format!("{} vdev {vdev} new width {}", self.name, top.children.len());
        self.record_event("raidz vdev expansion completed", &what, None).await?;
        self.vdevs_changed().await?;
        // Checksums were not looked at. One that is under way, or an error scrub, has its own end.
        match self.start_scrub(ScrubSince::Ever).await {
            Ok(()) | Err(SpaError::Refused { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
