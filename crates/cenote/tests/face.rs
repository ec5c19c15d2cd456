//! The public face, on pools that OpenZFS made and on pools of its own.

use cenote::{Error, OpenOptions, Runtime};
use cenote_testkit::theme;

#[test]
fn a_file_is_read_and_another_written_in_a_pool_that_openzfs_made() {
    let scratch = theme("mirror3").scratch().unwrap();
    let runtime = Runtime::new().unwrap();
    let options = OpenOptions::new().search(scratch.dir()).write(true).cache_bytes(32 << 20);
    let found = runtime.block_on(options.find(&runtime)).unwrap();
    let name = found[0].name.clone();
    let text = runtime.block_on(async {
        let pool = options.open(&runtime, &name).await?;
        let root = pool.filesystem(&name).await?;
        let mut listing = root.read_dir("/").await?;
        let mut text = None;
        while let Some(entry) = listing.next().await? {
            println!("{entry:?}");
            if entry.kind == Some(cenote::FileKind::File) && text.is_none() {
                text = Some(root.read(&entry.name).await?);
            }
        }
        let text = text.expect("there is a file");
        root.write("/copy", &text).await?;
        pool.export().await?;
        Ok::<_, Error>(text)
    });
    let text = text.unwrap();
    let again = runtime.block_on(async {
        let pool = OpenOptions::new().search(scratch.dir()).open(&runtime, &name).await?;
        assert!(pool.is_read_only());
        let again = pool.filesystem(&name).await?.read("copy").await?;
        pool.export().await?;
        Ok::<_, Error>(again)
    });
    assert!(!text.is_empty());
    assert_eq!(again.unwrap(), text);
}
