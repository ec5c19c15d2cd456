/*
 * Cenote: OpenZFS pools without a kernel module. The library for C.
 *
 *   cc program.c -lcenote
 *
 * Every function that can fail returns NULL, or an error that the caller frees with cenote_error_free(). A handle that a function
 * gives is NULL where it failed, and is freed with the function of its type; handles are freed in any order, and all functions that
 * free take NULL. Strings that are given through a char ** are freed with cenote_string_free(), and must not be changed before; a
 * const char * belongs to the handle that it was asked of, and is there as long as that is.
 *
 * Any thread may call any function, with handles that other threads use at the same time. Only to free a handle is the last that is
 * done with it. A process that was made by fork() cannot use the library if its parent has used it; after exec() it can.
 *
 * Names of datasets and properties are UTF-8. Paths are any bytes, begin at the root directory of their dataset, and follow symbolic
 * links within the dataset.
 *
 * Before version 1.0 a new minor version may change this interface: CENOTE_ABI says so, and is part of the name of the shared library.
 */
#ifndef CENOTE_H
#define CENOTE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CENOTE_API extern
#if defined(__GNUC__)
#define CENOTE_CHECKED __attribute__((warn_unused_result))
#else
#define CENOTE_CHECKED
#endif

/* The interface that this header is of. A program that loads the library by its name compares it with cenote_abi(). */
#define CENOTE_ABI 0

/* A number that is not known, and an offset that is nowhere. */
#define CENOTE_UNKNOWN UINT64_MAX

typedef struct cenote_error cenote_error;
typedef struct cenote_list cenote_list;
typedef struct cenote_options cenote_options;
typedef struct cenote_pool cenote_pool;
typedef struct cenote_status cenote_status;
typedef struct cenote_filesystem cenote_filesystem;
typedef struct cenote_dir cenote_dir;
typedef struct cenote_file cenote_file;
typedef struct cenote_volume cenote_volume;
typedef struct cenote_changes cenote_changes;
typedef struct cenote_history cenote_history;
typedef struct cenote_send_options cenote_send_options;
typedef struct cenote_receive_options cenote_receive_options;
typedef struct cenote_report cenote_report;

/* A time since 1970; nanoseconds count forwards, before 1970 too. */
typedef struct cenote_time {
	int64_t seconds;
	uint32_t nanoseconds;
	uint32_t reserved;
} cenote_time;

CENOTE_API uint32_t cenote_abi(void);
/* The version, such as "0.1.0". */
CENOTE_API const char *cenote_version(void);
CENOTE_API void cenote_string_free(char *string);

/* --- Errors --------------------------------------------------------------------------------------------------------------------- */

enum cenote_error_kind {
	CENOTE_INTERNAL = 1,       /* a bug of Cenote; the message says where */
	CENOTE_CORRUPT = 2,        /* bytes were read that are not what was written, and no redundancy made up for them */
	CENOTE_IO = 3,             /* a device failed */
	CENOTE_UNAVAILABLE = 4,    /* too few devices are there, or take what is written */
	CENOTE_NOT_FOUND = 5,      /* there is no such pool, dataset, file, attribute or property */
	CENOTE_EXISTS = 6,         /* it is there already; or a directory that is to go has entries */
	CENOTE_BUSY = 7,           /* somebody uses it: another process or system, an open file system, a snapshot or clone */
	CENOTE_NO_SPACE = 8,       /* no space is left in the pool */
	CENOTE_READ_ONLY = 9,      /* the pool, the dataset or the snapshot is not open to be changed */
	CENOTE_DENIED = 10,        /* a flag of the file forbids it */
	CENOTE_KEY = 11,           /* the dataset is encrypted and its key is missing, or a key is not the dataset's */
	CENOTE_NOT_SUPPORTED = 12, /* Cenote cannot do that yet */
	CENOTE_MISUSE = 13,        /* the request makes no sense: a NULL, a bad name or value, a file where a directory is needed */
	CENOTE_CLOSED = 14,        /* the pool was exported, or a txg could not be written: the handle is of no use any more */
	CENOTE_QUOTA = 15,         /* a quota of the dataset, of one above it or of a user is used up; the pool may have space */
	CENOTE_INTERRUPTED = 16,   /* it was given up before its end, and can be tried again */
	CENOTE_STALE = 17          /* the file or directory that was open is gone: its dataset was rolled back */
};

/* The place of an error, as far as it is known: strings are NULL and numbers CENOTE_UNKNOWN where it is not. */
typedef struct cenote_place {
	const char *pool;
	const char *dataset; /* dataset or snapshot, with its whole name */
	const char *path;    /* in the file system, or of a file of this system */
	const char *device;  /* the device that failed first */
	uint64_t offset;     /* on that device, in bytes */
	uint64_t objset;     /* its number; 0 is the pool's own */
	uint64_t object;     /* its number: the inode of a file */
	uint64_t block;      /* its number in the object */
	uint64_t level;      /* the block's level; 0 is data */
} cenote_place;

/* One of enum cenote_error_kind; 0 of NULL. */
CENOTE_API uint32_t cenote_error_kind(const cenote_error *error);
/* The whole message, UTF-8. It ends with advice where there is some. */
CENOTE_API const char *cenote_error_message(const cenote_error *error);
/* Where it happened, as far as it is known; of NULL, nothing is. */
CENOTE_API void cenote_error_place(const cenote_error *error, cenote_place *place);
CENOTE_API void cenote_error_free(cenote_error *error);

/* --- Lists of pools, datasets, snapshots, bookmarks and holds ----------------------------------------------------------------------- */

enum cenote_kind {
	CENOTE_EXPORTED_POOL = 1,
	CENOTE_POOL = 2, /* a pool that was not exported: somebody may have it */
	CENOTE_FILESYSTEM = 3,
	CENOTE_VOLUME = 4,
	CENOTE_SNAPSHOT = 5,
	CENOTE_BOOKMARK = 6,
	CENOTE_HOLD = 7 /* its name is the tag */
};

CENOTE_API size_t cenote_list_count(const cenote_list *list);
/* Past the end: NULL, 0 and 0. */
CENOTE_API const char *cenote_list_name(const cenote_list *list, size_t index);
CENOTE_API uint32_t cenote_list_kind(const cenote_list *list, size_t index);
CENOTE_API uint64_t cenote_list_guid(const cenote_list *list, size_t index);
/* The time when a snapshot was taken, also of a bookmark, or a hold was placed, in seconds since 1970; 0 where there is none. */
CENOTE_API uint64_t cenote_list_time(const cenote_list *list, size_t index);
CENOTE_API void cenote_list_free(cenote_list *list);

/* --- Finding, opening and making pools -------------------------------------------------------------------------------------------- */

/* Options begin as: read-only, and pools are looked for in the usual places. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_options_new(cenote_options **options);
/* Looks at this device or image file, or at all in this folder. Several are searched together. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_options_search(const cenote_options *options, const char *path);
/* Opens the pool to be changed. Its devices are this process's alone until it is exported. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_options_write(const cenote_options *options, bool write);
/* Opens a pool that was not exported, and may be in use (zpool import -f); makes one over what devices hold (zpool create -f). */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_options_force(const cenote_options *options, bool force);
/* Goes on where a whole top-level vdev or a log device is missing: blocks that lie there cannot be read. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_options_allow_missing(const cenote_options *options, bool allow);
/* Goes back a few txgs where the newest does not hold (zpool import -F). Read-only. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_options_rewind(const cenote_options *options);
/* Opens the pool as of this txg, or the newest before it that is still there. Read-only. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_options_at_txg(const cenote_options *options, uint64_t txg);
/* Memory of the block cache; without this, a quarter of what the process may use. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_options_cache_bytes(const cenote_options *options, size_t bytes);
/* A tunable with OpenZFS's name, such as "zfs_txg_timeout". */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_options_tunable(const cenote_options *options, const char *name, const char *value);
/* The key of an encrypted dataset, in the form of its keyformat, for all datasets that share it. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_options_key(const cenote_options *options, const char *dataset, const void *key,
	size_t len);
CENOTE_API void cenote_options_free(cenote_options *options);

/* In the three functions below `options` may be NULL. */

/* The pools that can be found, in the order of their names. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_find(const cenote_options *options, cenote_list **pools);
/* Opens the pool of this name or guid. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_open(const cenote_options *options, const char *name, cenote_pool **pool);
/*
 * Makes a pool on vdevs in the words of `zpool create`, and opens it to be changed. Of the options, force and cache_bytes count. Where
 * file_bytes is not 0, image files of that size are made for vdevs that are not there. The arrays end with NULL, or are NULL; properties
 * are "NAME=VALUE".
 */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_create(const cenote_options *options, const char *name, const char *const *vdevs,
	uint64_t file_bytes, const char *const *properties, const char *const *root_properties, cenote_pool **pool);

/* --- Pools ------------------------------------------------------------------------------------------------------------------------ */

/*
 * A pool that is open to be changed is written in the background: what was changed is on disk a few seconds later, or when
 * cenote_pool_sync(), cenote_filesystem_sync(), cenote_file_sync() or cenote_volume_flush() has returned.
 */
CENOTE_API const char *cenote_pool_name(const cenote_pool *pool);
CENOTE_API uint64_t cenote_pool_guid(const cenote_pool *pool);
/* The last txg that is on disk. */
CENOTE_API uint64_t cenote_pool_txg(const cenote_pool *pool);
CENOTE_API bool cenote_pool_is_read_only(const cenote_pool *pool);
CENOTE_API CENOTE_CHECKED cenote_error *cenote_pool_load_key(const cenote_pool *pool, const char *dataset, const void *key, size_t len);
CENOTE_API CENOTE_CHECKED cenote_error *cenote_pool_sync(const cenote_pool *pool);
/* Has a suspended pool go on, and forgets the errors that were counted (zpool clear). */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_pool_resume(const cenote_pool *pool);
/*
 * Writes everything, marks the pool as exported and lets go of its devices, which are kept from others until the pool and all that was
 * opened in it are freed. What is called afterwards fails with CENOTE_CLOSED.
 */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_pool_export(const cenote_pool *pool);
/* Without an export before it, what is not on disk is lost, as in a crash. */
CENOTE_API void cenote_pool_free(cenote_pool *pool);

enum cenote_health {
	CENOTE_ONLINE = 1,
	CENOTE_DEGRADED = 2,    /* it works, with less redundancy than it should have */
	CENOTE_GONE = 3,        /* too much of it is missing: UNAVAIL */
	CENOTE_OFFLINE = 4,     /* it was taken offline */
	CENOTE_FAULTED = 5      /* it is not used because of its errors */
};

typedef struct cenote_vdev {
	const char *name; /* of the device or group; it belongs to the cenote_status */
	uint64_t guid;    /* 0 where it has none */
	uint64_t read_errors;
	uint64_t write_errors;
	uint64_t checksum_errors;
	uint32_t health; /* one of enum cenote_health */
	uint32_t depth;  /* 0 is the root; the children of a vdev follow it, one deeper */
	bool is_behind;  /* it has missed writes that it has not made up for */
} cenote_vdev;

CENOTE_API CENOTE_CHECKED cenote_error *cenote_pool_status(const cenote_pool *pool, cenote_status **status);
/* Why nothing is written at present; NULL where it is. */
CENOTE_API const char *cenote_status_suspended(const cenote_status *status);
/* The number of vdevs, the root among them. */
CENOTE_API size_t cenote_status_count(const cenote_status *status);
CENOTE_API CENOTE_CHECKED cenote_error *cenote_status_vdev(const cenote_status *status, size_t index, cenote_vdev *vdev);
CENOTE_API void cenote_status_free(cenote_status *status);

/* --- Datasets and snapshots ------------------------------------------------------------------------------------------------------- */

/* All datasets, from the top down. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_datasets(const cenote_pool *pool, cenote_list **datasets);
/* The snapshots of a dataset, the oldest first. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_snapshots(const cenote_pool *pool, const char *dataset, cenote_list **snapshots);
CENOTE_API CENOTE_CHECKED cenote_error *cenote_dataset_kind(const cenote_pool *pool, const char *dataset, uint32_t *kind);
CENOTE_API CENOTE_CHECKED cenote_error *cenote_dataset_space(const cenote_pool *pool, const char *dataset, uint64_t *used_bytes,
	uint64_t *referenced_bytes);
CENOTE_API CENOTE_CHECKED cenote_error *cenote_create_filesystem(const cenote_pool *pool, const char *dataset,
	const char *const *properties);
CENOTE_API CENOTE_CHECKED cenote_error *cenote_create_volume(const cenote_pool *pool, const char *dataset, uint64_t size_bytes,
	const char *const *properties);
CENOTE_API CENOTE_CHECKED cenote_error *cenote_get_property(const cenote_pool *pool, const char *dataset, const char *property,
	char **value);
CENOTE_API CENOTE_CHECKED cenote_error *cenote_set_property(const cenote_pool *pool, const char *dataset, const char *property,
	const char *value);
CENOTE_API CENOTE_CHECKED cenote_error *cenote_rename_dataset(const cenote_pool *pool, const char *dataset, const char *to);
/* Destroys a dataset, with its snapshots and all below it if `all_below`; or a snapshot or bookmark. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_destroy(const cenote_pool *pool, const char *dataset, bool all_below);
/* Takes a snapshot: "tank/home@monday". */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_snapshot(const cenote_pool *pool, const char *snapshot);
/* Has a dataset be as it was; destroys newer snapshots if `over_newer`. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_rollback(const cenote_pool *pool, const char *snapshot, bool over_newer);
CENOTE_API CENOTE_CHECKED cenote_error *cenote_clone(const cenote_pool *pool, const char *snapshot, const char *dataset,
	const char *const *properties);

/* Makes a bookmark of a snapshot or of a bookmark; `name` is the part after the '#'. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_bookmark(const cenote_pool *pool, const char *source, const char *name);
/* The bookmarks of a dataset, the oldest first. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_bookmarks(const cenote_pool *pool, const char *dataset, cenote_list **bookmarks);
/* Holds a snapshot: it is not destroyed before cenote_release() with the same tag. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_hold(const cenote_pool *pool, const char *snapshot, const char *tag);
CENOTE_API CENOTE_CHECKED cenote_error *cenote_release(const cenote_pool *pool, const char *snapshot, const char *tag);
/* The holds of a snapshot, in the order of their tags. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_holds(const cenote_pool *pool, const char *snapshot, cenote_list **holds);

enum cenote_key_status {
	CENOTE_KEY_NONE = 1,        /* the dataset is not encrypted */
	CENOTE_KEY_AVAILABLE = 2,   /* its key is loaded */
	CENOTE_KEY_UNAVAILABLE = 3  /* its key is missing: cenote_pool_load_key() */
};

/* One of enum cenote_key_status. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_key_status(const cenote_pool *pool, const char *dataset, uint32_t *status);
/* Forgets the key of a dataset and of all that share it. CENOTE_BUSY: one of them is open, and the message says who uses it. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_unload_key(const cenote_pool *pool, const char *dataset);
/* Not supported yet: fails with CENOTE_NOT_SUPPORTED, and says what to do instead. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_change_key(const cenote_pool *pool, const char *dataset, const void *key,
	size_t len);

/* --- Changes between snapshots ------------------------------------------------------------------------------------------------------ */

enum cenote_change_kind {
	CENOTE_MODIFIED = 1, /* its contents or attributes */
	CENOTE_ADDED = 2,
	CENOTE_REMOVED = 3,
	CENOTE_RENAMED = 4, /* `to` is its path now */
	CENOTE_LINKED = 5   /* it has `links` more names, or fewer */
};

/* A file that changed. Its strings belong to the cenote_changes, until the next call of cenote_changes_next(). */
typedef struct cenote_change {
	const char *path;   /* from the root directory, the former one of a file that was renamed; NULL at the end */
	const char *to;     /* or NULL */
	int64_t links;
	cenote_time changed;
	uint32_t kind;      /* one of enum cenote_change_kind */
	uint32_t file_kind; /* one of enum cenote_file_kind */
} cenote_change;

/* The changes from a snapshot to a later one of the same file system or of a clone, or to the present state of a file system. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_changes_open(const cenote_pool *pool, const char *earlier, const char *later,
	cenote_changes **changes);
/* The next one. Files that could not be compared are an error after all others. One thread at a time calls this. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_changes_next(const cenote_changes *changes, cenote_change *change);
CENOTE_API void cenote_changes_free(cenote_changes *changes);

/* --- The history of a pool ------------------------------------------------------------------------------------------------------------ */

enum cenote_record_kind {
	CENOTE_COMMAND = 1,        /* a command line, in `text` */
	CENOTE_INTERNAL_EVENT = 2, /* a change by the pool itself: `name`, `dataset`, `text` and `txg` */
	CENOTE_OTHER_RECORD = 3    /* a record of another form, with its name in `text` */
};

/* A record. Its strings belong to the cenote_history, and are NULL where it has none. */
typedef struct cenote_record {
	const char *text;
	const char *name;
	const char *dataset;
	const char *host;
	uint64_t txg;
	uint64_t uid; /* the user, or CENOTE_UNKNOWN */
	cenote_time time;
	uint32_t kind; /* one of enum cenote_record_kind */
} cenote_record;

/* All of it, the oldest record first. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_pool_history(const cenote_pool *pool, cenote_history **history);
/* Records a line, as commands of OpenZFS do. The library itself records changes, not calls. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_pool_record_command(const cenote_pool *pool, const char *line);
CENOTE_API size_t cenote_history_count(const cenote_history *history);
CENOTE_API CENOTE_CHECKED cenote_error *cenote_history_record(const cenote_history *history, size_t index, cenote_record *record);
CENOTE_API void cenote_history_free(cenote_history *history);

/* --- Sending and receiving ------------------------------------------------------------------------------------------------------------ */

/*
 * Streams go through descriptors of files, pipes and sockets, which stay open, and must not be
 * non-blocking; a receive may read past the end of its stream; functions wait as write() and read() do, and a pipe without a
 * reader raises SIGPIPE. To send and to receive at once takes two threads or processes. Options may be NULL, and so may the place for a
 * report.
 */

/* Options begin as: one snapshot, whole, without properties. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_send_options_new(cenote_send_options **options);
/* Only the changes since a snapshot or bookmark, "tank/home@monday" or "@monday" (-i); `with_between`: all snapshots between too (-I). */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_send_options_since(const cenote_send_options *options, const char *source,
	bool with_between);
/* All datasets below too, with their snapshots and properties (-R). */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_send_options_replicate(const cenote_send_options *options, bool replicate);
/* With replicate: without a dataset and all below it (-X); and without datasets that lack the snapshot (-s). */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_send_options_exclude(const cenote_send_options *options, const char *dataset);
CENOTE_API CENOTE_CHECKED cenote_error *cenote_send_options_skip_missing(const cenote_send_options *options, bool skip);
/* Properties of the dataset (-p), and holds of the snapshots (-h). */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_send_options_properties(const cenote_send_options *options, bool with);
CENOTE_API CENOTE_CHECKED cenote_error *cenote_send_options_holds(const cenote_send_options *options, bool with);
/* Blocks as they are on disk: encrypted ones remain so, without their key (-w); compressed ones (-c); those above 128 KiB (-L). */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_send_options_raw(const cenote_send_options *options, bool raw);
CENOTE_API CENOTE_CHECKED cenote_error *cenote_send_options_compressed(const cenote_send_options *options, bool compressed);
CENOTE_API CENOTE_CHECKED cenote_error *cenote_send_options_large_blocks(const cenote_send_options *options, bool large);
CENOTE_API void cenote_send_options_free(cenote_send_options *options);
/* Writes the stream of a snapshot. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_send(const cenote_pool *pool, const char *snapshot,
	const cenote_send_options *options, int fd, cenote_report **report);
/* Writes the rest of a stream whose receiver was interrupted, from its token. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_send_resume(const cenote_pool *pool, const char *token,
	const cenote_send_options *options, int fd, cenote_report **report);

/* The part of a sent name that is added to the name that is given to cenote_receive(). */
enum cenote_sent_name {
	CENOTE_SENT_NAME_REPLACED = 0,     /* of a package, the names below its top */
	CENOTE_SENT_NAME_WITHOUT_POOL = 1, /* all but the pool (-d) */
	CENOTE_SENT_NAME_LAST = 2          /* the last part of the top's name, and all below (-e) */
};

/* Options begin as: nothing is overwritten, and a stream that breaks off leaves nothing. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_receive_options_new(cenote_receive_options **options);
/* Destroys changes and later snapshots that are in the way, and with a package all that its sender has no more (-F). */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_receive_options_force(const cenote_receive_options *options, bool force);
/* Keeps the part that was received of a stream that breaks off (-s): cenote_receive_resume_token(). */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_receive_options_resumable(const cenote_receive_options *options, bool resumable);
CENOTE_API CENOTE_CHECKED cenote_error *cenote_receive_options_skip_holds(const cenote_receive_options *options, bool skip);
CENOTE_API CENOTE_CHECKED cenote_error *cenote_receive_options_sent_name(const cenote_receive_options *options, uint32_t part);
/* Makes the dataset as a clone of this snapshot (-o origin=). */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_receive_options_origin(const cenote_receive_options *options, const char *snapshot);
/* Sets a property in place of the one that comes (-o), or leaves one out (-x). */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_receive_options_property(const cenote_receive_options *options, const char *name,
	const char *value);
CENOTE_API CENOTE_CHECKED cenote_error *cenote_receive_options_exclude(const cenote_receive_options *options,
	const char *property);
CENOTE_API void cenote_receive_options_free(cenote_receive_options *options);
/* Receives a stream, or a package of them, as the dataset or snapshot `target`. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_receive(const cenote_pool *pool, const char *target,
	const cenote_receive_options *options, int fd, cenote_report **report);
/* The token by which a sender resumes a stream that broke off; NULL if nothing was received in part. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_receive_resume_token(const cenote_pool *pool, const char *dataset, char **token);
/* Gives up the part of a stream that was received (zfs receive -A). */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_receive_abort(const cenote_pool *pool, const char *dataset);

/* Bytes that were sent; 0 of a receive. */
CENOTE_API uint64_t cenote_report_bytes(const cenote_report *report);
/* False if something was left out, or could not be destroyed or renamed: the warnings name it. */
CENOTE_API bool cenote_report_is_whole(const cenote_report *report);
/* The datasets that were received, and messages, each a sentence; NULL past their ends. */
CENOTE_API const char *cenote_report_dataset(const cenote_report *report, size_t index);
CENOTE_API const char *cenote_report_warning(const cenote_report *report, size_t index);
CENOTE_API void cenote_report_free(cenote_report *report);

/* --- File systems ----------------------------------------------------------------------------------------------------------------- */

enum cenote_file_kind {
	CENOTE_REGULAR_FILE = 1,
	CENOTE_DIRECTORY = 2,
	CENOTE_SYMLINK = 3,
	CENOTE_PIPE = 4,
	CENOTE_SOCKET = 5,
	CENOTE_CHAR_DEVICE = 6,
	CENOTE_BLOCK_DEVICE = 7
};

typedef struct cenote_metadata {
	uint64_t object;     /* its number in the dataset: the inode */
	uint64_t generation; /* the txg in which it was made, which tells reuses of a number apart */
	uint64_t size;       /* in bytes; of a directory, its entries with . and .. */
	uint64_t allocated;  /* bytes that it takes, without what is not on disk yet */
	uint64_t links;
	uint32_t kind; /* one of enum cenote_file_kind */
	uint32_t mode; /* permission bits, with set-uid, set-gid and sticky */
	uint32_t uid;
	uint32_t gid;
	cenote_time accessed;
	cenote_time modified;
	cenote_time changed;
	cenote_time created;
} cenote_metadata;

/* Opens the file system of a dataset or snapshot. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_filesystem_open(const cenote_pool *pool, const char *dataset,
	cenote_filesystem **filesystem);
CENOTE_API bool cenote_filesystem_is_read_only(const cenote_filesystem *filesystem);
/* As of the last txg, where it is open to be changed; elsewhere cenote_dataset_space() has it. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_filesystem_space(const cenote_filesystem *filesystem, uint64_t *used_bytes,
	uint64_t *available_bytes);
/* Waits until all that was changed in it is on disk, in the intent log at least. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_filesystem_sync(const cenote_filesystem *filesystem);
CENOTE_API void cenote_filesystem_free(cenote_filesystem *filesystem);

CENOTE_API CENOTE_CHECKED cenote_error *cenote_stat(const cenote_filesystem *filesystem, const char *path, bool follow,
	cenote_metadata *metadata);
/* With mode 755. If `parents`, those above it too, and one that is there is left as it is. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_mkdir(const cenote_filesystem *filesystem, const char *path, bool parents);
CENOTE_API CENOTE_CHECKED cenote_error *cenote_remove_file(const cenote_filesystem *filesystem, const char *path);
CENOTE_API CENOTE_CHECKED cenote_error *cenote_remove_dir(const cenote_filesystem *filesystem, const char *path);
/* What is at `to` is replaced, if it may be. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_rename(const cenote_filesystem *filesystem, const char *from, const char *to);
CENOTE_API CENOTE_CHECKED cenote_error *cenote_link(const cenote_filesystem *filesystem, const char *file, const char *path);
CENOTE_API CENOTE_CHECKED cenote_error *cenote_symlink(const cenote_filesystem *filesystem, const char *target, const char *path);
CENOTE_API CENOTE_CHECKED cenote_error *cenote_readlink(const cenote_filesystem *filesystem, const char *path, char **target);
CENOTE_API CENOTE_CHECKED cenote_error *cenote_set_mode(const cenote_filesystem *filesystem, const char *path, uint32_t mode);
CENOTE_API CENOTE_CHECKED cenote_error *cenote_set_owner(const cenote_filesystem *filesystem, const char *path, uint32_t uid,
	uint32_t gid);
CENOTE_API CENOTE_CHECKED cenote_error *cenote_set_modified(const cenote_filesystem *filesystem, const char *path, int64_t seconds,
	uint32_t nanoseconds);
/* The value's length is given in any case, and the value where `len` is enough for it. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_get_xattr(const cenote_filesystem *filesystem, const char *path, const char *name,
	void *buffer, size_t len, size_t *value_len);
CENOTE_API CENOTE_CHECKED cenote_error *cenote_set_xattr(const cenote_filesystem *filesystem, const char *path, const char *name,
	const void *value, size_t len);
CENOTE_API CENOTE_CHECKED cenote_error *cenote_remove_xattr(const cenote_filesystem *filesystem, const char *path, const char *name);
/* The names, each with a zero byte behind it; and their length, as above. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_list_xattrs(const cenote_filesystem *filesystem, const char *path, void *buffer,
	size_t len, size_t *names_len);

CENOTE_API CENOTE_CHECKED cenote_error *cenote_dir_open(const cenote_filesystem *filesystem, const char *path, cenote_dir **dir);
/*
 * The next entry, in no particular order and without . and ..; its name is NULL at the end, and is freed with cenote_string_free(). The
 * kind is 0 where the entry does not say it. An entry that is there all the time is listed once, whatever comes and goes meanwhile.
 */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_dir_next(const cenote_dir *dir, char **name, uint32_t *kind, uint64_t *object);
CENOTE_API void cenote_dir_free(cenote_dir *dir);

/* --- Files ------------------------------------------------------------------------------------------------------------------------ */

/* Opens a file that is there, to be read, and to be written where the file system can be changed. It outlives its names. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_file_open(const cenote_filesystem *filesystem, const char *path, cenote_file **file);
/* Makes a file, with mode 644, or makes one that is there empty; and opens it. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_file_create(const cenote_filesystem *filesystem, const char *path, cenote_file **file);
CENOTE_API uint64_t cenote_file_size(const cenote_file *file);
CENOTE_API CENOTE_CHECKED cenote_error *cenote_file_stat(const cenote_file *file, cenote_metadata *metadata);
/* Reads up to `len` bytes; fewer only at the end of the file. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_file_pread(const cenote_file *file, void *buffer, size_t len, uint64_t offset,
	size_t *read);
/* Writes all of it, or fails. The file becomes longer where it reaches beyond its end. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_file_pwrite(const cenote_file *file, const void *data, size_t len, uint64_t offset);
CENOTE_API CENOTE_CHECKED cenote_error *cenote_file_truncate(const cenote_file *file, uint64_t size);
/* The first offset at or after `offset` that is not in a hole, or that is in one or at the end; CENOTE_UNKNOWN where there is none. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_file_next_data(const cenote_file *file, uint64_t offset, uint64_t *found);
CENOTE_API CENOTE_CHECKED cenote_error *cenote_file_next_hole(const cenote_file *file, uint64_t offset, uint64_t *found);
/* Waits until all that was changed of it is on disk, in the intent log at least (fsync). */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_file_sync(const cenote_file *file);
CENOTE_API void cenote_file_free(cenote_file *file);

/* --- Volumes ---------------------------------------------------------------------------------------------------------------------- */

/* Opens a volume, or a snapshot of one. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_volume_open(const cenote_pool *pool, const char *dataset, cenote_volume **volume);
CENOTE_API uint64_t cenote_volume_size(const cenote_volume *volume);
/* Writes of whole blocks of this size read nothing. */
CENOTE_API uint64_t cenote_volume_block_size(const cenote_volume *volume);
CENOTE_API bool cenote_volume_is_read_only(const cenote_volume *volume);
/* Reads all of it, which has to lie within the volume. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_volume_pread(const cenote_volume *volume, void *buffer, size_t len, uint64_t offset);
CENOTE_API CENOTE_CHECKED cenote_error *cenote_volume_pwrite(const cenote_volume *volume, const void *data, size_t len,
	uint64_t offset);
/* Frees a range, which reads as zeros then. Parts of blocks at its ends stay as they are. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_volume_trim(const cenote_volume *volume, uint64_t offset, uint64_t len);
/* Waits until all that was written is on disk, in the intent log at least. */
CENOTE_API CENOTE_CHECKED cenote_error *cenote_volume_flush(const cenote_volume *volume);
CENOTE_API void cenote_volume_free(cenote_volume *volume);

#ifdef __cplusplus
}
#endif

#endif
