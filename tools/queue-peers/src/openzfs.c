/*
 * OpenZFS's task queue in userspace, measured as `cenote bench taskq` measures ours: queue-peers' build compiles this where
 * libzpool is installed (Debian package libzpool6linux), and its main program runs it.
 *
 *   openzfs PRODUCERS WORKERS ITEMS
 *
 * Items are empty. Three lines of JSON: producers that are tasks of the queue, with entries that the queue allocates and with
 * entries that producers own; and producers that are threads of their own, with the queue's entries.
 *
 * The library's headers pull in all of OpenZFS; the few functions wanted are declared here instead. An entry is at most
 * ENTRY_BYTES large, which is twice what 2.3 has.
 */
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

typedef struct taskq taskq_t;
typedef void task_func_t(void *);

extern void kernel_init(int mode);
extern void kernel_fini(void);
extern taskq_t *taskq_create(const char *name, int threads, int pri, int min, int max, unsigned flags);
extern unsigned long taskq_dispatch(taskq_t *, task_func_t *, void *, unsigned flags);
extern void taskq_init_ent(void *);
extern void taskq_dispatch_ent(taskq_t *, task_func_t *, void *, unsigned flags, void *ent);
extern void taskq_wait(taskq_t *);
extern void taskq_destroy(taskq_t *);

enum { ENTRY_BYTES = 128, READ_ONLY = 1, PRIORITY = 60, MAY_SLEEP = 0 };

static taskq_t *queue;
static long each;
static int own_entries;
static pthread_barrier_t ready;

static const struct {
	const char *label;
	int own_entries, threads;
} ways[] = { { "", 0, 0 }, { ", entries", 1, 0 }, { ", from threads", 0, 1 } };

static void nothing(void *unused)
{
	(void)unused;
}

static void dispatch_all(void *entries)
{
	for (long i = 0; i < each; i++) {
		if (own_entries)
			taskq_dispatch_ent(queue, nothing, NULL, 0, (char *)entries + i * ENTRY_BYTES);
		else if (taskq_dispatch(queue, nothing, NULL, MAY_SLEEP) == 0)
			abort();
	}
}

static void *produce(void *entries)
{
	pthread_barrier_wait(&ready);
	dispatch_all(entries);
	return NULL;
}

static double seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

static double processor(void)
{
	struct rusage usage;
	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

int main(int count, char **words)
{
	if (count != 4) {
		fprintf(stderr, "usage: openzfs PRODUCERS WORKERS ITEMS\n");
		return 2;
	}
	long producers = atol(words[1]), workers = atol(words[2]);
	each = atol(words[3]) / (producers > 0 ? producers : 1);
	if (producers < 1 || workers < 1 || each < 1)
		return 2;
	pthread_t *threads = calloc(producers, sizeof *threads);
	void **entries = calloc(producers, sizeof *entries);
	if (!threads || !entries)
		return 1;
	kernel_init(READ_ONLY);
	for (unsigned way = 0; way < sizeof ways / sizeof ways[0]; way++) {
		own_entries = ways[way].own_entries;
		queue = taskq_create("peer", workers, PRIORITY, 512, INT_MAX, 0);
		pthread_barrier_init(&ready, NULL, producers + 1);
		for (long i = 0; i < producers; i++) {
			if (own_entries) {
				entries[i] = aligned_alloc(64, each * ENTRY_BYTES);
				if (!entries[i])
					return 1;
				for (long j = 0; j < each; j++)
					taskq_init_ent((char *)entries[i] + j * ENTRY_BYTES);
			}
			if (ways[way].threads && pthread_create(&threads[i], NULL, produce, NULL) != 0)
				return 1;
		}
		double start = seconds(), used = processor();
		if (ways[way].threads)
			pthread_barrier_wait(&ready);
		for (long i = 0; i < producers; i++) {
			if (ways[way].threads)
				pthread_join(threads[i], NULL);
			else if (taskq_dispatch(queue, dispatch_all, entries[i], MAY_SLEEP) == 0)
				abort();
		}
		taskq_wait(queue);
		double wall = seconds() - start;
		used = processor() - used;
		printf("{\"label\":\"OpenZFS%s\",\"ops\":%ld,\"seconds\":%.6f,\"iops\":%.0f,\"cpu_user_s\":%.6f,\"cpu_sys_s\":0}\n",
		    ways[way].label, each * producers, wall, each * producers / wall, used);
		taskq_destroy(queue);
		for (long i = 0; i < producers; i++) {
			free(entries[i]);
			entries[i] = NULL;
		}
	}
	kernel_fini();
	return 0;
}
