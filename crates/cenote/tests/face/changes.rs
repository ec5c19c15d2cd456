//! Changes between two states of a file system, and the pool's history.

use std::path::{Path, PathBuf};

use cenote::{ChangeKind, Changes, Error, ErrorKind, FileKind, HistoryEvent};

use super::admin::on_new_pool;

/// All changes, in the order of their paths.
async fn all(mut changes: Changes) -> Result<Vec<(PathBuf, FileKind, ChangeKind)>, Error> {
    let mut found = Vec::new();
    while let Some(change) = changes.next().await? {
        found.push((change.path, change.file_kind, change.kind));
    }
    assert_eq!(changes.next().await?, None, "the end remains the end");
    found.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(found)
}

#[test]
fn files_that_changed_are_listed_each_with_how() {
    on_new_pool(async |_, pool| {
        let home = pool.create_filesystem("tank/home", &[]).await?;
        let files = home.filesystem().await?;
        for name in ["same", "changed", "gone", "old", "linked"] {
            files.write(name, "before").await?;
        }
        files.create_dir("/dir").await?;
        let one = home.snapshot("one").await?;
        files.write("changed", "after").await?;
        files.remove_file("gone").await?;
        files.rename("old", "dir/new").await?;
        files.hard_link("linked", "dir/second").await?;
        files.symlink("same", "link").await?;
        let two = home.snapshot("two").await?;
        files.write("later", "after both").await?;

        let file = |path: &str, kind| (PathBuf::from(path), FileKind::File, kind);
        let wanted = [
            (PathBuf::from("/"), FileKind::Directory, ChangeKind::Modified),
            file("/changed", ChangeKind::Modified),
            (PathBuf::from("/dir"), FileKind::Directory, ChangeKind::Modified),
            file("/gone", ChangeKind::Removed),
            (PathBuf::from("/link"), FileKind::Symlink, ChangeKind::Added),
        ];
        let found = all(two.changes_since(&one).await?).await?;
        for wanted in &wanted {
            assert!(found.contains(wanted), "{wanted:?}: {found:?}");
        }
        let renamed = (Path::new("/old"), ChangeKind::Renamed("/dir/new".into()));
        assert!(found.iter().any(|(path, _, kind)| (path.as_path(), kind.clone()) == renamed), "{found:?}");
        assert!(found.iter().any(|(.., kind)| *kind == ChangeKind::Links(1)), "{found:?}");
        assert!(found.iter().all(|(path, ..)| path != Path::new("/same") && path != Path::new("/later")), "{found:?}");

        let now = all(home.changes_since(&two).await?).await?;
        assert!(now.contains(&file("/later", ChangeKind::Added)), "{now:?}");
        let error = one.changes_since(&two).await.unwrap_err();
        assert_eq!((error.kind(), error.place().dataset.as_deref()), (ErrorKind::Misuse, Some("tank/home@one")));
        let clone = one.clone_to("tank/clone", &[]).await?;
        clone.filesystem().await?.write("mine", "new").await?;
        let of_clone = all(clone.changes_since(&one).await?).await?;
        assert!(of_clone.contains(&file("/mine", ChangeKind::Added)), "{of_clone:?}");
        let disk = pool.create_volume("tank/disk", 8 << 20, &[]).await?;
        let of_disk = disk.snapshot("one").await?;
        assert_eq!(disk.changes_since(&of_disk).await.unwrap_err().kind(), ErrorKind::Misuse);
        Ok(())
    });
}

#[test]
fn many_changes_are_found_a_few_at_a_time() {
    on_new_pool(async |_, pool| {
        let home = pool.create_filesystem("tank/home", &[]).await?;
        let one = home.snapshot("one").await?;
        let files = home.filesystem().await?;
        for number in 0..1500 {
            files.write(format!("file{number}"), "x").await?;
        }
        let mut changes = home.changes_since(&one).await?;
        let first = changes.next().await?.expect("there are changes");
        // The state that is compared does not change any more.
        files.write("late", "x").await?;
        home.snapshot("two").await?;
        let mut count = 1;
        while let Some(change) = changes.next().await? {
            assert_ne!(change.path, Path::new("/late"));
            count += 1;
        }
        assert_eq!(count, 1501, "the root directory too: {first:?}");
        Ok(())
    });
}

#[test]
fn history_has_the_creation_of_the_pool_its_changes_and_lines_of_programs() {
    on_new_pool(async |_, pool| {
        pool.create_filesystem("tank/home", &[]).await?.snapshot("one").await?;
        pool.record_command("backup --all").await?;
        let history = pool.history().await?;
        let lines: Vec<_> = history
            .iter()
            .filter_map(|record| match &record.event {
                HistoryEvent::Command { line, uid } => Some((line.as_str(), *uid)),
                _ => None,
            })
            .collect();
        assert_eq!(lines.first(), Some(&("zpool create tank /disk", Some(0))));
        assert_eq!(lines.last(), Some(&("backup --all", Some(0))));
        let taken = history.iter().find_map(|record| match &record.event {
            HistoryEvent::Internal { name, txg, dataset, .. } if name == "snapshot" => Some((*txg, dataset.clone())),
            _ => None,
        });
        let (txg, dataset) = taken.expect("the snapshot is recorded");
        assert!(txg > 0 && txg <= pool.txg());
        assert_eq!(dataset.as_deref(), Some("tank/home@one"));
        assert!(history.iter().all(|record| record.host.as_deref() == Some("simulated")), "{history:?}");
        Ok(())
    });
}
