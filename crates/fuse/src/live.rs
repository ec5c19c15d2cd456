//! A file system that is mounted for writing, whose files change only through the mount.
//!
//! Every change comes from the kernel, so it may cache names, attributes and data as for a local disk. An open file is held, so it stays
//! usable after its last name is removed.

use std::sync::Arc;

use cenote_dmu::tx::TxError;
use cenote_format::ids::ObjectId;
use cenote_inuse::{KeptFile, KeptFiles, OpenFiles, Report};
use cenote_spa::HeadSpace;
use cenote_zpl::{
    Allocation, AttributeChange, Attributes, File, FileKind, FileSystem, NewNode, Properties, RenameMode, Time,
    XattrSet, ZplError,
};

use crate::groups;
use crate::server::{Caller, Changed, Errno, NewFile, Rename, SetAttributes, Writer};

const ACCESS_LIST: &[u8] = b"system.posix_acl_access";
const SETGID: u32 = 0o2000;
const KEEP_SIZE: i32 = 1;
const PUNCH_HOLE: i32 = 2;
const ZERO_RANGE: i32 = 0x10;

pub(crate) fn errno(error: &ZplError) -> Errno {
    Errno::from_raw_os_error(error.errno() as i32)
}

/// A file that programs had open when it was suspended.
pub(crate) type OpenFile = KeptFile<ObjectId>;

/// A dataset that is changed.
pub(crate) struct Live {
    files: OpenFiles,
    /// Files that programs have open.
    open: KeptFiles<ObjectId>,
    report: Report,
}

impl Live {
    /// A dataset that was opened. `opened`: the files that programs had open before a rollback; those that are still the same are opened again,
    /// before the delete queue is freed.
    pub(crate) async fn new(files: OpenFiles, opened: &[OpenFile], report: Report) -> Self {
        let live = Self { files, open: KeptFiles::default(), report };
        live.open.reopen(live.filesystem(), opened).await;
        live
    }

    /// Obeys properties from the next request on.
    pub(crate) fn obey(&self, properties: &Properties) {
        self.files.obey(properties);
    }

    /// Ends its use, when no request comes any more: releases files that are still open, which come back. For a suspension the delete queue is
    /// left as it is.
    pub(crate) async fn close(&self, is_suspended: bool) -> Vec<OpenFile> {
        let open = self.open.close();
        self.filesystem().all_forgotten();
        match is_suspended {
            true => self.files.stop().await,
            false => self.files.close().await,
        }
        open
    }

    pub(crate) const fn filesystem(&self) -> &FileSystem {
        self.files.filesystem()
    }

    /// The space that it uses and may still use.
    pub(crate) fn space(&self) -> HeadSpace {
        self.files.head().space()
    }

    /// Whether files are open.
    pub(crate) fn has_open_files(&self) -> bool {
        !self.open.is_empty()
    }

    /// The client has forgotten an object.
    pub(crate) fn forgotten(&self, object: ObjectId) {
        self.filesystem().forgotten(object);
    }

    /// The errno, once the cause is reported where that says more.
    fn failed(&self, error: &ZplError) -> Errno {
        let errno = errno(error);
        if matches!(errno, Errno::IO | Errno::BADE) {
            (self.report)(&error.to_string());
        }
        errno
    }

    /// The file as it was opened, or for the moment.
    pub(crate) async fn file(&self, object: ObjectId) -> Result<Arc<File>, ZplError> {
        if let Some(file) = self.open.get(object) {
            return Ok(file);
        }
        self.filesystem().open_file(object).await.map(Arc::new)
    }

    /// Opens a file, which is held until it is released as often. True if its access time has changed: an empty file `is_read` by opening
    /// it, since the kernel asks for none of its bytes.
    pub(crate) async fn open_file(&self, object: ObjectId, is_read: bool) -> Result<bool, ZplError> {
        let file = self.filesystem().open_file(object).await?;
        let is_access = is_read && file.note_empty_read();
        self.open.keep(object, file);
        Ok(is_access)
    }

    /// A file that was opened is not used any more.
    pub(crate) async fn release(&self, object: ObjectId) {
        if let Some(file) = self.open.release(object) {
            // A pool that is full, or is no longer written, does not keep anyone from reading.
            let _ = file.write_atime().await;
            drop(file);
        }
    }

    /// The permission bits that are left where set-ids go; nothing where nothing changes. The kernel has changes of one file's
    /// attributes and content follow each other, so they are the same still when they are put.
    async fn dropped_set_ids(&self, object: ObjectId) -> Result<Option<u32>, Errno> {
        let found = self.filesystem().attributes(object).await.map_err(|error| self.failed(&error))?;
        let left = without_set_ids(found.permissions);
        Ok((found.kind == FileKind::File && left != found.permissions).then_some(left))
    }

    /// Clears a file's set-user-id and set-group-id before a write by a caller that may not keep them.
    async fn drop_set_ids(&self, object: ObjectId, writer: Writer) -> Result<Changed, Errno> {
        if !writer.drops_set_ids {
            return Ok(Changed::default());
        }
        let Some(left) = self.dropped_set_ids(object).await? else { return Ok(Changed::default()) };
        let change = AttributeChange { permissions: Some(left), ..AttributeChange::default() };
        let changed = self.filesystem().set_attributes(object, &change).await;
        self.changed(changed).await.map(|_| Changed { mode: true })
    }

    /// True where a new access control list takes set-group-id away: from a file of a group that the caller is not in, as a new mode
    /// does. The kernel clears the bit itself on a change of mode; for an access control list it asks the server, but only with a later
    /// version of its message.
    async fn loses_setgid(&self, object: ObjectId, caller: Caller) -> Result<bool, Errno> {
        if caller.uid == 0 {
            return Ok(false);
        }
        let found = self.filesystem().attributes(object).await.map_err(|error| self.failed(&error))?;
        if found.permissions & SETGID == 0 {
            return Ok(false);
        }
        let handle = self.files.head().pool().handle();
        let is_member = handle.spawn_blocking(move || groups::is_member(caller, found.gid)).await;
        Ok(!is_member.unwrap_or(false))
    }

    /// The result of a change, once the change is as durable as it has to be.
    async fn changed<T>(&self, result: Result<T, ZplError>) -> Result<T, Errno> {
        let made = result.map_err(|error| self.failed(&error))?;
        self.files.log().commit_if_sync(false, None).await.map_err(|error| self.lost(&error))?;
        Ok(made)
    }

    /// A txg could not be written.
    fn lost(&self, error: &TxError) -> Errno {
        (self.report)(&error.to_string());
        Errno::IO
    }

    /// Makes a node and its name; opened where that is asked for.
    pub(crate) async fn create(
        &self,
        parent: ObjectId,
        name: &[u8],
        new: &NewFile,
        open: bool,
    ) -> Result<Attributes, Errno> {
        let new = new_node(new);
        if !open {
            let made = self.filesystem().create(parent, name, &new).await;
            return self.changed(made).await;
        }
        let made = self.filesystem().create_file(parent, name, &new).await;
        let (file, attributes) = self.changed(made).await?;
        self.open.keep(file.id(), file);
        Ok(attributes)
    }

    /// Gives a node another name.
    pub(crate) async fn link(&self, object: ObjectId, parent: ObjectId, name: &[u8]) -> Result<Attributes, Errno> {
        let made = self.filesystem().link(object, parent, name).await;
        self.changed(made).await
    }

    /// Takes a name away: of a directory, or of anything else.
    pub(crate) async fn remove(&self, parent: ObjectId, name: &[u8], directory: bool) -> Result<(), Errno> {
        let removed = match directory {
            true => self.filesystem().rmdir(parent, name).await,
            false => self.filesystem().unlink(parent, name).await,
        };
        self.changed(removed).await
    }

    /// Renames.
    pub(crate) async fn rename(
        &self,
        from: (ObjectId, &[u8]),
        to: (ObjectId, &[u8]),
        how: Rename,
    ) -> Result<(), Errno> {
        let mode = match how {
            Rename::Replace => RenameMode::Replace,
            Rename::NoReplace => RenameMode::NoReplace,
            Rename::Exchange => RenameMode::Exchange,
        };
        let renamed = self.filesystem().rename(from.0, from.1, to.0, to.1, mode).await;
        self.changed(renamed).await
    }

    /// Writes all of the bytes.
    pub(crate) async fn write(
        &self,
        object: ObjectId,
        offset_bytes: u64,
        data: &[u8],
        writer: Writer,
    ) -> Result<Changed, Errno> {
        let beside = self.drop_set_ids(object, writer).await?;
        let file = self.file(object).await.map_err(|error| self.failed(&error))?;
        let written = file.write(offset_bytes, data).await;
        self.changed(written).await.map(|()| beside)
    }

    /// Changes attributes; returns all of them.
    pub(crate) async fn set_attributes(&self, object: ObjectId, set: &SetAttributes) -> Result<Attributes, Errno> {
        let now = self.files.head().pool().handle().unix_time();
        let now = Time { seconds: now.as_secs().cast_signed(), nanoseconds: u64::from(now.subsec_nanos()) };
        let drops = set.uid.is_some() || set.gid.is_some() || set.size_bytes.is_some() && set.drops_set_ids;
        let permissions = match set.permissions {
            None if drops => self.dropped_set_ids(object).await?,
            given => given,
        };
        let change = AttributeChange {
            permissions,
            uid: set.uid,
            gid: set.gid,
            size_bytes: set.size_bytes,
            accessed: set.accessed.map(|at| at.unwrap_or(now)),
            modified: set.modified.map(|at| at.unwrap_or(now)),
            ..AttributeChange::default()
        };
        let changed = self.filesystem().set_attributes(object, &change).await;
        self.changed(changed).await
    }

    /// Sets an extended attribute; flags as of `setxattr(2)`.
    pub(crate) async fn set_xattr(
        &self,
        object: ObjectId,
        name: &[u8],
        value: &[u8],
        flags: i32,
        caller: Caller,
    ) -> Result<(), Errno> {
        let how = match flags {
            0 => XattrSet::Any,
            1 => XattrSet::Create,
            2 => XattrSet::Replace,
            _ => return Err(Errno::INVAL),
        };
        let set = if name == ACCESS_LIST && self.loses_setgid(object, caller).await? {
            self.filesystem().set_xattr_without_setgid(object, name, value, how).await
        } else {
            self.filesystem().set_xattr(object, name, value, how).await
        };
        self.changed(set).await
    }

    /// Takes an extended attribute away.
    pub(crate) async fn remove_xattr(&self, object: ObjectId, name: &[u8]) -> Result<(), Errno> {
        let removed = self.filesystem().remove_xattr(object, name).await;
        self.changed(removed).await
    }

    /// Makes room or holes; mode as of `fallocate(2)`.
    pub(crate) async fn allocate(
        &self,
        object: ObjectId,
        offset_bytes: u64,
        len_bytes: u64,
        mode: i32,
        writer: Writer,
    ) -> Result<Changed, Errno> {
        const PUNCH: i32 = PUNCH_HOLE | KEEP_SIZE;
        const ZERO_KEEP: i32 = ZERO_RANGE | KEEP_SIZE;
        let how = match mode {
            0 | KEEP_SIZE => Allocation::Reserve { keep_size: mode == KEEP_SIZE },
            PUNCH => Allocation::Punch,
            ZERO_RANGE | ZERO_KEEP => Allocation::Zero { keep_size: mode == ZERO_KEEP },
            _ => return Err(Errno::OPNOTSUPP),
        };
        let end = offset_bytes.checked_add(len_bytes).ok_or(Errno::FBIG)?;
        // Nothing is set aside, so this is all that a reservation can promise: that the room is there now. Without a margin for
        // metadata, so that what `df` shows can be asked for.
        let is_reserved = matches!(how, Allocation::Reserve { .. });
        if is_reserved && len_bytes > self.files.head().space().available_bytes {
            return Err(Errno::NOSPC);
        }
        let beside = self.drop_set_ids(object, writer).await?;
        let file = self.file(object).await.map_err(|error| self.failed(&error))?;
        let allocated = file.allocate(how, offset_bytes..end).await;
        self.changed(allocated).await.map(|()| beside)
    }

    /// Makes durable what was done so far to a node, and what that depends on.
    pub(crate) async fn sync(&self, object: ObjectId) -> Result<(), Errno> {
        self.files.log().sync(Some(object)).await.map_err(|error| self.lost(&error))
    }
}

/// Permission bits without what a writer takes away. A set-group-id that the group cannot execute by is no right.
const fn without_set_ids(permissions: u32) -> u32 {
    let set_gid = if permissions & 0o010 != 0 { 0o2000 } else { 0 };
    permissions & !(0o4000 | set_gid)
}

fn new_node(new: &NewFile) -> NewNode {
    NewNode {
        mode: new.mode,
        umask: new.umask,
        uid: new.caller.uid,
        gid: new.caller.gid,
        device: new.device,
        target: new.target.clone(),
    }
}
