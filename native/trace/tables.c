#include "tables.h"

#include <stdlib.h>
#include <string.h>

struct nmt_call nmt_blank_call(int kind, uint32_t comm) {
    return (struct nmt_call){.kind = (uint16_t)kind,
                             .comm = comm,
                             .peer = -1,
                             .recv_peer = -1,
                             .request = NMT_NONE,
                             .list_a = NMT_NONE,
                             .list_b = NMT_NONE,
                             .type_bytes = 1};
}

/* Return whether the entry at `position` of `owner` equals `wanted`. */
typedef bool nmt_equal(const void *owner, uint32_t position, const void *wanted);
typedef uint64_t nmt_hash_of(const void *owner, uint32_t position);

/* Return the slot that holds the wanted entry, or the empty one where it belongs. */
static uint32_t *find_slot(const struct nmt_index *index, uint64_t hash, const void *owner, const void *wanted,
                           nmt_equal *equal) {
    size_t at = hash & index->mask;
    while (index->slots[at] != NMT_NONE && !equal(owner, index->slots[at], wanted))
        at = (at + 1) & index->mask;
    return &index->slots[at];
}

/* Keep the index at most half full; false when there is no memory for a larger one. */
static bool make_room(struct nmt_index *index, const void *owner, nmt_hash_of *hash_of) {
    if (index->slots && index->used * 2 <= index->mask)
        return true;
    size_t size = index->slots ? (index->mask + 1) * 2 : 256;
    uint32_t *slots = malloc(size * sizeof *slots);
    if (!slots)
        return false;
    memset(slots, 0xff, size * sizeof *slots);
    for (uint32_t position = 0; position < index->used; ++position) {
        size_t at = hash_of(owner, position) & (size - 1);
        while (slots[at] != NMT_NONE)
            at = (at + 1) & (size - 1);
        slots[at] = position;
    }
    free(index->slots);
    index->slots = slots;
    index->mask = size - 1;
    return true;
}

struct span {
    const uint8_t *data;
    size_t size;
};

static struct span list_span(const struct nmt_lists *lists, uint32_t position) {
    size_t start = position ? lists->ends[position - 1] : 0;
    return (struct span){lists->encoded.data + start, lists->ends[position] - start};
}

static bool equal_list(const void *owner, uint32_t position, const void *wanted) {
    const struct span *span = wanted, have = list_span(owner, position);
    return have.size == span->size && !memcmp(have.data, span->data, span->size);
}

static uint64_t hash_list(const void *owner, uint32_t position) {
    struct span span = list_span(owner, position);
    return nmt_hash(span.data, span.size);
}

/* Return the length of the run of equal stride that starts the list, and its stride. */
static size_t leading_run(const uint64_t *values, size_t count, int64_t *stride) {
    *stride = count > 1 ? (int64_t)(values[1] - values[0]) : 0;
    size_t length = 1;
    while (length < count && (int64_t)(values[length] - values[length - 1]) == *stride)
        ++length;
    return length;
}

static void encode_list(struct nmt_bytes *bytes, const uint64_t *values, size_t count) {
    int64_t stride;
    size_t runs = 0;
    for (size_t at = 0; at < count; ++runs)
        at += leading_run(values + at, count - at, &stride);
    nmt_bytes_put_varint(bytes, runs);
    for (size_t at = 0; at < count;) {
        size_t length = leading_run(values + at, count - at, &stride);
        nmt_bytes_put_varint(bytes, length);
        nmt_bytes_put_varint(bytes, values[at]);
        nmt_bytes_put_zigzag(bytes, stride);
        at += length;
    }
}

uint32_t nmt_lists_intern(struct nmt_lists *lists, const uint64_t *values, size_t count) {
    if (!make_room(&lists->index, lists, hash_list) ||
        !nmt_grow(&lists->ends, &lists->room, lists->count + 1U, sizeof *lists->ends))
        return NMT_NONE;
    size_t start = lists->encoded.size;
    encode_list(&lists->encoded, values, count);
    if (lists->encoded.failed) {
        lists->encoded.failed = false;
        lists->encoded.size = start;
        return NMT_NONE;
    }
    struct span span = {lists->encoded.data + start, lists->encoded.size - start};
    uint32_t *slot = find_slot(&lists->index, nmt_hash(span.data, span.size), lists, &span, equal_list);
    if (*slot != NMT_NONE) {
        lists->encoded.size = start;
        return *slot;
    }
    *slot = lists->count;
    lists->ends[lists->count] = lists->encoded.size;
    ++lists->index.used;
    return lists->count++;
}

static bool equal_call(const void *owner, uint32_t position, const void *wanted) {
    const struct nmt_calls *calls = owner;
    return !memcmp(&calls->entries[position], wanted, sizeof(struct nmt_call));
}

static uint64_t hash_call(const void *owner, uint32_t position) {
    const struct nmt_calls *calls = owner;
    return nmt_hash(&calls->entries[position], sizeof(struct nmt_call));
}

uint32_t nmt_calls_intern(struct nmt_calls *calls, const struct nmt_call *call) {
    if (!make_room(&calls->index, calls, hash_call))
        return NMT_NONE;
    uint32_t *slot = find_slot(&calls->index, nmt_hash(call, sizeof *call), calls, call, equal_call);
    if (*slot != NMT_NONE)
        return *slot;
    if (!nmt_grow(&calls->entries, &calls->entries_room, calls->count + 1U, sizeof *calls->entries) ||
        !nmt_grow(&calls->times, &calls->times_room, calls->count + 1U, sizeof *calls->times))
        return NMT_NONE;
    calls->entries[calls->count] = *call;
    calls->times[calls->count] = (struct nmt_call_time){0};
    *slot = calls->count;
    ++calls->index.used;
    return calls->count++;
}

uint64_t nmt_round_size(uint64_t bytes, bool up) {
    if (bytes < 8)
        return bytes;
    int shift = 61 - __builtin_clzll(bytes);
    uint64_t low = bytes >> shift << shift;
    return up && low != bytes ? low + (UINT64_C(1) << shift) : low;
}

void nmt_lists_free(struct nmt_lists *lists) {
    nmt_bytes_free(&lists->encoded);
    free(lists->ends);
    free(lists->index.slots);
    *lists = (struct nmt_lists){0};
}

void nmt_calls_free(struct nmt_calls *calls) {
    free(calls->entries);
    free(calls->times);
    free(calls->index.slots);
    *calls = (struct nmt_calls){0};
}
