//! Streams looked into, and made of streams: `zstream`. Words of its command lines become what `cenote_send` is asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};

use cenote_codec::compress::{CompressLevel, Compression};
use cenote_format::enums::Compress;
use cenote_format::stream::RecordKind;
use cenote_props::WrongUse;
use cenote_props::number::nicenum;
use cenote_send::rewrite::{self, Decompressed, RewriteError};
use cenote_send::sender::ResumeToken;
use thiserror::Error;

pub use cenote_send::rewrite::redup::ReadAt;
pub use cenote_send::rewrite::{Place, Target, Waiting, in_turn};
pub use cenote_send::{DumpOptions, dump};

/// Exit status where an algorithm does not exist, one in the stream does not, and where a block does not unpack.
const NO_ALGORITHM: u8 = 2;
const NO_ALGORITHM_IN_STREAM: u8 = 3;
const NOT_DECOMPRESSED: u8 = 4;
/// Spaces before each line of a token, as in the original.
const TOKEN_INDENT: usize = 5;

/// Why a stream is not made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StreamError {
    /// Words that name no record, or no level.
    #[error("{0}")]
    Use(#[source] WrongUse),
    /// An object or offset that is no number.
    #[error("invalid value for {what}: '{text}'")]
    Number {
        /// `object` or `offset`.
        what: &'static str,
        /// The word.
        text: String,
    },
    /// There is no such algorithm.
    #[error("Invalid compression type {name}{rest}")]
    NoAlgorithm {
        /// The word.
        name: String,
        /// The algorithms that there are, or a full stop.
        rest: &'static str,
    },
    /// Of the stream.
    #[error(transparent)]
    Rewrite(#[from] RewriteError),
    /// A text that is no token.
    #[error("Unable to parse resume token: {0}")]
    Token(String),
    /// The output takes no more.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl StreamError {
    /// The exit status that OpenZFS's tool has for it, where that is one of its own.
    #[must_use]
    pub const fn status(&self) -> Option<u8> {
        match self {
            Self::NoAlgorithm { .. } => Some(NO_ALGORITHM),
            Self::Rewrite(RewriteError::Compression { .. }) => Some(NO_ALGORITHM_IN_STREAM),
            Self::Rewrite(RewriteError::Decompress { .. }) => Some(NOT_DECOMPRESSED),
            _ => None,
        }
    }

    fn wrong(text: String) -> Self {
        Self::Use(WrongUse(text))
    }
}

/// The contents of a resume token, as `zstream token` prints them.
pub fn print_token(token: &str, out: &mut impl Write) -> Result<(), StreamError> {
    let list = ResumeToken::list_of(token).map_err(|error| StreamError::Token(error.to_string()))?;
    Ok(cenote_send::dump_nvlist(&list, TOKEN_INDENT, out)?)
}

/// The records that `OBJECT,OFFSET[,TYPE]` name, each with the compression that it has.
///
/// # Errors
/// A word names none, or there is no such algorithm.
pub fn decompressions(words: &[String]) -> Result<BTreeMap<Place, Compress>, StreamError> {
    let mut blocks = BTreeMap::new();
    for text in words {
        let (place, kind) = place(text)?;
        let kind = match kind.unwrap_or("lz4") {
            "off" => Compress::Off,
            "lz4" => Compress::Lz4,
            "lzjb" => Compress::Lzjb,
            "gzip" => Compress::Gzip1,
            "zle" => Compress::Zle,
            "zstd" => Compress::Zstd,
            other => {
                let rest = "\nSupported types are off, lz4, lzjb, gzip, zle, and zstd";
                return Err(StreamError::NoAlgorithm { name: other.to_owned(), rest });
            }
        };
        blocks.insert(place, kind);
    }
    Ok(blocks)
}

/// Makes a stream in which these records are decompressed, as far as they can be. Failures are told, with `is_verbose` every record that is
/// changed.
///
/// # Errors
/// The stream is damaged, or cannot be written.
pub fn decompress(
    input: impl Read,
    output: impl Write,
    blocks: &BTreeMap<Place, Compress>,
    is_verbose: bool,
    tell: impl Fn(String),
) -> Result<(), StreamError> {
    let told = |(object, offset): Place, what| match what {
        Decompressed::Failed(_) => tell(format!("decompression failed for ino {object} offset {offset}")),
        _ if !is_verbose => {}
        Decompressed::Unpacked => tell(format!("successfully decompressed ino {object} offset {offset}")),
        Decompressed::Reset => tell(format!("Resetting compression type to off for ino {object} offset {offset}")),
    };
    rewrite::decompress(input, output, blocks, told)?;
    Ok(())
}

/// The records that `OBJECT,OFFSET` name.
pub fn places(words: &[String]) -> Result<BTreeSet<Place>, StreamError> {
    words.iter().map(|text| Ok(place(text)?.0)).collect()
}

/// Makes a stream without these records. With `is_verbose` each is told.
pub fn drop_records(
    input: impl Read,
    output: impl Write,
    places: &BTreeSet<Place>,
    is_verbose: bool,
    tell: impl Fn(String),
) -> Result<(), StreamError> {
    let told = |(object, offset): Place, kind: RecordKind| {
        if is_verbose {
            let name = kind.name().trim_start_matches("DRR_");
            tell(format!("dropping {name} record for object {object} offset {offset}"));
        }
    };
    rewrite::drop_records(input, output, places, told)?;
    Ok(())
}

/// The compression of a property's word, with a level as pools number them.
///
/// # Errors
/// There is no such algorithm, or zstd has no such level.
pub fn target(algorithm: &str, level: Option<i64>) -> Result<Target, StreamError> {
    let named = Compression::from_name(algorithm).filter(|named| named.kind != Compress::On);
    let no_algorithm = || StreamError::NoAlgorithm { name: algorithm.to_owned(), rest: "." };
    let Compression { kind, level: usual } = named.ok_or_else(no_algorithm)?.resolved(true);
    let level = match level {
        Some(number) if kind == Compress::Zstd => {
            let level = u8::try_from(number).ok().map(CompressLevel).filter(|level| level.zstd_level().is_some());
            level.ok_or_else(|| StreamError::wrong(format!("zstd has no level {number}")))?
        }
        // As in the original: the names of the others say all.
        _ => usual,
    };
    Ok(Target { kind, level })
}

/// Makes a stream with blocks compressed in another way. `spread` does a batch of them, each by [`in_turn`].
pub fn recompress(
    input: impl Read,
    output: impl Write,
    target: &Target,
    spread: &dyn Fn(&mut [Waiting], &Target),
) -> Result<(), StreamError> {
    rewrite::recompress(input, output, target, spread)?;
    Ok(())
}

/// Makes a stream without references to blocks that came before. The line says how many records there were.
pub fn redup(input: impl Read, again: &impl ReadAt, output: impl Write) -> Result<String, StreamError> {
    let done = rewrite::redup(input, again, output)?;
    Ok(format!(
        "converted stream with {} total records, including {} dedup records, using {}B memory.",
        done.records,
        done.by_ref,
        nicenum(done.index_bytes)
    ))
}

/// `OBJECT,OFFSET[,REST]`.
fn place(text: &str) -> Result<(Place, Option<&str>), StreamError> {
    let mut parts = text.splitn(3, ',');
    let object = parts.next().unwrap_or_default();
    let Some(offset) = parts.next() else {
        return Err(StreamError::wrong(format!("'{text}' is not OBJECT,OFFSET")));
    };
    let parse = |what, text: &str| number(text).ok_or_else(|| StreamError::Number { what, text: text.to_owned() });
    Ok(((parse("object", object)?, parse("offset", offset)?), parts.next()))
}

/// A number as C writes it: decimal, with 0x hexadecimal, with 0 octal.
fn number(text: &str) -> Option<u64> {
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None if text.len() > 1 && text.starts_with('0') => (&text[1..], 8),
        None => (text, 10),
    };
    if digits.starts_with('+') { None } else { u64::from_str_radix(digits, radix).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_written_as_in_c() {
        assert_eq!(place("128,0,lz4").unwrap(), ((128, 0), Some("lz4")));
        assert_eq!(place("0x10,010").unwrap(), ((16, 8), None));
        assert_eq!(place("3545761,18446744073709486080").unwrap().0.1, 18_446_744_073_709_486_080);
        for wrong in ["1", "", "a,1", "1,b", ",1", "1,", "+1,2", "1,08", "0x,1", "-1,0"] {
            assert!(place(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn words_that_name_no_compression_have_a_status_of_their_own() {
        let status = |word: &str| target(word, None).map(drop).map_err(|error| error.status());
        assert_eq!(status("lz4"), Ok(()));
        assert_eq!(status("best"), Err(Some(NO_ALGORITHM)));
        assert!(matches!(target("zstd", Some(77)), Err(StreamError::Use(_))));
        assert_eq!(decompressions(&["1,2,best".into()]).unwrap_err().status(), Some(NO_ALGORITHM));
    }
}
