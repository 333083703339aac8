/* gaps.h - how long a rank computes between two calls: one distribution for each place in the program, and the order.
 *
 * A place (site) is identified by four numbers: the code addresses and the CALL entries before and after it. The first
 * NMT_GAP_EXACT durations of a site are kept exactly; from then on the site is a histogram with NMT_GAP_STEPS bins per
 * octave (a value is known to 1/16 of itself). Sites beyond NMT_GAP_SITES share one for each pair of kinds.
 *
 * The first NMT_GAP_KEPT durations of a site are also kept in order of arrival, as 16 bits each, until there are
 * NMT_GAP_KEPT_IN_ALL: ranks slow down together, which a distribution does not show.
 */
#ifndef NMT_GAPS_H
#define NMT_GAPS_H

#include "bytes.h"

enum {
    NMT_GAP_EXACT = 256,
    NMT_GAP_STEPS = 16,
    NMT_GAP_BINS = NMT_GAP_STEPS * 44, /* exact below 16 ns, then octaves up to 78 hours */
    NMT_GAP_SITES = 8192,
    NMT_GAP_POINTS = 33,
#ifdef NMT_SMALL_LIMITS
    NMT_GAP_KEPT = 48,
    NMT_GAP_KEPT_IN_ALL = 100,
#else
    NMT_GAP_KEPT = 1 << 14,
    NMT_GAP_KEPT_IN_ALL = 1 << 21,
#endif
};

struct nmt_place {
    uint64_t code_before;
    uint64_t code_after;
    uint32_t call_before;
    uint32_t call_after;
};

struct nmt_gaps;

/* Return an empty table, or NULL without memory. */
struct nmt_gaps *nmt_gaps_new(void);

/* Add a duration at a place and return its site; `kinds` selects the shared site that it joins when there are too many.
 * NMT_NONE without memory. */
uint32_t nmt_gaps_add(struct nmt_gaps *gaps, const struct nmt_place *place, uint32_t kinds, uint64_t duration_ns);

/* Append the payload of the GAPS section. */
void nmt_gaps_encode(const struct nmt_gaps *gaps, struct nmt_bytes *bytes);

/* Append the payload of the SEQU section: for each site how many durations follow, and these in their order. */
void nmt_gaps_encode_order(const struct nmt_gaps *gaps, struct nmt_bytes *bytes);

void nmt_gaps_free(struct nmt_gaps *gaps);

#endif
