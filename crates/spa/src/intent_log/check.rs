//! Whether a pool's logs can be claimed: asked before anything is written.

use cenote_zil::{Chain, End};

use super::{TXGS_AHEAD_MAX, holds_something, unclaimed};
use crate::{SpaError, View};

impl View {
    /// Refuses pools whose logs cannot be claimed. `missing_log`: those that cannot be read are given up.
    pub(crate) async fn check_logs(&self, missing_log: bool) -> Result<(), SpaError> {
        let refuse = |what: String| Err(SpaError::unsupported(what));
        for log in unclaimed(self.dsl(), self.dmu(), &mut Vec::new()).await? {
            let name = &log.name;
            let mut chain = Chain::new(self.dmu().zio(), log.objset.zil_header());
            let mut is_first = true;
            while let Some(link) = chain.next().await {
                if std::mem::take(&mut is_first) && !holds_something(Some(&link), self.txg()) {
                    break;
                }
                if link.pointer.birth().0 > self.txg().0.saturating_add(TXGS_AHEAD_MAX) {
                    return refuse(format!(
                        "the intent log of '{name}', which has a block of txg {}, more than {TXGS_AHEAD_MAX} ahead",
                        link.pointer.birth()
                    ));
                }
                let records = link.content.iter().flat_map(|content| content.raw_records());
                if records.flat_map(|record| record.cloned_blocks().unwrap_or_default()).any(|block| block.dedup()) {
                    return refuse(format!(
                        "claiming deduplicated blocks that were cloned in the intent log of '{name}'"
                    ));
                }
            }
            match chain.end() {
                Some(end @ End::Device(_)) if !missing_log => return Err(self.log_unreadable(name, end)),
                Some(end @ (End::Damaged(_) | End::Unordered)) => {
                    return refuse(format!("the intent log of '{name}', which has {end}"));
                }
                _ => {}
            }
        }
        Ok(())
    }
}
