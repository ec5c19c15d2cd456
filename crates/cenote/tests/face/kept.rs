//! Handles of what is open go on when their dataset is rolled back, renamed or given another size.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cenote::{CreateOptions, Error, ErrorKind, OpenOptions, Runtime};

use super::admin::on_new_pool;

fn kind<T: std::fmt::Debug>(result: Result<T, Error>) -> ErrorKind {
    result.unwrap_err().kind()
}

#[test]
fn files_go_on_after_a_rollback_and_those_that_are_gone_are_stale() {
    on_new_pool(async |runtime, pool| {
        let dataset = pool.create_filesystem("tank/a", &[]).await?;
        let files = dataset.filesystem().await?;
        files.create_dir("old").await?;
        files.write("old/kept", "before").await?;
        let kept = files.open("old/kept").await?;
        let other = files.open("old/kept").await?;
        let first = dataset.snapshot("first").await?;
        kept.write_at(0, "after the snapshot").await?;
        files.create_dir("new").await?;
        files.write("new/gone", "gone").await?;
        let gone = files.open("new/gone").await?;
        let mut listing = files.read_dir("new").await?;
        drop(other);

        let (writer, is_over) = (files.clone(), Arc::new(AtomicBool::new(false)));
        let is_last = is_over.clone();
        let writing = runtime.spawn(async move {
            loop {
                let is_last = is_last.load(Ordering::Relaxed);
                match writer.write("written", vec![7; 100_000]).await {
                    // It was made before the rollback, and written after it.
                    Err(error) if error.kind() == ErrorKind::Stale => {}
                    written => written?,
                }
                if is_last {
                    return Ok::<_, Error>(());
                }
            }
        });
        runtime.sleep(Duration::from_millis(5)).await;
        first.rollback().await?;
        is_over.store(true, Ordering::Relaxed);
        writing.await?;
        assert_eq!(&kept.read_at(0, 100).await?[..], b"before");
        assert_eq!((kept.len(), kept.metadata()?.len), (6, 6));
        assert_eq!(kind(gone.read_at(0, 4).await), ErrorKind::Stale);
        assert_eq!(kind(gone.write_at(0, "x").await), ErrorKind::Stale);
        assert_eq!(kind(gone.metadata()), ErrorKind::Stale);
        assert_eq!(kind(listing.next().await), ErrorKind::Stale);
        assert_eq!(kind(files.open("new/gone").await), ErrorKind::NotFound);
        // The number of the file that is gone may be another's now: no handle takes one for the other.
        files.write("another", "another").await?;
        assert_eq!(kind(gone.read_at(0, 4).await), ErrorKind::Stale);
        drop(gone);
        kept.write_at(0, "later").await?;
        kept.sync().await?;
        kept.begin_sync().await?.wait().await?;
        assert_eq!(files.read("old/kept").await?, b"latere");
        assert!(files.read("written").await?.iter().all(|byte| *byte == 7), "what waited is in the new state");

        let second = dataset.snapshot("second").await?;
        assert_eq!(kind(first.rollback().await), ErrorKind::Busy, "there is a newer one");
        kept.write_at(0, "again").await?;
        assert_eq!(files.read("old/kept").await?, b"againe", "a refused rollback leaves all as it was");
        drop(kept);
        let mine = second.clone();
        first.rollback_over_newer().await?;
        assert_eq!(kind(mine.filesystem().await), ErrorKind::NotFound);
        assert_eq!(files.read("old/kept").await?, b"before");
        assert_eq!(kind(dataset.destroy().await), ErrorKind::Busy, "it is open");
        Ok(())
    });
}

#[test]
fn a_volume_goes_on_with_the_content_and_the_size_of_the_snapshot() {
    on_new_pool(async |_, pool| {
        let dataset = pool.create_volume("tank/v", 1 << 20, &[]).await?;
        let disk = dataset.volume().await?;
        disk.write_at(0, "before").await?;
        let first = dataset.snapshot("first").await?;
        disk.write_at(0, "after!").await?;
        dataset.set("volsize", "2M").await?;
        assert_eq!(disk.size_bytes(), 2 << 20);
        disk.write_at((2 << 20) - 4, "more").await?;
        first.rollback().await?;
        assert_eq!(disk.size_bytes(), 1 << 20);
        assert_eq!(&disk.read_at(0, 6).await?[..], b"before");
        assert_eq!(kind(disk.read_at(1 << 20, 1).await), ErrorKind::Misuse);
        disk.write_at(0, "later").await?;
        disk.flush().await?;
        assert_eq!(kind(dataset.destroy().await), ErrorKind::Busy, "it has a snapshot, and is open");
        Ok(())
    });
}

/// The properties that it inherits from its new place count at once.
#[test]
fn handles_go_on_under_another_name_and_obey_what_their_dataset_inherits_there() {
    on_new_pool(async |_, pool| {
        pool.create_filesystem("tank/fixed", &[("readonly", "on")]).await?;
        let home = pool.create_filesystem("tank/a", &[]).await?;
        let files = home.filesystem().await?;
        let file = files.create("file").await?;
        let disk = pool.create_volume("tank/v", 1 << 20, &[]).await?;
        let volume = disk.volume().await?;
        let home = home.rename("tank/fixed/a").await?;
        let disk = disk.rename("tank/fixed/v").await?;
        assert_eq!(kind(file.write_at(0, "x").await), ErrorKind::ReadOnly);
        assert_eq!(kind(volume.write_at(0, "x").await), ErrorKind::ReadOnly);
        let home = home.rename("tank/b").await?;
        let disk = disk.rename("tank/w").await?;
        file.write_at(0, "x").await?;
        volume.write_at(0, "x").await?;
        assert_eq!(home.filesystem().await?.read("file").await?, b"x", "it is open once");
        assert_eq!(kind(home.clone().destroy().await), ErrorKind::Busy, "it is open under its new name");
        assert_eq!(kind(disk.clone().destroy().await), ErrorKind::Busy, "it is open under its new name");
        let before = home.snapshot("before").await?;
        files.write("file", "y").await?;
        before.rollback().await?;
        assert_eq!(&file.read_at(0, 1).await?[..], b"x");
        drop((files, file, volume));
        disk.destroy().await
    });
}

/// `readonly` is obeyed by users, not by the replay: without it the volume is not what its last user was told.
#[test]
fn the_log_of_a_volume_is_replayed_with_readonly_on() {
    let machine = Runtime::simulated(16);
    machine.add_disk("/disk", 128 << 20);
    machine.block_on(async {
        let pool = CreateOptions::new(["/disk"]).create(&machine, "tank").await.unwrap();
        let disk = pool.create_volume("tank/v", 1 << 20, &[]).await.unwrap().volume().await.unwrap();
        disk.write_at(0, "logged").await.unwrap();
        disk.flush().await.unwrap();
    });
    let machine = machine.cut_power(17);
    let done = machine.block_on(async {
        let pool = OpenOptions::new().write(true).force(true).open(&machine, "tank").await?;
        pool.dataset("tank").await?.set("readonly", "on").await?;
        let disk = pool.volume("tank/v").await?;
        assert_eq!(&disk.read_at(0, 6).await?[..], b"logged");
        assert_eq!(kind(disk.write_at(0, "x").await), ErrorKind::ReadOnly);
        drop(disk);
        pool.export().await
    });
    done.unwrap();
}
