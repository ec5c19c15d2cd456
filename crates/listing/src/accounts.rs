//! The space of users, groups and projects, as `zfs userspace` and related commands show it.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use cenote_format::zpl::Fuid;
use cenote_host::Accounts;
use cenote_props::number::{nicebytes, nicenum};
use cenote_taskq::boxed;
use cenote_zpl::{FileSystem, SpaceKind, SpaceUse};

use crate::error::Result;

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccountField {
    /// The kind of owner.
    Type,
    /// The owner's name, or number.
    Name,
    /// Bytes used.
    Used,
    /// Bytes allowed.
    Quota,
    /// Objects used.
    Objused,
    /// Objects allowed.
    Objquota,
}

impl AccountField {
    /// All columns, in their order in the table.
    pub const ALL: [Self; 6] = [Self::Type, Self::Name, Self::Used, Self::Quota, Self::Objused, Self::Objquota];

    const fn heading(self) -> &'static str {
        match self {
            Self::Type => "TYPE",
            Self::Name => "NAME",
            Self::Used => "USED",
            Self::Quota => "QUOTA",
            Self::Objused => "OBJUSED",
            Self::Objquota => "OBJQUOTA",
        }
    }

    const fn is_left(self) -> bool {
        matches!(self, Self::Type | Self::Name)
    }
}

/// The kind of owner of a row, in the order for sorting by type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AccountOwner {
    /// A group of this system.
    PosixGroup,
    /// A user of this system.
    PosixUser,
    /// A group of a Windows domain.
    SmbGroup,
    /// A user of a Windows domain.
    SmbUser,
    /// A project.
    Project,
}

impl AccountOwner {
    const fn text(self) -> &'static str {
        match self {
            Self::PosixGroup => "POSIX Group",
            Self::PosixUser => "POSIX User",
            Self::SmbGroup => "SMB Group",
            Self::SmbUser => "SMB User",
            Self::Project => "Project",
        }
    }
}

struct Row {
    who: AccountOwner,
    /// The name, if there is one.
    name: Option<String>,
    id: u64,
    space: SpaceUse,
}

impl Row {
    fn cell(&self, field: AccountField, exact: bool) -> String {
        let bytes = |value| if exact { u64::to_string(&value) } else { nicebytes(value) };
        let number = |value| if exact { u64::to_string(&value) } else { nicenum(value) };
        let space = &self.space;
        match field {
            AccountField::Type => self.who.text().to_owned(),
            AccountField::Name => self.name.clone().unwrap_or_else(|| self.id.to_string()),
            AccountField::Used => bytes(space.used_bytes),
            AccountField::Quota if space.quota_bytes == 0 && !exact => "none".to_owned(),
            AccountField::Quota => bytes(space.quota_bytes),
            AccountField::Objused | AccountField::Objquota
                if space.used_objects.is_none() && space.quota_objects == 0 =>
            {
                "-".to_owned()
            }
            AccountField::Objused => number(space.used_objects.unwrap_or(0)),
            AccountField::Objquota if space.quota_objects == 0 && !exact => "none".to_owned(),
            AccountField::Objquota => number(space.quota_objects),
        }
    }

    fn compare(&self, other: &Self, field: AccountField) -> Ordering {
        match field {
            AccountField::Type => self.who.cmp(&other.who),
            AccountField::Name => match (&self.name, &other.name) {
                (Some(a), Some(b)) => a.cmp(b),
                // If one has no name, they are compared by number; a name counts as 0.
                (a, b) => {
                    let number = |row: &Self, name: &Option<String>| if name.is_some() { 0 } else { row.id };
                    number(self, a).cmp(&number(other, b))
                }
            },
            AccountField::Used => self.space.used_bytes.cmp(&other.space.used_bytes),
            AccountField::Quota => self.space.quota_bytes.cmp(&other.space.quota_bytes),
            AccountField::Objused => self.space.used_objects.cmp(&other.space.used_objects),
            AccountField::Objquota => self.space.quota_objects.cmp(&other.space.quota_objects),
        }
    }
}

/// The options of the table.
pub struct AccountOptions {
    /// The columns.
    pub fields: Vec<AccountField>,
    /// The fields to sort by, each with true for descending order; then by type and name.
    pub sort: Vec<(AccountField, bool)>,
    /// The owners to show.
    pub owners: Vec<AccountOwner>,
    /// Tabs instead of columns, and no heading.
    pub is_scripted: bool,
    /// Exact numbers.
    pub is_exact: bool,
    /// Numbers instead of names.
    pub is_numeric: bool,
}

/// The table of a file system's accounts; empty if there are none.
#[boxed]
pub async fn accounts(filesystem: &FileSystem, options: &AccountOptions) -> Result<String> {
    let AccountOptions { owners: wanted, is_exact, is_scripted, .. } = options;
    let domains = filesystem.domains().await?;
    let mut rows = Vec::new();
    let kinds = [
        (SpaceKind::User, [AccountOwner::PosixUser, AccountOwner::SmbUser], Some(Accounts::Users)),
        (SpaceKind::Group, [AccountOwner::PosixGroup, AccountOwner::SmbGroup], Some(Accounts::Groups)),
        (SpaceKind::Project, [AccountOwner::Project, AccountOwner::Project], None),
    ];
    for (kind, who, names) in kinds {
        if !who.iter().any(|who| wanted.contains(who)) {
            continue;
        }
        let names = names.filter(|_| !options.is_numeric).map_or_else(BTreeMap::new, Accounts::names);
        for (id, space) in filesystem.space(kind).await? {
            let fuid = Fuid(id);
            let row = match fuid.domain_index() {
                _ if kind == SpaceKind::Project => Row { who: who[0], name: None, id, space },
                0 => Row { who: who[0], name: names.get(&id).cloned(), id, space },
                index => {
                    let domain = domains.get(&u64::from(index)).cloned();
                    let domain = domain.unwrap_or_else(|| format!("(domain {index})"));
                    Row { who: who[1], name: Some(format!("{domain}-{}", fuid.relative_id())), id, space }
                }
            };
            rows.push(row);
        }
    }
    if rows.is_empty() {
        return Ok(String::new());
    }
    // As in OpenZFS, columns are as wide as all accounts need, even those not shown.
    let widths: Vec<usize> = options
        .fields
        .iter()
        .map(|field| {
            let cells = rows.iter().map(|row| row.cell(*field, *is_exact).chars().count());
            cells.chain([field.heading().len()]).max().unwrap_or(0)
        })
        .collect();
    sort(&mut rows, &options.sort);
    let mut text = String::new();
    if !is_scripted {
        line(&mut text, &options.fields, &widths, false, |field| field.heading().to_owned());
    }
    for row in rows.iter().filter(|row| wanted.contains(&row.who)) {
        line(&mut text, &options.fields, &widths, *is_scripted, |field| row.cell(field, *is_exact));
    }
    Ok(text)
}

/// Sorts by the given fields, then by type and name.
fn sort(rows: &mut [Row], by: &[(AccountField, bool)]) {
    let last = [(AccountField::Type, false), (AccountField::Name, false)];
    rows.sort_by(|a, b| {
        let orders = by.iter().chain(&last).map(|(field, is_backwards)| {
            let order = a.compare(b, *field);
            if *is_backwards { order.reverse() } else { order }
        });
        orders.fold(Ordering::Equal, Ordering::then)
    });
}

fn line(
    text: &mut String,
    fields: &[AccountField],
    widths: &[usize],
    is_scripted: bool,
    cell: impl Fn(AccountField) -> String,
) {
    for (index, (field, width)) in fields.iter().zip(widths).enumerate() {
        if index > 0 {
            text.push_str(if is_scripted { "\t" } else { "  " });
        }
        let cell = cell(*field);
        match (is_scripted, field.is_left()) {
            (true, _) => text.push_str(&cell),
            (false, true) => text.push_str(&format!("{cell:<width$}")),
            (false, false) => text.push_str(&format!("{cell:>width$}")),
        }
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(who: AccountOwner, name: Option<&str>, id: u64, used_bytes: u64) -> Row {
        Row { who, name: name.map(str::to_owned), id, space: SpaceUse { used_bytes, ..SpaceUse::default() } }
    }

    #[test]
    fn a_name_sorts_as_zero_among_numbers() {
        let named = row(AccountOwner::PosixUser, Some("root"), 0, 1);
        let numbered = row(AccountOwner::PosixUser, None, 7, 2);
        assert_eq!(named.compare(&numbered, AccountField::Name), Ordering::Less);
        assert_eq!(numbered.compare(&named, AccountField::Used), Ordering::Greater);
    }

    #[test]
    fn missing_counts_are_dashes_and_missing_quotas_none() {
        let row = row(AccountOwner::Project, None, 7, 1536);
        let cells: Vec<String> = AccountField::ALL.iter().map(|field| row.cell(*field, false)).collect();
        assert_eq!(cells, ["Project", "7", "1.50K", "none", "-", "-"]);
        assert_eq!(row.cell(AccountField::Quota, true), "0");
    }
}
