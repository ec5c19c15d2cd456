//! Resume tokens: the receiver of an interrupted stream gives one to its sender.
//!
//! `1-<checksum>-<length>-<data>`: the first word of the Fletcher-4 checksum of the data, the length of the decompressed data, and the data in
//! hexadecimal, a zlib stream of a packed list.

use cenote_codec::checksum::fletcher::fletcher4;
use cenote_codec::compress::decompress;
use cenote_format::Endian;
use cenote_format::enums::Compress;
use cenote_format::ids::Guid;
use cenote_format::nvlist::NvList;

use super::{ResumePoint, SendFlags};

/// The longest list of a token, in bytes: names and guids.
const LIST_BYTES_MAX: usize = 1 << 20;

/// The fault of a token, in OpenZFS's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// It does not have four parts.
    #[error("resume token is corrupt (invalid format)")]
    Form,
    /// It has another version.
    #[error("resume token is corrupt (invalid version {0})")]
    Version(u32),
    /// The data is not hexadecimal.
    #[error("resume token is corrupt (payload is not hex-encoded)")]
    Hex,
    /// The data was changed.
    #[error("resume token is corrupt (incorrect checksum)")]
    Checksum,
    /// The data does not decompress.
    #[error("resume token is corrupt (decompression failed)")]
    Decompress,
    /// It does not decompress to a list.
    #[error("resume token is corrupt (nvlist_unpack failed)")]
    Unpack,
    /// The list lacks an entry.
    #[error("resume token is corrupt")]
    Incomplete,
}

/// A token.
#[derive(Clone, Debug)]
pub struct ResumeToken {
    /// All its entries.
    pub list: NvList,
    /// The snapshot's name at the sender.
    pub to_name: String,
    /// The snapshot.
    pub to_guid: Guid,
    /// The incremental source.
    pub from_guid: Option<Guid>,
    /// The place at which to resume.
    pub point: ResumePoint,
    /// Bytes received.
    pub bytes: u64,
    /// The optional forms of records of the stream.
    pub flags: SendFlags,
    /// The snapshots that it was redacted with respect to.
    pub redact_snapshots: Option<Vec<u64>>,
    /// Those of the redaction bookmark that was its incremental source.
    pub from_redact_snapshots: Option<Vec<u64>>,
}

impl ResumeToken {
    /// Reads a token.
    ///
    /// # Errors
    /// It is not a token, or is damaged.
    pub fn parse(text: &str) -> Result<Self, TokenError> {
        Self::of_list(Self::list_of(text)?)
    }

    /// The list in a token, with any entries.
    ///
    /// # Errors
    /// It is not a token, or is damaged.
    pub fn list_of(text: &str) -> Result<NvList, TokenError> {
        let mut parts = text.trim().split('-');
        let mut part = || parts.next().ok_or(TokenError::Form);
        let (version, checksum, length, data) = (part()?, part()?, part()?, part()?);
        let version: u32 = version.parse().map_err(|_| TokenError::Form)?;
        let hex = |text: &str| u64::from_str_radix(text, 16).map_err(|_| TokenError::Form);
        let (checksum, length) = (hex(checksum)?, hex(length)?);
        if version != 1 {
            return Err(TokenError::Version(version));
        }
        let length = usize::try_from(length).ok().filter(|length| *length <= LIST_BYTES_MAX).ok_or(TokenError::Form)?;
        let digit = |byte: u8| char::from(byte).to_digit(16).ok_or(TokenError::Hex);
        let mut bytes = Vec::with_capacity(data.len() / 2);
        for pair in data.as_bytes().as_chunks::<2>().0 {
            bytes.push((digit(pair[0])? << 4 | digit(pair[1])?) as u8);
        }
        // The checksum's words have four bytes; the last bytes of an incomplete word are not summed.
        let [sum, ..] = fletcher4(&bytes[..bytes.len() & !3], Endian::Little);
        if sum != checksum {
            return Err(TokenError::Checksum);
        }
        let mut packed = vec![0; length];
        decompress(Compress::Gzip6, &bytes, &mut packed).map_err(|_| TokenError::Decompress)?;
        NvList::parse(&packed).map_err(|_| TokenError::Unpack)
    }

    fn of_list(list: NvList) -> Result<Self, TokenError> {
        let number = |name| list.u64(name).ok_or(TokenError::Incomplete);
        let flags = SendFlags {
            large_blocks: list.has("largeblockok"),
            embedded: list.has("embedok"),
            compressed: list.has("compressok"),
            raw: list.has("rawok"),
        };
        Ok(Self {
            to_name: list.str("toname").ok_or(TokenError::Incomplete)?.to_owned(),
            to_guid: Guid(number("toguid")?),
            from_guid: list.u64("fromguid").filter(|guid| *guid != 0).map(Guid),
            point: ResumePoint { object: number("object")?, offset: number("offset")? },
            bytes: number("bytes")?,
            flags,
            redact_snapshots: list.u64s("redact_snaps").map(<[u64]>::to_vec),
            from_redact_snapshots: list.u64s("book_redact_snaps").map(<[u64]>::to_vec),
            list,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that OpenZFS made.
    const TOKEN: &str = "1-bdcb97b3e-e0-789c636064000310a500c4ec50360710e72765a52697303030439460caa7a515a79630c001489e0d493ea9b224b51824ce8f5d7f497e7a69660a03c3acbc559fcc6e70281b20c97382e5f31273531918ca52f3524af30a4b33f30cf48b8b921df2f352e1e6f13220dc9f9358949e9a94939f9c9d9f0d731300f84d1ddb";

    #[test]
    fn a_token_of_openzfs_is_read() {
        let token = ResumeToken::parse(TOKEN).unwrap();
        assert_eq!(token.to_name, "vendunquin0/src@one");
        assert!(token.from_guid.is_none() && token.point.object > 0 && token.flags.large_blocks);
    }

    #[test]
    fn damage_is_told_in_openzfs_words() {
        let damaged = |from: &str, to: &str| ResumeToken::parse(&TOKEN.replacen(from, to, 1)).unwrap_err();
        assert_eq!(ResumeToken::parse("1-2-3").unwrap_err(), TokenError::Form);
        assert_eq!(ResumeToken::parse("").unwrap_err(), TokenError::Form);
        assert_eq!(damaged("1-b", "2-b"), TokenError::Version(2));
        assert_eq!(damaged("-e0-", "-e1-"), TokenError::Decompress);
        assert_eq!(damaged("-e0-", "-ffffffffffff-"), TokenError::Form);
        assert_eq!(damaged("789c63", "789cxx"), TokenError::Hex);
        assert_eq!(damaged("789c63", "789c64"), TokenError::Checksum);
    }
}
