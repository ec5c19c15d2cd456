//! `zfs userspace`, `groupspace` and `projectspace`.

use cenote_listing::{AccountField, AccountOptions, AccountOwner as Who, accounts};

use crate::files;
use crate::prelude::*;

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

impl From<Field> for AccountField {
    fn from(field: Field) -> Self {
        match field {
            Field::Type => Self::Type,
            Field::Name => Self::Name,
            Field::Used => Self::Used,
            Field::Quota => Self::Quota,
            Field::Objused => Self::Objused,
            Field::Objquota => Self::Objquota,
        }
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

async fn show(context: &Context, args: &Options, default: &[Who]) -> Result<Outcome> {
    let is_project = default == [Who::Project];
    if is_project && (args.numeric || args.translate || !args.types.is_empty()) {
        return Err(usage("projectspace has no options -n, -i and -t"));
    }
    // The grammar does not keep the order between `-s` and `-S`: those of `-s` come first.
    let forwards = args.sort.iter().map(|field| ((*field).into(), false));
    let backwards = args.sort_backwards.iter().map(|field| ((*field).into(), true));
    let fields: Vec<AccountField> = args.fields.iter().copied().map(AccountField::from).collect();
    let options = AccountOptions {
        fields: if fields.is_empty() { AccountField::ALL.to_vec() } else { fields },
        sort: forwards.chain(backwards).collect(),
        owners: if args.types.is_empty() { default.to_vec() } else { wanted(&args.types) },
        is_scripted: args.scripted,
        is_exact: args.exact,
        is_numeric: args.numeric,
    };
    let (_, filesystem) = files::open(context, &args.dataset).await?;
    context.out(accounts(&filesystem, &options).await?)?;
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
