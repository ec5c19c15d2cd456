//! The end of a log: its blocks are free again.

use cenote_dmu::Objset;
use cenote_format::ids::{ObjectId, Txg};
use cenote_format::zil::ZilHeader;
use cenote_zil::Chain;

use crate::SpaError;
use crate::sync::rooms::InTxg;

impl InTxg<'_> {
    /// Destroys the log of a head dataset that is open: of what it says nothing is left to be done.
    pub(crate) async fn destroy_log(&mut self, objset: &Objset) -> Result<(), SpaError> {
        let (txg, header) = (self.txg, objset.zil_header());
        if header == ZilHeader::default() {
            return Ok(());
        }
        self.free_log(txg, objset, &header).await?;
        objset.change_zil_header(txg, |header| *header = ZilHeader::default());
        self.mos.forget_xattr_records(txg, ObjectId(objset.id().0)).await
    }

    /// Frees the blocks of a log, and those of indirect writes that were claimed with it. Gives up the references to cloned blocks that the
    /// claim has added.
    pub(crate) async fn free_log(&mut self, txg: Txg, objset: &Objset, header: &ZilHeader) -> Result<(), SpaError> {
        let dmu = objset.dmu().clone();
        let mut chain = Chain::new(dmu.zio(), *header);
        while let Some(link) = chain.next().await {
            let blocks = chain.new_blocks(&link);
            self.free_blocks(txg, &blocks).await?;
            if header.claim_txg.0 == 0 {
                continue;
            }
            for record in link.content.iter().flat_map(|content| content.raw_records()) {
                let cloned = record.cloned_blocks()?;
                self.free_blocks(txg, &cloned).await?;
            }
        }
        Ok(())
    }
}
