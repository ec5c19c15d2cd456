/* What a caller may do wrong, and what the example does not show: each line of output is compared by tests/c.rs. */
#include <cenote.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(what) \
	do { \
		if (!(what)) { \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what); \
			exit(1); \
		} \
	} while (0)

/* The kind of an error, which is freed. */
static uint32_t kind(cenote_error *error)
{
	uint32_t found = cenote_error_kind(error);
	cenote_error_free(error);
	return found;
}

static void good(cenote_error *error)
{
	if (error != NULL) {
		fprintf(stderr, "%s\n", cenote_error_message(error));
		exit(1);
	}
}

static void nothing_is_misuse(void)
{
	cenote_pool *pool = (cenote_pool *)&pool;
	CHECK(kind(cenote_open(NULL, NULL, &pool)) == CENOTE_MISUSE);
	CHECK(pool == NULL);
	CHECK(kind(cenote_open(NULL, "tank", NULL)) == CENOTE_MISUSE);
	CHECK(kind(cenote_options_new(NULL)) == CENOTE_MISUSE);
	CHECK(kind(cenote_options_search(NULL, "/tmp")) == CENOTE_MISUSE);
	CHECK(kind(cenote_pool_sync(NULL)) == CENOTE_MISUSE);
	CHECK(kind(cenote_file_pwrite(NULL, "x", 1, 0)) == CENOTE_MISUSE);
	CHECK(kind(cenote_status_vdev(NULL, 0, NULL)) == CENOTE_MISUSE);
	CHECK(cenote_pool_name(NULL) == NULL && cenote_pool_guid(NULL) == 0 && cenote_list_count(NULL) == 0);
	CHECK(cenote_error_kind(NULL) == 0 && cenote_error_message(NULL) == NULL);
	cenote_error_place(NULL, NULL);
	cenote_place place = {"x", "x", "x", "x", 1, 1, 1, 1, 1};
	cenote_error_place(NULL, &place);
	CHECK(place.pool == NULL && place.dataset == NULL && place.path == NULL && place.device == NULL);
	CHECK(place.offset == CENOTE_UNKNOWN && place.objset == CENOTE_UNKNOWN && place.object == CENOTE_UNKNOWN);
	CHECK(place.block == CENOTE_UNKNOWN && place.level == CENOTE_UNKNOWN);
	cenote_error_free(NULL);
	cenote_string_free(NULL);
	cenote_list_free(NULL);
	cenote_options_free(NULL);
	cenote_pool_free(NULL);
	cenote_status_free(NULL);
	cenote_filesystem_free(NULL);
	cenote_dir_free(NULL);
	cenote_file_free(NULL);
	cenote_volume_free(NULL);
	cenote_changes_free(NULL);
	cenote_history_free(NULL);
	cenote_send_options_free(NULL);
	cenote_receive_options_free(NULL);
	cenote_report_free(NULL);
	CHECK(kind(cenote_changes_next(NULL, NULL)) == CENOTE_MISUSE && kind(cenote_history_record(NULL, 0, NULL)) == CENOTE_MISUSE);
	CHECK(cenote_report_bytes(NULL) == 0 && !cenote_report_is_whole(NULL) && cenote_report_dataset(NULL, 0) == NULL);
	CHECK(cenote_abi() == CENOTE_ABI && strlen(cenote_version()) >= 5);
}

static cenote_pool *made(cenote_options *options, const char *image)
{
	const char *const vdevs[] = {image, NULL};
	const char *const properties[] = {"ashift=12", NULL};
	const char *const root_properties[] = {"compression=zstd", NULL};
	const char *const bad[] = {"compression", NULL};
	cenote_pool *pool;
	CHECK(kind(cenote_create(options, "tank", vdevs, 64 << 20, NULL, bad, &pool)) == CENOTE_MISUSE);
	CHECK(kind(cenote_create(options, "ta\xffnk", vdevs, 64 << 20, NULL, NULL, &pool)) == CENOTE_MISUSE);
	CHECK(pool == NULL);
	good(cenote_create(options, "tank", vdevs, 64 << 20, properties, root_properties, &pool));
	CHECK(strcmp(cenote_pool_name(pool), "tank") == 0 && !cenote_pool_is_read_only(pool));
	return pool;
}

static void errors_have_a_place(cenote_filesystem *files)
{
	cenote_file *file = (cenote_file *)&file;
	cenote_error *error = cenote_file_open(files, "nothing", &file);
	CHECK(cenote_error_kind(error) == CENOTE_NOT_FOUND && file == NULL);
	cenote_place place;
	cenote_error_place(error, &place);
	CHECK(strcmp(place.pool, "tank") == 0 && strcmp(place.dataset, "tank") == 0 && strcmp(place.path, "nothing") == 0);
	CHECK(place.device == NULL && place.offset == CENOTE_UNKNOWN && place.level == CENOTE_UNKNOWN);
	CHECK(strstr(cenote_error_message(error), "nothing") != NULL);
	cenote_error_free(error);
}

static void files_are_as_in_rust(cenote_filesystem *files)
{
	cenote_file *file;
	char buffer[16];
	size_t len;
	uint64_t at;
	good(cenote_mkdir(files, "a/b", true));
	CHECK(kind(cenote_mkdir(files, "a", false)) == CENOTE_EXISTS);
	good(cenote_file_create(files, "a/b/\xfe", &file)); /* a name is any bytes */
	good(cenote_file_pwrite(file, "hello", 5, 0));
	good(cenote_file_pwrite(file, NULL, 0, 0));
	CHECK(kind(cenote_file_pwrite(file, NULL, 1, 0)) == CENOTE_MISUSE);
	CHECK(kind(cenote_file_pwrite(file, "x", SIZE_MAX, 0)) == CENOTE_MISUSE);
	CHECK(kind(cenote_file_pwrite(file, "x", 1, UINT64_MAX)) != 0);
	CHECK(kind(cenote_file_pread(file, buffer, SIZE_MAX, 0, &len)) == CENOTE_MISUSE);
	CHECK(kind(cenote_file_pread(file, NULL, 1, 0, &len)) == CENOTE_MISUSE);
	good(cenote_file_pread(file, buffer, sizeof(buffer), 1, &len));
	CHECK(len == 4 && memcmp(buffer, "ello", 4) == 0);
	good(cenote_file_pread(file, buffer, sizeof(buffer), UINT64_MAX, &len));
	CHECK(len == 0);
	good(cenote_file_truncate(file, 1 << 20));
	good(cenote_file_next_hole(file, 0, &at));
	CHECK(at <= 1 << 20);
	good(cenote_file_next_data(file, 1 << 20, &at));
	CHECK(at == CENOTE_UNKNOWN);
	good(cenote_set_xattr(files, "a/b/\xfe", "user.note", "mine", 4));
	good(cenote_get_xattr(files, "a/b/\xfe", "user.note", NULL, 0, &len));
	CHECK(len == 4);
	good(cenote_get_xattr(files, "a/b/\xfe", "user.note", buffer, sizeof(buffer), &len));
	CHECK(len == 4 && memcmp(buffer, "mine", 4) == 0);
	good(cenote_list_xattrs(files, "a/b/\xfe", buffer, sizeof(buffer), &len));
	CHECK(len == 10 && memcmp(buffer, "user.note", 10) == 0);
	CHECK(kind(cenote_get_xattr(files, "a", "user.note", NULL, 0, &len)) == CENOTE_NOT_FOUND);
	good(cenote_set_mode(files, "a/b", 0700));
	good(cenote_set_owner(files, "a/b", 5, 6));
	good(cenote_set_modified(files, "a/b", -1, 999999999));
	cenote_metadata metadata;
	good(cenote_stat(files, "a/b", true, &metadata));
	CHECK(metadata.kind == CENOTE_DIRECTORY && metadata.mode == 0700 && metadata.uid == 5 && metadata.gid == 6);
	CHECK(metadata.modified.seconds == -1 && metadata.modified.nanoseconds == 999999999);
	good(cenote_symlink(files, "a/b/\xfe", "link"));
	good(cenote_stat(files, "link", false, &metadata));
	CHECK(metadata.kind == CENOTE_SYMLINK);
	char *target;
	good(cenote_readlink(files, "link", &target));
	CHECK(strcmp(target, "a/b/\xfe") == 0);
	cenote_string_free(target);
	good(cenote_link(files, "a/b/\xfe", "second"));
	good(cenote_rename(files, "second", "third"));
	good(cenote_remove_file(files, "third"));
	CHECK(kind(cenote_remove_dir(files, "a")) == CENOTE_EXISTS);
	good(cenote_file_stat(file, &metadata));
	CHECK(metadata.size == 1 << 20 && metadata.links == 1 && cenote_file_size(file) == 1 << 20);
	good(cenote_file_sync(file));
	cenote_file_free(file);
}

static void volumes_and_snapshots(cenote_pool *pool)
{
	const char *const properties[] = {"volblocksize=8K", "refreservation=none", NULL};
	cenote_volume *disk, *then;
	char buffer[5];
	uint32_t dataset_kind;
	good(cenote_create_volume(pool, "tank/disk", 16 << 20, properties));
	good(cenote_dataset_kind(pool, "tank/disk", &dataset_kind));
	CHECK(dataset_kind == CENOTE_VOLUME);
	good(cenote_volume_open(pool, "tank/disk", &disk));
	CHECK(cenote_volume_size(disk) == 16 << 20 && cenote_volume_block_size(disk) == 8192 && !cenote_volume_is_read_only(disk));
	good(cenote_volume_pwrite(disk, "first", 5, 1 << 20));
	good(cenote_volume_flush(disk));
	good(cenote_snapshot(pool, "tank/disk@before"));
	good(cenote_volume_pwrite(disk, "later", 5, 1 << 20));
	good(cenote_volume_open(pool, "tank/disk@before", &then));
	good(cenote_volume_pread(then, buffer, 5, 1 << 20));
	CHECK(memcmp(buffer, "first", 5) == 0);
	CHECK(kind(cenote_volume_pwrite(then, "x", 1, 0)) == CENOTE_READ_ONLY);
	good(cenote_volume_pread(disk, buffer, 5, 1 << 20));
	CHECK(memcmp(buffer, "later", 5) == 0);
	CHECK(kind(cenote_volume_pread(disk, buffer, 5, (16 << 20) - 4)) == CENOTE_MISUSE);
	CHECK(kind(cenote_volume_pread(disk, buffer, 5, UINT64_MAX - 2)) == CENOTE_MISUSE);
	CHECK(kind(cenote_volume_pwrite(disk, buffer, 5, UINT64_MAX - 2)) == CENOTE_MISUSE);
	good(cenote_volume_trim(disk, 1 << 20, 8192));
	good(cenote_volume_pread(disk, buffer, 5, 1 << 20));
	CHECK(memcmp(buffer, "\0\0\0\0\0", 5) == 0);
	cenote_list *list;
	good(cenote_snapshots(pool, "tank/disk", &list));
	CHECK(cenote_list_count(list) == 1 && cenote_list_kind(list, 0) == CENOTE_SNAPSHOT && cenote_list_guid(list, 0) != 0);
	CHECK(cenote_list_name(list, 1) == NULL && cenote_list_kind(list, SIZE_MAX) == 0);
	cenote_list_free(list);
	good(cenote_clone(pool, "tank/disk@before", "tank/clone", NULL));
	good(cenote_rollback(pool, "tank/disk@before", false));
	good(cenote_volume_pread(disk, buffer, 5, 1 << 20));
	cenote_volume_free(then);
	cenote_volume_free(disk);
	good(cenote_rollback(pool, "tank/disk@before", false));
	CHECK(kind(cenote_destroy(pool, "tank/disk@before", false)) == CENOTE_BUSY);
	good(cenote_destroy(pool, "tank/clone", false));
	good(cenote_destroy(pool, "tank/disk", true));
}

/* Writes a file in a file system, and closes all of it. */
static void note(cenote_pool *pool, const char *dataset, const char *path, const char *content)
{
	cenote_filesystem *files;
	cenote_file *file;
	good(cenote_filesystem_open(pool, dataset, &files));
	good(cenote_file_create(files, path, &file));
	good(cenote_file_pwrite(file, content, strlen(content), 0));
	cenote_file_free(file);
	cenote_filesystem_free(files);
}

static void bookmarks_and_holds(cenote_pool *pool)
{
	cenote_list *list;
	uint32_t status;
	good(cenote_create_filesystem(pool, "tank/kept", NULL));
	good(cenote_snapshot(pool, "tank/kept@one"));
	good(cenote_bookmark(pool, "tank/kept@one", "sent"));
	good(cenote_bookmark(pool, "tank/kept#sent", "copy"));
	CHECK(kind(cenote_bookmark(pool, "tank/kept@one", "sent")) == CENOTE_EXISTS);
	good(cenote_bookmarks(pool, "tank/kept", &list));
	CHECK(cenote_list_count(list) == 2 && cenote_list_kind(list, 1) == CENOTE_BOOKMARK && cenote_list_time(list, 0) > 0);
	cenote_list_free(list);
	good(cenote_destroy(pool, "tank/kept#copy", false));
	CHECK(kind(cenote_destroy(pool, "tank/kept#copy", false)) == CENOTE_NOT_FOUND);
	good(cenote_hold(pool, "tank/kept@one", "mine"));
	CHECK(kind(cenote_hold(pool, "tank/kept@one", "mine")) == CENOTE_EXISTS);
	CHECK(kind(cenote_destroy(pool, "tank/kept@one", false)) == CENOTE_BUSY);
	good(cenote_holds(pool, "tank/kept@one", &list));
	CHECK(cenote_list_count(list) == 1 && strcmp(cenote_list_name(list, 0), "mine") == 0 && cenote_list_kind(list, 0) == CENOTE_HOLD);
	CHECK(cenote_list_time(list, 0) > 0 && cenote_list_time(list, 1) == 0);
	cenote_list_free(list);
	good(cenote_release(pool, "tank/kept@one", "mine"));
	CHECK(kind(cenote_release(pool, "tank/kept@one", "mine")) == CENOTE_NOT_FOUND);
	good(cenote_key_status(pool, "tank/kept", &status));
	CHECK(status == CENOTE_KEY_NONE);
	CHECK(kind(cenote_unload_key(pool, "tank/kept")) == CENOTE_MISUSE);
	CHECK(kind(cenote_change_key(pool, "tank/kept", "x", 1)) == CENOTE_NOT_SUPPORTED);
	good(cenote_destroy(pool, "tank/kept", true));
}

static void changes_and_history(cenote_pool *pool)
{
	cenote_changes *changes;
	cenote_change change;
	cenote_history *history;
	cenote_record record;
	bool has_added = false, has_renamed = false;
	good(cenote_create_filesystem(pool, "tank/diff", NULL));
	note(pool, "tank/diff", "old", "x");
	good(cenote_snapshot(pool, "tank/diff@one"));
	note(pool, "tank/diff", "added", "x");
	cenote_filesystem *files;
	good(cenote_filesystem_open(pool, "tank/diff", &files));
	good(cenote_rename(files, "old", "new"));
	cenote_filesystem_free(files);
	CHECK(kind(cenote_changes_open(pool, "tank/diff@none", "tank/diff", &changes)) == CENOTE_NOT_FOUND && changes == NULL);
	good(cenote_changes_open(pool, "tank/diff@one", "tank/diff", &changes));
	for (;;) {
		good(cenote_changes_next(changes, &change));
		if (change.path == NULL)
			break;
		CHECK(change.changed.seconds > 0 && change.file_kind != 0);
		has_added |= change.kind == CENOTE_ADDED && strcmp(change.path, "/added") == 0 && change.to == NULL;
		has_renamed |= change.kind == CENOTE_RENAMED && strcmp(change.path, "/old") == 0 && strcmp(change.to, "/new") == 0;
	}
	CHECK(has_added && has_renamed && change.kind == 0 && change.to == NULL);
	cenote_changes_free(changes);
	good(cenote_destroy(pool, "tank/diff", true));

	good(cenote_pool_record_command(pool, "border --test"));
	good(cenote_pool_history(pool, &history));
	size_t count = cenote_history_count(history);
	CHECK(count > 2);
	good(cenote_history_record(history, count - 1, &record));
	CHECK(record.kind == CENOTE_COMMAND && strcmp(record.text, "border --test") == 0 && record.uid != CENOTE_UNKNOWN);
	CHECK(record.time.seconds > 0 && record.name == NULL && record.host != NULL);
	good(cenote_history_record(history, 0, &record));
	CHECK(record.kind == CENOTE_INTERNAL_EVENT && record.name != NULL && record.txg > 0 && record.uid == CENOTE_UNKNOWN);
	CHECK(kind(cenote_history_record(history, count, &record)) == CENOTE_MISUSE);
	cenote_history_free(history);
}

static void streams(cenote_pool *pool)
{
	cenote_send_options *send;
	cenote_receive_options *receive;
	cenote_report *report;
	char *token, buffer[64 << 10];
	FILE *whole = tmpfile(), *half = tmpfile();
	CHECK(whole != NULL && half != NULL);
	good(cenote_create_filesystem(pool, "tank/from", NULL));
	note(pool, "tank/from", "note", "one");
	good(cenote_snapshot(pool, "tank/from@one"));
	good(cenote_send_options_new(&send));
	good(cenote_send_options_properties(send, true));
	good(cenote_send(pool, "tank/from@one", send, fileno(whole), &report));
	CHECK(cenote_report_bytes(report) == (uint64_t)lseek(fileno(whole), 0, SEEK_END) && cenote_report_is_whole(report));
	CHECK(cenote_report_dataset(report, 0) == NULL && cenote_report_warning(report, 0) == NULL);
	cenote_report_free(report);
	CHECK(kind(cenote_send(pool, "tank/from@one", send, -1, NULL)) == CENOTE_MISUSE);
	CHECK(kind(cenote_send(pool, "tank/from@one", send, 1 << 20, NULL)) == CENOTE_MISUSE);
	CHECK(kind(cenote_send(pool, "tank/from@none", NULL, fileno(half), &report)) == CENOTE_NOT_FOUND && report == NULL);

	/* A part of it is kept, and the rest follows. */
	CHECK(pread(fileno(whole), buffer, 20000, 0) == 20000 && write(fileno(half), buffer, 20000) == 20000);
	CHECK(lseek(fileno(half), 0, SEEK_SET) == 0);
	good(cenote_receive_options_new(&receive));
	good(cenote_receive_options_resumable(receive, true));
	CHECK(kind(cenote_receive_options_sent_name(receive, 3)) == CENOTE_MISUSE);
	good(cenote_receive_options_property(receive, "atime", "off"));
	CHECK(kind(cenote_receive(pool, "tank/half", receive, fileno(half), NULL)) == CENOTE_CORRUPT);
	good(cenote_receive_resume_token(pool, "tank/half", &token));
	CHECK(token != NULL && ftruncate(fileno(half), 0) == 0 && lseek(fileno(half), 0, SEEK_SET) == 0);
	good(cenote_send_resume(pool, token, NULL, fileno(half), NULL));
	cenote_string_free(token);
	CHECK(lseek(fileno(half), 0, SEEK_SET) == 0);
	good(cenote_receive(pool, "tank/half", receive, fileno(half), NULL));
	good(cenote_receive_resume_token(pool, "tank/half", &token));
	CHECK(token == NULL);
	CHECK(kind(cenote_receive_abort(pool, "tank/half")) == CENOTE_NOT_FOUND);

	CHECK(lseek(fileno(whole), 0, SEEK_SET) == 0);
	good(cenote_receive(pool, "tank/to", receive, fileno(whole), &report));
	CHECK(strcmp(cenote_report_dataset(report, 0), "tank/to") == 0 && cenote_report_dataset(report, 1) == NULL);
	CHECK(cenote_report_is_whole(report) && cenote_report_bytes(report) == 0);
	cenote_report_free(report);
	CHECK(lseek(fileno(whole), 0, SEEK_SET) == 0);
	CHECK(kind(cenote_receive(pool, "tank/to@other", NULL, fileno(whole), NULL)) == CENOTE_EXISTS);
	note(pool, "tank/from", "note", "two");
	good(cenote_snapshot(pool, "tank/from@two"));
	good(cenote_send_options_since(send, "@one", false));
	CHECK(ftruncate(fileno(whole), 0) == 0 && lseek(fileno(whole), 0, SEEK_SET) == 0);
	good(cenote_send(pool, "tank/from@two", send, fileno(whole), NULL));
	CHECK(lseek(fileno(whole), 0, SEEK_SET) == 0);
	good(cenote_receive(pool, "tank/to", NULL, fileno(whole), NULL));
	char *value;
	good(cenote_get_property(pool, "tank/to", "atime", &value));
	CHECK(strcmp(value, "off") == 0);
	cenote_string_free(value);
	cenote_filesystem *files;
	cenote_file *file;
	size_t len;
	good(cenote_filesystem_open(pool, "tank/to", &files));
	good(cenote_file_open(files, "note", &file));
	good(cenote_file_pread(file, buffer, sizeof(buffer), 0, &len));
	CHECK(len == 3 && memcmp(buffer, "two", 3) == 0);
	cenote_file_free(file);
	cenote_filesystem_free(files);
	cenote_send_options_free(send);
	cenote_receive_options_free(receive);
	fclose(whole);
	fclose(half);
}

static void full_quota(cenote_pool *pool)
{
	const char *const properties[] = {"quota=2M", "compression=off", NULL};
	cenote_filesystem *files;
	cenote_file *file;
	char *content = calloc(1, 8 << 20);
	uint32_t found = 0;
	good(cenote_create_filesystem(pool, "tank/small", properties));
	good(cenote_filesystem_open(pool, "tank/small", &files));
	good(cenote_file_create(files, "file", &file));
	for (uint64_t i = 0; i < 16 && found == 0; i++) {
		memset(content, (int)i + 1, 1 << 20);
		found = kind(cenote_file_pwrite(file, content, 1 << 20, i << 20));
		good(cenote_pool_sync(pool));
	}
	CHECK(found == CENOTE_QUOTA);
	cenote_file_free(file);
	cenote_filesystem_free(files);
	good(cenote_destroy(pool, "tank/small", false));
	free(content);
}

static void properties_and_status(cenote_pool *pool)
{
	char *value;
	uint64_t used, referenced;
	good(cenote_create_filesystem(pool, "tank/home", NULL));
	good(cenote_set_property(pool, "tank/home", "compression", "lz4"));
	good(cenote_get_property(pool, "tank/home", "compression", &value));
	CHECK(strcmp(value, "lz4") == 0);
	cenote_string_free(value);
	good(cenote_dataset_space(pool, "tank/home", &used, &referenced));
	CHECK(used > 0 && referenced > 0);
	good(cenote_rename_dataset(pool, "tank/home", "tank/house"));
	good(cenote_pool_sync(pool));
	good(cenote_pool_resume(pool));
	CHECK(cenote_pool_txg(pool) > 0 && cenote_pool_guid(pool) != 0);
	cenote_status *status;
	cenote_vdev vdev;
	good(cenote_pool_status(pool, &status));
	CHECK(cenote_status_suspended(status) == NULL && cenote_status_count(status) == 2);
	good(cenote_status_vdev(status, 1, &vdev));
	CHECK(vdev.health == CENOTE_ONLINE && vdev.depth == 1 && vdev.checksum_errors == 0 && !vdev.is_behind);
	CHECK(strstr(vdev.name, "a.img") != NULL);
	CHECK(kind(cenote_status_vdev(status, 2, &vdev)) == CENOTE_MISUSE);
	cenote_status_free(status);
}

static void *write_many(void *argument)
{
	cenote_filesystem *files = (cenote_filesystem *)argument;
	for (int i = 0; i < 50; i++) {
		char name[32], content[32], back[32];
		size_t len;
		cenote_file *file;
		/* Threads use each other's files too. */
		snprintf(name, sizeof(name), "threads-%d", i);
		snprintf(content, sizeof(content), "content %d", i);
		good(cenote_file_create(files, name, &file));
		good(cenote_file_pwrite(file, content, strlen(content), 0));
		good(cenote_file_pread(file, back, sizeof(back), 0, &len));
		CHECK(len == 0 || memcmp(back, content, len) == 0);
		cenote_file_free(file);
	}
	return NULL;
}

static void threads(cenote_filesystem *files)
{
	pthread_t thread[4];
	for (int i = 0; i < 4; i++)
		CHECK(pthread_create(&thread[i], NULL, write_many, files) == 0);
	for (int i = 0; i < 4; i++)
		CHECK(pthread_join(thread[i], NULL) == 0);
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	nothing_is_misuse();
	cenote_options *options;
	good(cenote_options_new(&options));
	good(cenote_options_cache_bytes(options, 16 << 20));
	good(cenote_options_search(options, argv[1]));
	cenote_pool *pool = made(options, argv[2]);
	cenote_filesystem *files;
	good(cenote_filesystem_open(pool, "tank", &files));
	CHECK(!cenote_filesystem_is_read_only(files));
	uint64_t used, available;
	good(cenote_filesystem_space(files, &used, &available));
	CHECK(available > used);
	errors_have_a_place(files);
	files_are_as_in_rust(files);
	threads(files);
	volumes_and_snapshots(pool);
	properties_and_status(pool);
	bookmarks_and_holds(pool);
	changes_and_history(pool);
	full_quota(pool);
	streams(pool);
	CHECK(kind(cenote_destroy(pool, "tank/nothing", false)) == CENOTE_NOT_FOUND);
	good(cenote_filesystem_sync(files));
	good(cenote_pool_export(pool));
	/* What is left is of no use, and harmless. */
	cenote_list *list;
	CHECK(kind(cenote_datasets(pool, &list)) == CENOTE_CLOSED);
	CHECK(kind(cenote_mkdir(files, "late", false)) == CENOTE_CLOSED);
	CHECK(kind(cenote_pool_export(pool)) == CENOTE_CLOSED);
	cenote_pool_free(pool);
	cenote_filesystem_free(files);
	good(cenote_find(options, &list));
	CHECK(cenote_list_count(list) == 1 && cenote_list_kind(list, 0) == CENOTE_EXPORTED_POOL);
	cenote_list_free(list);
	good(cenote_open(options, "tank", &pool));
	CHECK(cenote_pool_is_read_only(pool));
	good(cenote_filesystem_open(pool, "tank", &files));
	CHECK(kind(cenote_mkdir(files, "late", false)) == CENOTE_READ_ONLY);
	cenote_filesystem_free(files);
	good(cenote_pool_export(pool));
	cenote_pool_free(pool);
	cenote_options_free(options);
	puts("all as promised");
	return 0;
}
