/*
 * Opens a pool, lists what is in it, and copies a file in it.
 *
 *   cc -std=c11 copy.c -lcenote -o copy
 *   ./copy /images tank/home notes/today notes/copy
 */
#include <cenote.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ends the program with the error of a call, if there is one. */
static void check(cenote_error *error)
{
	if (error == NULL)
		return;
	fprintf(stderr, "copy: %s\n", cenote_error_message(error));
	int status = cenote_error_kind(error) == CENOTE_NOT_FOUND ? 2 : 1;
	cenote_error_free(error);
	exit(status);
}

static void list_datasets(const cenote_pool *pool)
{
	cenote_list *list;
	check(cenote_datasets(pool, &list));
	for (size_t i = 0; i < cenote_list_count(list); i++) {
		bool is_volume = cenote_list_kind(list, i) == CENOTE_VOLUME;
		printf("%s %s\n", is_volume ? "volume" : "filesystem", cenote_list_name(list, i));
	}
	cenote_list_free(list);
}

static void list_files(const cenote_filesystem *files)
{
	cenote_dir *dir;
	check(cenote_dir_open(files, "/", &dir));
	for (;;) {
		char *name;
		uint32_t kind;
		uint64_t object;
		check(cenote_dir_next(dir, &name, &kind, &object));
		if (name == NULL)
			break;
		printf("%" PRIu64 " %s%s\n", object, name, kind == CENOTE_DIRECTORY ? "/" : "");
		cenote_string_free(name);
	}
	cenote_dir_free(dir);
}

static void copy(const cenote_filesystem *files, const char *from, const char *to)
{
	static char buffer[1 << 20];
	cenote_file *source, *target;
	check(cenote_file_open(files, from, &source));
	check(cenote_file_create(files, to, &target));
	uint64_t at = 0;
	for (;;) {
		size_t len;
		check(cenote_file_pread(source, buffer, sizeof(buffer), at, &len));
		if (len == 0)
			break;
		check(cenote_file_pwrite(target, buffer, len, at));
		at += len;
	}
	check(cenote_file_sync(target));
	printf("copied %" PRIu64 " bytes\n", at);
	cenote_file_free(target);
	cenote_file_free(source);
}

int main(int argc, char **argv)
{
	if (argc != 5) {
		fprintf(stderr, "usage: copy FOLDER DATASET FROM TO\n");
		return 2;
	}
	/* The pool's name is the first part of the dataset's. */
	size_t len = strcspn(argv[2], "/");
	char *name = calloc(len + 1, 1);
	if (name == NULL)
		return 1;
	memcpy(name, argv[2], len);

	cenote_options *options;
	check(cenote_options_new(&options));
	check(cenote_options_search(options, argv[1]));
	check(cenote_options_write(options, true));
	check(cenote_options_cache_bytes(options, 16 << 20));
	cenote_pool *pool;
	check(cenote_open(options, name, &pool));
	cenote_options_free(options);
	free(name);

	list_datasets(pool);
	cenote_filesystem *files;
	check(cenote_filesystem_open(pool, argv[2], &files));
	list_files(files);
	copy(files, argv[3], argv[4]);
	cenote_filesystem_free(files);
	check(cenote_pool_export(pool));
	cenote_pool_free(pool);
	return 0;
}
