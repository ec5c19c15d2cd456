//! The names that received snapshots get.

use super::error::{ReceiveError, ReceiveFailure};
use super::request::{Naming, ReceiveRequest};

/// A package has more snapshots than one name is for.
pub(super) fn one_name_for_many() -> ReceiveError {
    ReceiveFailure::Use("cannot specify snapshot name for multi-snapshot stream".to_owned()).into()
}

/// The full name of the snapshot that is received as one that was sent as `sent`. `top`: the dataset that was sent first.
pub(super) fn of_snapshot(
    request: &ReceiveRequest,
    sent: &str,
    top: &str,
    is_recursive: bool,
) -> Result<String, ReceiveError> {
    let refused = |why: &str| Err(ReceiveFailure::Use(why.to_owned()).into());
    let names_snapshot = request.target.contains('@');
    let added = match request.naming {
        Naming::Last if names_snapshot => return refused("invalid argument - snapshot not allowed with -e"),
        Naming::WithoutPool if names_snapshot => return refused("invalid argument - snapshot not allowed with -d"),
        Naming::Last => match top.rfind('/') {
            Some(at) => sent.get(at..).unwrap_or_default().to_owned(),
            None => format!("/{sent}"),
        },
        Naming::WithoutPool => {
            let at = sent.find('/').or_else(|| sent.find('@')).unwrap_or(sent.len());
            sent[at..].to_owned()
        }
        Naming::Exact if names_snapshot && is_recursive => return Err(one_name_for_many()),
        Naming::Exact if names_snapshot => String::new(),
        Naming::Exact => match sent.strip_prefix(top) {
            Some(below) => below.to_owned(),
            None => {
                let what = "a stream of a dataset that is not below the package's";
                return Err(ReceiveFailure::BadPackage(what).into());
            }
        },
    };
    let name = format!("{}{added}", request.target);
    match cenote_dsl::name::check_new_snapshot(&name) {
        Ok(()) => Ok(name),
        Err(reason) => refused(&reason.to_string()),
    }
}

/// The dataset that the top of a package is received as.
pub(super) fn of_top(request: &ReceiveRequest, sent: &[u8], top: &str) -> String {
    let sent = String::from_utf8_lossy(sent);
    let sent = sent.split('@').next().unwrap_or(top);
    let target = &request.target;
    match request.naming {
        Naming::Exact => target.clone(),
        Naming::WithoutPool => match sent.find('/') {
            Some(at) => format!("{target}{}", &sent[at..]),
            None => target.clone(),
        },
        Naming::Last => match sent.rfind('/') {
            Some(at) => format!("{target}{}", &sent[at..]),
            None => format!("{target}/{sent}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_put_together_as_openzfs_does() {
        let name = |naming, target: &str, sent: &str, top: &str| {
            let request = ReceiveRequest { target: target.to_owned(), naming, ..ReceiveRequest::default() };
            of_snapshot(&request, sent, top, false).map_err(|error| error.to_string())
        };
        let is = |text: &str| Ok(text.to_owned());
        assert_eq!(name(Naming::Exact, "b/x", "a/fs@s", "a/fs"), is("b/x@s"));
        assert_eq!(name(Naming::Exact, "b/x", "a/fs/below@s", "a/fs"), is("b/x/below@s"));
        assert_eq!(name(Naming::Exact, "b/x@t", "a/fs@s", "a/fs"), is("b/x@t"));
        assert_eq!(name(Naming::WithoutPool, "b/x", "a/fs/below@s", "a/fs"), is("b/x/fs/below@s"));
        assert_eq!(name(Naming::WithoutPool, "b/x", "a@s", "a"), is("b/x@s"));
        assert_eq!(name(Naming::Last, "b/x", "a/one/fs@s", "a/one/fs"), is("b/x/fs@s"));
        assert_eq!(name(Naming::Last, "b/x", "a/one/fs/below@s", "a/one/fs"), is("b/x/fs/below@s"));
        assert_eq!(name(Naming::Last, "b/x", "a@s", "a"), is("b/x/a@s"));
        let refused = name(Naming::Last, "b/x@t", "a/fs@s", "a/fs").unwrap_err();
        assert_eq!(refused, "cannot receive: invalid argument - snapshot not allowed with -e");
    }

    #[test]
    fn the_top_of_a_package_has_the_name_of_its_first_stream() {
        let top = |naming, sent: &str| {
            let request = ReceiveRequest { target: "b/x".to_owned(), naming, ..ReceiveRequest::default() };
            of_top(&request, sent.as_bytes(), sent.split('@').next().unwrap())
        };
        for sent in ["a/one/fs@s", "a@s"] {
            for naming in [Naming::Exact, Naming::WithoutPool, Naming::Last] {
                let request = ReceiveRequest { target: "b/x".to_owned(), naming, ..ReceiveRequest::default() };
                let of_first = of_snapshot(&request, sent, sent.split('@').next().unwrap(), false).unwrap();
                assert_eq!(top(naming, sent), of_first.split('@').next().unwrap());
            }
        }
    }
}
