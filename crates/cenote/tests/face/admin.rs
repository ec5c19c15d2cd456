//! Datasets, properties, snapshots and clones.

use cenote::{CreateOptions, DatasetKind, Error, ErrorKind, OpenOptions, Pool, Runtime, Source};

/// Runs a test on a new pool of a simulation.
pub(super) fn on_new_pool(test: impl AsyncFnOnce(&Runtime, &Pool) -> Result<(), Error>) {
    let runtime = Runtime::simulated(3);
    runtime.add_disk("/disk", 256 << 20);
    runtime.block_on(async {
        let pool = CreateOptions::new(["/disk"]).create(&runtime, "tank").await.unwrap();
        test(&runtime, &pool).await.unwrap();
        pool.export().await.unwrap();
    });
}

fn kind<T: std::fmt::Debug>(result: Result<T, Error>) -> ErrorKind {
    result.unwrap_err().kind()
}

#[test]
fn datasets_are_made_listed_renamed_and_destroyed() {
    on_new_pool(async |_, pool| {
        pool.create_filesystem("tank/a", &[]).await?;
        let below = pool.create_filesystem("tank/a/b", &[("org.example:note", "mine")]).await?;
        let disk = pool.create_volume("tank/disk", 8 << 20, &[("volblocksize", "16K")]).await?;
        assert_eq!(disk.kind(), DatasetKind::Volume);
        let names = pool.datasets().await?.iter().map(|dataset| dataset.name().to_owned()).collect::<Vec<_>>();
        assert_eq!(names, ["tank", "tank/a", "tank/a/b", "tank/disk"]);
        let moved = below.rename("tank/c").await?;
        assert_eq!(moved.get("org.example:note").await?.value, "mine");
        assert_eq!(kind(pool.dataset("tank/a/b").await), ErrorKind::NotFound);
        moved.destroy().await?;
        assert_eq!(kind(pool.dataset("tank/c").await), ErrorKind::NotFound);
        Ok(())
    });
}

#[test]
fn what_is_refused_has_its_kind_and_place() {
    on_new_pool(async |_, pool| {
        let made = pool.create_filesystem("tank/a", &[]).await?;
        assert_eq!(kind(pool.create_filesystem("tank/a", &[]).await), ErrorKind::Exists);
        assert_eq!(kind(pool.create_filesystem("tank/no/b", &[]).await), ErrorKind::NotFound);
        assert_eq!(kind(pool.create_filesystem("tank/%", &[]).await), ErrorKind::Misuse);
        assert_eq!(kind(pool.create_filesystem("tank/b", &[("compression", "best")]).await), ErrorKind::Misuse);
        assert_eq!(kind(pool.create_filesystem("tank/b", &[("nothing", "1")]).await), ErrorKind::NotFound);
        assert_eq!(kind(pool.create_filesystem("tank/b", &[("reservation", "1P")]).await), ErrorKind::NotSupported);
        assert_eq!(kind(pool.create_volume("tank/v", 1 << 50, &[]).await), ErrorKind::NoSpace);
        assert_eq!(kind(made.get("used").await), ErrorKind::NotSupported);
        assert_eq!(kind(pool.volume("tank/a").await), ErrorKind::Misuse);
        let error = pool.filesystem("tank/none").await.unwrap_err();
        assert_eq!((error.kind(), error.place().dataset.as_deref()), (ErrorKind::NotFound, Some("tank/none")));
        assert_eq!(error.place().pool.as_deref(), Some("tank"));
        let io: std::io::Error = error.into();
        assert_eq!(io.kind(), std::io::ErrorKind::NotFound);
        let snapshot = made.snapshot("s").await?;
        assert_eq!(kind(made.snapshot("s").await), ErrorKind::Exists);
        assert_eq!(kind(made.clone().destroy().await), ErrorKind::Busy, "it has a snapshot");
        let clone = snapshot.clone_to("tank/clone", &[]).await?;
        assert_eq!(kind(snapshot.destroy().await), ErrorKind::Busy, "it has a clone");
        clone.destroy().await?;
        made.destroy_all().await?;
        Ok(())
    });
}

#[test]
fn properties_are_set_inherited_and_obeyed_by_what_is_open() {
    on_new_pool(async |_, pool| {
        let above = pool.create_filesystem("tank/a", &[]).await?;
        let below = pool.create_filesystem("tank/a/b", &[]).await?;
        assert_eq!(below.get("compression").await?.source, Source::Default);
        above.set("compression", "gzip-3").await?;
        let found = below.get("compression").await?;
        assert_eq!((found.value.as_str(), found.source), ("gzip-3", Source::Inherited("tank/a".into())));
        below.set("quota", "64M").await?;
        let set = below.properties().await?;
        assert!(set.iter().any(|set| set.name == "quota" && set.value == "67108864" && set.source == Source::Local));
        above.inherit("compression").await?;
        assert_eq!(below.get("compression").await?.source, Source::Default);
        let files = below.filesystem().await?;
        files.write("a", "1").await?;
        below.set("readonly", "on").await?;
        assert!(files.is_read_only());
        assert_eq!(kind(files.write("b", "2").await), ErrorKind::ReadOnly);
        below.set("readonly", "off").await?;
        files.write("b", "2").await?;
        Ok(())
    });
}

#[test]
fn snapshots_stay_and_bring_back_what_was() {
    on_new_pool(async |_, pool| {
        let dataset = pool.create_filesystem("tank/a", &[]).await?;
        let files = dataset.filesystem().await?;
        files.write("file", "old").await?;
        let first = dataset.snapshot("first").await?;
        files.write("file", "new").await?;
        dataset.snapshot("second").await?;
        let names = dataset.snapshots().await?.iter().map(|snapshot| snapshot.name().to_owned()).collect::<Vec<_>>();
        assert_eq!(names, ["tank/a@first", "tank/a@second"]);
        let frozen = first.filesystem().await?;
        assert_eq!(frozen.read("file").await?, b"old");
        assert_eq!(kind(frozen.write("file", "x").await), ErrorKind::ReadOnly);
        let clone = first.clone_to("tank/clone", &[]).await?;
        let cloned = clone.filesystem().await?;
        cloned.write("file", "cloned").await?;
        assert_eq!(kind(first.rollback().await), ErrorKind::Busy, "there is a newer one");
        first.rollback_over_newer().await?;
        assert_eq!(dataset.filesystem().await?.read("file").await?, b"old");
        assert_eq!(cloned.read("file").await?, b"cloned");
        assert_eq!(kind(clone.clone().destroy().await), ErrorKind::Busy, "it is open");
        drop(cloned);
        clone.destroy().await?;
        assert_eq!(kind(first.clone().destroy().await), ErrorKind::Busy, "it is open");
        drop(frozen);
        first.destroy().await?;
        assert!(dataset.snapshots().await?.is_empty());
        Ok(())
    });
}

#[test]
fn a_volume_is_resized_in_use_and_keeps_to_its_size() {
    on_new_pool(async |_, pool| {
        let dataset = pool.create_volume("tank/disk", 1 << 20, &[]).await?;
        let disk = dataset.volume().await?;
        assert_eq!(kind(disk.write_at((1 << 20) - 1, "xx").await), ErrorKind::Misuse);
        assert_eq!(kind(disk.read_at(1 << 20, 1).await), ErrorKind::Misuse);
        disk.write_at(0, vec![7; 64 << 10]).await?;
        disk.trim(0, 64 << 10).await?;
        assert!(disk.read_at(0, 64 << 10).await?.iter().all(|byte| *byte == 0));
        dataset.set("volsize", "2M").await?;
        assert_eq!(dataset.get("volsize").await?.value, "2097152");
        disk.write_at((2 << 20) - 1, "x").await?;
        Ok(())
    });
}

/// Sets `sync=always` while in use, writes, cuts the power, and gives what is there afterwards.
fn written_before_a_cut(is_volume: bool, sync: &str) -> Vec<u8> {
    let machine = Runtime::simulated(5);
    machine.add_disk("/disk", 256 << 20);
    let made = machine.block_on(async {
        let pool = CreateOptions::new(["/disk"]).create(&machine, "tank").await?;
        let above = pool.dataset("tank").await?;
        if is_volume {
            let disk = pool.create_volume("tank/a", 1 << 20, &[]).await?.volume().await?;
            disk.write_at(0, "first").await?;
            disk.flush().await?;
            above.set("sync", sync).await?;
            disk.write_at(0, "later").await?;
            return Ok::<_, Error>(());
        }
        let files = pool.create_filesystem("tank/a", &[]).await?.filesystem().await?;
        let file = files.create("file").await?;
        file.write_at(0, "first").await?;
        file.sync().await?;
        above.set("sync", sync).await?;
        file.write_at(0, "later").await
    });
    made.unwrap();
    let machine = machine.cut_power(1);
    let found = machine.block_on(async {
        let pool = OpenOptions::new().write(true).force(true).open(&machine, "tank").await?;
        let found = match is_volume {
            true => pool.volume("tank/a").await?.read_at(0, 5).await?.to_vec(),
            false => pool.filesystem("tank/a").await?.read("file").await?,
        };
        pool.export().await?;
        Ok::<_, Error>(found)
    });
    found.unwrap()
}

#[test]
fn what_is_in_use_obeys_sync_that_is_set_above_it() {
    for is_volume in [false, true] {
        assert_eq!(written_before_a_cut(is_volume, "always"), b"later", "volume: {is_volume}");
        assert_eq!(
            written_before_a_cut(is_volume, "disabled"),
            b"first",
            "volume: {is_volume}: the test sees a difference"
        );
    }
}

#[test]
fn what_is_in_use_obeys_readonly_that_is_set_or_inherited() {
    on_new_pool(async |_, pool| {
        let above = pool.dataset("tank").await?;
        let (volume, made) =
            (pool.create_volume("tank/disk", 1 << 20, &[]).await?, pool.create_filesystem("tank/a", &[]).await?);
        let (disk, files) = (volume.volume().await?, made.filesystem().await?);
        let write = async || (disk.write_at(0, "x").await, disk.trim(0, 8192).await, files.write("file", "x").await);
        let outcome = async || {
            let (first, second, third) = write().await;
            [first, second, third].map(|result| result.map_err(|error| error.kind()))
        };
        assert_eq!(outcome().await, [Ok(()); 3]);
        above.set("readonly", "on").await?;
        assert_eq!(outcome().await, [Err(ErrorKind::ReadOnly); 3]);
        assert!(disk.is_read_only());
        volume.set("readonly", "off").await?;
        assert_eq!(outcome().await, [Ok(()), Ok(()), Err(ErrorKind::ReadOnly)]);
        volume.inherit("readonly").await?;
        assert_eq!(outcome().await, [Err(ErrorKind::ReadOnly); 3]);
        above.inherit("readonly").await?;
        assert_eq!(outcome().await, [Ok(()); 3]);
        assert!(files.freeing_error().is_none());
        Ok(())
    });
}

/// A volume that was read-only when it was opened is one that can be written as soon as it is not.
#[test]
fn a_volume_that_was_opened_read_only_obeys_too() {
    on_new_pool(async |_, pool| {
        let volume = pool.create_volume("tank/disk", 1 << 20, &[("readonly", "on")]).await?;
        let disk = volume.volume().await?;
        assert_eq!(kind(disk.write_at(0, "x").await), ErrorKind::ReadOnly);
        volume.set("readonly", "off").await?;
        disk.write_at(0, "x").await?;
        assert_eq!(&disk.read_at(0, 1).await?[..], b"x");
        Ok(())
    });
}
