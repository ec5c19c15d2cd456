//! What `zpool status` says about a pool's health, in words.

use cenote_vdev::tree::{VdevState, VdevStatus};

use crate::{Pool, SpaError};

/// Why a pool needs attention and what to do: the lines `status:` and `action:` of `zpool status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advice {
    /// What is wrong.
    pub status: &'static str,
    /// What to do.
    pub action: &'static str,
    /// The number of the message at the OpenZFS documentation, if there is one.
    pub message: Option<&'static str>,
}

/// What is to be said about the pool; `None` when all is well.
pub async fn status_advice(pool: &Pool) -> Result<Option<Advice>, SpaError> {
    let status = pool.tree().status();
    if any(&status, &|vdev| vdev.state == VdevState::Unavailable) {
        let is_lost = status.state == VdevState::Unavailable;
        return Ok(Some(if is_lost { LOST_DEVICES } else { MISSING_DEVICE }));
    }
    if any(&status, &|vdev| vdev.state == VdevState::Faulted) {
        return Ok(Some(FAULTED_DEVICE));
    }
    if any(&status, &|vdev| vdev.errors.checksum + vdev.errors.read + vdev.errors.write > 0) {
        return Ok(Some(ERRORS_CORRECTED));
    }
    if any(&status, &|vdev| vdev.state == VdevState::Offline) {
        return Ok(Some(OFFLINE_DEVICE));
    }
    Ok(None)
}

fn any(status: &VdevStatus, test: &dyn Fn(&VdevStatus) -> bool) -> bool {
    test(status) || status.children.iter().any(|child| any(child, test))
}

const MISSING_DEVICE: Advice = Advice {
    status: "One or more devices could not be opened.  Sufficient replicas exist for\nthe pool to continue functioning in a degraded state.",
    action: "Attach the missing device and online it using 'zpool online'.",
    message: Some("ZFS-8000-2Q"),
};
const LOST_DEVICES: Advice = Advice {
    status: "One or more devices could not be opened.  There are insufficient\nreplicas for the pool to continue functioning.",
    action: "Attach the missing device and online it using 'zpool online'.",
    message: Some("ZFS-8000-3C"),
};
const FAULTED_DEVICE: Advice = Advice {
    status: "One or more devices are faulted in response to persistent errors.\nSufficient replicas exist for the pool to continue functioning in a\ndegraded state.",
    action: "Replace the faulted device, or use 'zpool clear' to mark the device\nrepaired.",
    message: None,
};
const ERRORS_CORRECTED: Advice = Advice {
    status: "One or more devices has experienced an unrecoverable error.  An\nattempt was made to correct the error.  Applications are unaffected.",
    action: "Determine if the device needs to be replaced, and clear the errors\nusing 'zpool clear' or replace the device with 'zpool replace'.",
    message: Some("ZFS-8000-9P"),
};
const OFFLINE_DEVICE: Advice = Advice {
    status: "One or more devices has been taken offline by the administrator.\nSufficient replicas exist for the pool to continue functioning in a\ndegraded state.",
    action: "Online the device using 'zpool online' or replace the device with\n'zpool replace'.",
    message: None,
};
