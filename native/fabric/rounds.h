/* The rounds that a launch measures, read from a text: which ranks are paired in each. No MPI in here.
 *
 * A line is a round: the word of its phase, then the pairs that it measures at the same time, such as `all 0-5 4-1
 * 3-2`. The first rank of a pair starts the ping-pong. No rank may appear twice in a line.
 */
#ifndef NMFABRIC_ROUNDS_H
#define NMFABRIC_ROUNDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ROUNDS_PHASE_CHARS = 16, ROUNDS_MESSAGE_CHARS = 160 };

/* A run of rounds with the same word. */
struct phase {
    char name[ROUNDS_PHASE_CHARS];
    int64_t rounds;
};

/* partner[rank * count + round] is 0 for an idle rank, p + 1 for one that starts with p, -(p + 1) for one that answers
 * p. */
struct rounds {
    int ranks;
    size_t count;
    int32_t *partner; /* owned */
    struct phase *phases;
    size_t phase_count;
};

/* Parse `text`, which is modified. Returns true, or false with one sentence in `message`; free with rounds_free in both
 * cases. */
bool rounds_parse(char *text, int ranks, struct rounds *rounds, char message[ROUNDS_MESSAGE_CHARS]);
void rounds_free(struct rounds *rounds);

#endif
