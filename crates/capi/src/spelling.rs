//! The types, structs and numbers of this crate as the header has them, for its test.

use std::fmt::Write as _;

use cenote::{ChangeKind, FileKind, Health, KeyStatus};

use crate::border::{
    Borrowed, Buffer, Data, Descriptor, Give, GiveText, In, Out, Status as Fails, Taken, TakenText, Text, Words,
};
use crate::errors::CPlace;
use crate::fault::{FaultHandle, Kind};
use crate::file::OpenFile;
use crate::filesystem::{CMetadata, CTime, Dir, Files};
use crate::list::{List, RowKind};
use crate::options::Options;
use crate::pool::PoolHandle;
use crate::snapshots::{CChange, CRecord, Changing, History, change_number, key_number};
use crate::status::{CVdev, Status};
use crate::stream::{Name, Receiving, Report, Sending};
use crate::volume::OpenVolume;
use crate::{filesystem, snapshots, status};

/// A type that C knows.
trait Named {
    /// The type in C.
    const NAME: &'static str;
}

macro_rules! named {
    ($($type:ty => $text:literal;)*) => { $(impl Named for $type { const NAME: &'static str = $text; })* };
}

named! {
    FaultHandle => "cenote_error";
    List => "cenote_list";
    Options => "cenote_options";
    PoolHandle => "cenote_pool";
    Status => "cenote_status";
    Changing => "cenote_changes";
    History => "cenote_history";
    Sending => "cenote_send_options";
    Receiving => "cenote_receive_options";
    Report => "cenote_report";
    Files => "cenote_filesystem";
    Dir => "cenote_dir";
    OpenFile => "cenote_file";
    OpenVolume => "cenote_volume";
}

/// An argument or an answer.
pub(crate) trait Spelt {
    /// The type in C, up to the name of the argument.
    fn spelt() -> String;
}

macro_rules! spelt {
    ($($type:ty => $text:literal;)*) => { $(impl Spelt for $type { fn spelt() -> String { $text.to_owned() } })* };
}

spelt! {
    () => "void ";
    bool => "bool ";
    u32 => "uint32_t ";
    i64 => "int64_t ";
    u64 => "uint64_t ";
    usize => "size_t ";
    Text => "const char *";
    Words => "const char *const *";
    GiveText => "char **";
    TakenText => "char *";
    Descriptor => "int ";
    Data => "const void *";
    Buffer => "void *";
    Borrowed => "const char *";
    Fails => "cenote_error *";
    Out<bool> => "bool *";
    Out<u32> => "uint32_t *";
    Out<u64> => "uint64_t *";
    Out<usize> => "size_t *";
    Out<CPlace> => "cenote_place *";
    Out<CMetadata> => "cenote_metadata *";
    Out<CVdev> => "cenote_vdev *";
    Out<CChange> => "cenote_change *";
    Out<CRecord> => "cenote_record *";
}

impl<T: Named> Spelt for In<T> {
    fn spelt() -> String {
        format!("const {} *", T::NAME)
    }
}

impl<T: Named> Spelt for Taken<T> {
    fn spelt() -> String {
        format!("{} *", T::NAME)
    }
}

impl<T: Named> Spelt for Give<T> {
    fn spelt() -> String {
        format!("{} **", T::NAME)
    }
}

/// Assertions in C: a struct has the size and the places of fields that it has here.
macro_rules! layout {
    ($type:ty as $name:literal: $($field:ident)*) => {{
        let mut text = format!("_Static_assert(sizeof({0}) == {1}, \"{0}\");\n", $name, size_of::<$type>());
        $(
            let (field, offset) = (stringify!($field), std::mem::offset_of!($type, $field));
            text += &format!("_Static_assert(offsetof({0}, {field}) == {offset}, \"{field}\");\n", $name);
        )*
        text
    }};
}

/// Assertions in C: constants have these numbers.
fn numbers(constants: &[(&str, u32)]) -> String {
    let line = |(name, number): &(&str, u32)| format!("_Static_assert(CENOTE_{name} == {number}, \"{name}\");\n");
    constants.iter().map(line).collect()
}

/// The declaration of a function.
pub(crate) fn prototype<A: Spelt>(name: &str, arguments: &[(&str, String)]) -> String {
    let mut text = format!("{}{name}(", A::spelt());
    for (index, (argument, spelt)) in arguments.iter().enumerate() {
        let comma = if index > 0 { ", " } else { "" };
        write!(text, "{comma}{spelt}{argument}").expect("a string takes text");
    }
    text + if arguments.is_empty() { "void);" } else { ");" }
}

/// Assertions in C about all structs and numbers.
pub(crate) fn layouts() -> String {
    let kinds = [
        ("INTERNAL", Kind::Internal),
        ("CORRUPT", Kind::Corrupt),
        ("IO", Kind::Io),
        ("UNAVAILABLE", Kind::Unavailable),
        ("NOT_FOUND", Kind::NotFound),
        ("EXISTS", Kind::Exists),
        ("BUSY", Kind::Busy),
        ("NO_SPACE", Kind::NoSpace),
        ("READ_ONLY", Kind::ReadOnly),
        ("DENIED", Kind::Denied),
        ("KEY", Kind::Key),
        ("NOT_SUPPORTED", Kind::NotSupported),
        ("MISUSE", Kind::Misuse),
        ("CLOSED", Kind::Closed),
        ("QUOTA", Kind::Quota),
        ("INTERRUPTED", Kind::Interrupted),
        ("STALE", Kind::Stale),
    ];
    let files = [
        ("REGULAR_FILE", FileKind::File),
        ("DIRECTORY", FileKind::Directory),
        ("SYMLINK", FileKind::Symlink),
        ("PIPE", FileKind::Pipe),
        ("SOCKET", FileKind::Socket),
        ("CHAR_DEVICE", FileKind::CharDevice),
        ("BLOCK_DEVICE", FileKind::BlockDevice),
    ];
    let rows = [
        ("EXPORTED_POOL", RowKind::ExportedPool),
        ("POOL", RowKind::Pool),
        ("FILESYSTEM", RowKind::FileSystem),
        ("VOLUME", RowKind::Volume),
        ("SNAPSHOT", RowKind::Snapshot),
        ("BOOKMARK", RowKind::Bookmark),
        ("HOLD", RowKind::Hold),
    ];
    let healths = [
        ("ONLINE", Health::Online),
        ("DEGRADED", Health::Degraded),
        ("GONE", Health::Unavailable),
        ("OFFLINE", Health::Offline),
        ("FAULTED", Health::Faulted),
    ];
    let others = [
        ("KEY_NONE", key_number(KeyStatus::None)),
        ("KEY_AVAILABLE", key_number(KeyStatus::Available)),
        ("KEY_UNAVAILABLE", key_number(KeyStatus::Unavailable)),
        ("MODIFIED", change_number(&ChangeKind::Modified)),
        ("ADDED", change_number(&ChangeKind::Added)),
        ("REMOVED", change_number(&ChangeKind::Removed)),
        ("RENAMED", change_number(&ChangeKind::Renamed("".into()))),
        ("LINKED", change_number(&ChangeKind::Links(0))),
        ("COMMAND", snapshots::COMMAND),
        ("INTERNAL_EVENT", snapshots::INTERNAL),
        ("OTHER_RECORD", snapshots::OTHER),
        ("SENT_NAME_REPLACED", Name::Replaced as u32),
        ("SENT_NAME_WITHOUT_POOL", Name::WithoutPool as u32),
        ("SENT_NAME_LAST", Name::Last as u32),
    ];
    [
        numbers(&kinds.map(|(name, kind)| (name, kind as u32))),
        numbers(&files.map(|(name, kind)| (name, filesystem::number(kind)))),
        numbers(&rows.map(|(name, kind)| (name, kind as u32))),
        numbers(&healths.map(|(name, health)| (name, status::number(health)))),
        numbers(&others),
        layout!(CPlace as "cenote_place": pool dataset path device offset objset object block level),
        layout!(CTime as "cenote_time": seconds nanoseconds reserved),
        layout!(
            CMetadata as "cenote_metadata":
            object generation size allocated links kind mode uid gid accessed modified changed created
        ),
        layout!(CVdev as "cenote_vdev": name guid read_errors write_errors checksum_errors health depth is_behind),
        layout!(CChange as "cenote_change": path to links changed kind file_kind),
        layout!(CRecord as "cenote_record": text name dataset host txg uid time kind),
    ]
    .concat()
}
