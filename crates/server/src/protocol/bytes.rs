//! Paths in messages. A path consists of bytes: sent as text if it is UTF-8, else as numbers.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A path's form in a message.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Form {
    Text(String),
    Bytes(Vec<u8>),
}

impl From<&PathBuf> for Form {
    fn from(path: &PathBuf) -> Self {
        match path.to_str() {
            Some(text) => Self::Text(text.to_owned()),
            None => Self::Bytes(path.clone().into_os_string().into_vec()),
        }
    }
}

impl From<Form> for PathBuf {
    fn from(form: Form) -> Self {
        match form {
            Form::Text(text) => text.into(),
            Form::Bytes(bytes) => OsString::from_vec(bytes).into(),
        }
    }
}

/// One path.
pub fn serialize<S: Serializer>(path: &PathBuf, to: S) -> Result<S::Ok, S::Error> {
    Form::from(path).serialize(to)
}

/// One path.
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
    Form::deserialize(from).map(PathBuf::from)
}

/// Paths.
pub(super) mod list {
    use super::{Deserialize, Deserializer, Form, PathBuf, Serialize, Serializer};

    pub(in super::super) fn serialize<S: Serializer>(paths: &[PathBuf], to: S) -> Result<S::Ok, S::Error> {
        paths.iter().map(Form::from).collect::<Vec<_>>().serialize(to)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<PathBuf>, D::Error> {
        Ok(Vec::<Form>::deserialize(from)?.into_iter().map(PathBuf::from).collect())
    }
}

/// Paths by names.
pub(super) mod named {
    use super::{Deserialize, Deserializer, Form, PathBuf, Serialize, Serializer};

    pub(in super::super) fn serialize<S: Serializer>(paths: &[(String, PathBuf)], to: S) -> Result<S::Ok, S::Error> {
        paths.iter().map(|(name, path)| (name, Form::from(path))).collect::<Vec<_>>().serialize(to)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<(String, PathBuf)>, D::Error> {
        Ok(Vec::<(String, Form)>::deserialize(from)?.into_iter().map(|(name, path)| (name, path.into())).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    #[test]
    fn a_path_is_bytes_and_text_where_it_can_be() {
        #[derive(Serialize, Deserialize)]
        struct Message(#[serde(with = "super::super::bytes")] PathBuf);
        for (bytes, form) in [(&b"/a b"[..], "\"/a b\""), (b"/\xff", "[47,255]")] {
            let message = Message(PathBuf::from(std::ffi::OsStr::from_bytes(bytes)));
            let text = serde_json::to_string(&message).unwrap();
            assert_eq!(text, form);
            assert_eq!(serde_json::from_str::<Message>(&text).unwrap().0, message.0);
        }
    }
}
