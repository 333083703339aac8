#include "gaps.h"

#include <stdlib.h>
#include <string.h>

enum { SLOTS = 4 * NMT_GAP_SITES, OVERFLOW_SITES = 4096 };

struct site {
    struct nmt_place place;
    uint64_t visits;
    uint64_t total_ns;
    uint64_t min_ns;
    uint64_t max_ns;
    uint64_t *exact;  /* the first durations, in the order they came */
    uint32_t *counts; /* NMT_GAP_BINS bins once they are too many, else NULL */
    uint16_t *order;  /* the first `kept` durations, see encode_duration */
    uint32_t kept;
};

struct nmt_gaps {
    struct site *sites;
    size_t room;
    uint32_t count;
    uint32_t kept_in_all;
    uint32_t slots[SLOTS];
};

/* Denser at both ends: a prediction samples the tails too. */
static const double probabilities[NMT_GAP_POINTS] = {
    0.0,  0.001, 0.005, 0.01, 0.025, 0.05, 0.1,   0.15, 0.2,  0.25, 0.3,  0.35,  0.4,   0.45,  0.5,    0.55, 0.6,
    0.65, 0.7,   0.75,  0.8,  0.85,  0.9,  0.925, 0.95, 0.97, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9999, 1.0,
};

static uint32_t bin_of(uint64_t ns) {
    if (ns < NMT_GAP_STEPS)
        return (uint32_t)ns;
    uint32_t octave = 63U - (uint32_t)__builtin_clzll(ns);
    uint32_t step = (uint32_t)(ns >> (octave - 4)) - NMT_GAP_STEPS;
    uint32_t bin = (octave - 3) * NMT_GAP_STEPS + step;
    return bin < NMT_GAP_BINS ? bin : NMT_GAP_BINS - 1;
}

static uint64_t bin_start(uint32_t bin) {
    if (bin < NMT_GAP_STEPS)
        return bin;
    return (uint64_t)(NMT_GAP_STEPS + bin % NMT_GAP_STEPS) << (bin / NMT_GAP_STEPS - 1);
}

/* A duration rounded to 16 bits: up to 4095 ns exactly, else (2048 .. 4095) << shift, as shift * 2048 + step. 73
 * minutes and above share one value. */
static uint16_t encode_duration(uint64_t ns) {
    if (ns < 4096)
        return (uint16_t)ns;
    uint32_t shift = 52U - (uint32_t)__builtin_clzll(ns);
    uint64_t step = (ns + (UINT64_C(1) << shift >> 1)) >> shift; /* 2048 .. 4096 */
    uint64_t code = ((uint64_t)shift << 11) + step;
    return code < UINT16_MAX ? (uint16_t)code : UINT16_MAX;
}

/* Append a duration to the order, in a block that doubles. */
static bool keep_order(struct nmt_gaps *gaps, struct site *site, uint64_t duration_ns) {
    uint32_t have = site->kept;
    if (have != site->visits || have == NMT_GAP_KEPT || gaps->kept_in_all == NMT_GAP_KEPT_IN_ALL)
        return true;
    if ((have & (have - 1)) == 0) {
        uint16_t *grown = realloc(site->order, (have ? 2 * have : 1) * sizeof *grown);
        if (!grown)
            return false;
        site->order = grown;
    }
    site->order[site->kept++] = encode_duration(duration_ns);
    ++gaps->kept_in_all;
    return true;
}

struct nmt_gaps *nmt_gaps_new(void) {
    struct nmt_gaps *gaps = calloc(1, sizeof *gaps);
    if (gaps)
        memset(gaps->slots, 0xff, sizeof gaps->slots);
    return gaps;
}

/* Return the slot of a place: the one that holds its site, or the empty one where it belongs. */
static uint32_t *find_slot(struct nmt_gaps *gaps, const struct nmt_place *place) {
    size_t at = nmt_hash(place, sizeof *place) % SLOTS;
    while (gaps->slots[at] != NMT_NONE && memcmp(&gaps->sites[gaps->slots[at]].place, place, sizeof *place) != 0)
        at = (at + 1) % SLOTS;
    return &gaps->slots[at];
}

static uint32_t find_site(struct nmt_gaps *gaps, const struct nmt_place *place, uint32_t kinds) {
    uint32_t *slot = find_slot(gaps, place);
    struct nmt_place shared = {.call_before = NMT_NONE, .call_after = kinds};
    if (*slot == NMT_NONE && gaps->count >= NMT_GAP_SITES) {
        place = &shared;
        slot = find_slot(gaps, place);
    }
    if (*slot != NMT_NONE)
        return *slot;
    if (gaps->count >= NMT_GAP_SITES + OVERFLOW_SITES ||
        !nmt_grow(&gaps->sites, &gaps->room, gaps->count + 1U, sizeof *gaps->sites))
        return NMT_NONE;
    gaps->sites[gaps->count] = (struct site){.place = *place, .min_ns = UINT64_MAX};
    *slot = gaps->count;
    return gaps->count++;
}

/* Replace the kept durations by a histogram. */
static bool start_histogram(struct site *site) {
    site->counts = calloc(NMT_GAP_BINS, sizeof *site->counts);
    if (!site->counts)
        return false;
    for (uint64_t i = 0; i < site->visits; ++i)
        ++site->counts[bin_of(site->exact[i])];
    free(site->exact);
    site->exact = NULL;
    return true;
}

/* Durations are kept in a block that doubles: most sites are visited once. */
static bool keep_exact(struct site *site, uint64_t duration_ns) {
    uint64_t have = site->visits;
    if ((have & (have - 1)) == 0) {
        uint64_t *grown = realloc(site->exact, (have ? 2 * have : 1) * sizeof *grown);
        if (!grown)
            return false;
        site->exact = grown;
    }
    site->exact[have] = duration_ns;
    return true;
}

static bool add_to(struct site *site, uint64_t duration_ns) {
    if (!site->counts && site->visits == NMT_GAP_EXACT && !start_histogram(site))
        return false;
    if (site->counts) {
        uint32_t *count = &site->counts[bin_of(duration_ns)];
        *count += *count != UINT32_MAX;
    } else if (!keep_exact(site, duration_ns)) {
        return false;
    }
    ++site->visits;
    site->total_ns += duration_ns;
    site->min_ns = duration_ns < site->min_ns ? duration_ns : site->min_ns;
    site->max_ns = duration_ns > site->max_ns ? duration_ns : site->max_ns;
    return true;
}

uint32_t nmt_gaps_add(struct nmt_gaps *gaps, const struct nmt_place *place, uint32_t kinds, uint64_t duration_ns) {
    uint32_t site = find_site(gaps, place, kinds);
    if (site == NMT_NONE)
        return NMT_NONE;
    struct site *found = &gaps->sites[site];
    return keep_order(gaps, found, duration_ns) && add_to(found, duration_ns) ? site : NMT_NONE;
}

static int compare_ns(const void *a, const void *b) {
    uint64_t x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

/* The quantile between order statistics: value at rank p * (n - 1), linear in between (Hyndman and Fan's type 7). */
static uint64_t exact_quantile(const struct site *site, double probability) {
    double rank = probability * (double)(site->visits - 1);
    uint64_t below = (uint64_t)rank, above = below + (below + 1 < site->visits);
    double low = (double)site->exact[below], high = (double)site->exact[above];
    return (uint64_t)(low + (high - low) * (rank - (double)below) + 0.5);
}

/* The same rank in the histogram, spread evenly within its bin and held between the true extremes. */
static uint64_t binned_quantile(const struct site *site, double probability) {
    if (probability <= 0.0)
        return site->min_ns;
    if (probability >= 1.0)
        return site->max_ns;
    double rank = probability * (double)(site->visits - 1), seen = 0;
    uint32_t bin = 0;
    while (bin < NMT_GAP_BINS - 1 && seen + site->counts[bin] <= rank)
        seen += site->counts[bin++];
    double share = site->counts[bin] ? (rank - seen + 0.5) / site->counts[bin] : 0.5;
    double low = (double)bin_start(bin), high = (double)bin_start(bin + 1);
    double ns = low + (high - low) * (share < 1 ? share : 1);
    ns = ns < (double)site->min_ns ? (double)site->min_ns : ns;
    return (uint64_t)(ns > (double)site->max_ns ? (double)site->max_ns : ns);
}

void nmt_gaps_encode(const struct nmt_gaps *gaps, struct nmt_bytes *bytes) {
    nmt_bytes_put_u32(bytes, gaps->count);
    nmt_bytes_put_u32(bytes, NMT_GAP_POINTS);
    nmt_bytes_put(bytes, probabilities, sizeof probabilities);
    for (uint32_t i = 0; i < gaps->count; ++i) {
        const struct site *site = &gaps->sites[i];
        nmt_bytes_put_u64(bytes, site->visits);
        nmt_bytes_put_u64(bytes, site->total_ns);
        if (site->exact)
            qsort(site->exact, site->visits, sizeof *site->exact, compare_ns);
        for (size_t p = 0; p < NMT_GAP_POINTS; ++p) {
            uint64_t ns = site->counts  ? binned_quantile(site, probabilities[p])
                          : site->exact ? exact_quantile(site, probabilities[p])
                                        : 0;
            nmt_bytes_put_u64(bytes, ns);
        }
    }
}

void nmt_gaps_encode_order(const struct nmt_gaps *gaps, struct nmt_bytes *bytes) {
    for (uint32_t i = 0; i < gaps->count; ++i) {
        nmt_bytes_put_u32(bytes, gaps->sites[i].kept);
        for (uint32_t k = 0; k < gaps->sites[i].kept; ++k)
            nmt_bytes_put_u16(bytes, gaps->sites[i].order[k]);
    }
}

void nmt_gaps_free(struct nmt_gaps *gaps) {
    if (!gaps)
        return;
    for (uint32_t i = 0; i < gaps->count; ++i) {
        free(gaps->sites[i].exact);
        free(gaps->sites[i].counts);
        free(gaps->sites[i].order);
    }
    free(gaps->sites);
    free(gaps);
}
