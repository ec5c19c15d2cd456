//! The place where a verify stopped, with its findings so far; as text, which its owner keeps.
//!
//! The text is JSON, and as hostile as any other file: what does not fit together is refused, and nothing in it leads to a panic.

use cenote_format::ids::{BlockId, Guid, ObjectId, ObjsetId, Txg, VdevId};
use cenote_zio::Bookmark;
use serde_json::{Value, json};

use super::error::VerifyError;
use super::findings::{BadBlock, COUNT_MAX, Faults, Findings, REPORTS_MAX, WHY_BYTES_MAX};
use super::options::VerifyOptions;
use crate::account::{Misuse, MisuseKind};
use crate::roots::{TreeHistory, WalkedTree};
use crate::walk::Cursor;

/// The version of the text.
const VERSION: u64 = 1;
/// The names of the kinds of misuse.
const KINDS: [(MisuseKind, &str); 3] =
    [(MisuseKind::Twice, "twice"), (MisuseKind::Free, "free"), (MisuseKind::NoSuchPlace, "no such place")];

/// The place where a verify stopped, to go on from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyStop {
    pub(super) pool: Guid,
    pub(super) options: VerifyOptions,
    pub(super) cursor: Cursor,
    pub(super) findings: Findings,
}

impl VerifyStop {
    /// Bytes of a text at most: those of a pool with some 600,000 datasets and snapshots. A longer one is refused.
    pub const TEXT_BYTES_MAX: u64 = 64 << 20;

    /// The pool.
    #[must_use]
    pub(crate) const fn pool(&self) -> Guid {
        self.pool
    }

    /// The txg that was read last.
    #[must_use]
    pub const fn txg(&self) -> Txg {
        self.cursor.txg
    }

    /// The next block.
    #[must_use]
    pub const fn at(&self) -> Option<Bookmark> {
        self.cursor.next
    }

    /// The checks that were made.
    #[must_use]
    pub(crate) const fn options(&self) -> VerifyOptions {
        self.options
    }

    /// As text.
    #[must_use]
    pub fn to_json(&self) -> String {
        let Self { pool, options, cursor, findings } = self;
        let blocks = |faults: &Faults<BadBlock>| {
            let first: Vec<Value> =
                faults.first.iter().map(|block| json!([block.bookmark.map(place), block.why])).collect();
            json!({ "count": faults.count, "first": first })
        };
        let misuses: Vec<Value> = findings
            .misuses
            .first
            .iter()
            .map(|misuse| {
                let kind = KINDS.iter().find(|(kind, _)| *kind == misuse.kind).map(|(_, name)| name);
                json!([place(misuse.bookmark), misuse.vdev.0, misuse.range.start, misuse.range.end, kind])
            })
            .collect();
        let text = json!({
            "version": VERSION,
            "pool_guid": pool.0,
            "data": options.data,
            "space": options.space,
            "first_txg": cursor.first_txg.0,
            "txg": cursor.txg.0,
            "root": cursor.root,
            "tree": cursor.tree,
            "next": cursor.next.map(place),
            "current": cursor.current.as_ref().map(walked),
            "walked": cursor.walked.iter().map(walked).collect::<Vec<_>>(),
            "errors": blocks(&findings.errors),
            "bad_copies": blocks(&findings.bad_copies),
            "misuses": { "count": findings.misuses.count, "first": misuses },
            "met_again": findings.met_again,
        });
        text.to_string()
    }

    /// From text.
    ///
    /// # Errors
    /// It is none that [`Self::to_json`] gives.
    pub fn from_json(text: &str) -> Result<Self, VerifyError> {
        if text.len() as u64 > Self::TEXT_BYTES_MAX {
            return Err(VerifyError::StopText(format!("it has more than {} bytes", Self::TEXT_BYTES_MAX)));
        }
        let value: Value = serde_json::from_str(text).map_err(|error| VerifyError::StopText(error.to_string()))?;
        Self::of(&value).ok_or_else(|| VerifyError::StopText("it is not what a verify leaves".into()))
    }

    fn of(value: &Value) -> Option<Self> {
        let word = |name: &str| value.get(name)?.as_u64();
        if word("version")? != VERSION {
            return None;
        }
        let options = VerifyOptions { data: value.get("data")?.as_bool()?, space: value.get("space")?.as_bool()? };
        let optional = |name: &str| value.get(name).filter(|value| !value.is_null());
        let next = Some(place_of(value.get("next")?).filter(Cursor::is_stop)?);
        let current = match optional("current") {
            Some(current) => Some(walked_of(current)?),
            None => None,
        };
        let walked = value.get("walked")?.as_array()?.iter().map(walked_of).collect::<Option<Vec<_>>>()?;
        let (first_txg, txg) = (Txg(word("first_txg")?), Txg(word("txg")?));
        let root = value.get("root")?.as_array()?.iter().map(Value::as_u64).collect::<Option<Vec<_>>>()?;
        let root = root.try_into().ok()?;
        let tree = usize::try_from(word("tree")?).ok()?;
        let cursor = Cursor { first_txg, txg, root, tree, next, current, walked, is_of_scan: false };
        let [errors_again, copies_again] = &value.get("met_again")?.as_array()?[..] else { return None };
        let findings = Findings {
            errors: faults_of(value.get("errors")?, block_of)?,
            bad_copies: faults_of(value.get("bad_copies")?, block_of)?,
            misuses: faults_of(value.get("misuses")?, misuse_of)?,
            met_again: (errors_again.as_u64()?, copies_again.as_u64()?),
        };
        let fits = |faults: &Faults<BadBlock>, met_again: u64| {
            let again = faults.first.iter().filter(|block| block.is_met_again()).count() as u64;
            let others = faults.first.len() as u64 - again;
            again <= met_again && faults.count.checked_sub(met_again).is_some_and(|left| others <= left)
        };
        let is_sound = fits(&findings.errors, findings.met_again.0)
            && fits(&findings.bad_copies, findings.met_again.1)
            && cursor.first_txg <= cursor.txg;
        is_sound.then_some(Self { pool: Guid(word("pool_guid")?), options, cursor, findings })
    }
}

fn place(at: Bookmark) -> Value {
    json!([at.objset.0, at.object.0, at.level, at.block.0])
}

fn place_of(value: &Value) -> Option<Bookmark> {
    let [objset, object, level, block] = &value.as_array()?[..] else { return None };
    Some(Bookmark {
        objset: ObjsetId(objset.as_u64()?),
        object: ObjectId(object.as_u64()?),
        level: i8::try_from(level.as_i64()?).ok()?,
        block: BlockId(block.as_u64()?),
    })
}

fn walked(tree: &WalkedTree) -> Value {
    let TreeHistory { deadlist, dir, guid, taken } = tree.history;
    json!([deadlist.0, dir.0, guid.0, taken.map(|taken| taken.0), tree.born_after.0, tree.txg.0])
}

fn walked_of(value: &Value) -> Option<WalkedTree> {
    let [deadlist, dir, guid, taken, born_after, txg] = &value.as_array()?[..] else { return None };
    let taken = if taken.is_null() { None } else { Some(Txg(taken.as_u64()?)) };
    let (deadlist, dir) = (ObjectId(deadlist.as_u64()?), ObjectId(dir.as_u64()?));
    let history = TreeHistory { deadlist, dir, guid: Guid(guid.as_u64()?), taken };
    Some(WalkedTree { history, born_after: Txg(born_after.as_u64()?), txg: Txg(txg.as_u64()?) })
}

fn faults_of<T>(value: &Value, one: fn(&Value) -> Option<T>) -> Option<Faults<T>> {
    let first = value.get("first")?.as_array()?.iter().map(one).collect::<Option<Vec<_>>>()?;
    let count = value.get("count")?.as_u64()?;
    let is_sound = first.len() <= REPORTS_MAX && first.len() as u64 <= count && count <= COUNT_MAX;
    is_sound.then_some(Faults { count, first })
}

fn block_of(value: &Value) -> Option<BadBlock> {
    let [at, why] = &value.as_array()?[..] else { return None };
    let bookmark = if at.is_null() { None } else { Some(place_of(at)?) };
    let why = why.as_str().filter(|why| why.len() <= WHY_BYTES_MAX)?;
    Some(BadBlock { bookmark, why: why.to_owned() })
}

fn misuse_of(value: &Value) -> Option<Misuse> {
    let [at, vdev, start, end, kind] = &value.as_array()?[..] else { return None };
    let (kind, _) = *KINDS.iter().find(|(_, name)| Some(*name) == kind.as_str())?;
    let range = start.as_u64()?..end.as_u64()?;
    if range.start > range.end {
        return None;
    }
    let vdev = VdevId(u32::try_from(vdev.as_u64()?).ok()?);
    Some(Misuse { bookmark: place_of(at)?, vdev, range, kind })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stop() -> VerifyStop {
        let at = |level, block| Bookmark { objset: ObjsetId(54), object: ObjectId(7), level, block: BlockId(block) };
        let history = |taken| TreeHistory { deadlist: ObjectId(60), dir: ObjectId(50), guid: Guid(u64::MAX), taken };
        let tree = |taken| WalkedTree { history: history(taken), born_after: Txg(3), txg: Txg(9) };
        let mut findings = Findings::default();
        findings.error(BadBlock { bookmark: Some(at(0, 3)), why: "no \"good\" copy".into() });
        findings.error(BadBlock { bookmark: None, why: "a list".into() });
        findings.bad_copy(BadBlock { bookmark: Some(at(1, 0)), why: "disk".into() });
        for (kind, _) in KINDS {
            findings.misuse(Misuse { bookmark: at(-1, 0), vdev: VdevId(1), range: 512..1024, kind });
        }
        VerifyStop {
            pool: Guid(0xfedc_ba98_7654_3210),
            options: VerifyOptions { data: true, space: false },
            cursor: Cursor {
                first_txg: Txg(8),
                txg: Txg(9),
                root: [1, 2, 3, u64::MAX],
                tree: 2,
                next: Some(at(0, 4)),
                current: Some(tree(None)),
                walked: vec![tree(Some(Txg(5)))],
                is_of_scan: false,
            },
            findings,
        }
    }

    #[test]
    fn a_stop_is_read_as_it_was_written() {
        assert_eq!(VerifyStop::from_json(&stop().to_json()).unwrap(), stop());
    }

    /// A verify that meets a fault after a stop with as many as a stop may have: nothing overflows.
    #[test]
    fn the_most_faults_that_a_stop_may_have_can_be_added_to() {
        let text = stop().to_json();
        for count in ["\"count\":2", "\"count\":1", "\"count\":3"] {
            assert!(text.contains(count), "{text}");
        }
        let most = format!("\"count\":{COUNT_MAX}");
        let text = ["\"count\":2", "\"count\":1,", "\"count\":3"].iter().fold(text, |text, count| {
            let end = if count.ends_with(',') { "," } else { "" };
            text.replacen(count, &format!("{most}{end}"), 1)
        });
        let mut findings = VerifyStop::from_json(&text).unwrap().findings;
        let mut later = stop().findings;
        later.absorb(stop().findings);
        findings.absorb(later);
        findings.error(BadBlock::loose(&"x".repeat(2 * WHY_BYTES_MAX)));
        assert_eq!(findings.errors.count, COUNT_MAX + 5);
        assert!(findings.errors.first.iter().all(|block| block.why.len() <= WHY_BYTES_MAX));
        assert!(findings.count() > 3 * COUNT_MAX);
    }

    #[test]
    fn texts_that_no_verify_leaves_are_refused() {
        let text = stop().to_json();
        for (from, to) in [
            ("\"version\":1", "\"version\":2"),
            ("\"next\":[54,7,0,4]", "\"next\":[54,7,1,4]"),
            ("\"first_txg\":8", "\"first_txg\":10"),
            ("\"met_again\":[1,1]", "\"met_again\":[3,1]"),
            ("\"met_again\":[1,1]", "\"met_again\":[1,0]"),
            ("\"count\":3", "\"count\":2"),
            ("\"count\":3", "\"count\":18446744073709551615"),
            ("\"count\":2", "\"count\":72057594037927937"),
            ("1024,\"free\"", "511,\"free\""),
            ("\"twice\"", "\"thrice\""),
            ("\"data\":true", "\"data\":1"),
            ("{", ""),
        ] {
            assert!(text.contains(from), "{text}");
            let changed = text.replacen(from, to, 1);
            assert!(VerifyStop::from_json(&changed).is_err(), "{changed}");
        }
        // A text without end, and a reason without end.
        let long = |len: usize| text.replacen("a list", &"x".repeat(len), 1);
        assert!(VerifyStop::from_json(&long(WHY_BYTES_MAX)).is_ok());
        assert!(VerifyStop::from_json(&long(WHY_BYTES_MAX + 1)).is_err());
        let spaces = " ".repeat(VerifyStop::TEXT_BYTES_MAX as usize);
        assert!(VerifyStop::from_json(&(text.clone() + &spaces)).is_err());
        // Nothing that is left out leads to a panic.
        for end in 0..text.len() {
            assert!(VerifyStop::from_json(&text[..end]).is_err());
        }
    }
}
