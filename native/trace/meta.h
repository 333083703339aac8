/* meta.h - section META of a trace: where and how a rank ran, and what the trace lacks. */
#ifndef NMT_META_H
#define NMT_META_H

#include <stdbool.h>
#include <stdint.h>

#include "bytes.h"

enum {
    NMT_NAMES = 64,
    /* Not MPI_MAX_LIBRARY_VERSION_STRING: the library in use may be another one, with a larger limit. */
    NMT_VERSION_ROOM = 1 << 16,
};

/* Calls that were seen but not recorded, in all and by name; names that do not fit are only in the sum. */
struct nmt_unsupported {
    uint64_t calls;
    uint64_t ns; /* in them, and in waiting for their requests */
    unsigned names;
    struct {
        const char *name;
        uint64_t calls;
    } by_name[NMT_NAMES];
};

void nmt_count_unsupported(struct nmt_unsupported *unsupported, const char *name);

/* What describes a rank's recording besides its calls. */
struct nmt_facts {
    int threads;                                 /* the level that MPI granted */
    uint64_t calling_threads;                    /* that called MPI after MPI_Init; 0 where only one may */
    bool processor_time;                         /* gaps in processor time: for ranks that share processors */
    uint64_t skipped_ns;                         /* left out of the gaps: without a processor */
    uint64_t delay_at_start_ns, delay_at_end_ns; /* how long the thread had waited for a processor */
    bool of_several_threads;                     /* several threads made calls: the delay is of one of them */
    uint64_t own_ns;                             /* spent in the profiler, outside MPI */
    uint64_t rounded;
    uint64_t paused_ns; /* between polls, taken for waiting */
    uint64_t worked_ns; /* after a poll that found nothing, taken for compute */
    uint64_t mixed_ns;  /* in recorded waits for requests of which some are not recorded */
    uint64_t local_calls;
    uint64_t local_ns;
    struct nmt_unsupported unsupported;
};

/* Read the first line of the version string of the MPI in use. */
void nmt_read_version(char version[NMT_VERSION_ROOM]);

#define NMT_UNKNOWN_DELAY UINT64_MAX

/* Return how long the calling thread has waited for a processor, or NMT_UNKNOWN_DELAY if the kernel does not say. */
uint64_t nmt_read_delay_ns(void);

/* Copy text into a META line: a newline would end the line, and bytes outside ASCII might not be UTF-8. */
void nmt_add_meta(struct nmt_bytes *meta, const char *key, const char *value);
void nmt_add_meta_number(struct nmt_bytes *meta, const char *key, uint64_t value);

/* Add which processors there are, and which the rank may use (processors.c). */
void nmt_describe_processors(struct nmt_bytes *meta);

/* Write the lines of META, ended by a zero. */
void nmt_describe_run(struct nmt_bytes *meta, const struct nmt_facts *facts);

#endif
