//! The request that a receive begins with, the place that it comes to, and why it is refused.

use cenote_dmu::RawRoot;
use cenote_format::dsl::CryptoKeyPhys;
use cenote_format::enums::ObjsetType;
use cenote_format::ids::Guid;
use cenote_format::needs::Needs;

/// Why a stream is not received. The texts are OpenZFS's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveRefusal {
    /// The stream builds on a snapshot that the dataset has not.
    #[error("most recent snapshot of {0} does not\nmatch incremental source")]
    NoSource(String),
    /// The dataset has changed since the snapshot that the stream builds on.
    #[error("destination {0} has been modified\nsince most recent snapshot")]
    Modified(String),
    /// The snapshot is there.
    #[error("destination already exists")]
    Exists(String),
    /// The dataset is larger after the receive than its `refquota` allows.
    #[error("destination {0} space quota exceeded.")]
    OverQuota(String),
    /// A stream of a whole file system, for a dataset that is there.
    #[error("destination '{0}' exists\nmust specify -F to overwrite it")]
    Overwrites(String),
    /// The same for a dataset with snapshots.
    #[error("destination has snapshots (eg. {0})\nmust destroy them to overwrite it")]
    HasSnapshots(String),
    /// The same for a clone.
    #[error("destination '{0}' is a clone\nmust destroy it to overwrite it")]
    IsClone(String),
    /// A volume in the place of a pool's root.
    #[error("destination {0} is the root dataset\ncannot overwrite with a ZVOL")]
    IsRoot(String),
    /// A volume in the place of a file system with others below it.
    #[error("destination has children (eg. {0})\ncannot overwrite with a ZVOL")]
    HasChildren(String),
    /// There is no such dataset.
    #[error("destination '{0}' does not exist")]
    Missing(String),
    /// The dataset above is none that can have others.
    #[error("parent '{0}' is not a filesystem")]
    WrongParent(String),
    /// Something is half received already.
    #[error("destination {0} contains partially-complete state from \"zfs receive -s\".")]
    HasPartial(String),
    /// Somebody has the dataset open.
    #[error("dataset is busy")]
    Busy,
    /// Its users could not be made to wait.
    #[error("dataset is busy: {0}")]
    InUse(String),
    /// The snapshot that it is to be a clone of is not there.
    #[error("local origin for clone {0} does not exist")]
    NoOrigin(String),
    /// The stream needs a feature that the pool has not enabled.
    #[error("pool must be upgraded to receive this stream. (feature@{0} is not enabled)")]
    NoFeature(&'static str),
    /// A stream without large blocks for a dataset with them.
    #[error("incremental send stream requires -L (--large-block), to match previous receive.")]
    LargeBlocks,
    /// A stream that goes on where there is nothing to go on from, or something else.
    #[error("'{0}' has nothing that this stream goes on with")]
    NotResumable(String),
    /// A stream that goes on with a whole file system in the place of one that is there.
    #[error("Resuming recv on existing destination '{0}'\nmust specify -F to overwrite it")]
    ResumesOver(String),
    /// The stream is of another kind of dataset than the one that is there.
    #[error("destination '{0}' is of another kind than the stream's dataset")]
    OtherKind(String),
    /// A raw stream in the place of a dataset that is there, or another in the place of an encrypted one.
    #[error(
        "zfs receive -F cannot be used to destroy an encrypted filesystem or overwrite an unencrypted one with an \
         encrypted one"
    )]
    OverEncrypted,
    /// A raw stream that builds on a dataset that is not encrypted.
    #[error("cannot perform raw receive on top of existing unencrypted dataset")]
    RawOntoPlain,
    /// A raw stream of another master key.
    #[error("encryption key does not match existing key")]
    OtherKey,
    /// A raw stream, or its base here, without a set of IVs.
    #[error("IV set guid missing. See errata 4 at https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-ER.")]
    NoIvset,
    /// A raw stream whose base has other IVs here.
    #[error(
        "IV set guid mismatch. The incremental source snapshot on the\ndestination no longer has the IV set it was \
         sent with, most commonly\nbecause it was received as a non-raw (plain) stream."
    )]
    OtherIvset,
    /// A raw stream whose table of objects has another form than that which is here.
    #[error("the stream's table of objects has another form than that of the dataset")]
    OtherShape,
    /// A stream that lacks what a redacted snapshot lacks too.
    #[error("the stream is not redacted in a way that fits what is there")]
    OtherRedaction,
    /// More is reserved or limited than there is.
    #[error("out of space")]
    NoSpace,
}

/// The facts of a stream's beginning, and the request.
#[derive(Clone, Debug)]
pub struct ReceiveSpec {
    /// The dataset's full name.
    pub dataset: String,
    /// The snapshot's name, without the dataset's.
    pub snapshot: String,
    /// Its kind.
    pub kind: ObjsetType,
    /// The snapshot's guid.
    pub to_guid: Guid,
    /// The guid of the snapshot that the stream builds on.
    pub from_guid: Option<Guid>,
    /// Time of the snapshot's creation, in seconds since 1970.
    pub creation_time_s: u64,
    /// Full name of the snapshot that a new dataset begins as.
    pub origin: Option<String>,
    /// Changes and later snapshots in the way are destroyed (`-F`).
    pub is_forced: bool,
    /// The dataset may be in use until all has come: the caller has its users wait for the end ([`Received`](super::receive::Received)).
    pub users_wait: bool,
    /// Features that the stream says its dataset uses.
    pub needs: Needs,
    /// Features that the stream needs the pool to have enabled.
    pub enabled: Vec<&'static str>,
    /// File names are compared without regard to case.
    pub ignores_case: bool,
    /// The place is noted, so that it can be resumed (`-s`).
    pub resumable: Option<Resumable>,
    /// The stream goes on with what was received in part.
    pub resumes: bool,
    /// The stream is redacted: guids of the snapshots with respect to which it is.
    pub redacted: Option<Vec<u64>>,
    /// The same of the source that it builds on at its sender.
    pub from_redacted: Option<Vec<u64>>,
    /// The stream is raw: the dataset is encrypted, and written without its key.
    pub raw: Option<RawSpec>,
}

/// The facts that are noted of a stream that may be resumed.
#[derive(Clone, Debug, Default)]
pub struct Resumable {
    /// The snapshot's full name where it is sent from.
    pub to_name: String,
    /// The stream has blocks of more than 128 KiB.
    pub large_blocks: bool,
    /// Blocks that stand in their pointers.
    pub embedded: bool,
    /// Compressed blocks.
    pub compressed: bool,
}

/// The place that a receive has come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceivePoint {
    /// The object.
    pub object: u64,
    /// The offset in it, in bytes.
    pub offset_bytes: u64,
    /// Bytes of the stream that were read.
    pub bytes: u64,
}

/// The facts of a raw stream's beginning.
#[derive(Clone, Debug)]
pub struct RawSpec {
    /// The wrapped keys.
    pub key: CryptoKeyPhys,
    /// The objset's root and meta-dnode.
    pub root: RawRoot,
    /// The set of IVs that the snapshot has; 0 if the sender does not know.
    pub to_ivset_guid: u64,
    /// That of the snapshot that the stream builds on.
    pub from_ivset_guid: u64,
}
