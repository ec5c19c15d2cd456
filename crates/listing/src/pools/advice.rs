//! The texts of OpenZFS's tools about a pool that needs attention. Scripts search for these texts, so they are the same; those about what
//! OpenZFS does not tell of, and of pools that nobody works on, are our own.

use cenote_spa::Condition;

/// The address where OpenZFS explains its messages.
pub(super) const MESSAGES: &str = "https://openzfs.github.io/openzfs-docs/msg";

/// The lines `status:` and `action:` of `zpool status`.
pub(super) const fn of_status(condition: Condition, is_worked_on: bool) -> (&'static str, &'static str) {
    match condition {
        Condition::Resilvering if !is_worked_on => (
            "One or more devices is to be resilvered, and nothing works on it now.\n\tThe pool will continue to function, possibly in a degraded state.",
            "Run 'zpool resilver', or mount the pool: it is resilvered meanwhile.",
        ),
        Condition::Resilvering => (
            "One or more devices is currently being resilvered.  The pool will\n\tcontinue to function, possibly in a degraded state.",
            "Wait for the resilver to complete.",
        ),
        Condition::Verifying if !is_worked_on => (
            "One or more devices were rebuilt, and nothing verifies now what was\n\tcopied.  The devices whose places they take are kept until then.",
            "Run 'zpool resilver', or mount the pool: it is scrubbed meanwhile.",
        ),
        Condition::Verifying => (
            "One or more devices were rebuilt, and a scrub verifies what was copied.\n\tThe devices whose places they take are kept until it has ended.",
            "Wait for the scrub to complete; 'zpool scrub' resumes one that is\n\tpaused.  With 'zpool scrub -s' the devices go at once, and nothing is\n\tverified.",
        ),
        Condition::Rebuilt => (
            "One or more devices have been sequentially resilvered, scrubbing\n\tthe pool is recommended.",
            "Use 'zpool scrub' to verify all data checksums.",
        ),
        Condition::CoarseSectors => (
            "One or more devices has sectors larger than its vdev's ashift allows.\n\tIt can be read, and is not written: that could damage what shares a\n\tsector.",
            "Put a device with smaller sectors in its place (for an image on such a\n\tdevice: attach it with the sector size that the ashift stands for),\n\tor copy the data to a new pool.",
        ),
        Condition::LostToFaults => (
            "One or more devices are faulted in response to persistent errors.  There are insufficient replicas for the pool to\n\tcontinue functioning.",
            "Destroy and re-create the pool from a backup source.  Manually marking the device\n\trepaired using 'zpool clear' may allow some data to be recovered.",
        ),
        Condition::LostDevices => (
            "One or more devices could not be opened.  There are insufficient\n\treplicas for the pool to continue functioning.",
            "Attach the missing device, and have the pool opened again.",
        ),
        Condition::LostTxgs => (
            "One or more devices has missed transactions that no other device which\n\tis there has.  What was written in them may not be readable.",
            "Attach the devices that are missing.  Where none is, run\n\t'cenote verify' to see what is lost; then 'zpool resilver' writes what\n\tdevices lack.",
        ),
        Condition::DataErrors => (
            "One or more devices has experienced an error resulting in data\n\tcorruption.  Applications may be affected.",
            "Restore the file in question if possible.  Otherwise restore the\n\tentire pool from backup.",
        ),
        Condition::FaultedDevice => (
            "One or more devices are faulted in response to persistent errors.\n\tSufficient replicas exist for the pool to continue functioning in a\n\tdegraded state.",
            "Replace the faulted device, or use 'zpool clear' to mark the device\n\trepaired.",
        ),
        Condition::MissingDevice => (
            "One or more devices could not be opened.  Sufficient replicas exist for\n\tthe pool to continue functioning in a degraded state.",
            "Attach the missing device and online it using 'zpool online'.",
        ),
        Condition::MissingLog => (
            "A log device could not be opened.  The pool continues without it, in a\n\tdegraded state.",
            "Attach the missing device and online it using 'zpool online', or take it\n\tout of the pool using 'zpool remove'.",
        ),
        Condition::MissingLabel => (
            "One or more devices could not be used because the label is missing or\n\tinvalid.  Sufficient replicas exist for the pool to continue\n\tfunctioning in a degraded state.",
            "Replace the device using 'zpool replace'.",
        ),
        Condition::MissedTxgs if is_worked_on => (
            "One or more devices has missed transactions and needs to be resilvered.\n\tThe pool continues to function in a degraded state: losing another\n\tdevice may lose data.",
            "Leave all devices attached.  The resilver begins by itself; 'zpool resilver'\n\tbegins it at once.",
        ),
        Condition::MissedTxgs => (
            "One or more devices has missed transactions and needs to be resilvered.\n\tThe pool continues to function in a degraded state: losing another\n\tdevice may lose data.",
            "Leave all devices attached, and run 'zpool resilver', or mount the pool:\n\tit is resilvered meanwhile.",
        ),
        // A pool that is only read is not mended.
        Condition::DeviceErrors if !is_worked_on => (
            "One or more devices has experienced an unrecoverable error.  The data\n\twas read from another copy.  Applications are unaffected.",
            "Run 'zpool scrub' to have what is bad written again.  Determine if the\n\tdevice needs to be replaced, and clear the errors using 'zpool clear' or\n\treplace the device with 'zpool replace'.",
        ),
        Condition::DeviceErrors => (
            "One or more devices has experienced an unrecoverable error.  An\n\tattempt was made to correct the error.  Applications are unaffected.",
            "Determine if the device needs to be replaced, and clear the errors\n\tusing 'zpool clear' or replace the device with 'zpool replace'.",
        ),
        Condition::OfflineDevice => (
            "One or more devices has been taken offline by the administrator.\n\tSufficient replicas exist for the pool to continue functioning in a\n\tdegraded state.",
            "Online the device using 'zpool online' or replace the device with\n\t'zpool replace'.",
        ),
        Condition::Errata(number) => errata_of_status(number),
        Condition::OldVersion => (
            "The pool is formatted using a legacy on-disk format.  The pool can\n\tstill be used, but some features are unavailable.",
            "Upgrade the pool using 'zpool upgrade'.  Once this is done, the\n\tpool will no longer be accessible on software that does not support\n\tfeature flags.",
        ),
        Condition::FeaturesDisabled => (
            "Some supported and requested features are not enabled on the pool.\n\tThe pool can still be used, but some features are unavailable.",
            "Enable all features using 'zpool upgrade'. Once this is done,\n\tthe pool may no longer be accessible by software that does not support\n\tthe features. See zpool-features(7) for details.",
        ),
    }
}

/// For a pool with an erratum.
const fn errata_of_status(number: u8) -> (&'static str, &'static str) {
    match number {
        1 => ("Errata #1 detected.", "To correct the issue run 'zpool scrub'."),
        2 => (
            "Errata #2 detected.",
            "Revert to an earlier version of ZFS and allow the asynchronous destroy\n\tto complete before updating.",
        ),
        3 => (
            "Errata #3 detected.\n\tExisting encrypted datasets contain an on-disk incompatibility\n\twhich needs to be corrected.",
            "To correct the issue backup existing encrypted datasets to new\n\tencrypted datasets and destroy the old ones. 'zfs mount -o ro' can\n\tbe used to temporarily mount existing encrypted datasets readonly.",
        ),
        _ => (
            "Errata #4 detected.\n\tExisting encrypted snapshots and bookmarks contain an on-disk\n\tincompatibility. This may cause on-disk corruption if they are used\n\twith 'zfs recv'.",
            "To correct the issue, enable the bookmark_v2 feature. No additional\n\taction is needed if there are no encrypted snapshots or bookmarks.\n\tIf preserving the encrypted snapshots and bookmarks is required,\n\tuse a non-raw send to backup and restore them. Alternately, they may\n\tbe removed to resolve the incompatibility.",
        ),
    }
}

/// `status:` and `action:` of `zpool import` for a pool with an erratum.
const fn errata_of_import(number: u8) -> (&'static str, &'static str) {
    match number {
        1 => (
            "Errata #1 detected.",
            "The pool can be imported using its name or numeric identifier,\n\thowever there is a compatibility issue which should be corrected\n\tby a scrub, which OpenZFS makes",
        ),
        2 => (
            "Errata #2 detected.",
            "The pool cannot be imported with this version of ZFS due to\n\tan active asynchronous destroy. Revert to an earlier version\n\tand allow the destroy to complete before updating.",
        ),
        3 => (
            "Errata #3 detected.",
            "Existing encrypted datasets contain an on-disk incompatibility, which\n\tneeds to be corrected. Backup these datasets to new encrypted datasets\n\tand destroy the old ones.",
        ),
        _ => (
            "Errata #4 detected.",
            "Existing encrypted snapshots and bookmarks contain an on-disk\n\tincompatibility. This may cause on-disk corruption if they are used\n\twith 'zfs recv'. To correct the issue, enable the bookmark_v2 feature.\n\tNo additional action is needed if there are no encrypted snapshots or\n\tbookmarks. If preserving the encrypted snapshots and bookmarks is\n\trequired, use a non-raw send to backup and restore them. Alternately,\n\tthey may be removed to resolve the incompatibility.",
        ),
    }
}

/// The lines of `zpool import` about a pool that it found.
pub(super) struct ImportAdvice {
    pub(super) status: Option<&'static str>,
    pub(super) action: &'static str,
    pub(super) message: Option<&'static str>,
}

const BY_NAME: &str = "The pool can be imported using its name or numeric identifier.";
const DESPITE_DAMAGE: &str = "The pool can be imported despite missing or damaged devices.  The\n\tfault tolerance of the pool may be compromised if imported.";
const ATTACH: &str = "The pool cannot be imported. Attach the missing\n\tdevices and try again.";
const DAMAGED: &str = "The pool cannot be imported due to damaged devices or data.";

/// For a pool with enough of its devices, which was not in use elsewhere.
pub(super) const fn of_import(condition: Option<Condition>, is_online: bool, is_lost: bool) -> ImportAdvice {
    let Some(condition) = condition else {
        return ImportAdvice { status: None, action: if is_online { BY_NAME } else { DESPITE_DAMAGE }, message: None };
    };
    let status = match condition {
        Condition::Resilvering => "One or more devices were being resilvered.",
        Condition::CoarseSectors => "One or more devices has sectors larger than its vdev's ashift allows.",
        Condition::Verifying | Condition::Rebuilt => "One or more devices were being resilvered.",
        Condition::MissingLabel => "One or more devices contains corrupted data.",
        Condition::LostToFaults | Condition::FaultedDevice => "One or more devices are faulted.",
        Condition::LostDevices | Condition::MissingDevice | Condition::MissingLog => {
            "One or more devices are missing from the system."
        }
        Condition::LostTxgs | Condition::MissedTxgs => "One or more devices need to be resilvered.",
        Condition::DataErrors => "The pool data is corrupted.",
        Condition::DeviceErrors => "One or more devices contains corrupted data.",
        Condition::OfflineDevice => "One or more devices are offlined.",
        Condition::Errata(number) => errata_of_import(number).0,
        Condition::OldVersion => "The pool is formatted using a legacy on-disk version.",
        Condition::FeaturesDisabled => {
            "Some supported features are not enabled on the pool.\n\t(Note that they may be intentionally disabled if the\n\t'compatibility' property is set.)"
        }
    };
    let action = match condition {
        Condition::OldVersion | Condition::FeaturesDisabled if is_online => {
            "The pool can be imported using its name or numeric identifier, though\n\tsome features will not be available without an explicit 'zpool upgrade'."
        }
        Condition::Errata(number) => errata_of_import(number).1,
        Condition::LostDevices => ATTACH,
        Condition::MissingLog => MISSING_LOG.action,
        Condition::CoarseSectors => "The pool can be imported read-only.",
        _ if is_online => BY_NAME,
        _ if is_lost => DAMAGED,
        _ => DESPITE_DAMAGE,
    };
    ImportAdvice { status: Some(status), action, message: condition.message() }
}

/// For a pool that was open on another system.
pub(super) const OTHER_SYSTEM: ImportAdvice = ImportAdvice {
    status: Some("The pool was last accessed by another system."),
    action: "The pool can be imported using its name or numeric identifier and\n\tthe '-f' flag.",
    message: Some("ZFS-8000-EY"),
};

/// For a pool that another system has; the action names that system.
pub(super) const ACTIVE: ImportAdvice = ImportAdvice {
    status: Some("The pool is currently imported by another system."),
    action: "The pool must be exported from the other system\n\tbefore it can be safely imported.",
    message: Some("ZFS-8000-EY"),
};

/// For a pool that lacks a log device alone, which a line after it names.
pub(super) const MISSING_LOG: ImportAdvice = ImportAdvice {
    status: Some("A log device is missing from the system, with what it holds:"),
    action: "The pool cannot be imported unless the device is attached, or 'zpool import -m' is\n\tused, which gives up what it holds.",
    message: Some("ZFS-8000-6X"),
};

/// For a pool that lacks devices, without a description of them.
pub(super) const UNKNOWN_DEVICES: ImportAdvice = ImportAdvice {
    status: Some("One or more devices are missing from the system."),
    action: ATTACH,
    message: Some("ZFS-8000-6X"),
};

/// For a pool with features that Cenote cannot read.
pub(super) const UNKNOWN_FEATURES: ImportAdvice = ImportAdvice {
    status: Some("The pool uses the following feature(s) not supported on this system:"),
    action: "The pool cannot be imported. Access the pool on a system that supports\n\tthe required feature(s), or recreate the pool from backup.",
    message: None,
};

/// For a pool of an unknown version.
pub(super) const UNKNOWN_VERSION: ImportAdvice = ImportAdvice {
    status: Some("The pool is formatted using an incompatible version."),
    action: "The pool cannot be imported.  Access the pool on a system running newer\n\tsoftware, or recreate the pool from backup.",
    message: Some("ZFS-8000-A5"),
};

/// For a pool with an existing but unusable device that it needs.
pub(super) const DAMAGED_DEVICE: ImportAdvice = ImportAdvice {
    status: Some("One or more devices contains corrupted data."),
    action: DAMAGED,
    message: Some("ZFS-8000-5E"),
};

/// For a pool that is refused for another reason, which follows.
pub(super) const REFUSED: ImportAdvice = ImportAdvice {
    status: Some("The pool cannot be opened:"),
    action: "Mend what the status names, and try again.",
    message: None,
};

/// For a pool whose root cannot be read.
pub(super) const DAMAGED_ROOT: ImportAdvice =
    ImportAdvice { status: Some("The pool metadata is corrupted."), action: DAMAGED, message: Some("ZFS-8000-72") };

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Condition; 21] = [
        Condition::Verifying,
        Condition::Rebuilt,
        Condition::MissingLabel,
        Condition::Errata(1),
        Condition::Errata(2),
        Condition::Errata(3),
        Condition::Errata(4),
        Condition::Resilvering,
        Condition::CoarseSectors,
        Condition::LostToFaults,
        Condition::LostDevices,
        Condition::LostTxgs,
        Condition::DataErrors,
        Condition::FaultedDevice,
        Condition::MissingDevice,
        Condition::MissingLog,
        Condition::MissedTxgs,
        Condition::DeviceErrors,
        Condition::OfflineDevice,
        Condition::OldVersion,
        Condition::FeaturesDisabled,
    ];

    /// The verbs in the advice that exist.
    const THERE: [&str; 10] = [
        "'zpool import -m'",
        "'zpool remove'",
        "'zpool clear'",
        "'zpool upgrade'",
        "'cenote verify'",
        "'zpool import'",
        "'zpool resilver'",
        "'zpool scrub'",
        "'zpool replace'",
        "'zpool online'",
    ];

    #[test]
    fn advice_names_no_command_that_is_not_there() {
        for condition in ALL {
            let (status, action) = of_status(condition, false);
            let import = of_import(Some(condition), false, false);
            for text in [status, action, import.status.unwrap_or_default(), import.action] {
                for program in ["'zpool ", "'cenote "] {
                    for (at, _) in text.match_indices(program) {
                        let is_there = THERE.iter().any(|verb| text[at..].starts_with(verb));
                        assert!(is_there, "{condition:?} names {}", &text[at..]);
                    }
                }
            }
            // OpenZFS's words have its lines, however long they are.
            let is_wide = condition == Condition::LostToFaults;
            for line in [status, action].iter().flat_map(|text| text.split("\n\t")) {
                assert!(is_wide || "action: ".len() + line.len() <= 80, "{condition:?} is too wide: {line}");
            }
            // Applications are said to be unaffected only if no data is lost.
            assert_eq!(status.contains("unaffected"), condition == Condition::DeviceErrors, "{condition:?}");
        }
    }
}
