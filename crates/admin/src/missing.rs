//! Verbs and options of OpenZFS's tools that Cenote does not have yet, each with what to do instead.
//!
//! Scripts and fingers know OpenZFS's words. A program that parses them names one that is missing as missing; LIMITS.md has the same in prose.
//! Advice names only what is there.

/// A verb of OpenZFS's that Cenote lacks, and what to do instead.
pub type MissingVerb = (&'static str, &'static str);

/// An option that a verb of OpenZFS's has and ours has not: tool, verb (none of `zdb`), option, and what to do instead.
pub type MissingOption = (&'static str, &'static str, &'static str, &'static str);

/// Encryption.
const KEYS: &str = "'--key DATASET=FILE' loads a key for one command, such as 'cenote --key tank/a=FILE cp tank/a / DIR'; changing keys \
                    takes OpenZFS";
/// Shares.
const SHARES: &str = "mount the file system with 'cenote mount' and export the folder by /etc/exports or smb.conf";
/// Delegation.
const DELEGATION: &str = "a user needs access to the pool's devices, and has then all rights on the pool";

/// Verbs of `zpool` up to OpenZFS 2.4, short forms included, that are not among our commands.
const ZPOOL: [MissingVerb; 3] = [
    ("condense", "nothing has to be done: space maps are condensed as they are written"),
    ("ddtprune", "export the pool and import it with OpenZFS"),
    ("prefetch", "nothing has to be done: what is read stays in the cache ('--cache-bytes')"),
];

/// Verbs of `zfs` up to OpenZFS 2.4, short forms included, that are not among our commands.
const ZFS: [MissingVerb; 16] = [
    ("allow", DELEGATION),
    ("change-key", KEYS),
    ("jail", "it is for FreeBSD"),
    ("load-key", KEYS),
    ("program", "the verbs of 'zfs' do each step; 'zfs snapshot' and 'zfs destroy' take several datasets in one txg"),
    ("project", "'zfs projectspace' shows what projects use; OpenZFS sets project ids"),
    ("rewrite", "copy the file and rename the copy over it"),
    ("share", SHARES),
    ("unallow", DELEGATION),
    ("unjail", "it is for FreeBSD"),
    ("unload-key", KEYS),
    ("unshare", SHARES),
    ("unzone", "'cenote mount' of the dataset in the container"),
    (
        "upgrade",
        "OpenZFS changes the version of a file system; 'zfs get version' shows it, and 'zpool upgrade' enables features of the pool",
    ),
    ("wait", "'zfs get -p used' and 'zpool get freeing' show what goes on in the background"),
    ("zone", "'cenote mount' of the dataset in the container"),
];

/// Verbs of `zstream` up to OpenZFS 2.4 that are not among our commands.
const ZSTREAM: [MissingVerb; 1] = [("raw", "'zfs receive' takes the stream")];

/// Slots of disks.
const POWER: &str = "the power of a disk's slot is switched by 'ledctl' or the files of /sys/class/enclosure";
/// Rewinding.
const REWINDS: &str =
    "'zpool export POOL', then 'zpool import -F POOL'; with '-nF' it only says whether that would work";
/// The list of imported pools.
const CACHE_FILE: &str =
    "the variable CENOTE_CACHE names another list of imported pools, and '-d' a folder or device to look at";
/// Looks of `zdb` that have no counterpart.
const OF_ZDB: &str = "OpenZFS's 'zdb' has it";

/// Options of the manual pages up to OpenZFS 2.4, and those that its programs take without naming them.
pub const OPTIONS: [MissingOption; 32] = [
    ("zpool", "clear", "-F", REWINDS),
    ("zpool", "clear", "-n", REWINDS),
    ("zpool", "clear", "-X", REWINDS),
    ("zpool", "clear", "--power", POWER),
    ("zpool", "export", "-F", "'-f' exports a pool in use; one that is suspended is given up by it"),
    ("zpool", "import", "-l", "'--key DATASET=FILE' loads a key for each command that needs it"),
    ("zpool", "import", "-V", "'--allow-missing' reads a pool without devices that it would need"),
    ("zpool", "import", "-E", "'zpool import' does not start what keeps a pool; nothing has to be left out"),
    ("zpool", "import", "-i", "name the pool, by its name or guid"),
    ("zpool", "status", "-d", "'zpool status' counts errors of all reads; none bypass the cache here"),
    ("zpool", "status", "--power", POWER),
    ("zdb", "", "-B", "'zfs send -w' writes a stream that is as raw"),
    ("zdb", "", "-E", "'cenote inspect bp' reads a block by its place; OpenZFS's 'zdb' takes a pointer apart"),
    ("zdb", "", "-F", "'cenote --rewind recent zdb' opens an earlier txg"),
    ("zdb", "", "-G", "'zpool history -i' and messages on standard error tell what was done"),
    ("zdb", "", "-I", "'--tunable' has the limits that this engine knows; 'cenote tunables' lists them"),
    ("zdb", "", "-K", "'--key DATASET=FILE' loads a key"),
    ("zdb", "", "-k", "'cenote --at-checkpoint zdb' opens the pool as of its checkpoint"),
    ("zdb", "", "-M", OF_ZDB),
    ("zdb", "", "-N", "give the dataset's name in place of its number"),
    ("zdb", "", "-o", "'--tunable NAME=VALUE'; 'cenote tunables' lists them"),
    ("zdb", "", "-r", "'cenote cp DATASET PATH FOLDER' copies a file out"),
    ("zdb", "", "-s", "'cenote kstat POOL' counts I/O"),
    ("zdb", "", "-S", OF_ZDB),
    ("zdb", "", "-T", OF_ZDB),
    ("zdb", "", "-t", "'cenote --at-txg TXG zdb' opens the pool as of a txg"),
    ("zdb", "", "-U", CACHE_FILE),
    ("zdb", "", "-V", "no list of imported pools is used where '-p' says where to look"),
    ("zdb", "", "-x", OF_ZDB),
    ("zdb", "", "-X", "'cenote --rewind extreme zdb' goes back as far as it takes"),
    ("zdb", "", "-Y", OF_ZDB),
    ("zdb", "", "-y", "'cenote verify POOL' checks space maps and logs against the blocks in use"),
];

/// The verbs that a tool lacks; none of a word that is no tool.
#[must_use]
pub fn verbs_of(tool: &str) -> &'static [MissingVerb] {
    match tool {
        "zpool" => &ZPOOL,
        "zfs" => &ZFS,
        "zstream" => &ZSTREAM,
        _ => &[],
    }
}

/// All advice, of verbs and of options.
pub fn advice() -> impl Iterator<Item = &'static str> {
    let of_verbs = ZPOOL.iter().chain(&ZFS).chain(&ZSTREAM).map(|(_, instead)| *instead);
    of_verbs.chain(OPTIONS.iter().map(|(.., instead)| *instead))
}
