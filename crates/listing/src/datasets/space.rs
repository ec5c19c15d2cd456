//! Properties whose name has an argument: `userused@alice`, `projectquota@7`, `written@monday` and similar.

use crate::error::Result;
use cenote_dsl::DslError;
use cenote_format::dsl::BookmarkFlags;
use cenote_format::objset::ObjsetFlags;
use cenote_host::Accounts;
use cenote_props::Types;
use cenote_props::number::{nicebytes, nicenum};
use cenote_zpl::SpaceKind;

use super::fact::Source;
use super::{Cell, Item};

/// The quantity that the part of a name before the `@` requests.
struct Asked {
    kind: SpaceKind,
    is_quota: bool,
    is_objects: bool,
}

impl Asked {
    fn parse(prefix: &str) -> Option<Self> {
        let (kind, rest) = [("user", SpaceKind::User), ("group", SpaceKind::Group), ("project", SpaceKind::Project)]
            .into_iter()
            .find_map(|(word, kind)| Some((kind, prefix.strip_prefix(word)?)))?;
        let (is_objects, rest) = rest.strip_prefix("obj").map_or((false, rest), |rest| (true, rest));
        match rest {
            "used" => Some(Self { kind, is_quota: false, is_objects }),
            "quota" => Some(Self { kind, is_quota: true, is_objects }),
            _ => None,
        }
    }
}

impl Item {
    /// The bytes that a user, group or project uses or may use.
    pub(super) async fn space_cell(&self, name: &str, is_exact: bool) -> Result<Option<Cell>> {
        let Some((prefix, who)) = name.split_once('@') else { return Ok(None) };
        let Some(asked) = Asked::parse(prefix) else { return Ok(None) };
        let Some(id) = id_of(asked.kind, who) else { return Ok(None) };
        let Some(filesystem) = self.filesystem().await else { return Ok(None) };
        let flags = filesystem.objset().phys().flags;
        let needed = match (asked.kind, asked.is_objects) {
            (SpaceKind::Project, _) => ObjsetFlags::PROJECTQUOTA_COMPLETE,
            (_, true) => ObjsetFlags::USEROBJACCOUNTING_COMPLETE,
            (_, false) => ObjsetFlags::USERACCOUNTING_COMPLETE,
        };
        if !flags.contains(needed) {
            return Ok(None);
        }
        let row = filesystem.space(asked.kind).await?.remove(&id).unwrap_or_default();
        let number = match (asked.is_quota, asked.is_objects) {
            (false, false) => row.used_bytes,
            (true, false) => row.quota_bytes,
            (false, true) => row.used_objects.unwrap_or(0),
            (true, true) => row.quota_objects,
        };
        let text = match (is_exact, asked.is_objects) {
            (true, _) => number.to_string(),
            (false, _) if asked.is_quota && number == 0 => "none".into(),
            (false, false) => nicebytes(number),
            (false, true) => nicenum(number),
        };
        Ok(Some(Cell::new(text, Source::Local)))
    }

    /// The bytes written since a snapshot or bookmark: one of this dataset by its short name, or any earlier one by its full name.
    pub(super) async fn written_cell(&self, name: &str, is_exact: bool) -> Result<Option<Cell>> {
        if self.kind == Types::BOOKMARK {
            return Ok(None);
        }
        let start = "written".len();
        let since = &name[start + 1..];
        let since = if since.contains(['@', '#']) {
            since.to_owned()
        } else {
            format!("{}{}", self.dataset.dir.name, &name[start..])
        };
        let dsl = self.view.pool.dsl();
        let written = if let Some((head, _)) = since.split_once('#') {
            let head = match dsl.dataset(head).await {
                Ok(head) => head,
                Err(DslError::NoSuchDataset(_)) => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            let bookmarks = dsl.bookmarks(&head).await?;
            let Some(bookmark) = bookmarks.into_iter().find(|bookmark| bookmark.name == since) else {
                return Ok(None);
            };
            let has_freed = bookmark.phys.flags.contains(BookmarkFlags::HAS_FREED_BEFORE_NEXT);
            if !has_freed || bookmark.phys.creation_txg >= self.dataset.phys.creation_txg && self.dataset.is_snapshot()
            {
                return Ok(None);
            }
            dsl.written_since_bookmark_bytes(&self.dataset, &bookmark).await?
        } else {
            let snapshot = match dsl.dataset(&since).await {
                Ok(snapshot) => snapshot,
                Err(DslError::NoSuchDataset(_)) => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            if !dsl.is_before(&snapshot, &self.dataset).await? {
                return Ok(None);
            }
            let phys = &snapshot.phys;
            dsl.written_since_bytes(&self.dataset, phys.creation_txg, phys.referenced_bytes).await?
        };
        let text = if is_exact { written.to_string() } else { nicebytes(written) };
        Ok(Some(Cell::new(text, Source::Local)))
    }
}

/// A user's or group's number, from a name or a number; a project's, from a number.
fn id_of(kind: SpaceKind, who: &str) -> Option<u64> {
    let named = match kind {
        SpaceKind::User => Accounts::Users.number(who),
        SpaceKind::Group => Accounts::Groups.number(who),
        SpaceKind::Project => None,
    };
    named.or_else(|| who.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_space_come_apart() {
        let asked = Asked::parse("projectobjquota").unwrap();
        assert!(asked.kind == SpaceKind::Project && asked.is_quota && asked.is_objects);
        let asked = Asked::parse("userused").unwrap();
        assert!(asked.kind == SpaceKind::User && !asked.is_quota && !asked.is_objects);
        assert!(Asked::parse("userspace").is_none());
        assert_eq!(id_of(SpaceKind::User, "root"), Some(0));
        assert_eq!(id_of(SpaceKind::Project, "7"), Some(7));
        assert_eq!(id_of(SpaceKind::Group, "no such group"), None);
    }
}
