//! Clients' exports of a pool that this process has, until the pool is closed.
//!
//! A process may close one pool and serve others on the same connections. So each request enters the pool's gate: after the gate is closed,
//! later requests are refused, earlier ones are finished, and then no export holds any part of the pool, whose devices other processes may have.

use std::sync::{Arc, Weak};

use cenote_nbd::{BlockSizes, Export, ExportError, ExportErrorKind, Extent, Piece};
use cenote_taskq::sync::Mutex;
use cenote_taskq::{Block, Group, Handle, Member, boxed};

/// See the module comment.
pub(super) struct Gate {
    requests: Group,
    given: Mutex<Vec<Weak<Gated>>>,
}

impl Gate {
    /// An open gate.
    pub(super) fn new(handle: &Handle) -> Self {
        Self { requests: handle.group(), given: Mutex::default() }
    }

    /// An export whose requests pass the gate.
    pub(super) fn give(&self, export: Arc<dyn Export>) -> Arc<dyn Export> {
        let gated = Arc::new(Gated {
            requests: self.requests.clone(),
            description: export.description(),
            size_bytes: export.size_bytes(),
            block_sizes: export.block_sizes(),
            export: Mutex::new(Some(export)),
        });
        let mut given = self.given.lock();
        given.retain(|other| other.strong_count() > 0);
        given.push(Arc::downgrade(&gated));
        // An export that was opened while the gate was closing is useless.
        if self.requests.is_closed() {
            drop(gated.export.lock().take());
        }
        gated
    }

    /// Closes the gate. Returns when all earlier requests are finished.
    pub(super) async fn close(&self) {
        self.requests.close().await;
        let given = std::mem::take(&mut *self.given.lock());
        given.iter().filter_map(Weak::upgrade).for_each(|gated| drop(gated.export.lock().take()));
    }
}

/// An export whose requests pass a gate.
struct Gated {
    requests: Group,
    description: String,
    size_bytes: u64,
    block_sizes: BlockSizes,
    export: Mutex<Option<Arc<dyn Export>>>,
}

impl Gated {
    fn enter(&self) -> Result<(Member, Arc<dyn Export>), ExportError> {
        let gone =
            || ExportError::new(ExportErrorKind::Shutdown, format!("'{}' is not served any more", self.description));
        let member = self.requests.enter().map_err(|_| gone())?;
        let export = self.export.lock().clone().ok_or_else(gone)?;
        Ok((member, export))
    }
}

impl Export for Gated {
    fn description(&self) -> String {
        self.description.clone()
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn block_sizes(&self) -> BlockSizes {
        self.block_sizes
    }

    fn is_read_only(&self) -> bool {
        // A volume that is no longer served is refused with that reason.
        self.export.lock().as_ref().is_some_and(|export| export.is_read_only())
    }

    #[boxed]
    async fn read(&self, offset_bytes: u64, length_bytes: u32) -> Result<Vec<Piece>, ExportError> {
        let (_member, export) = self.enter()?;
        export.read(offset_bytes, length_bytes).await
    }

    #[boxed]
    async fn block_status(
        &self,
        offset_bytes: u64,
        length_bytes: u32,
        extents_max: usize,
    ) -> Result<Vec<Extent>, ExportError> {
        let (_member, export) = self.enter()?;
        export.block_status(offset_bytes, length_bytes, extents_max).await
    }

    #[boxed]
    async fn cache(&self, offset_bytes: u64, length_bytes: u32) -> Result<(), ExportError> {
        let (_member, export) = self.enter()?;
        export.cache(offset_bytes, length_bytes).await
    }

    #[boxed]
    async fn write(&self, offset_bytes: u64, data: Block, fua: bool) -> Result<(), ExportError> {
        let (_member, export) = self.enter()?;
        export.write(offset_bytes, data, fua).await
    }

    #[boxed]
    async fn write_zeros(
        &self,
        offset_bytes: u64,
        length_bytes: u32,
        may_free: bool,
        fua: bool,
    ) -> Result<(), ExportError> {
        let (_member, export) = self.enter()?;
        export.write_zeros(offset_bytes, length_bytes, may_free, fua).await
    }

    #[boxed]
    async fn trim(&self, offset_bytes: u64, length_bytes: u32, fua: bool) -> Result<(), ExportError> {
        let (_member, export) = self.enter()?;
        export.trim(offset_bytes, length_bytes, fua).await
    }

    #[boxed]
    async fn flush(&self) -> Result<(), ExportError> {
        let (_member, export) = self.enter()?;
        export.flush().await
    }
}
