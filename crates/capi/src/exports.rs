//! The functions that C sees. `include/cenote.h` says what each does.
//!
//! The names are the only thing that is unsafe here: two functions of one name in a program would be one.

#![allow(unsafe_code)]

use std::ffi::CStr;

use cenote::{ReceiveOptions, SendOptions};

use crate::border::{
    Borrowed, Buffer, Data, Descriptor, Give, GiveText, In, Out, Status as Fails, Taken, TakenText, Text, Words,
};
use crate::errors::CPlace;
use crate::fault::FaultHandle;
use crate::file::OpenFile;
use crate::filesystem::{CMetadata, Dir, Files};
use crate::list::List;
use crate::options::{Options, set};
use crate::pool::PoolHandle;
use crate::runtime::guarded;
use crate::snapshots::{CChange, CRecord, Changing, History};
use crate::status::{CVdev, Status};
use crate::stream::{Receiving, Report, Sending};
use crate::volume::OpenVolume;
use crate::{errors, file, filesystem, list, options, pool, snapshots, status, stream, volume};

/// The version of the library.
const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(text) => text,
    Err(_) => panic!("a version has no zero byte"),
};
/// The number of the interface. It changes when a program that was built for an older one would break.
const ABI: u32 = 0;

macro_rules! exports {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $answer:ty = $call:expr;)*) => {
        $(
            // SAFETY: the name begins with `cenote_`, which others do not use, and the compiler refuses a second one of this crate.
            #[unsafe(no_mangle)]
            extern "C" fn $name($($argument: $type),*) -> $answer {
                guarded(stringify!($name), || $call($($argument),*))
            }
        )*

        #[cfg(test)]
        fn prototypes() -> Vec<String> {
            use crate::spelling::{Spelt, prototype};
            vec![$(prototype::<$answer>(
                stringify!($name),
                &[$((stringify!($argument), <$type as Spelt>::spelt())),*],
            )),*]
        }
    };
}

exports! {
    fn cenote_abi() -> u32 = || ABI;
    fn cenote_version() -> Borrowed = || Borrowed::of(Some(VERSION));
    fn cenote_string_free(string: TakenText) -> () = TakenText::free;

    fn cenote_error_kind(error: In<FaultHandle>) -> u32 = errors::kind;
    fn cenote_error_message(error: In<FaultHandle>) -> Borrowed = errors::message;
    fn cenote_error_place(error: In<FaultHandle>, place: Out<CPlace>) -> () = errors::place;
    fn cenote_error_free(error: Taken<FaultHandle>) -> () = Taken::free;

    fn cenote_list_count(list: In<List>) -> usize = list::count;
    fn cenote_list_name(list: In<List>, index: usize) -> Borrowed = list::name;
    fn cenote_list_kind(list: In<List>, index: usize) -> u32 = list::kind;
    fn cenote_list_guid(list: In<List>, index: usize) -> u64 = list::guid;
    fn cenote_list_time(list: In<List>, index: usize) -> u64 = list::time;
    fn cenote_list_free(list: Taken<List>) -> () = Taken::free;

    fn cenote_options_new(options: Give<Options>) -> Fails = options::new;
    fn cenote_options_search(options: In<Options>, path: Text) -> Fails = options::search;
    fn cenote_options_write(options: In<Options>, write: bool) -> Fails = options::write;
    fn cenote_options_force(options: In<Options>, force: bool) -> Fails = options::force;
    fn cenote_options_allow_missing(options: In<Options>, allow: bool) -> Fails = options::allow_missing;
    fn cenote_options_rewind(options: In<Options>) -> Fails = options::rewind;
    fn cenote_options_at_txg(options: In<Options>, txg: u64) -> Fails = options::at_txg;
    fn cenote_options_cache_bytes(options: In<Options>, bytes: usize) -> Fails = options::cache_bytes;
    fn cenote_options_tunable(options: In<Options>, name: Text, value: Text) -> Fails = options::tunable;
    fn cenote_options_key(options: In<Options>, dataset: Text, key: Data, len: usize) -> Fails = options::key;
    fn cenote_options_free(options: Taken<Options>) -> () = Taken::free;

    fn cenote_find(options: In<Options>, pools: Give<List>) -> Fails = options::find;
    fn cenote_open(options: In<Options>, name: Text, pool: Give<PoolHandle>) -> Fails = options::open;
    fn cenote_create(
        options: In<Options>,
        name: Text,
        vdevs: Words,
        file_bytes: u64,
        properties: Words,
        root_properties: Words,
        pool: Give<PoolHandle>,
    ) -> Fails = options::create;

    fn cenote_pool_name(pool: In<PoolHandle>) -> Borrowed = pool::name;
    fn cenote_pool_guid(pool: In<PoolHandle>) -> u64 = pool::guid;
    fn cenote_pool_txg(pool: In<PoolHandle>) -> u64 = pool::txg;
    fn cenote_pool_is_read_only(pool: In<PoolHandle>) -> bool = pool::is_read_only;
    fn cenote_pool_load_key(pool: In<PoolHandle>, dataset: Text, key: Data, len: usize) -> Fails = pool::load_key;
    fn cenote_pool_sync(pool: In<PoolHandle>) -> Fails = pool::sync;
    fn cenote_pool_resume(pool: In<PoolHandle>) -> Fails = pool::resume;
    fn cenote_pool_export(pool: In<PoolHandle>) -> Fails = pool::export;
    fn cenote_pool_free(pool: Taken<PoolHandle>) -> () = Taken::free;

    fn cenote_pool_status(pool: In<PoolHandle>, status: Give<Status>) -> Fails = status::status;
    fn cenote_status_suspended(status: In<Status>) -> Borrowed = status::suspended;
    fn cenote_status_count(status: In<Status>) -> usize = status::count;
    fn cenote_status_vdev(status: In<Status>, index: usize, vdev: Out<CVdev>) -> Fails = status::vdev;
    fn cenote_status_free(status: Taken<Status>) -> () = Taken::free;

    fn cenote_datasets(pool: In<PoolHandle>, datasets: Give<List>) -> Fails = pool::datasets;
    fn cenote_snapshots(pool: In<PoolHandle>, dataset: Text, snapshots: Give<List>) -> Fails = pool::snapshots;
    fn cenote_dataset_kind(pool: In<PoolHandle>, dataset: Text, kind: Out<u32>) -> Fails = pool::dataset_kind;
    fn cenote_dataset_space(
        pool: In<PoolHandle>,
        dataset: Text,
        used_bytes: Out<u64>,
        referenced_bytes: Out<u64>,
    ) -> Fails = pool::dataset_space;
    fn cenote_create_filesystem(pool: In<PoolHandle>, dataset: Text, properties: Words) -> Fails =
        pool::create_filesystem;
    fn cenote_create_volume(pool: In<PoolHandle>, dataset: Text, size_bytes: u64, properties: Words) -> Fails =
        pool::create_volume;
    fn cenote_get_property(pool: In<PoolHandle>, dataset: Text, property: Text, value: GiveText) -> Fails =
        pool::get_property;
    fn cenote_set_property(pool: In<PoolHandle>, dataset: Text, property: Text, value: Text) -> Fails =
        pool::set_property;
    fn cenote_rename_dataset(pool: In<PoolHandle>, dataset: Text, to: Text) -> Fails = pool::rename_dataset;
    fn cenote_destroy(pool: In<PoolHandle>, dataset: Text, all_below: bool) -> Fails = pool::destroy;
    fn cenote_snapshot(pool: In<PoolHandle>, snapshot: Text) -> Fails = pool::snapshot;
    fn cenote_rollback(pool: In<PoolHandle>, snapshot: Text, over_newer: bool) -> Fails = pool::rollback;
    fn cenote_clone(pool: In<PoolHandle>, snapshot: Text, dataset: Text, properties: Words) -> Fails =
        pool::clone_snapshot;

    fn cenote_bookmark(pool: In<PoolHandle>, source: Text, name: Text) -> Fails = snapshots::bookmark;
    fn cenote_bookmarks(pool: In<PoolHandle>, dataset: Text, bookmarks: Give<List>) -> Fails = snapshots::bookmarks;
    fn cenote_hold(pool: In<PoolHandle>, snapshot: Text, tag: Text) -> Fails = snapshots::hold;
    fn cenote_release(pool: In<PoolHandle>, snapshot: Text, tag: Text) -> Fails = snapshots::release;
    fn cenote_holds(pool: In<PoolHandle>, snapshot: Text, holds: Give<List>) -> Fails = snapshots::holds;
    fn cenote_key_status(pool: In<PoolHandle>, dataset: Text, status: Out<u32>) -> Fails = snapshots::key_status;
    fn cenote_unload_key(pool: In<PoolHandle>, dataset: Text) -> Fails = snapshots::unload_key;
    fn cenote_change_key(pool: In<PoolHandle>, dataset: Text, key: Data, len: usize) -> Fails = snapshots::change_key;
    fn cenote_changes_open(pool: In<PoolHandle>, earlier: Text, later: Text, changes: Give<Changing>) -> Fails =
        snapshots::changes;
    fn cenote_changes_next(changes: In<Changing>, change: Out<CChange>) -> Fails = snapshots::next_change;
    fn cenote_changes_free(changes: Taken<Changing>) -> () = Taken::free;

    fn cenote_pool_history(pool: In<PoolHandle>, history: Give<History>) -> Fails = snapshots::history;
    fn cenote_pool_record_command(pool: In<PoolHandle>, line: Text) -> Fails = snapshots::record_command;
    fn cenote_history_count(history: In<History>) -> usize = snapshots::record_count;
    fn cenote_history_record(history: In<History>, index: usize, record: Out<CRecord>) -> Fails = snapshots::record;
    fn cenote_history_free(history: Taken<History>) -> () = Taken::free;

    fn cenote_send_options_new(options: Give<Sending>) -> Fails = options::new;
    fn cenote_send_options_since(options: In<Sending>, source: Text, with_between: bool) -> Fails = stream::since;
    fn cenote_send_options_replicate(options: In<Sending>, replicate: bool) -> Fails = set(SendOptions::replicate);
    fn cenote_send_options_exclude(options: In<Sending>, dataset: Text) -> Fails = stream::send_exclude;
    fn cenote_send_options_skip_missing(options: In<Sending>, skip: bool) -> Fails = set(SendOptions::skip_missing);
    fn cenote_send_options_properties(options: In<Sending>, with: bool) -> Fails = set(SendOptions::properties);
    fn cenote_send_options_holds(options: In<Sending>, with: bool) -> Fails = set(SendOptions::holds);
    fn cenote_send_options_raw(options: In<Sending>, raw: bool) -> Fails = set(SendOptions::raw);
    fn cenote_send_options_compressed(options: In<Sending>, compressed: bool) -> Fails = set(SendOptions::compressed);
    fn cenote_send_options_large_blocks(options: In<Sending>, large: bool) -> Fails = set(SendOptions::large_blocks);
    fn cenote_send_options_free(options: Taken<Sending>) -> () = Taken::free;
    fn cenote_send(
        pool: In<PoolHandle>,
        snapshot: Text,
        options: In<Sending>,
        fd: Descriptor,
        report: Give<Report>,
    ) -> Fails = stream::send;
    fn cenote_send_resume(
        pool: In<PoolHandle>,
        token: Text,
        options: In<Sending>,
        fd: Descriptor,
        report: Give<Report>,
    ) -> Fails = stream::resume;
    fn cenote_receive_options_new(options: Give<Receiving>) -> Fails = options::new;
    fn cenote_receive_options_force(options: In<Receiving>, force: bool) -> Fails = set(ReceiveOptions::force);
    fn cenote_receive_options_resumable(options: In<Receiving>, resumable: bool) -> Fails = set(ReceiveOptions::resumable);
    fn cenote_receive_options_skip_holds(options: In<Receiving>, skip: bool) -> Fails = set(ReceiveOptions::skip_holds);
    fn cenote_receive_options_sent_name(options: In<Receiving>, part: u32) -> Fails = stream::sent_name;
    fn cenote_receive_options_origin(options: In<Receiving>, snapshot: Text) -> Fails = stream::origin;
    fn cenote_receive_options_property(options: In<Receiving>, name: Text, value: Text) -> Fails = stream::property;
    fn cenote_receive_options_exclude(options: In<Receiving>, property: Text) -> Fails = stream::exclude;
    fn cenote_receive_options_free(options: Taken<Receiving>) -> () = Taken::free;
    fn cenote_receive(
        pool: In<PoolHandle>,
        target: Text,
        options: In<Receiving>,
        fd: Descriptor,
        report: Give<Report>,
    ) -> Fails = stream::receive;
    fn cenote_receive_resume_token(pool: In<PoolHandle>, dataset: Text, token: GiveText) -> Fails =
        stream::resume_token;
    fn cenote_receive_abort(pool: In<PoolHandle>, dataset: Text) -> Fails = stream::abort_receive;
    fn cenote_report_bytes(report: In<Report>) -> u64 = stream::bytes;
    fn cenote_report_is_whole(report: In<Report>) -> bool = stream::is_whole;
    fn cenote_report_dataset(report: In<Report>, index: usize) -> Borrowed = stream::dataset;
    fn cenote_report_warning(report: In<Report>, index: usize) -> Borrowed = stream::warning;
    fn cenote_report_free(report: Taken<Report>) -> () = Taken::free;

    fn cenote_filesystem_open(pool: In<PoolHandle>, dataset: Text, filesystem: Give<Files>) -> Fails =
        filesystem::open;
    fn cenote_filesystem_is_read_only(filesystem: In<Files>) -> bool = filesystem::is_read_only;
    fn cenote_filesystem_space(filesystem: In<Files>, used_bytes: Out<u64>, available_bytes: Out<u64>) -> Fails =
        filesystem::space;
    fn cenote_filesystem_sync(filesystem: In<Files>) -> Fails = filesystem::sync;
    fn cenote_filesystem_free(filesystem: Taken<Files>) -> () = Taken::free;

    fn cenote_stat(filesystem: In<Files>, path: Text, follow: bool, metadata: Out<CMetadata>) -> Fails =
        filesystem::stat;
    fn cenote_mkdir(filesystem: In<Files>, path: Text, parents: bool) -> Fails = filesystem::create_dir;
    fn cenote_remove_file(filesystem: In<Files>, path: Text) -> Fails = filesystem::remove_file;
    fn cenote_remove_dir(filesystem: In<Files>, path: Text) -> Fails = filesystem::remove_dir;
    fn cenote_rename(filesystem: In<Files>, from: Text, to: Text) -> Fails = filesystem::rename;
    fn cenote_link(filesystem: In<Files>, file: Text, path: Text) -> Fails = filesystem::hard_link;
    fn cenote_symlink(filesystem: In<Files>, target: Text, path: Text) -> Fails = filesystem::symlink;
    fn cenote_readlink(filesystem: In<Files>, path: Text, target: GiveText) -> Fails = filesystem::read_link;
    fn cenote_set_mode(filesystem: In<Files>, path: Text, mode: u32) -> Fails = filesystem::set_mode;
    fn cenote_set_owner(filesystem: In<Files>, path: Text, uid: u32, gid: u32) -> Fails = filesystem::set_owner;
    fn cenote_set_modified(filesystem: In<Files>, path: Text, seconds: i64, nanoseconds: u32) -> Fails =
        filesystem::set_modified;
    fn cenote_get_xattr(
        filesystem: In<Files>,
        path: Text,
        name: Text,
        buffer: Buffer,
        len: usize,
        value_len: Out<usize>,
    ) -> Fails = filesystem::get_xattr;
    fn cenote_set_xattr(filesystem: In<Files>, path: Text, name: Text, value: Data, len: usize) -> Fails =
        filesystem::set_xattr;
    fn cenote_remove_xattr(filesystem: In<Files>, path: Text, name: Text) -> Fails = filesystem::remove_xattr;
    fn cenote_list_xattrs(filesystem: In<Files>, path: Text, buffer: Buffer, len: usize, names_len: Out<usize>) -> Fails =
        filesystem::list_xattrs;

    fn cenote_dir_open(filesystem: In<Files>, path: Text, dir: Give<Dir>) -> Fails = filesystem::open_dir;
    fn cenote_dir_next(dir: In<Dir>, name: GiveText, kind: Out<u32>, object: Out<u64>) -> Fails =
        filesystem::next_entry;
    fn cenote_dir_free(dir: Taken<Dir>) -> () = Taken::free;

    fn cenote_file_open(filesystem: In<Files>, path: Text, file: Give<OpenFile>) -> Fails = file::open;
    fn cenote_file_create(filesystem: In<Files>, path: Text, file: Give<OpenFile>) -> Fails = file::create;
    fn cenote_file_size(file: In<OpenFile>) -> u64 = file::size;
    fn cenote_file_stat(file: In<OpenFile>, metadata: Out<CMetadata>) -> Fails = file::stat;
    fn cenote_file_pread(file: In<OpenFile>, buffer: Buffer, len: usize, offset: u64, read: Out<usize>) -> Fails =
        file::pread;
    fn cenote_file_pwrite(file: In<OpenFile>, data: Data, len: usize, offset: u64) -> Fails = file::pwrite;
    fn cenote_file_truncate(file: In<OpenFile>, size: u64) -> Fails = file::truncate;
    fn cenote_file_next_data(file: In<OpenFile>, offset: u64, found: Out<u64>) -> Fails = file::next_data;
    fn cenote_file_next_hole(file: In<OpenFile>, offset: u64, found: Out<u64>) -> Fails = file::next_hole;
    fn cenote_file_sync(file: In<OpenFile>) -> Fails = file::sync;
    fn cenote_file_free(file: Taken<OpenFile>) -> () = Taken::free;

    fn cenote_volume_open(pool: In<PoolHandle>, dataset: Text, volume: Give<OpenVolume>) -> Fails = volume::open;
    fn cenote_volume_size(volume: In<OpenVolume>) -> u64 = volume::size;
    fn cenote_volume_block_size(volume: In<OpenVolume>) -> u64 = volume::block_size;
    fn cenote_volume_is_read_only(volume: In<OpenVolume>) -> bool = volume::is_read_only;
    fn cenote_volume_pread(volume: In<OpenVolume>, buffer: Buffer, len: usize, offset: u64) -> Fails = volume::pread;
    fn cenote_volume_pwrite(volume: In<OpenVolume>, data: Data, len: usize, offset: u64) -> Fails = volume::pwrite;
    fn cenote_volume_trim(volume: In<OpenVolume>, offset: u64, len: u64) -> Fails = volume::trim;
    fn cenote_volume_flush(volume: In<OpenVolume>) -> Fails = volume::flush;
    fn cenote_volume_free(volume: Taken<OpenVolume>) -> () = Taken::free;
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = include_str!("../include/cenote.h");

    /// The declarations of functions in the header, each on one line.
    fn declared() -> Vec<String> {
        let mut found = Vec::new();
        let mut rest = HEADER;
        while let Some(at) = rest.find("CENOTE_API ") {
            let text = &rest[at + "CENOTE_API ".len()..];
            let end = text.find(';').expect("a declaration ends") + 1;
            found.push(text[..end].split_whitespace().collect::<Vec<_>>().join(" ").replace("( ", "("));
            rest = &text[end..];
        }
        // The first is the macro's own definition.
        found.split_off(1)
    }

    #[test]
    fn the_header_declares_each_function_as_it_is() {
        let fallible = "CENOTE_CHECKED ";
        let declared: Vec<String> = declared();
        let ours = prototypes();
        let plain: Vec<String> = declared.iter().map(|line| line.replace(fallible, "")).collect();
        for line in &ours {
            assert!(plain.contains(line), "not in the header: {line}");
        }
        for line in &plain {
            assert!(ours.contains(line), "in the header alone: {line}");
        }
        assert_eq!(plain.len(), ours.len(), "declared twice");
        for line in &declared {
            assert_eq!(
                line.starts_with(fallible),
                line.contains("cenote_error *cenote_"),
                "errors can be ignored: {line}"
            );
        }
    }

    #[test]
    fn the_header_has_the_numbers_of_this_library() {
        assert!(HEADER.contains(&format!("#define CENOTE_ABI {ABI}\n")));
        let soname = format!("-soname,libcenote.so.{ABI}\"");
        assert!(include_str!("../build.rs").contains(&soname), "build.rs names another interface");
    }

    #[test]
    fn structs_and_numbers_are_in_c_what_they_are_here() {
        let mut text = "#include <cenote.h>\n".to_owned();
        text.push_str(&crate::spelling::layouts());
        assert!(text.lines().count() > 60, "{text}");
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("layout.c");
        std::fs::write(&source, text).unwrap();
        let include = concat!(env!("CARGO_MANIFEST_DIR"), "/include");
        let output = std::process::Command::new("cc")
            .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", "-I", include])
            .arg(&source)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    #[test]
    fn handles_may_be_used_by_many_threads() {
        fn shared<T: Send + Sync>() {}
        shared::<(FaultHandle, List, Options, PoolHandle, Status, Files)>();
        shared::<(Dir, OpenFile, OpenVolume)>();
        shared::<(Changing, History, Sending, Receiving, Report)>();
    }
}
