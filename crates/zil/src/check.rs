//! Checks before replay that every remaining record of a claimed log is supported.

use cenote_format::zil::{LogRecord, ZilHeader};
use cenote_zio::Zio;
use thiserror::Error;

use crate::{Chain, Position, Survey};

/// The reason why a log cannot be replayed; the log stays unchanged.
#[derive(Clone, Debug, Error)]
#[error(
    "the intent log cannot be replayed at record {sequence}: {what}; the log is kept, and the dataset can be read where the pool is \
     imported read-only"
)]
pub struct ReplayError {
    /// The record's number.
    pub sequence: u64,
    /// Why.
    pub what: String,
}

impl ReplayError {
    /// A record that ended in an error.
    #[must_use]
    pub fn new(sequence: u64, what: impl std::fmt::Display) -> Self {
        Self { sequence, what: what.to_string() }
    }
}

/// Reads all of a claimed log, and returns what its replay has to know; `look` sees each record, whether it is left to be replayed or not, and
/// says what of it is not supported.
///
/// # Errors
/// The log is encrypted, it cannot be read up to where it was claimed, or a record that is left is not supported.
pub async fn check(
    zio: &Zio,
    header: ZilHeader,
    mut look: impl FnMut(&LogRecord<'_>) -> Option<&'static str>,
) -> Result<Survey, ReplayError> {
    let position = Position::of(&header);
    let mut survey = Survey::default();
    let mut chain = Chain::new(zio, header);
    while let Some(link) = chain.next().await {
        if link.pointer.is_encrypted() {
            return Err(ReplayError::new(chain.last().1 + 1, "not supported yet: logs of encrypted datasets"));
        }
        for record in link.content.iter().flat_map(|content| content.records()) {
            let what = look(&record);
            if let Some(what) = what.filter(|_| position.is_left(&record)) {
                return Err(ReplayError::new(record.sequence, format_args!("not supported yet: {what}")));
            }
        }
        survey.look(&link, &position);
    }
    reaches_claim(&chain, &header)?;
    Ok(survey)
}

/// Checks that a walk of a claimed log has reached the end that the claim recorded: a device may fail during the walk.
///
/// # Errors
/// It was not.
pub fn reaches_claim(chain: &Chain<'_>, header: &ZilHeader) -> Result<(), ReplayError> {
    let (last_block, last_record) = chain.last();
    if last_block < header.claim_block_seq || last_record < header.claim_record_seq {
        let why = chain.end().map_or_else(String::new, ToString::to_string);
        let what = format!("block {last_block} of {} is the last that can be read: {why}", header.claim_block_seq);
        return Err(ReplayError::new(last_record + 1, what));
    }
    Ok(())
}
