//! Goal: the clones of a snapshot are named as OpenZFS names them. Method: each snapshot of a golden pool against the
//! property `clones` that OpenZFS showed. A clone that has snapshots itself is listed by its oldest; its name is still the
//! clone's.

use anyhow::{Result, ensure};
use cenote_spa::{ImportOptions, find, import};
use cenote_taskq::{Runtime, RuntimeOptions};
use cenote_testkit::Golden;

#[test]
fn clones_are_named_as_openzfs_names_them() -> Result<()> {
    let theme = Golden::selection()?.theme("snapshots")?;
    let manifest = theme.manifest_json()?;
    let runtime = Runtime::real(RuntimeOptions::default())?;
    let handle = runtime.handle();
    let images = theme.unpacked()?.images;
    let checked = runtime.block_on(async {
        let (mut pools, _) = find(&handle, &images).await;
        let options = ImportOptions { force: true, cache_bytes: 16 << 20, ..ImportOptions::default() };
        let pool = import(&handle, pools.remove(0), &options).await?;
        let mut checked = 0;
        for (name, shown) in manifest["sections"][0]["zfs_get"]["datasets"].as_object().into_iter().flatten() {
            if !name.contains('@') {
                continue;
            }
            let value = shown["properties"]["clones"]["value"].as_str().unwrap_or("").trim_matches('-');
            let mut expected: Vec<&str> = value.split(',').filter(|name| !name.is_empty()).collect();
            expected.sort_unstable();
            let snapshot = pool.dsl().dataset(name).await?;
            ensure!(pool.dsl().clones(&snapshot).await? == expected, "{name}: not {expected:?}");
            checked += expected.len();
        }
        anyhow::Ok(checked)
    })?;
    ensure!(checked >= 3, "only {checked} clones to compare");
    Ok(())
}
