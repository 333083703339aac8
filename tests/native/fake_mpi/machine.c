#include "machine.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_RANKS = 16, MOST_BLOCKS = 4096, FENCE_BYTES = 4096, FENCE = 0xa7, FRESH = 0xa5 };

static struct {
    unsigned char *memory;
    size_t bytes;
} blocks[MOST_BLOCKS];

static int spoiled_fences;

static long long number_of(const char *name, int rank) {
    const char *text = getenv(name);
    for (; text != NULL && rank > 0; rank--)
        text = strchr(text, ',') == NULL ? NULL : strchr(text, ',') + 1;
    return text == NULL ? 0 : strtoll(text, NULL, 10);
}

/* ---- memory: with a fence before and after each piece, and never zeroed ---- */

static void *keep(unsigned char *whole, size_t bytes) {
    unsigned char *const memory = whole + FENCE_BYTES;
    for (int i = 0; i < MOST_BLOCKS; i++)
        if (blocks[i].memory == NULL) {
            blocks[i].memory = memory;
            blocks[i].bytes = bytes;
            memset(memory, FRESH, bytes);
            memset(whole, FENCE, FENCE_BYTES);
            memset(memory + bytes, FENCE, FENCE_BYTES);
            return memory;
        }
    abort();
}

static int has_room(size_t bytes) {
    static long long pieces[MOST_RANKS];
    const int rank = machine_rank();
    const long long room = number_of("FAKE_ROOM", rank);
    errno = ENOMEM;
    return ++pieces[rank] != number_of("FAKE_NO_PIECE", rank) && (room == 0 || bytes <= (size_t)room);
}

void *machine_aligned_alloc(size_t alignment, size_t bytes) {
    if (!has_room(bytes))
        return NULL;
    const size_t whole_bytes = bytes + 2 * FENCE_BYTES;
    return keep(aligned_alloc(alignment, (whole_bytes + alignment - 1) / alignment * alignment), bytes);
}

void *machine_malloc(size_t bytes) { return machine_aligned_alloc(16, bytes); }

void *machine_calloc(size_t count, size_t bytes) {
    void *const memory = machine_malloc(count * bytes);
    return memory == NULL ? NULL : memset(memory, 0, count * bytes);
}

static size_t forget(const unsigned char *memory) {
    for (int i = 0; i < MOST_BLOCKS; i++)
        if (blocks[i].memory == memory) {
            for (int k = 0; k < FENCE_BYTES; k++)
                spoiled_fences += memory[blocks[i].bytes + (size_t)k] != FENCE || memory[k - FENCE_BYTES] != FENCE;
            blocks[i].memory = NULL;
            return blocks[i].bytes;
        }
    abort(); /* freed twice, or never allocated */
}

void machine_free(void *memory) {
    if (memory == NULL)
        return;
    memset(memory, FRESH, forget(memory));
    free((unsigned char *)memory - FENCE_BYTES);
}

void *machine_realloc(void *memory, size_t bytes) {
    unsigned char *const made = machine_malloc(bytes);
    if (made == NULL || memory == NULL)
        return made;
    const size_t before = forget(memory);
    memcpy(made, memory, before < bytes ? before : bytes);
    free((unsigned char *)memory - FENCE_BYTES);
    return made;
}

/* ---- files ---- */

static int open_files(void) {
    int count = 0;
    for (int descriptor = 0; descriptor < 1000; descriptor++)
        count += fcntl(descriptor, F_GETFD) >= 0;
    return count;
}

static int files_before;

__attribute__((constructor)) static void count_files(void) { files_before = open_files(); }

static int streams;

FILE *machine_fopen(const char *path, const char *mode) {
    static long long looks[MOST_RANKS];
    static char text[128];
    const int rank = machine_rank();
    const long long moves = number_of("FAKE_MOVES", rank);
    FILE *made = NULL;
    if (strcmp(path, "/proc/self/sched") != 0)
        made = fopen(path, mode);
    else if (moves >= 0) {
        snprintf(text, sizeof text, "it (1, #threads: 1)\nse.nr_migrations   :  %lld\nnr_switches : 5\n",
                 moves * looks[rank]++);
        made = fmemopen(text, strlen(text), "r");
    }
    streams += made != NULL;
    return made;
}

/* ---- the disk ---- */

static int fails(const char *what) {
    static int calls;
    FILE *const log = getenv("FAKE_DISK") == NULL ? NULL : fopen(getenv("FAKE_DISK"), "a");
    if (log != NULL) {
        fprintf(log, "%s\n", what);
        fclose(log);
    }
    errno = EIO;
    return ++calls == number_of("FAKE_DISK_FAILS", 0);
}

int machine_fclose(FILE *stream) {
    const int of_disk = fileno(stream) >= 0, failed = of_disk && fails("close");
    streams--;
    return fclose(stream) != 0 || failed ? EOF : 0;
}

int machine_open(const char *path, int flags, ...) {
    const int mode = 0666; /* all that is requested */
    return fails("open") ? -1 : open(path, flags, mode);
}

int machine_fsync(int descriptor) {
    char link[64], what[300] = "fsync ";
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    if (readlink(link, what + 6, sizeof what - 7) < 0)
        abort();
    return fails(what) ? -1 : fsync(descriptor);
}

int machine_rename(const char *from, const char *to) { return fails("rename") ? -1 : rename(from, to); }

/* ---- what is left ---- */

const char *machine_judge(void) {
    for (int i = 0; i < MOST_BLOCKS; i++)
        if (blocks[i].memory != NULL)
            return "memory was never freed";
    if (streams != 0 || open_files() != files_before)
        return "a file was never closed";
    return spoiled_fences > 0 ? "it wrote beside its memory" : NULL;
}
