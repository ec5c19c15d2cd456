//! Parts that tests share: the judge (`zstream` of OpenZFS, where it is installed), and golden pools that are open.
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};
use cenote_dsl::Secret;
use cenote_spa::{ImportOptions, View, find, import};
use cenote_taskq::{Handle, Runtime, RuntimeOptions};
use cenote_testkit::Theme;

async fn open(handle: &Handle, images: &[PathBuf], keys: &[(String, Vec<u8>)]) -> Result<View> {
    let (mut pools, _) = find(handle, images).await;
    ensure!(pools.len() == 1, "{} pools", pools.len());
    let options = ImportOptions { force: true, cache_bytes: 64 << 20, ..ImportOptions::default() };
    let pool = import(handle, pools.remove(0), &options).await?;
    for (dataset, key) in keys {
        pool.dsl().load_key(dataset, Secret::new(key.clone())).await?;
    }
    Ok(pool)
}

/// Has a theme's pool open, with its keys loaded if so wished.
pub(crate) fn with_pool<T>(theme: &Theme, keys: bool, work: impl AsyncFnOnce(&View) -> Result<T>) -> Result<T> {
    let runtime = Runtime::real(RuntimeOptions::default())?;
    let handle = runtime.handle();
    let images = theme.unpacked()?.images;
    let manifest = theme.manifest()?;
    let keys: Vec<_> =
        if keys { manifest.keys.iter().map(|(name, key)| (name.clone(), key.bytes())).collect() } else { Vec::new() };
    runtime.block_on(async {
        let pool = open(&handle, &images, &keys).await?;
        let result = work(&pool).await;
        pool.close().await;
        result
    })
}

/// An installed `zstream`.
pub(crate) struct Zstream(PathBuf);

impl Zstream {
    /// The installed one, or `None` with a note on stderr.
    pub(crate) fn find() -> Option<Self> {
        let found = ["/usr/sbin/zstream", "/sbin/zstream", "/usr/local/sbin/zstream"]
            .into_iter()
            .map(PathBuf::from)
            .find(|path| path.is_file());
        if found.is_none() {
            eprintln!("left out: zstream is not installed");
        }
        found.map(Self)
    }

    /// The standard output of `zstream dump` for a stream.
    pub(crate) fn dump(&self, flags: &[&str], stream: &[u8]) -> String {
        let mut child = Command::new(&self.0)
            .arg("dump")
            .args(flags)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("zstream starts");
        let mut stdin = child.stdin.take().expect("piped");
        let stream = stream.to_vec();
        // It may stop reading early, which is not our failure.
        let feeder = std::thread::spawn(move || drop(stdin.write_all(&stream)));
        let output = child.wait_with_output().expect("zstream runs");
        feeder.join().expect("the feeder does not panic");
        String::from_utf8(output.stdout).expect("zstream prints text")
    }
}

/// The part of a golden set's account that is about one stream.
pub(crate) fn section<'a>(account: &'a str, name: &str) -> &'a str {
    let head = format!("### {name}\n");
    let start = account.find(&head).unwrap_or_else(|| panic!("{name} is not in the account")) + head.len();
    let rest = &account[start..];
    &rest[..rest.find("\n### ").map_or(rest.len(), |end| end + 1)]
}
