/* The command line's options. No MPI in here, so that it can be tested alone. */
#ifndef NMBENCH_OPTIONS_H
#define NMBENCH_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "arguments.h"

enum { OPTIONS_MAX_SIZES = 64 };

struct numbers {
    int64_t items[OPTIONS_MAX_SIZES];
    size_t count;
};

struct options {
    const char *operation;      /* --op */
    const char *sync;           /* --sync; NULL: the operation's default */
    const char *out;            /* --out */
    struct numbers sizes_bytes; /* --sizes, in the order given */
    int64_t iterations;         /* --iterations: measured, after the warm-up */
    int64_t warmup;             /* --warmup */
    struct numbers large_from_bytes; /* --large-from, ascending: sizes from each on use its number of the two below */
    struct numbers iterations_large; /* --iterations-large; none: iterations */
    struct numbers warmup_large;     /* --warmup-large; none: warmup */
    int64_t window_messages;  /* --window */
    int64_t sync_window_ns;   /* --sync-window-us, in ns; 0: measured for each size */
    int64_t pace_ns;          /* --pace-us, in ns: the longest pause before an iteration; 0: none */
    int64_t seed;             /* --seed: decides the pauses */
    int64_t compute_ns;       /* --compute-us, in ns: how long each rank computes before an iteration; 0: none */
    int64_t working_set_bytes; /* --working-set: the memory that it computes on */
    bool many_buffers;        /* --buffers many: one buffer per message of a window */
    bool check;               /* --check */
    bool list;                /* --list */
    bool help;                /* --help */
};

extern const char options_usage[];

/* Read the command line.
 *
 * Returns true and fills `options`, or returns false and leaves in `message` one sentence that names the argument.
 * Neither the operation's name nor its needs (ranks, a size) are checked here. Strings are borrowed from argv.
 */
bool options_parse(int argc, char *const argv[], struct options *options, char message[ARGUMENTS_MESSAGE_CHARS]);

/* Return how many iterations of this size are measured (`options_warmup`: run before them and marked). */
int64_t options_iterations(const struct options *options, int64_t size_bytes);
int64_t options_warmup(const struct options *options, int64_t size_bytes);

#endif
