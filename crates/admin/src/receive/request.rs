//! Requests, messages and outcomes.

use std::time::Duration;

use cenote_props::{Types, is_user_property};
use cenote_spa::PropertyValue;
use cenote_taskq::{BoxFuture, boxed};

use super::error::ReceiveAction;
use crate::values::{ValueError, When, check_once, dataset_setting, full_name};
use crate::{Owner, Setting};

/// The part of a sent name that is added to the name that was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Naming {
    /// Of a package, all below its top; of a stream, the snapshot alone.
    #[default]
    Exact,
    /// All but the pool (`-d`).
    WithoutPool,
    /// The last part of the top's name, and all below (`-e`).
    Last,
}

/// Properties that a raw stream has, and nobody else.
pub(crate) const OF_ENCRYPTION: [&str; 4] = ["encryption", "keyformat", "pbkdf2iters", "pbkdf2salt"];

/// A request.
#[derive(Clone, Debug, Default)]
pub struct ReceiveRequest {
    /// The file system, volume or snapshot.
    pub target: String,
    /// The part of a sent name that is added to it.
    pub naming: Naming,
    /// Changes and later snapshots in the way are destroyed (`-F`).
    pub is_forced: bool,
    /// It may be resumed (`-s`).
    pub is_resumable: bool,
    /// The time between two notes of the place to go on from; five seconds if none is given.
    pub note_every: Option<Duration>,
    /// Holds are left out (`-h`).
    pub skips_holds: bool,
    /// It is said what is received (`-v`).
    pub is_verbose: bool,
    /// Nothing is received (`-n`).
    pub is_dry: bool,
    /// Full name of the snapshot that the dataset is to be a clone of (`-o origin=`).
    pub origin: Option<String>,
    /// Properties that are set in place of those that come (`-o`).
    pub overrides: Vec<Setting>,
    /// Those of [`OF_ENCRYPTION`] that are set too, also where datasets have that value anyway.
    pub encryption: Vec<String>,
    /// Properties that are left out (`-x`).
    pub excluded: Vec<String>,
    /// The owner of file systems that are made above the new ones.
    pub owner: Owner,
}

impl ReceiveRequest {
    /// Adds properties as the command has them: `settings` (`-o`), of which `origin=SNAPSHOT` makes a clone, and names that are left out
    /// (`-x`).
    ///
    /// # Errors
    /// One is none, is given twice, or cannot be set so.
    pub fn set(&mut self, settings: &[String], excluded: &[String]) -> Result<(), ValueError> {
        let invalid = |what: String| ValueError::Invalid(format!("{}: {what}", ReceiveAction::Any));
        check_once(settings)?;
        for text in settings {
            if let Some(origin) = text.strip_prefix("origin=") {
                self.origin = Some(origin.to_owned());
                continue;
            }
            if full_name(text.split('=').next().unwrap_or_default()) == "volsize" {
                let what = "not supported yet: changing the property 'volsize' of what is received";
                return Err(ValueError::NotYet(what.into()));
            }
            let (name, value) = text.split_once('=').unwrap_or((text, ""));
            if name == "keylocation" {
                self.overrides.push((name.to_owned(), PropertyValue::Text(value.to_owned())));
                continue;
            }
            if OF_ENCRYPTION.contains(&name) {
                self.encryption.push(name.to_owned());
            }
            // Which of them it is, is not known before the stream.
            let either = Types::FILESYSTEM | Types::VOLUME;
            let setting = dataset_setting(text, When::Creation, either);
            self.overrides.extend(setting.map_err(|error| invalid(error.to_string()))?);
        }
        for name in excluded {
            let is_known = is_user_property(name) || cenote_props::dataset::find(name).is_some();
            if !is_known {
                return Err(invalid(format!("invalid property '{name}'")));
            }
            let name = full_name(name);
            // The version of a file system is a part of it.
            if name == "version" {
                return Err(invalid(format!("property '{name}' cannot be excluded")));
            }
            let mut given = settings.iter().filter_map(|setting| setting.split('=').next());
            if given.any(|given| full_name(given) == name) || self.excluded.iter().any(|other| other == name) {
                return Err(ValueError::Invalid(format!("property '{name}' specified multiple times")));
            }
            self.excluded.push(name.to_owned());
        }
        Ok(())
    }
}

/// A message while streams are received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// For standard output, where it is asked for.
    Out(String),
    /// A warning.
    Err(String),
}

/// The caller of a receive: it is told what happens, and may have to let go of datasets first.
pub trait Caller: Send + Sync {
    /// A message.
    fn told(&mut self, told: Told);

    /// Whether users of a dataset can be made to wait ([`Self::suspend`]). Otherwise a dataset in use is not received into.
    fn has_users_wait(&self) -> bool {
        false
    }

    /// All of a stream has come. Has users of its dataset wait, and the dataset closed, until [`Self::resume`]: it is about to become as
    /// another is, of the name `written`.
    ///
    /// # Errors
    /// Users cannot be made to wait.
    fn suspend<'a>(&'a mut self, dataset: &'a str, written: &'a str) -> BoxFuture<'a, Result<(), SuspendError>> {
        let _ = (dataset, written);
        Box::pin(async { Ok(()) })
    }

    /// Has those users go on, if any wait: the dataset is as it was received, or as it was before.
    #[boxed]
    async fn resume(&mut self) {}

    /// A dataset that may be there, and mounted, is about to be renamed or destroyed. It is refused afterwards if it is in use.
    fn lets_go<'a>(&'a mut self, dataset: &'a str) -> BoxFuture<'a, ()> {
        let _ = dataset;
        Box::pin(async {})
    }
}

impl<F: FnMut(Told) + Send + Sync> Caller for F {
    fn told(&mut self, told: Told) {
        self(told);
    }
}

/// Users of a dataset cannot be made to wait while it changes.
#[derive(Debug, thiserror::Error)]
#[error("users of '{dataset}' cannot be made to wait")]
pub struct SuspendError {
    /// The dataset.
    pub dataset: String,
    /// The error of the caller, which is above this layer and has errors of its own.
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

impl SuspendError {
    /// The caller's error with all its causes.
    pub(super) fn reason(&self) -> String {
        cenote_props::chain(&*self.source)
    }
}

/// The outcome of a run of streams.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceiveOutcome {
    /// Datasets that have been received, in their order, each once.
    pub datasets: Vec<String>,
    /// Something could not be destroyed or renamed.
    pub is_incomplete: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_to_wait_has_the_callers_error_with_its_causes_for_a_reason() {
        #[derive(Debug, thiserror::Error)]
        #[error("volume tank/v")]
        struct Outer(#[source] std::io::Error);

        let source = Box::new(Outer(std::io::Error::other("it is being read")));
        let error = SuspendError { dataset: "tank/v".to_owned(), source };
        assert_eq!(error.reason(), "volume tank/v: it is being read");
        assert_eq!(error.to_string(), "users of 'tank/v' cannot be made to wait");
    }

    #[test]
    fn properties_are_set_left_out_and_refused_by_name() {
        let set = |settings: &[&str], excluded: &[&str]| {
            let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
            let mut request = ReceiveRequest::default();
            request.set(&words(settings), &words(excluded)).map(|()| request).map_err(|error| error.to_string())
        };
        let request = set(&["origin=a@1", "compression=lz4", "encryption=off"], &["mountpoint"]).unwrap();
        assert_eq!(request.origin.as_deref(), Some("a@1"));
        assert_eq!(request.overrides.len(), 1);
        assert_eq!((request.encryption, request.excluded), (vec!["encryption".into()], vec!["mountpoint".into()]));
        for (settings, excluded, words) in [
            (&["atime=off", "atime=on"][..], &[][..], "'atime' specified multiple times"),
            (&["atime=off"], &["atime"], "'atime' specified multiple times"),
            (&["volsize=1G"], &[], "not supported yet"),
            (&["nothing=1"], &[], "cannot receive: invalid property 'nothing'"),
            (&[], &["nothing"], "cannot receive: invalid property 'nothing'"),
        ] {
            let error = set(settings, excluded).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
