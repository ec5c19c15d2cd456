//! Each kind of error comes from a situation that has it.

use std::os::unix::fs::FileExt as _;

use cenote::{CreateOptions, Error, ErrorKind, OpenOptions, Pool, Runtime};
use tempfile::tempdir;

use super::admin::on_new_pool;

/// Writes files that cannot be compressed until that fails.
async fn fill(pool: &Pool, dataset: &str) -> Error {
    let files = pool.filesystem(dataset).await.unwrap();
    let mut content: Vec<u8> = (0_u32..1 << 20).map(|at| (at.wrapping_mul(0x9E37_79B9) >> 13) as u8).collect();
    for number in 0_u32..1000 {
        content[..4].copy_from_slice(&number.to_le_bytes());
        let written = files.write(format!("file{number}"), &content).await;
        if let Err(error) = written {
            return error;
        }
        if number % 8 == 7 {
            // As of each txg the space is known exactly.
            pool.sync().await.unwrap();
        }
    }
    panic!("a gigabyte fits");
}

#[test]
fn a_full_pool_has_no_space() {
    on_new_pool(async |_, pool| {
        pool.create_filesystem("tank/home", &[("compression", "off")]).await?;
        let error = fill(pool, "tank/home").await;
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::StorageFull);
        assert_eq!(pool.create_volume("tank/v", 64 << 20, &[]).await.unwrap_err().kind(), ErrorKind::NoSpace);
        // A file can still be removed.
        let files = pool.filesystem("tank/home").await?;
        files.remove_file("file0").await
    });
}

#[test]
fn a_quota_that_is_used_up_is_told_from_a_full_pool() {
    on_new_pool(async |_, pool| {
        let home = pool.create_filesystem("tank/home", &[("compression", "off"), ("quota", "20M")]).await?;
        pool.create_filesystem("tank/home/below", &[]).await?;
        for dataset in ["tank/home", "tank/home/below"] {
            let error = fill(pool, dataset).await;
            assert_eq!(error.kind(), ErrorKind::Quota, "{error}");
            assert_eq!(error.place().dataset.as_deref(), Some(dataset), "{error}");
            assert!(error.to_string().contains("the quota of 'tank/home'"), "{error}");
            assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::QuotaExceeded);
        }
        // There is space elsewhere, and a larger quota helps.
        pool.filesystem("tank").await?.write("file", vec![1; 1 << 20]).await?;
        home.set("quota", "40M").await?;
        pool.filesystem("tank/home/below").await?.write("more", vec![1; 1 << 20]).await?;
        let disk =
            pool.create_volume("tank/home/disk", 16 << 20, &[("refreservation", "none")]).await?.volume().await?;
        let content: Vec<u8> = (0_u32..16 << 20).map(|at| (at.wrapping_mul(0x9E37_79B9) >> 13) as u8).collect();
        home.set("quota", "28M").await?;
        let mut failed = None;
        for (number, part) in content.chunks(1 << 20).enumerate() {
            let written = disk.write_at((number as u64) << 20, part).await;
            pool.sync().await?;
            failed = failed.or(written.err());
        }
        let error = failed.expect("the volume does not fit below the quota");
        assert_eq!(error.kind(), ErrorKind::Quota, "of a volume: {error}");
        Ok(())
    });
}

#[test]
fn a_device_that_is_dead_is_unavailable_and_named() {
    let runtime = Runtime::simulated(5);
    let disk = runtime.add_disk("/disk", 128 << 20);
    runtime.block_on(async {
        let pool = CreateOptions::new(["/disk"]).create(&runtime, "tank").await.unwrap();
        pool.filesystem("tank").await.unwrap().write("file", vec![5; 1 << 20]).await.unwrap();
        pool.export().await.unwrap();
        let pool = OpenOptions::new().open(&runtime, "tank").await.unwrap();
        let files = pool.filesystem("tank").await.unwrap();
        disk.cut_power();
        let error = files.read("file").await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Io | ErrorKind::Unavailable), "{error:?}");
        assert_eq!(error.place().device.as_deref(), Some("/disk"), "{error:?}");
        assert!(error.place().object.is_some() && error.place().block.is_some(), "{error:?}");
        disk.power_on();
        assert_eq!(files.read("file").await.unwrap(), vec![5; 1 << 20]);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_pool_whose_structures_are_damaged_is_corrupt_and_no_device_is_blamed_for_dying() {
    let (runtime, folder) = (Runtime::new().unwrap(), tempdir().unwrap());
    let image = folder.path().join("a.img");
    let options = OpenOptions::new().search(folder.path()).cache_bytes(16 << 20);
    let found = runtime.block_on(async {
        let made = CreateOptions::new([image.display().to_string()]).file_bytes(64 << 20).cache_bytes(16 << 20);
        let made = made.root_property("compression", "off");
        let pool = made.create(&runtime, "tank").await?;
        pool.filesystem("tank").await?.write("file", b"marked ".repeat(100_000)).await?;
        pool.export().await
    });
    found.unwrap();
    let bytes = std::fs::read(&image).unwrap();
    let file = std::fs::File::options().write(true).open(&image).unwrap();
    let at = bytes.windows(14).position(|window| window == b"marked marked ").unwrap();
    file.write_all_at(&[0; 4096], at as u64).unwrap();
    let error = runtime.block_on(async {
        let pool = options.open(&runtime, "tank").await.unwrap();
        let error = pool.filesystem("tank").await.unwrap().read("file").await.unwrap_err();
        pool.export().await.unwrap();
        error
    });
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.place().device.is_some() && error.place().offset_bytes.is_some(), "{error:?}");
    // All but the labels: nothing leads to the data.
    let zeros = vec![0_u8; 1 << 20];
    for at in (4..63).map(|at| at << 20) {
        file.write_all_at(&zeros, at).unwrap();
    }
    let error = runtime.block_on(options.open(&runtime, "tank")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert_eq!(error.place().pool.as_deref(), Some("tank"));
}

#[test]
fn a_dataset_in_use_is_busy_and_a_pool_that_was_exported_is_closed() {
    on_new_pool(async |runtime, pool| {
        let home = pool.create_filesystem("tank/home", &[]).await?;
        let file = home.filesystem().await?.create("file").await?;
        let error = home.clone().destroy().await.unwrap_err();
        assert_eq!((error.kind(), error.place().dataset.as_deref()), (ErrorKind::Busy, Some("tank/home")));
        drop(file);
        let one = home.snapshot("one").await?;
        let clone = one.clone_to("tank/clone", &[]).await?;
        let error = one.clone().destroy().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "a clone depends on it: {error}");
        home.snapshot("two").await?.clone_to("tank/second", &[]).await?;
        let error = one.rollback_over_newer().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "a newer snapshot has a clone: {error}");
        clone.destroy().await?;

        runtime.add_disk("/other", 128 << 20);
        let other = CreateOptions::new(["/other"]).create(runtime, "other").await?;
        other.clone().export().await?;
        assert_eq!(other.datasets().await.unwrap_err().kind(), ErrorKind::Closed);
        Ok(())
    });
}
