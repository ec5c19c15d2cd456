//! Files of OpenZFS that list features, for the property `compatibility`.

use std::io;
use std::path::{Path, PathBuf};

/// The folders of files that are named without a path.
const DIRS: [&str; 2] = ["/etc/zfs/compatibility.d", "/usr/share/zfs/compatibility.d"];
/// A file's size at most.
const FILE_MAX_BYTES: u64 = 1 << 20;

/// The text of a list of features: of the file at an absolute path, or of this name in OpenZFS's folders.
///
/// # Errors
/// There is none, it is too large to be one, or it cannot be read.
pub fn feature_list(name: &str) -> io::Result<String> {
    let path = match name.starts_with('/') {
        true => PathBuf::from(name),
        false if name.is_empty() || name.contains('/') => {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no name of a file"));
        }
        false => {
            let mut places = DIRS.iter().map(|dir| Path::new(dir).join(name));
            places.find(|path| path.exists()).ok_or_else(|| {
                let why = "there is no such file in /etc or /usr/share/zfs/compatibility.d";
                io::Error::new(io::ErrorKind::NotFound, why)
            })?
        }
    };
    if std::fs::metadata(&path)?.len() > FILE_MAX_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is too large to be a list of features"));
    }
    std::fs::read_to_string(&path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_features_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("list");
        std::fs::write(&path, "skein").unwrap();
        assert_eq!(feature_list(path.to_str().unwrap()).unwrap(), "skein");
        for wrong in ["a/b", "no-such-file-anywhere", "", "/no/such/file"] {
            assert!(feature_list(wrong).is_err(), "{wrong}");
        }
    }
}
