#include "requests.h"

#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 1024 };

static uint32_t *bucket_of(struct nmt_requests *requests, uint64_t handle) {
    if (!requests->buckets)
        requests->buckets = calloc(BUCKETS, sizeof *requests->buckets);
    return requests->buckets ? requests->buckets[nmt_mix(handle) % BUCKETS] : NULL;
}

uint32_t nmt_requests_take_slot(struct nmt_requests *requests) {
    size_t word = requests->first_free;
    while (word < requests->busy_words && requests->busy[word] == UINT64_MAX)
        ++word;
    if (word == requests->busy_words) {
        if (!nmt_grow(&requests->busy, &requests->busy_room, word + 1, sizeof *requests->busy))
            return NMT_NONE;
        requests->busy[requests->busy_words++] = 0;
    }
    requests->first_free = word;
    uint32_t bit = (uint32_t)__builtin_ctzll(~requests->busy[word]);
    requests->busy[word] |= UINT64_C(1) << bit;
    return (uint32_t)(word * 64) + bit;
}

static void give_slot_back(struct nmt_requests *requests, uint32_t slot) {
    if (slot == NMT_NONE)
        return;
    requests->busy[slot / 64] &= ~(UINT64_C(1) << slot % 64);
    if (slot / 64 < requests->first_free)
        requests->first_free = slot / 64;
}

static uint32_t take_entry(struct nmt_requests *requests) {
    uint32_t entry = requests->unused;
    if (entry) {
        requests->unused = requests->entries[entry - 1].next;
        return entry;
    }
    if (!nmt_grow(&requests->entries, &requests->entries_room, requests->entries_count + 1U, sizeof *requests->entries))
        return 0;
    return ++requests->entries_count;
}

bool nmt_requests_add(struct nmt_requests *requests, uint64_t handle, uint32_t slot, const struct nmt_call *call,
                      bool persistent) {
    uint32_t *bucket = bucket_of(requests, handle), entry = bucket ? take_entry(requests) : 0;
    if (!entry)
        return false;
    struct nmt_request *request = &requests->entries[entry - 1];
    *request = (struct nmt_request){.handle = handle, .slot = slot, .persistent = persistent, .call = *call};
    if (bucket[1])
        requests->entries[bucket[1] - 1].next = entry;
    else
        bucket[0] = entry;
    bucket[1] = entry;
    return true;
}

/* Return the oldest entry with this handle, and the one before it in its chain, as position + 1; 0: none. */
static uint32_t find(struct nmt_requests *requests, const uint32_t *bucket, uint64_t handle, uint32_t *before) {
    *before = 0;
    for (uint32_t entry = bucket ? bucket[0] : 0; entry; entry = requests->entries[entry - 1].next) {
        if (requests->entries[entry - 1].handle == handle)
            return entry;
        *before = entry;
    }
    return 0;
}

static void drop(struct nmt_requests *requests, uint32_t *bucket, uint32_t entry, uint32_t before) {
    struct nmt_request *request = &requests->entries[entry - 1];
    if (before)
        requests->entries[before - 1].next = request->next;
    else
        bucket[0] = request->next;
    if (bucket[1] == entry)
        bucket[1] = before;
    give_slot_back(requests, request->slot);
    request->next = requests->unused;
    requests->unused = entry;
}

static uint32_t slot_of(const struct nmt_request *request) {
    uint32_t unless = request->call.kind == NMT_UNSUPPORTED ? NMT_NONE : NMT_SILENT;
    return request->slot == NMT_NONE || (request->persistent && !request->active) ? unless : request->slot;
}

static uint32_t complete(struct nmt_requests *requests, uint64_t handle, bool keep) {
    uint32_t before, *bucket = bucket_of(requests, handle), entry = find(requests, bucket, handle, &before);
    if (!entry)
        return NMT_NONE;
    struct nmt_request *request = &requests->entries[entry - 1];
    uint32_t slot = slot_of(request);
    if (request->persistent) {
        request->active = false;
    } else if (keep) {
        give_slot_back(requests, request->slot);
        request->slot = NMT_NONE;
    } else {
        drop(requests, bucket, entry, before);
    }
    return slot;
}

uint32_t nmt_requests_complete(struct nmt_requests *requests, uint64_t handle) {
    return complete(requests, handle, false);
}

uint32_t nmt_requests_see(struct nmt_requests *requests, uint64_t handle) { return complete(requests, handle, true); }

uint32_t nmt_requests_find(struct nmt_requests *requests, uint64_t handle, const struct nmt_call **call) {
    uint32_t before, entry = find(requests, bucket_of(requests, handle), handle, &before);
    const struct nmt_request *request = entry ? &requests->entries[entry - 1] : NULL;
    *call = request ? &request->call : NULL;
    return request ? slot_of(request) : NMT_NONE;
}

const struct nmt_call *nmt_requests_start(struct nmt_requests *requests, uint64_t handle) {
    uint32_t before, entry = find(requests, bucket_of(requests, handle), handle, &before);
    if (!entry || !requests->entries[entry - 1].persistent)
        return NULL;
    requests->entries[entry - 1].active = true;
    return &requests->entries[entry - 1].call;
}

bool nmt_requests_forget(struct nmt_requests *requests, uint64_t handle, struct nmt_call *call) {
    uint32_t before, *bucket = bucket_of(requests, handle), entry = find(requests, bucket, handle, &before);
    if (!entry)
        return false;
    if (call)
        *call = requests->entries[entry - 1].call;
    drop(requests, bucket, entry, before);
    return true;
}

void nmt_requests_free(struct nmt_requests *requests) {
    free(requests->entries);
    free(requests->buckets);
    free(requests->busy);
    *requests = (struct nmt_requests){0};
}
