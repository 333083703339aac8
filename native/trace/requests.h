/* requests.h - which slot an MPI request holds, by its handle.
 *
 * A new request takes the lowest free slot, so equal iterations of a loop use equal slots and compress. A library may
 * return the same handle several times at once, for requests that are complete already: those are kept in order and the
 * oldest completes first. A request that is not recorded (MPI_PROC_NULL) is kept too, without a slot, so that its
 * completion is not mistaken for another's.
 */
#ifndef NMT_REQUESTS_H
#define NMT_REQUESTS_H

#include "tables.h"

struct nmt_request {
    uint64_t handle;
    uint32_t slot; /* NMT_NONE: not recorded, or seen to be complete */
    uint32_t next;
    bool persistent;
    bool active;
    struct nmt_call call;
};

/* All zero is an empty table. */
struct nmt_requests {
    struct nmt_request *entries;
    size_t entries_room;
    uint32_t entries_count;
    uint32_t unused;        /* chain of entries that may be taken again, position + 1 */
    uint32_t (*buckets)[2]; /* first and last entry of each chain, position + 1 */
    uint64_t *busy;         /* one bit a slot */
    size_t busy_room;
    size_t busy_words;
    size_t first_free; /* no word before this one has a free slot */
};

/* Take the lowest free slot. NMT_NONE without memory. */
uint32_t nmt_requests_take_slot(struct nmt_requests *requests);

/* Remember a request of this call; `slot` is NMT_NONE where the call is not recorded. A persistent one is inactive.
 * False without memory. */
bool nmt_requests_add(struct nmt_requests *requests, uint64_t handle, uint32_t slot, const struct nmt_call *call,
                      bool persistent);

/* What a wait completes when there is nothing to note: it is inactive, seen to be complete, or takes no time. */
#define NMT_SILENT (NMT_NONE - 1)

/* Note that the oldest request with this handle is complete and return its slot; NMT_SILENT; or NMT_NONE, when it is
 * not known or its call is only counted. The slot is free afterwards unless the request is persistent. */
uint32_t nmt_requests_complete(struct nmt_requests *requests, uint64_t handle);

/* The same for a request that the program still holds: it is remembered, without a slot. */
uint32_t nmt_requests_see(struct nmt_requests *requests, uint64_t handle);

/* Return what would be returned if the oldest request with this handle were complete. `call` is set to its call, or to
 * NULL where it is not known. */
uint32_t nmt_requests_find(struct nmt_requests *requests, uint64_t handle, const struct nmt_call **call);

/* Note that a persistent request was started and return what it starts; NULL when it is not known. */
const struct nmt_call *nmt_requests_start(struct nmt_requests *requests, uint64_t handle);

/* Forget the oldest request with this handle, and free its slot. With `call`, its call is copied there first. False
 * when it is not known. */
bool nmt_requests_forget(struct nmt_requests *requests, uint64_t handle, struct nmt_call *call);

void nmt_requests_free(struct nmt_requests *requests);

#endif
