//! Errors of volumes as clients of NBD get them.

use cenote_dmu::tx::TxError;
use cenote_inuse::OpenError;
use cenote_nbd::{ExportError, ExportErrorKind};
use cenote_zvol::VolumeError;
use cenote_zvol::live::LiveVolumeError;

use super::io_error;

fn tx_error(error: &TxError) -> ExportError {
    let kind = match error {
        TxError::NoSpace | TxError::Quota(_) => ExportErrorKind::NoSpace,
        TxError::Closed => ExportErrorKind::Shutdown,
        TxError::Suspended(_) => ExportErrorKind::Io,
    };
    ExportError::new(kind, error.to_string())
}

fn volume_error(error: &VolumeError) -> ExportError {
    let kind = match error {
        VolumeError::BeyondEnd { .. } => ExportErrorKind::NoSpace,
        VolumeError::BadSize { .. } | VolumeError::BadBlockSize(_) => ExportErrorKind::Invalid,
        VolumeError::Dmu(_) => ExportErrorKind::Io,
    };
    ExportError::new(kind, error.to_string())
}

pub(super) fn live_error(error: &LiveVolumeError) -> ExportError {
    match error {
        LiveVolumeError::Tx(error) => tx_error(error),
        LiveVolumeError::Volume(error) => volume_error(error),
        LiveVolumeError::Replay(error) => ExportError::new(ExportErrorKind::Io, error.to_string()),
        LiveVolumeError::ReadOnly => ExportError::new(ExportErrorKind::ReadOnly, error.to_string()),
    }
}

pub(super) fn open_error(error: &OpenError) -> ExportError {
    match error {
        OpenError::Volume(_, error) => live_error(error),
        error => io_error(error),
    }
}
