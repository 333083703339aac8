/* The machine of the fake MPI's ranks, as far as the engine uses it: memory, files, the processor. The sources
 * under test are compiled with -Dmalloc=machine_malloc and so on (tests/instrument.py).
 *
 *     FAKE_ROOM=a,b,...    the most bytes that each rank gets in one piece; 0 or absent: no limit
 *     FAKE_NO_PIECE=a,b,...   the n-th piece (from 1) that each rank does not get; 0 or absent: none
 *     FAKE_MOVES=a,b,...   how often each rank is moved to another processor between two readings; -1: not reported
 *     FAKE_DISK            a file that gets a line for each open, close, fsync and rename, in order
 *     FAKE_DISK_FAILS      the n-th (from 1) of those calls fails: EIO
 */
#ifndef FAKE_MACHINE_H
#define FAKE_MACHINE_H

#include <stdio.h>

void *machine_malloc(size_t bytes);
void *machine_calloc(size_t count, size_t bytes);
void *machine_realloc(void *memory, size_t bytes);
void *machine_aligned_alloc(size_t alignment, size_t bytes);
void machine_free(void *memory);
FILE *machine_fopen(const char *path, const char *mode);
int machine_fclose(FILE *stream);
int machine_open(const char *path, int flags, ...);
int machine_fsync(int descriptor);
int machine_rename(const char *from, const char *to);
int machine_yield(void);

/* Return the running rank. */
int machine_rank(void);

/* Return what is wrong with memory and files at the end, or NULL. */
const char *machine_judge(void);

#endif
