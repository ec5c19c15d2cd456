//! `zfs userspace`, `groupspace` and `projectspace`.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use anyhow::{Result, bail};
use cenote_format::nvlist::NvList;
use cenote_format::zpl::{Fuid, fuid_table};
use cenote_zpl::{FileSystem, SpaceKind, SpaceUse};
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::files;
use crate::outcome::{Outcome, usage};
use crate::output::{nicebytes, nicenum};

/// The table of domains' size at most: OpenZFS's own is some KiB.
const DOMAINS_MAX_BYTES: u64 = 16 << 20;

/// Options of all three.
#[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
pub(crate) struct Options {
    /// Tabs in place of columns, no heading.
    #[arg(short = 'H')]
    scripted: bool,
    /// Exact numbers.
    #[arg(short = 'p')]
    exact: bool,
    /// Fields: type, name, used, quota, objused, objquota.
    #[arg(short = 'o', value_name = "FIELD,…", value_delimiter = ',')]
    fields: Vec<Field>,
    /// Sort by this field; may be given several times.
    #[arg(short = 's', value_name = "FIELD")]
    sort: Vec<Field>,
    /// Sort by this field, backwards.
    #[arg(short = 'S', value_name = "FIELD")]
    sort_backwards: Vec<Field>,
    /// Numbers in place of names of users and groups.
    #[arg(short = 'n')]
    numeric: bool,
    /// Accepted: no system that this runs on translates Windows ids.
    #[arg(short = 'i')]
    translate: bool,
    /// Types: posixuser, smbuser, posixgroup, smbgroup, all.
    #[arg(short = 't', value_name = "TYPE,…", value_delimiter = ',')]
    types: Vec<Type>,
    /// File system or snapshot.
    #[arg(value_name = "FILESYSTEM|SNAPSHOT")]
    dataset: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
enum Field {
    Type,
    Name,
    Used,
    Quota,
    Objused,
    Objquota,
}

impl Field {
    const ALL: [Self; 6] = [Self::Type, Self::Name, Self::Used, Self::Quota, Self::Objused, Self::Objquota];

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

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
enum Type {
    Posixgroup,
    Posixuser,
    Smbgroup,
    Smbuser,
    All,
}

/// Whose space a row is, in the order that sorting by type has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    PosixGroup,
    PosixUser,
    SmbGroup,
    SmbUser,
    Project,
}

impl Who {
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
    who: Who,
    /// The name, where there is one.
    name: Option<String>,
    id: u64,
    space: SpaceUse,
}

impl Row {
    fn cell(&self, field: Field, exact: bool) -> String {
        let bytes = |value| if exact { u64::to_string(&value) } else { nicebytes(value) };
        let number = |value| if exact { u64::to_string(&value) } else { nicenum(value) };
        let space = &self.space;
        match field {
            Field::Type => self.who.text().to_owned(),
            Field::Name => self.name.clone().unwrap_or_else(|| self.id.to_string()),
            Field::Used => bytes(space.used_bytes),
            Field::Quota if space.quota_bytes == 0 && !exact => "none".to_owned(),
            Field::Quota => bytes(space.quota_bytes),
            Field::Objused | Field::Objquota if space.used_objects.is_none() && space.quota_objects == 0 => {
                "-".to_owned()
            }
            Field::Objused => number(space.used_objects.unwrap_or(0)),
            Field::Objquota if space.quota_objects == 0 && !exact => "none".to_owned(),
            Field::Objquota => number(space.quota_objects),
        }
    }

    fn compare(&self, other: &Self, field: Field) -> Ordering {
        match field {
            Field::Type => self.who.cmp(&other.who),
            Field::Name => match (&self.name, &other.name) {
                (Some(a), Some(b)) => a.cmp(b),
                // Where one has no name their numbers count; a name stands for 0 then.
                (a, b) => {
                    let number = |row: &Self, name: &Option<String>| if name.is_some() { 0 } else { row.id };
                    number(self, a).cmp(&number(other, b))
                }
            },
            Field::Used => self.space.used_bytes.cmp(&other.space.used_bytes),
            Field::Quota => self.space.quota_bytes.cmp(&other.space.quota_bytes),
            Field::Objused => self.space.used_objects.cmp(&other.space.used_objects),
            Field::Objquota => self.space.quota_objects.cmp(&other.space.quota_objects),
        }
    }
}

async fn show(context: &Context, args: &Options, default: &[Who]) -> Result<Outcome> {
    let is_project = default == [Who::Project];
    if is_project && (args.numeric || args.translate || !args.types.is_empty()) {
        return Err(usage("projectspace has no options -n, -i and -t"));
    }
    let wanted: Vec<Who> = if args.types.is_empty() { default.to_vec() } else { wanted(&args.types) };
    let opened = files::open(context, &args.dataset).await?;
    let domains = domains(&opened.filesystem).await?;
    let mut rows = Vec::new();
    let kinds = [
        (SpaceKind::User, [Who::PosixUser, Who::SmbUser], "/etc/passwd"),
        (SpaceKind::Group, [Who::PosixGroup, Who::SmbGroup], "/etc/group"),
        (SpaceKind::Project, [Who::Project, Who::Project], ""),
    ];
    for (kind, who, names) in kinds {
        if !who.iter().any(|who| wanted.contains(who)) {
            continue;
        }
        let names = if args.numeric || names.is_empty() { BTreeMap::new() } else { names_of(names) };
        for (id, space) in opened.filesystem.space(kind).await? {
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
        return Ok(Outcome::Good);
    }
    // As the original has it, columns are as wide as everything counted needs, shown or not.
    let fields = if args.fields.is_empty() { Field::ALL.to_vec() } else { args.fields.clone() };
    let widths: Vec<usize> = fields
        .iter()
        .map(|field| {
            let cells = rows.iter().map(|row| row.cell(*field, args.exact).chars().count());
            cells.chain([field.heading().len()]).max().unwrap_or(0)
        })
        .collect();
    sort(&mut rows, args);
    if !args.scripted {
        line(context, &fields, &widths, false, |field| field.heading().to_owned())?;
    }
    for row in rows.iter().filter(|row| wanted.contains(&row.who)) {
        line(context, &fields, &widths, args.scripted, |field| row.cell(field, args.exact))?;
    }
    Ok(Outcome::Good)
}

fn wanted(types: &[Type]) -> Vec<Who> {
    let of = |kind: &Type| match kind {
        Type::Posixgroup => vec![Who::PosixGroup],
        Type::Posixuser => vec![Who::PosixUser],
        Type::Smbgroup => vec![Who::SmbGroup],
        Type::Smbuser => vec![Who::SmbUser],
        Type::All => vec![Who::PosixGroup, Who::PosixUser, Who::SmbGroup, Who::SmbUser],
    };
    types.iter().flat_map(of).collect()
}

/// By the fields asked for, then by type and name. The grammar does not keep the order between `-s` and `-S`: those of
/// `-s` come first.
fn sort(rows: &mut [Row], args: &Options) {
    let forwards = args.sort.iter().map(|field| (*field, false));
    let backwards = args.sort_backwards.iter().map(|field| (*field, true));
    let last = [(Field::Type, false), (Field::Name, false)];
    let columns: Vec<(Field, bool)> = forwards.chain(backwards).chain(last).collect();
    rows.sort_by(|a, b| {
        let orders = columns.iter().map(|(field, is_backwards)| {
            let order = a.compare(b, *field);
            if *is_backwards { order.reverse() } else { order }
        });
        orders.fold(Ordering::Equal, Ordering::then)
    });
}

fn line(
    context: &Context,
    fields: &[Field],
    widths: &[usize],
    is_scripted: bool,
    cell: impl Fn(Field) -> String,
) -> Result<()> {
    let mut text = String::new();
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
    context.out(text)
}

/// Names by id of a file in the form of `/etc/passwd`; none where it cannot be read.
fn names_of(path: &str) -> BTreeMap<u64, String> {
    let text = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let mut names = BTreeMap::new();
    for line in text.lines() {
        let mut parts = line.split(':');
        if let (Some(name), _, Some(Ok(id))) = (parts.next(), parts.next(), parts.next().map(str::parse)) {
            names.entry(id).or_insert_with(|| name.to_owned());
        }
    }
    names
}

/// Windows domains by index, of the file system's table.
async fn domains(filesystem: &FileSystem) -> Result<BTreeMap<u64, String>> {
    let Some(object) = filesystem.fuid_table() else { return Ok(BTreeMap::new()) };
    let dnode = filesystem.dnode(object).await?;
    let size = dnode.phys().bonus.first_chunk::<8>().map_or(0, |bytes| dnode.byte_order().u64(*bytes));
    if size == 0 {
        return Ok(BTreeMap::new());
    }
    if size > DOMAINS_MAX_BYTES {
        bail!("object {object}: a table of domains of {size} bytes");
    }
    let list = NvList::parse(&dnode.read(0, size as usize).await?)?;
    let entries = list.lists(fuid_table::ARRAY).unwrap_or_default();
    let entry = |entry: &NvList| Some((entry.u64(fuid_table::INDEX)?, entry.str(fuid_table::DOMAIN)?.to_owned()));
    Ok(entries.iter().filter_map(entry).collect())
}

macro_rules! verb {
    ($module:ident, $doc:literal, $default:expr) => {
        #[doc = $doc]
        pub(crate) mod $module {
            use anyhow::Result;
            use serde::{Deserialize, Serialize};

            use crate::context::Context;
            use crate::outcome::Outcome;

            use super::Who;

            #[doc = $doc]
            #[derive(Clone, Debug, clap::Args, Serialize, Deserialize)]
            pub(crate) struct Args {
                #[command(flatten)]
                options: super::Options,
            }

            pub(crate) async fn run(context: &Context, args: Args) -> Result<Outcome> {
                const DEFAULT: &[Who] = $default;
                super::show(context, &args.options, DEFAULT).await
            }
        }
    };
}

verb!(
    userspace,
    "Space and objects that each user has in a file system, with quotas.",
    &[Who::PosixUser, Who::SmbUser]
);
verb!(
    groupspace,
    "Space and objects that each group has in a file system, with quotas.",
    &[Who::PosixGroup, Who::SmbGroup]
);
verb!(projectspace, "Space and objects that each project has in a file system, with quotas.", &[Who::Project]);

#[cfg(test)]
mod tests {
    use super::*;

    fn row(who: Who, name: Option<&str>, id: u64, used_bytes: u64) -> Row {
        Row { who, name: name.map(str::to_owned), id, space: SpaceUse { used_bytes, ..SpaceUse::default() } }
    }

    #[test]
    fn a_name_sorts_as_zero_among_numbers() {
        let named = row(Who::PosixUser, Some("root"), 0, 1);
        let numbered = row(Who::PosixUser, None, 7, 2);
        assert_eq!(named.compare(&numbered, Field::Name), Ordering::Less);
        assert_eq!(numbered.compare(&named, Field::Used), Ordering::Greater);
    }

    #[test]
    fn missing_counts_are_dashes_and_missing_quotas_none() {
        let row = row(Who::Project, None, 7, 1536);
        let cells: Vec<String> = Field::ALL.iter().map(|field| row.cell(*field, false)).collect();
        assert_eq!(cells, ["Project", "7", "1.50K", "none", "-", "-"]);
        assert_eq!(row.cell(Field::Quota, true), "0");
    }
}
