//! The options of a send, and which of them go together.

use cenote_dsl::name::{Name, pool_of};
use cenote_send::sender::{ResumeToken, SendFlags};
use cenote_spa::Refusal;

use super::SendError;

/// The options of a send, with the letters that `zfs send` has for them.
#[derive(Clone, Debug, Default)]
pub struct SendOptions {
    /// The snapshot; a file system or volume, as it is now.
    pub dataset: Option<String>,
    /// The incremental source, a snapshot or bookmark (`-i`).
    pub from: Option<String>,
    /// The snapshot after which all are sent (`-I`).
    pub all_from: Option<String>,
    /// Everything below too, with properties and snapshots (`-R`).
    pub replicate: bool,
    /// With [`Self::replicate`], datasets that are left out with everything below (`-X`).
    pub exclude: Vec<String>,
    /// With [`Self::replicate`], datasets without the snapshot are passed over (`-s`).
    pub skip_missing: bool,
    /// The redaction bookmark whose blocks are left out (`-d`).
    pub redact: Option<String>,
    /// Properties are sent (`-p`).
    pub props: bool,
    /// Properties are sent as they were received (`-b`).
    pub backup: bool,
    /// Holds are sent (`-h`).
    pub holds: bool,
    /// Encrypted datasets are sent with properties in the clear (`-U`).
    pub no_preserve_encryption: bool,
    /// The forms of records (`-L`, `-e`, `-c`, `-w`).
    pub flags: SendFlags,
    /// The token of a receiver that was interrupted (`-t`).
    pub token: Option<String>,
    /// A dataset that was received in part is sent (`-S`).
    pub saved: bool,
    /// Nothing is sent (`-n`).
    pub dryrun: bool,
    /// The amount of the report: nothing, the snapshots that are sent, blocks too (`-v`).
    pub verbosity: u8,
    /// It is told for programs (`-P`).
    pub parsable: bool,
    /// The title of the process says how much of the stream is sent.
    pub is_titled: bool,
}

impl SendOptions {
    /// True if the command goes on with a stream where its receiver stopped.
    #[must_use]
    pub const fn is_resumed(&self) -> bool {
        self.token.is_some() && !self.saved
    }

    /// True for several streams in one.
    pub(super) const fn is_package(&self) -> bool {
        self.replicate || self.all_from.is_some()
    }

    /// True if a list of properties and holds goes before the stream.
    pub(super) const fn has_list(&self) -> bool {
        self.props || self.holds || self.backup
    }

    pub(super) const fn incremental(&self) -> Option<&String> {
        match &self.from {
            Some(from) => Some(from),
            None => self.all_from.as_ref(),
        }
    }

    /// Refuses options that do not go together, in OpenZFS's words and order.
    ///
    /// # Errors
    /// [`SendError::Use`] and [`SendError::Refused`].
    pub fn check(&self) -> Result<(), SendError> {
        let slip = |text: &str| Err(SendError::wrong(text));
        let refuse = |text: &str| Err(SendError::refused(Refusal::Invalid, text));
        for name in &self.exclude {
            if Name::parse(name).is_err() || !name.contains('/') || name.contains(['@', '#']) {
                return slip(&format!("-X {name}: not a valid non-root dataset name."));
            }
        }
        if !self.exclude.is_empty() && !self.replicate {
            return refuse("Cannot specify dataset exclusion (-X) on a non-recursive send.");
        }
        let is_incremental = self.incremental().is_some();
        if self.is_resumed() {
            if is_incremental || self.replicate || self.has_list() || self.redact.is_some() {
                return slip("invalid flags combined with -t");
            }
            if self.dataset.is_some() {
                return slip("too many arguments");
            }
        } else if self.dataset.is_none() {
            return slip("missing snapshot argument");
        }
        if self.saved {
            let with_flags = self.flags != SendFlags::default();
            if is_incremental || self.replicate || self.has_list() || with_flags || self.redact.is_some() {
                return slip("incompatible flags combined with saved send flag");
            }
            if self.dataset.as_ref().is_some_and(|name| name.contains('@')) {
                return slip("saved send must specify the dataset with partially-received state");
            }
        }
        if self.flags.raw && self.redact.is_some() {
            return refuse("Error: raw sends may not be redacted.");
        }
        if self.is_resumed() || self.saved {
            return Ok(());
        }
        if self.skip_missing && !self.replicate {
            return slip("skip-missing flag can only be used in conjunction with replicate");
        }
        if !self.is_package() {
            return Ok(());
        }
        if self.incremental().is_some_and(|from| from.contains('#')) {
            return refuse("Error: multiple snapshots cannot be sent from a bookmark.");
        }
        if self.redact.is_some() {
            return refuse("Error: multiple snapshots cannot be sent redacted.");
        }
        match self.dataset.as_ref().is_some_and(|name| name.contains('@')) {
            true => Ok(()),
            false => refuse("Error: Unsupported flag with filesystem or bookmark."),
        }
    }

    /// The name of the pool that is sent from.
    pub fn pool(&self) -> Result<String, SendError> {
        let name = match (&self.dataset, &self.token) {
            (None, Some(token)) => parse_token(token)?.to_name,
            (dataset, _) => dataset.clone().unwrap_or_default(),
        };
        Ok(pool_of(&name).to_owned())
    }
}

pub(super) fn parse_token(text: &str) -> Result<ResumeToken, SendError> {
    ResumeToken::parse(text)
        .map_err(|error| SendError::refused(Refusal::Invalid, format!("cannot resume send: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of a refusal, and whether the caller was wrong.
    fn checked(change: impl FnOnce(&mut SendOptions)) -> Result<(), (bool, String)> {
        let mut options = SendOptions { dataset: Some("p/a@x".into()), ..SendOptions::default() };
        change(&mut options);
        options.check().map_err(|error| (matches!(error, SendError::Use(_)), error.to_string()))
    }

    #[test]
    fn options_that_do_not_go_together_are_refused_as_openzfs_does() {
        let slip = |text: &str| Err((true, text.to_owned()));
        let refused = |text: &str| Err((false, text.to_owned()));
        assert_eq!(checked(|_| ()), Ok(()));
        assert_eq!(checked(|options| options.dataset = None), slip("missing snapshot argument"));
        assert_eq!(
            checked(|options| options.exclude = vec!["p/a".into()]),
            refused("Cannot specify dataset exclusion (-X) on a non-recursive send.")
        );
        assert_eq!(
            checked(|options| options.exclude = vec!["p".into()]),
            slip("-X p: not a valid non-root dataset name.")
        );
        assert_eq!(
            checked(|options| {
                options.token = Some("1-2-3-4".into());
                options.replicate = true;
            }),
            slip("invalid flags combined with -t")
        );
        assert_eq!(checked(|options| options.token = Some("1-2-3-4".into())), slip("too many arguments"));
        assert_eq!(
            checked(|options| {
                options.saved = true;
                options.flags.compressed = true;
            }),
            slip("incompatible flags combined with saved send flag")
        );
        assert_eq!(
            checked(|options| options.saved = true),
            slip("saved send must specify the dataset with partially-received state")
        );
        assert_eq!(
            checked(|options| {
                options.redact = Some("b".into());
                options.flags.raw = true;
            }),
            refused("Error: raw sends may not be redacted.")
        );
        assert_eq!(
            checked(|options| options.skip_missing = true),
            slip("skip-missing flag can only be used in conjunction with replicate")
        );
    }

    #[test]
    fn a_package_is_of_snapshots_and_from_snapshots() {
        let package = |change: fn(&mut SendOptions)| {
            checked(|options| {
                options.replicate = true;
                change(options);
            })
        };
        assert_eq!(package(|_| ()), Ok(()));
        let words = |change| package(change).unwrap_err().1;
        assert!(words(|options| options.from = Some("#b".into())).contains("from a bookmark"));
        assert!(words(|options| options.redact = Some("b".into())).contains("redacted"));
        assert!(words(|options| options.dataset = Some("p/a".into())).contains("Unsupported flag"));
    }

    #[test]
    fn the_pool_is_that_of_the_dataset_or_of_the_token() {
        let options = SendOptions { dataset: Some("p/a@x".into()), ..SendOptions::default() };
        assert_eq!(options.pool().unwrap(), "p");
        let options = SendOptions { token: Some("nonsense".into()), ..SendOptions::default() };
        assert!(options.pool().unwrap_err().to_string().starts_with("cannot resume send: "));
    }
}
