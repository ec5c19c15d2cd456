//! Files and directories, by path and by handle.

use std::path::Path;
use std::time::{Duration, SystemTime};

use cenote::{ErrorKind, FileKind};

use super::admin::on_new_pool;

#[test]
fn files_are_written_read_linked_renamed_and_removed() {
    on_new_pool(async |_, pool| {
        let files = pool.filesystem("tank").await?;
        files.create_dir_all("/a/b/c").await?;
        files.create_dir_all("a/b").await?;
        files.write("a/b/one", "first").await?;
        files.write("a/b/one", "2nd").await?;
        assert_eq!(files.read("/a/b/one").await?, b"2nd");
        files.hard_link("a/b/one", "two").await?;
        assert_eq!(files.metadata("two").await?.links, 2);
        files.symlink("a/b", "link").await?;
        assert_eq!(files.read("link/one").await?, b"2nd");
        assert_eq!(files.read_link("link").await?, Path::new("a/b"));
        assert_eq!(files.symlink_metadata("link").await?.kind, FileKind::Symlink);
        files.rename("a/b/one", "a/moved").await?;
        assert_eq!(files.metadata("a/b/one").await.unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(files.remove_dir("a").await.unwrap_err().kind(), ErrorKind::Exists);
        assert_eq!(files.remove_file("a/b").await.unwrap_err().kind(), ErrorKind::Misuse);
        assert_eq!(files.create_dir("a").await.unwrap_err().kind(), ErrorKind::Exists);
        assert_eq!(files.create("two/x").await.unwrap_err().kind(), ErrorKind::Misuse);
        assert_eq!(files.create("/").await.unwrap_err().kind(), ErrorKind::Misuse);
        files.symlink("nowhere", "dangling").await?;
        assert!(files.write("dangling", "x").await.is_err(), "a link that leads nowhere is no file");
        let held = files.open("two").await?;
        files.remove_file("two").await?;
        files.remove_file("a/moved").await?;
        held.write_at(3, "!").await?;
        assert_eq!(&held.read_at(0, 100).await?[..], b"2nd!", "an open file outlives its names");
        let error = files.read("two").await.unwrap_err();
        assert_eq!(error.place().path.as_deref(), Some(Path::new("two")));
        assert_eq!(error.place().dataset.as_deref(), Some("tank"));
        Ok(())
    });
}

#[test]
fn attributes_are_set_and_kept() {
    on_new_pool(async |_, pool| {
        let files = pool.filesystem("tank").await?;
        files.set_owner("/", 1000, 100).await?;
        files.write("file", "x").await?;
        let made = files.metadata("file").await?;
        assert_eq!((made.uid, made.gid, made.mode), (1000, 100, 0o644), "it belongs to the owner of its directory");
        files.set_mode("file", 0o600).await?;
        let time = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 5);
        files.set_modified("file", time).await?;
        files.set_xattr("file", "user.note", b"mine").await?;
        assert_eq!(files.xattrs("file").await?, [b"user.note".to_vec()]);
        assert_eq!(files.xattr("file", "user.note").await?.as_deref(), Some(&b"mine"[..]));
        files.remove_xattr("file", "user.note").await?;
        assert_eq!(files.xattr("file", "user.note").await?, None);
        assert_eq!(files.remove_xattr("file", "user.note").await.unwrap_err().kind(), ErrorKind::NotFound);
        let now = files.open("file").await?.metadata()?;
        assert_eq!((now.mode, now.modified, now.kind, now.len), (0o600, time, FileKind::File, 1));
        Ok(())
    });
}

#[test]
fn large_reads_holes_and_ends_are_as_in_a_file() {
    on_new_pool(async |_, pool| {
        let file = pool.filesystem("tank").await?.create("file").await?;
        let content: Vec<u8> = (0..20_u32 << 20).map(|at| (at >> 12) as u8).collect();
        file.write_at(0, &content).await?;
        assert_eq!(file.read_at(0, usize::MAX >> 1).await?[..], content, "more is asked for than there is");
        assert_eq!(file.read_at(5, 17 << 20).await?[..], content[5..5 + (17 << 20)]);
        file.set_len(64 << 20).await?;
        assert_eq!(file.next_hole(0).await?, Some(20 << 20));
        assert_eq!(file.next_data(20 << 20).await?, None);
        assert!(file.read_at(63 << 20, 1 << 20).await?.iter().all(|byte| *byte == 0));
        file.set_len(3).await?;
        assert_eq!((file.len(), file.read_at(2, 9).await?.len(), file.read_at(3, 9).await?.len()), (3, 1, 0));
        file.sync().await?;
        file.write_at(3, b"later").await?;
        let (one, two) = (file.begin_sync().await?, file.begin_sync().await?);
        two.wait().await?;
        one.wait().await?;
        Ok(())
    });
}

#[test]
fn a_listing_has_each_name_once() {
    on_new_pool(async |_, pool| {
        let files = pool.filesystem("tank").await?;
        for number in 0..700 {
            files.create(format!("file{number}")).await?;
        }
        let mut listing = files.read_dir("/").await?;
        let mut names = Vec::new();
        while let Some(entry) = listing.next().await? {
            assert_eq!(entry.kind, Some(FileKind::File));
            names.push(entry.name);
        }
        assert!(listing.next().await?.is_none());
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 700);
        assert_eq!(files.read_dir("file1").await.unwrap_err().kind(), ErrorKind::Misuse);
        Ok(())
    });
}
