//! More is lost than there is redundancy: single blocks, in as many columns as it makes up for, or in one more.

use std::collections::BTreeSet;

use cenote_format::blkptr::Dva;
use cenote_format::ids::{BlockId, Txg};
use cenote_format::label::START_BYTES;
use cenote_scan::{BadBlock, VerifyOptions, verify};
use cenote_spa::{ImportOptions, Pool, View, import};
use cenote_vdev::config::{VdevConfig, VdevKind};
use cenote_vdev::layout::StripeMap;
use cenote_vdev::layout::draid::Draid;
use cenote_vdev::layout::raidz::{Raidz, Reflow};

use super::client::{POOL, Place, import_options};
use super::world::{Leaf, World, leaves};
use crate::judge::found;
use crate::stage::words;

/// Blocks that are damaged at most.
const BLOCKS_MAX: u64 = 6;

/// Bytes of a leaf: its disk, where they begin, and how many they are.
type Piece = (usize, u64, u64);

impl World {
    /// Damages blocks of the client, has a scrub find exactly those that cannot be mended, and has the client write them again.
    pub(super) async fn go_beyond(&mut self, pool: Pool) -> Result<Pool, String> {
        // A distributed spare that has become a child for good has its bytes elsewhere in each row.
        if leaves(&pool)?.iter().any(Leaf::is_distributed) {
            return Ok(pool);
        }
        self.close(pool).await?;
        let lost = self.damage().await?;
        self.done.lost += lost.len() as u64;
        self.note(format!("beyond redundancy: {lost:?}"));
        let expected: BTreeSet<(u64, u64)> = lost.iter().map(|place| (self.client.object(*place).0, place.1)).collect();
        self.verify_names(&expected).await?;
        let pool = self.open().await?;
        let errors = self.scrub(&pool).await?;
        if errors != Some(lost.len() as u64) {
            return Err(format!("the scrub counts {errors:?} errors, {expected:?} are lost"));
        }
        self.is_logged(&pool, &expected).await?;
        self.done.compared += self.answered("a read", self.client.compare(&pool, &lost)).await??;
        self.client.write_again(&pool, &lost).await?;
        self.sync(&pool).await?;
        self.scrub(&pool).await?;
        self.is_logged(&pool, &BTreeSet::new()).await?;
        Ok(pool)
    }

    /// The error log names exactly these blocks.
    async fn is_logged(&self, pool: &Pool, expected: &BTreeSet<(u64, u64)>) -> Result<(), String> {
        pool.sync().await.map_err(words)?;
        let view = pool.view(&ImportOptions::default()).await.map_err(words)?;
        let logged = view.logged_errors().await.map_err(words)?;
        let named: BTreeSet<(u64, u64)> = logged.iter().map(|error| (error.object.0, error.block)).collect();
        match named == *expected && logged.iter().all(|error| error.level == 0) {
            true => Ok(()),
            false => Err(format!("the error log has {logged:?}, {expected:?} are lost")),
        }
    }

    /// Verify names exactly these blocks.
    async fn verify_names(&self, expected: &BTreeSet<(u64, u64)>) -> Result<(), String> {
        let found = found(&self.handle, &self.machine.paths).await?;
        let view = import(&self.handle, found, &import_options()).await.map_err(words)?;
        let report = verify(&self.handle, &view, VerifyOptions::default(), &mut |_| true).await.map_err(words)?;
        let block = |bad: &BadBlock| bad.bookmark.map(|at| (at.object.0, at.block.0));
        let named: Option<BTreeSet<(u64, u64)>> = report.errors.iter().map(block).collect();
        view.close().await;
        match named.as_ref() == Some(expected) && report.error_count == expected.len() as u64 {
            true => Ok(()),
            false => Err(format!("verify names other blocks than {expected:?}: {report}")),
        }
    }

    /// Damages blocks; those that are lost are returned.
    async fn damage(&mut self) -> Result<Vec<Place>, String> {
        let found = found(&self.handle, &self.machine.paths).await?;
        let view = import(&self.handle, found, &import_options()).await.map_err(words)?;
        let mut places = self.client.places();
        let mut lost = Vec::new();
        for _ in 0..BLOCKS_MAX.min(places.len() as u64) {
            let place = places.swap_remove(self.rng.below(places.len() as u64) as usize);
            let (mut columns, parity) = self.columns(&view, place).await?;
            let is_lost = self.rng.chance(1, 2);
            for _ in 0..parity + usize::from(is_lost) {
                let column = columns.swap_remove(self.rng.below(columns.len() as u64) as usize);
                for (disk, offset, len) in column {
                    let mut bytes = vec![0; len as usize];
                    self.rng.fill(&mut bytes);
                    self.machine.disks[disk].poke(offset, &bytes);
                }
            }
            if is_lost {
                lost.push(place);
            }
        }
        view.close().await;
        Ok(lost)
    }

    /// The columns of a block's first row, or its copies, each with the places where it lies; and how many it can do without.
    async fn columns(&self, view: &View, place: Place) -> Result<(Vec<Vec<Piece>>, usize), String> {
        let dataset = view.dsl().dataset(POOL).await.map_err(words)?;
        let objset = view.dsl().open(&dataset).await.map_err(words)?.ok_or("no objset")?;
        let object = objset.object(self.client.object(place)).await.map_err(words)?;
        let bp = object.pointer(0, BlockId(place.1)).await.map_err(words)?;
        let dvas: Vec<Dva> = bp.dvas().collect();
        let [dva] = dvas[..] else { return Err(format!("a block of the client has {} copies", dvas.len())) };
        let top = view.vdevs().children.get(dva.vdev.0 as usize).ok_or("no such vdev")?;
        let piece = |child: &VdevConfig, at: u64, len: u64| -> Result<Piece, String> {
            let path = child.path.as_deref().ok_or("a child is no leaf")?;
            let disk = self.machine.paths.iter().position(|of| of.to_str() == Some(path)).ok_or("no such disk")?;
            Ok((disk, at, len))
        };
        let map: StripeMap = match &top.kind {
            VdevKind::Raidz { parity, .. } => {
                let raidz = Raidz::new(top.ashift, *parity, top.children.len(), &[], false).map_err(words)?;
                raidz.map(dva.offset_bytes, bp.psize_bytes(), Txg(0), Reflow::COMPLETE).map_err(words)?
            }
            VdevKind::Draid { parity, data, spares, groups } => {
                let draid =
                    Draid::new(top.ashift, *parity, *data, *spares, *groups, top.children.len()).map_err(words)?;
                draid.map(dva.offset_bytes, bp.psize_bytes()).map_err(words)?
            }
            _ => {
                let (at, len) = (dva.offset_bytes + START_BYTES, bp.psize_bytes());
                let legs = if top.children.is_empty() { std::slice::from_ref(top) } else { &top.children[..] };
                let copies = legs.iter().map(|child| Ok(vec![piece(child, at, len)?]));
                let copies: Vec<Vec<Piece>> = copies.collect::<Result<_, String>>()?;
                let parity = copies.len() - 1;
                return Ok((copies, parity));
            }
        };
        let row = map.rows().next().ok_or("no row")?;
        let used = row.iter().filter(|column| column.size_bytes > 0);
        let columns = used.map(|column| {
            Ok(vec![piece(&top.children[column.child as usize], column.address_bytes, column.size_bytes)?])
        });
        Ok((columns.collect::<Result<_, String>>()?, map.parity_count()))
    }
}
