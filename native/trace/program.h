/* program.h - the sequence of calls and gaps of a rank, with repeats found while it runs.
 *
 * Steps are pushed one at a time. When the latest steps repeat the ones before them they become a repeat, and when they
 * repeat the body of the repeat before them its count rises: a loop of any length, of loops of any length, takes the
 * memory of one iteration. Equal stretches are found by rolling hashes and confirmed step by step, so what is written
 * always expands to exactly what was pushed.
 *
 * Memory is bounded: at most NMT_WINDOW steps and repeats (and NMT_LIVE_STEPS steps inside repeats) are open to
 * folding. Older ones are encoded, and leave memory for an unnamed file as soon as they fill NMT_SPILL_BYTES.
 */
#ifndef NMT_PROGRAM_H
#define NMT_PROGRAM_H

#include "bytes.h"

#ifdef NMT_SMALL_LIMITS /* for tests: every limit is met within a few hundred calls */
enum { NMT_WINDOW = 64, NMT_LIVE_STEPS = 200, NMT_SPILL_BYTES = 128 };
#else
enum {
    NMT_WINDOW = 16384,        /* steps open to folding: loops of up to half as many calls are found */
    NMT_LIVE_STEPS = 1 << 20,  /* steps inside repeats that are open to folding */
    NMT_SPILL_BYTES = 1 << 20, /* encoded bytes kept in memory */
};
#endif

enum {
    NMT_MAX_DEPTH = 32,  /* how deep repeats nest; part of the file format */
    NMT_CANDIDATES = 32, /* earlier equal steps that are tried as the start of a repeat */
};

struct nmt_program;

/* Make an empty program whose older part may spill into an unnamed file in `directory` (NULL: memory only). NULL when
 * out of memory. */
struct nmt_program *nmt_program_new(const char *directory);

/* Append: compute at gap site `gap` (NMT_NONE: no gap), then call number `call`. */
void nmt_program_push(struct nmt_program *program, uint32_t gap, uint32_t call);

/* Encode everything pushed so far. Nothing may be pushed afterwards. */
void nmt_program_finish(struct nmt_program *program);

/* Whether memory or disk ran out; such a program is not complete. */
bool nmt_program_failed(const struct nmt_program *program);

/* After finish: the encoded bytes in order, handed to `take` piece by piece; false when it or a read fails. */
bool nmt_program_read(struct nmt_program *program, bool (*take)(void *context, const void *data, size_t size),
                      void *context);

/* After finish: the number of encoded bytes. */
uint64_t nmt_program_size(const struct nmt_program *program);

/* The calls pushed so far. */
uint64_t nmt_program_calls(const struct nmt_program *program);

void nmt_program_free(struct nmt_program *program);

#endif
