/*
 * openzfs: OpenZFS's own code in this process (libzpool, which ztest and zdb use), held on a pool of files and told what to do, a command a line.
 *
 *   openzfs FOLDER
 *
 * reads commands from standard input. FOLDER has the devices, which commands name by the names of their files. Each command is answered by one line,
 * "ok" or "error NUMBER TEXT"; `status` and `errors` print lines before it. The process ends at the end of the input, by `quit`, or by itself at a cut: as
 * if it had been killed, nothing of the pool is closed.
 *
 *   import POOL [rewind]          export                       quit
 *   sync [TIMES]                  set VARIABLE VALUE           of libzpool
 *   write DATASET SEED COUNT      blocks of a volume, a record each; a txg for every sixteen
 *   check DATASET SEED COUNT      compares them
 *   scrub | pause | stop          offline DEVICE | online DEVICE | clear
 *   attach DEVICE NEW [rebuild]   replace DEVICE NEW [rebuild] | detach DEVICE
 *   expand VDEV NEW               VDEV: the number of a raidz vdev
 *   remove VDEV | cancel          a device, or the number of a vdev
 *   checkpoint | discard          initialize DEVICE [stop | suspend] | trim DEVICE [stop | suspend] [RATE]
 *   wait ACTIVITY                 scrub resilver replace remove initialize trim discard raidz_expand free
 *   until WORD PERCENT            waits until WORD (scan, rebuild, remove, expand, initialize, trim) is so far; says "over" before its answer if it has ended
 *   slow MS [DEVICE]              each read (of a device), and each long write, takes so long more
 *   cut WRITES                    the process is gone at so many writes from now
 *   status | errors
 *
 * Written from the headers; the order of the calls is that of ztest and zdb.
 */
#include <sys/zfs_context.h>
#include <sys/spa.h>
#include <sys/spa_impl.h>
#include <sys/spa_checkpoint.h>
#include <sys/vdev.h>
#include <sys/vdev_impl.h>
#include <sys/vdev_removal.h>
#include <sys/dmu.h>
#include <sys/dmu_objset.h>
#include <sys/dmu_tx.h>
#include <sys/dsl_pool.h>
#include <sys/dsl_scan.h>
#include <sys/zfs_file.h>
#include <sys/txg.h>
#include <libnvpair.h>
#include <libzutil.h>

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *folder;
static char pool[256];
static spa_t *spa;

/* Reads that take long, and writes that are counted. */
static volatile int slow_ms;
static char slow_device[256];
static volatile int64_t writes_left = -1;

int
zfs_file_pread(zfs_file_t *file, void *buffer, size_t bytes, loff_t offset, ssize_t *rest)
{
	static int (*real)(zfs_file_t *, void *, size_t, loff_t, ssize_t *);
	if (real == NULL)
		real = dlsym(RTLD_NEXT, "zfs_file_pread");
	if (slow_ms > 0 && offset >= VDEV_LABEL_START_SIZE) {
		char link[64], path[1024];
		ssize_t length = 0;
		if (slow_device[0] != 0) {
			snprintf(link, sizeof (link), "/proc/self/fd/%d", file->f_fd);
			length = readlink(link, path, sizeof (path) - 1);
			path[length > 0 ? length : 0] = 0;
		}
		if (slow_device[0] == 0 || (length > 0 && strcmp(strrchr(path, '/') + 1, slow_device) == 0))
			usleep(slow_ms * 1000);
	}
	return (real(file, buffer, bytes, offset, rest));
}

int
zfs_file_pwrite(zfs_file_t *file, const void *buffer, size_t bytes, loff_t offset, ssize_t *rest)
{
	static int (*real)(zfs_file_t *, const void *, size_t, loff_t, ssize_t *);
	if (real == NULL)
		real = dlsym(RTLD_NEXT, "zfs_file_pwrite");
	if (writes_left > 0 && __atomic_sub_fetch(&writes_left, 1, __ATOMIC_SEQ_CST) == 0) {
		printf("cut\n");
		fflush(stdout);
		_exit(0);
	}
	/* Those of initializing are so long. */
	if (slow_ms > 0 && bytes >= 1 << 19)
		usleep(slow_ms * 1000);
	return (real(file, buffer, bytes, offset, rest));
}

static void
path_of(const char *device, char *path, size_t bytes)
{
	snprintf(path, bytes, "%s/%s", folder, device);
}

/* The guid of a leaf by the name of its file, or of a vdev by its number. */
static uint64_t
guid_below(vdev_t *vd, const char *path)
{
	if (vd->vdev_ops->vdev_op_leaf)
		return (vd->vdev_path != NULL && strcmp(vd->vdev_path, path) == 0 ? vd->vdev_guid : 0);
	for (uint64_t i = 0; i < vd->vdev_children; i++) {
		uint64_t guid = guid_below(vd->vdev_child[i], path);
		if (guid != 0)
			return (guid);
	}
	return (0);
}

static uint64_t
guid_of(const char *name)
{
	char path[1024], *end;
	uint64_t guid = 0;
	uint64_t number = strtoull(name, &end, 10);
	spa_config_enter(spa, SCL_ALL, FTAG, RW_READER);
	if (*end == 0) {
		if (number < spa->spa_root_vdev->vdev_children)
			guid = spa->spa_root_vdev->vdev_child[number]->vdev_guid;
	} else {
		path_of(name, path, sizeof (path));
		guid = guid_below(spa->spa_root_vdev, path);
	}
	spa_config_exit(spa, SCL_ALL, FTAG);
	return (guid);
}

static void
sync_times(int times)
{
	while (times-- > 0)
		txg_wait_synced(spa_get_dsl(spa), 0);
}

static int
import(const char *name, boolean_t rewind)
{
	libpc_handle_t handle = { .lpc_ops = &libzpool_config_ops, .lpc_printerr = B_TRUE };
	char *paths[1] = { (char *)folder };
	importargs_t args = { .path = paths, .paths = 1, .can_be_active = B_TRUE, .scan = B_TRUE, .poolname = name };
	nvlist_t *config = NULL;
	int error = zpool_find_config(&handle, name, &config, &args);
	if (error != 0)
		return (error);
	/* Who had it is dead: nobody waits to see whether it is still written. */
	uint64_t flags = ZFS_IMPORT_NORMAL | ZFS_IMPORT_SKIP_MMP;
	if (rewind)
		flags |= ZFS_IMPORT_CHECKPOINT;
	/* As the command does: a checkpoint is asked for by the policy, too. */
	if (rewind) {
		nvlist_t *policy = fnvlist_alloc();
		fnvlist_add_uint32(policy, ZPOOL_LOAD_REWIND_POLICY, ZPOOL_NO_REWIND);
		fnvlist_add_nvlist(config, ZPOOL_LOAD_POLICY, policy);
		fnvlist_free(policy);
	}
	snprintf(pool, sizeof (pool), "%s", name);
	error = spa_import(pool, config, NULL, flags);
	fnvlist_free(config);
	if (error != 0)
		return (error);
	error = spa_open(pool, &spa, "openzfs");
	if (error == 0) {
		/* The library leaves spares out while a pool is opened, since zdb opens some twice. */
		spa_config_enter(spa, SCL_ALL, FTAG, RW_WRITER);
		spa_load_spares(spa);
		spa_config_exit(spa, SCL_ALL, FTAG);
	}
	return (error);
}

/* Blocks of a volume. */
static void
pattern(uint64_t *words, uint64_t bytes, uint64_t seed, uint64_t block)
{
	uint64_t x = seed * 0x9e3779b97f4a7c15ULL + block + 1;
	for (uint64_t i = 0; i < bytes / 8; i++) {
		x ^= x << 13; x ^= x >> 7; x ^= x << 17;
		words[i] = x;
	}
}

static int
blocks(const char *dataset, uint64_t seed, uint64_t count, boolean_t write)
{
	objset_t *os;
	dmu_object_info_t info;
	int error = dmu_objset_own(dataset, DMU_OST_ZVOL, !write, B_TRUE, FTAG, &os);
	if (error != 0)
		return (error);
	error = dmu_object_info(os, 1, &info);
	uint64_t bytes = info.doi_data_block_size;
	uint64_t *want = malloc(bytes), *have = malloc(bytes);
	for (uint64_t b = 0; error == 0 && b < count; b++) {
		pattern(want, bytes, seed, b);
		if (write) {
			dmu_tx_t *tx = dmu_tx_create(os);
			dmu_tx_hold_write(tx, 1, b * bytes, bytes);
			error = dmu_tx_assign(tx, DMU_TX_WAIT);
			if (error != 0) {
				dmu_tx_abort(tx);
				break;
			}
			dmu_write(os, 1, b * bytes, bytes, want, tx);
			dmu_tx_commit(tx);
			if (b % 16 == 15)
				txg_wait_synced(spa_get_dsl(spa), 0);
		} else {
			error = dmu_read(os, 1, b * bytes, bytes, have, DMU_READ_NO_PREFETCH);
			if (error == 0 && memcmp(want, have, bytes) != 0)
				error = EILSEQ;
		}
	}
	if (write)
		txg_wait_synced(spa_get_dsl(spa), 0);
	free(want);
	free(have);
	dmu_objset_disown(os, B_TRUE, FTAG);
	return (error);
}

/* The spares, by the function that tells users of them. */
static uint_t
spares(nvlist_t **config, nvlist_t ***list)
{
	uint_t count = 0;
	if (spa_get_stats(pool, config, NULL, 0) != 0 || *config == NULL)
		return (0);
	nvlist_t *root = fnvlist_lookup_nvlist(*config, ZPOOL_CONFIG_VDEV_TREE);
	return (nvlist_lookup_nvlist_array(root, ZPOOL_CONFIG_SPARES, list, &count) == 0 ? count : 0);
}

static boolean_t
is_spare(const char *device)
{
	char path[1024];
	nvlist_t *config = NULL, **list;
	boolean_t found = B_FALSE;
	path_of(device, path, sizeof (path));
	for (uint_t i = spares(&config, &list); i > 0; i--)
		found |= strcmp(fnvlist_lookup_string(list[i - 1], ZPOOL_CONFIG_PATH), path) == 0;
	nvlist_free(config);
	return (found);
}

static nvlist_t *
new_device(const char *device, boolean_t spare)
{
	char path[1024];
	path_of(device, path, sizeof (path));
	nvlist_t *leaf = fnvlist_alloc(), *root = fnvlist_alloc();
	fnvlist_add_string(leaf, ZPOOL_CONFIG_TYPE, VDEV_TYPE_FILE);
	fnvlist_add_string(leaf, ZPOOL_CONFIG_PATH, path);
	if (spare)
		fnvlist_add_uint64(leaf, ZPOOL_CONFIG_IS_SPARE, 1);
	fnvlist_add_string(root, ZPOOL_CONFIG_TYPE, VDEV_TYPE_ROOT);
	fnvlist_add_nvlist_array(root, ZPOOL_CONFIG_CHILDREN, (const nvlist_t **)&leaf, 1);
	fnvlist_free(leaf);
	return (root);
}

static int
attach(const char *to, const char *device, boolean_t replacing, boolean_t rebuild)
{
	nvlist_t *root = new_device(device, is_spare(device));
	int error = spa_vdev_attach(spa, guid_of(to), root, replacing, rebuild);
	fnvlist_free(root);
	return (error);
}

static int
leaf_work(const char *device, const char *how, boolean_t trim, uint64_t rate)
{
	nvlist_t *devices = fnvlist_alloc(), *errors = fnvlist_alloc();
	uint64_t command = trim ? POOL_TRIM_START : POOL_INITIALIZE_START;
	if (how != NULL && strcmp(how, "stop") == 0)
		command = trim ? POOL_TRIM_CANCEL : POOL_INITIALIZE_CANCEL;
	if (how != NULL && strcmp(how, "suspend") == 0)
		command = trim ? POOL_TRIM_SUSPEND : POOL_INITIALIZE_SUSPEND;
	fnvlist_add_uint64(devices, device, guid_of(device));
	int error = trim ? spa_vdev_trim(spa, devices, command, rate, B_FALSE, B_FALSE, errors) :
	    spa_vdev_initialize(spa, devices, command, errors);
	if (error == 0 && !nvlist_empty(errors))
		error = fnvpair_value_int64(nvlist_next_nvpair(errors, NULL));
	fnvlist_free(devices);
	fnvlist_free(errors);
	return (error);
}

static zpool_wait_activity_t
activity(const char *name)
{
	static const struct { const char *name; zpool_wait_activity_t activity; } all[] = {
		{ "discard", ZPOOL_WAIT_CKPT_DISCARD }, { "free", ZPOOL_WAIT_FREE }, { "initialize", ZPOOL_WAIT_INITIALIZE },
		{ "replace", ZPOOL_WAIT_REPLACE }, { "remove", ZPOOL_WAIT_REMOVE }, { "resilver", ZPOOL_WAIT_RESILVER },
		{ "scrub", ZPOOL_WAIT_SCRUB }, { "trim", ZPOOL_WAIT_TRIM }, { "raidz_expand", ZPOOL_WAIT_RAIDZ_EXPAND },
	};
	for (size_t i = 0; i < sizeof (all) / sizeof (all[0]); i++)
		if (strcmp(all[i].name, name) == 0)
			return (all[i].activity);
	return (ZPOOL_WAIT_NUM_ACTIVITIES);
}

static int
wait_for(const char *name)
{
	boolean_t waited = B_TRUE;
	zpool_wait_activity_t what = activity(name);
	if (what == ZPOOL_WAIT_NUM_ACTIVITIES)
		return (EINVAL);
	while (waited) {
		int error = spa_wait(pool, what, &waited);
		if (error != 0)
			return (error);
	}
	return (0);
}

/* Parts of what is to be done, in hundredths; 101: there is no such work under way. */
static uint64_t
part(uint64_t done, uint64_t all)
{
	return (all == 0 ? 0 : MIN(100, done * 100 / all));
}

static uint64_t
leaf_part(vdev_t *vd, boolean_t trim)
{
	uint64_t least = 101;
	if (vd->vdev_ops->vdev_op_leaf) {
		if (trim && vd->vdev_trim_thread != NULL)
			return (part(vd->vdev_trim_bytes_done, vd->vdev_trim_bytes_est));
		if (!trim && vd->vdev_initialize_thread != NULL)
			return (part(vd->vdev_initialize_bytes_done, vd->vdev_initialize_bytes_est));
	}
	for (uint64_t i = 0; i < vd->vdev_children; i++)
		least = MIN(least, leaf_part(vd->vdev_child[i], trim));
	return (least);
}

static uint64_t
progress(const char *word)
{
	uint64_t of = 101;
	spa_config_enter(spa, SCL_ALL, FTAG, RW_READER);
	if (strcmp(word, "scan") == 0) {
		pool_scan_stat_t scan;
		if (spa_scan_get_stats(spa, &scan) == 0 && scan.pss_state == DSS_SCANNING)
			of = part(scan.pss_issued, scan.pss_to_examine);
	} else if (strcmp(word, "rebuild") == 0) {
		for (uint64_t i = 0; i < spa->spa_root_vdev->vdev_children; i++) {
			vdev_rebuild_stat_t rebuild;
			if (vdev_rebuild_get_stats(spa->spa_root_vdev->vdev_child[i], &rebuild) == 0 && rebuild.vrs_state == VDEV_REBUILD_ACTIVE)
				of = part(rebuild.vrs_bytes_issued, rebuild.vrs_bytes_est);
		}
	} else if (strcmp(word, "remove") == 0) {
		pool_removal_stat_t removal;
		if (spa_removal_get_stats(spa, &removal) == 0 && removal.prs_state == DSS_SCANNING)
			of = part(removal.prs_copied, removal.prs_to_copy);
	} else if (strcmp(word, "expand") == 0) {
		pool_raidz_expand_stat_t expansion;
		if (spa_raidz_expand_get_stats(spa, &expansion) == 0 && expansion.pres_state == DSS_SCANNING)
			of = part(expansion.pres_reflowed, expansion.pres_to_reflow);
	} else {
		of = leaf_part(spa->spa_root_vdev, strcmp(word, "trim") == 0);
	}
	spa_config_exit(spa, SCL_ALL, FTAG);
	return (of);
}

static int
until(const char *word, uint64_t percent)
{
	boolean_t begun = B_FALSE;
	for (int i = 0; i < 2000; i++) {
		uint64_t at = progress(word);
		/* It was too fast to be stopped. */
		if (at == 101 && (begun || i > 200)) {
			printf("over\n");
			return (0);
		}
		begun |= at != 101;
		if (at != 101 && at >= percent)
			return (0);
		usleep(2000);
		/* Txgs come by themselves while there is work; waiting for one could be waiting for the end. */
		if (!begun && i % 5 == 4)
			sync_times(1);
	}
	/* It stands where it is: in its middle, too. */
	return (begun ? 0 : ETIMEDOUT);
}

static void
print_vdev(vdev_t *vd, int depth)
{
	printf("vdev %*s%s %s state %llu errors %llu %llu %llu", depth, "", vd->vdev_ops->vdev_op_type,
	    vd->vdev_path != NULL ? vd->vdev_path : "-", (u_longlong_t)vd->vdev_state, (u_longlong_t)vd->vdev_stat.vs_read_errors,
	    (u_longlong_t)vd->vdev_stat.vs_write_errors, (u_longlong_t)vd->vdev_stat.vs_checksum_errors);
	if (vd->vdev_ops->vdev_op_leaf)
		printf(" dtl %d initialize %llu trim %llu", !zfs_range_tree_is_empty(vd->vdev_dtl[DTL_MISSING]),
		    (u_longlong_t)vd->vdev_initialize_state, (u_longlong_t)vd->vdev_trim_state);
	printf("\n");
	for (uint64_t i = 0; i < vd->vdev_children; i++)
		print_vdev(vd->vdev_child[i], depth + 1);
}

static void
status(void)
{
	static const char *const words[] = { "scan", "rebuild", "remove", "expand", "initialize", "trim" };
	pool_scan_stat_t scan;
	pool_checkpoint_stat_t checkpoint;
	spa_config_enter(spa, SCL_ALL, FTAG, RW_READER);
	int has_scan = spa_scan_get_stats(spa, &scan) == 0;
	int has_checkpoint = spa_checkpoint_get_stats(spa, &checkpoint) == 0;
	printf("pool %s txg %llu state %d errors %llu\n", pool, (u_longlong_t)spa_last_synced_txg(spa), (int)spa->spa_root_vdev->vdev_state,
	    (u_longlong_t)spa_approx_errlog_size(spa));
	if (has_scan)
		printf("scan func %llu state %llu errors %llu processed %llu examined %llu issued %llu of %llu paused %d\n",
		    (u_longlong_t)scan.pss_func, (u_longlong_t)scan.pss_state, (u_longlong_t)scan.pss_errors, (u_longlong_t)scan.pss_processed,
		    (u_longlong_t)scan.pss_examined, (u_longlong_t)scan.pss_issued, (u_longlong_t)scan.pss_to_examine,
		    scan.pss_pass_scrub_pause != 0);
	if (has_checkpoint)
		printf("checkpoint state %llu bytes %llu\n", (u_longlong_t)checkpoint.pcs_state, (u_longlong_t)checkpoint.pcs_space);
	print_vdev(spa->spa_root_vdev, 0);
	spa_config_exit(spa, SCL_ALL, FTAG);
	nvlist_t *config = NULL, **list;
	for (uint_t i = spares(&config, &list); i > 0; i--)
		printf("spare %s\n", fnvlist_lookup_string(list[i - 1], ZPOOL_CONFIG_PATH));
	nvlist_free(config);
	for (size_t i = 0; i < sizeof (words) / sizeof (words[0]); i++) {
		uint64_t at = progress(words[i]);
		if (at != 101)
			printf("at %s %llu\n", words[i], (u_longlong_t)at);
	}
}

static int
set(const char *name, const char *text)
{
	Dl_info where;
	Elf64_Sym *symbol = NULL;
	void *variable = dlsym(RTLD_DEFAULT, name);
	if (variable == NULL || dladdr1(variable, &where, (void **)&symbol, RTLD_DL_SYMENT) == 0 || symbol == NULL)
		return (ENOENT);
	unsigned long long value = strtoull(text, NULL, 0);
	if (symbol->st_size == 8)
		*(uint64_t *)variable = value;
	else if (symbol->st_size == 4)
		*(uint32_t *)variable = (uint32_t)value;
	else
		return (EINVAL);
	return (0);
}

static int
command(char **word, int words)
{
	const char *name = word[0];
	if (strcmp(name, "import") == 0 && words >= 2)
		return (import(word[1], words > 2 && strcmp(word[2], "rewind") == 0));
	if (strcmp(name, "set") == 0 && words == 3)
		return (set(word[1], word[2]));
	if (strcmp(name, "slow") == 0 && words >= 2) {
		snprintf(slow_device, sizeof (slow_device), "%s", words > 2 ? word[2] : "");
		slow_ms = atoi(word[1]);
		return (0);
	}
	if (spa == NULL)
		return (ENODEV);
	if (strcmp(name, "export") == 0) {
		spa_close(spa, "openzfs");
		spa = NULL;
		return (spa_export(pool, NULL, B_FALSE, B_FALSE));
	}
	if (strcmp(name, "sync") == 0) {
		sync_times(words > 1 ? atoi(word[1]) : 1);
		return (0);
	}
	if (strcmp(name, "cut") == 0 && words == 2) {
		writes_left = atoll(word[1]);
		return (0);
	}
	if ((strcmp(name, "write") == 0 || strcmp(name, "check") == 0) && words == 4)
		return (blocks(word[1], strtoull(word[2], NULL, 0), strtoull(word[3], NULL, 0), name[0] == 'w'));
	if (strcmp(name, "scrub") == 0) {
		int error = spa->spa_dsl_pool->dp_scan != NULL && dsl_scan_is_paused_scrub(spa->spa_dsl_pool->dp_scan) ?
		    spa_scrub_pause_resume(spa, POOL_SCRUB_NORMAL) : spa_scan(spa, POOL_SCAN_SCRUB);
		return (error == ECANCELED ? 0 : error);
	}
	if (strcmp(name, "pause") == 0)
		return (spa_scrub_pause_resume(spa, POOL_SCRUB_PAUSE));
	if (strcmp(name, "stop") == 0)
		return (spa_scan_stop(spa));
	if (strcmp(name, "offline") == 0 && words == 2)
		return (vdev_offline(spa, guid_of(word[1]), 0));
	if (strcmp(name, "online") == 0 && words == 2) {
		vdev_state_t state;
		return (vdev_online(spa, guid_of(word[1]), 0, &state));
	}
	if (strcmp(name, "clear") == 0) {
		spa_vdev_state_enter(spa, SCL_NONE);
		vdev_clear(spa, NULL);
		return (spa_vdev_state_exit(spa, spa->spa_root_vdev, 0));
	}
	if (strcmp(name, "attach") == 0 && words >= 3)
		return (attach(word[1], word[2], B_FALSE, words > 3));
	if (strcmp(name, "expand") == 0 && words == 3)
		return (attach(word[1], word[2], B_FALSE, B_FALSE));
	if (strcmp(name, "replace") == 0 && words >= 3)
		return (attach(word[1], word[2], B_TRUE, words > 3));
	if (strcmp(name, "detach") == 0 && words == 2)
		return (spa_vdev_detach(spa, guid_of(word[1]), 0, 0));
	if (strcmp(name, "remove") == 0 && words == 2)
		return (spa_vdev_remove(spa, guid_of(word[1]), B_FALSE));
	if (strcmp(name, "cancel") == 0)
		return (spa_vdev_remove_cancel(spa));
	if (strcmp(name, "checkpoint") == 0)
		return (spa_checkpoint(pool));
	if (strcmp(name, "discard") == 0)
		return (spa_checkpoint_discard(pool));
	if ((strcmp(name, "initialize") == 0 || strcmp(name, "trim") == 0) && words >= 2)
		return (leaf_work(word[1], words > 2 ? word[2] : NULL, name[0] == 't', words > 3 ? strtoull(word[3], NULL, 0) : 0));
	if (strcmp(name, "wait") == 0 && words == 2)
		return (wait_for(word[1]));
	if (strcmp(name, "until") == 0 && words == 3)
		return (until(word[1], strtoull(word[2], NULL, 0)));
	if (strcmp(name, "status") == 0) {
		status();
		return (0);
	}
	return (ENOTSUP);
}

int
main(int argc, char **argv)
{
	if (argc != 2) {
		fprintf(stderr, "openzfs FOLDER: commands from standard input\n");
		return (2);
	}
	folder = argv[1];
	static char cache[1024];
	snprintf(cache, sizeof (cache), "%s/openzfs.cache", folder);
	unlink(cache);
	spa_config_path = cache;
	kernel_init(SPA_MODE_READ | SPA_MODE_WRITE);

	char *line = NULL;
	size_t bytes = 0;
	while (getline(&line, &bytes, stdin) > 0) {
		char *word[8];
		int words = 0;
		for (char *w = strtok(line, " \n"); w != NULL && words < 8; w = strtok(NULL, " \n"))
			word[words++] = w;
		if (words == 0)
			continue;
		if (strcmp(word[0], "quit") == 0)
			_exit(0);
		int error = command(word, words);
		if (error == 0)
			printf("ok\n");
		else
			printf("error %d %s\n", error, strerror(error));
		fflush(stdout);
	}
	_exit(0);
}
