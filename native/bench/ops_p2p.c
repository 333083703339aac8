/* Point-to-point operations between pairs: rank i of the first half starts, rank i + ranks/2 answers. */
#include "ops.h"
#include "payload.h"

#include <string.h>

enum { TAG = 1, TAG_ACK = 2, ACK_BYTES = 4 };

/* The receive buffers of a window stay below this together, so that 64 messages of 4 MiB fit in a small guest; beyond
 * it messages share slots, as they all do with a single buffer and in other suites. */
enum { SLOTS_MAX_BYTES = 16 << 20, SLOT_ALIGN_BYTES = 64 };

static void set_pair(struct op_run *run) {
    const int half = run->ranks / 2;
    run->initiator = run->rank < half;
    run->peer = run->initiator ? run->rank + half : run->rank - half;
    run->type = MPI_BYTE;
}

/* ---- round trips ---- */

static bool latency_prepare(struct op_run *run) {
    set_pair(run);
    return op_allocate(run, (size_t)run->message_bytes, (size_t)run->message_bytes, 0);
}

static void latency_fill(struct op_run *run, int round) {
    payload_fill(run->send, run->send_bytes, payload_key(run->rank, run->peer, 0, round));
    memset(run->receive, 0, run->receive_bytes);
}

static void latency_call(struct op_run *run) {
    if (run->initiator) {
        MPI_Send(run->send, run->message_bytes, MPI_BYTE, run->peer, TAG, run->comm);
        MPI_Recv(run->receive, run->message_bytes, MPI_BYTE, run->peer, TAG, run->comm, MPI_STATUS_IGNORE);
    } else {
        MPI_Recv(run->receive, run->message_bytes, MPI_BYTE, run->peer, TAG, run->comm, MPI_STATUS_IGNORE);
        MPI_Send(run->send, run->message_bytes, MPI_BYTE, run->peer, TAG, run->comm);
    }
}

static int64_t latency_validate(const struct op_run *run, int round) {
    return !payload_matches(run->receive, run->receive_bytes, payload_key(run->peer, run->rank, 0, round));
}

/* Both at once. */
static void exchange_call(struct op_run *run) {
    MPI_Sendrecv(run->send, run->message_bytes, MPI_BYTE, run->peer, TAG, run->receive, run->message_bytes, MPI_BYTE,
                 run->peer, TAG, run->comm, MPI_STATUS_IGNORE);
}

/* ---- what messages take of the processors of ends that compute ---- */

static void compute_call(struct op_run *run) { compute_fixed(&run->compute); }

static bool one_way_prepare(struct op_run *run) {
    set_pair(run);
    return op_allocate(run, (size_t)run->message_bytes, (size_t)run->message_bytes, 1);
}

static void one_way_before(struct op_run *run) {
    if (!run->initiator)
        MPI_Irecv(run->receive, run->message_bytes, MPI_BYTE, run->peer, TAG, run->comm, &run->requests[0]);
}

/* The message comes while its receiver computes, and its acknowledgement while its sender does. No barrier is between
 * messages: acknowledgements come as those of messages that nobody answers. */
static void one_way_call(struct op_run *run) {
    if (run->initiator)
        MPI_Send(run->send, run->message_bytes, MPI_BYTE, run->peer, TAG, run->comm);
    compute_fixed(&run->compute);
    if (!run->initiator)
        MPI_Waitall(1, run->requests, MPI_STATUSES_IGNORE);
}

static int64_t one_way_validate(const struct op_run *run, int round) {
    return run->initiator ? 0 : latency_validate(run, round);
}

/* ---- windows of messages in flight ---- */

static bool window_prepare(struct op_run *run) {
    set_pair(run);
    const size_t message_bytes = (size_t)run->message_bytes;
    run->slot_bytes = (message_bytes + SLOT_ALIGN_BYTES - 1) / SLOT_ALIGN_BYTES * SLOT_ALIGN_BYTES;
    const size_t fitting = SLOTS_MAX_BYTES / run->slot_bytes;
    const size_t wanted = run->many_buffers ? (size_t)run->window_messages : 1;
    run->slot_count = fitting < 1 ? 1 : fitting < wanted ? (int)fitting : (int)wanted;
    const size_t slots_bytes = (size_t)run->slot_count * run->slot_bytes;
    return op_allocate(run, slots_bytes + ACK_BYTES, slots_bytes + ACK_BYTES, 2 * (size_t)run->window_messages);
}

static void window_fill(struct op_run *run, int round) {
    for (int slot = 0; slot < run->slot_count; slot++)
        payload_fill(run->send + (size_t)slot * run->slot_bytes, (size_t)run->message_bytes,
                     payload_key(run->rank, run->peer, slot, round));
    memset(run->receive, 0, run->receive_bytes);
}

static int64_t window_validate_received(const struct op_run *run, int round) {
    int64_t wrong = 0;
    for (int slot = 0; slot < run->slot_count; slot++)
        wrong += !payload_matches(run->receive + (size_t)slot * run->slot_bytes, (size_t)run->message_bytes,
                                  payload_key(run->peer, run->rank, slot, round));
    return wrong;
}

static int64_t window_validate(const struct op_run *run, int round) {
    return run->initiator ? 0 : window_validate_received(run, round);
}

static void post_sends(struct op_run *run, MPI_Request *requests) {
    for (int k = 0; k < run->window_messages; k++)
        MPI_Isend(run->send + (size_t)(k % run->slot_count) * run->slot_bytes, run->message_bytes, MPI_BYTE, run->peer,
                  TAG, run->comm, &requests[k]);
}

static void post_receives(struct op_run *run, MPI_Request *requests) {
    for (int k = 0; k < run->window_messages; k++)
        MPI_Irecv(run->receive + (size_t)(k % run->slot_count) * run->slot_bytes, run->message_bytes, MPI_BYTE,
                  run->peer, TAG, run->comm, &requests[k]);
}

static unsigned char *ack_of(unsigned char *buffer, size_t bytes) { return buffer + bytes - ACK_BYTES; }

static void window_call(struct op_run *run) {
    if (run->initiator) {
        post_sends(run, run->requests);
        MPI_Waitall(run->window_messages, run->requests, MPI_STATUSES_IGNORE);
        MPI_Recv(ack_of(run->receive, run->receive_bytes), ACK_BYTES, MPI_BYTE, run->peer, TAG_ACK, run->comm,
                 MPI_STATUS_IGNORE);
    } else {
        post_receives(run, run->requests);
        MPI_Waitall(run->window_messages, run->requests, MPI_STATUSES_IGNORE);
        MPI_Send(ack_of(run->send, run->send_bytes), ACK_BYTES, MPI_BYTE, run->peer, TAG_ACK, run->comm);
    }
}

static void bibw_call(struct op_run *run) {
    post_receives(run, run->requests);
    post_sends(run, run->requests + run->window_messages);
    MPI_Waitall(2 * run->window_messages, run->requests, MPI_STATUSES_IGNORE);
    MPI_Sendrecv(ack_of(run->send, run->send_bytes), ACK_BYTES, MPI_BYTE, run->peer, TAG_ACK,
                 ack_of(run->receive, run->receive_bytes), ACK_BYTES, MPI_BYTE, run->peer, TAG_ACK, run->comm,
                 MPI_STATUS_IGNORE);
}

#define OF_PAIRS(word, sort) .name = word, .kind = sort, .min_ranks = 2, .even_ranks = true, .has_size = true
#define ONE_MESSAGE                                                                                                    \
    .prepare = latency_prepare, .fill = latency_fill, .validate = latency_validate, .clean = op_release
#define ROUND_TRIPS ONE_MESSAGE, .call = latency_call
#define WINDOWS .prepare = window_prepare, .fill = window_fill, .clean = op_release

const struct op op_latency = {OF_PAIRS("latency", OP_ROUND_TRIP), ROUND_TRIPS, .max_ranks = 2};
const struct op op_multi_latency = {OF_PAIRS("multi_latency", OP_ROUND_TRIP), ROUND_TRIPS};
const struct op op_bw = {OF_PAIRS("bw", OP_WINDOW), WINDOWS, .max_ranks = 2, .call = window_call,
                         .validate = window_validate};
const struct op op_bibw = {OF_PAIRS("bibw", OP_WINDOW), WINDOWS, .max_ranks = 2, .call = bibw_call,
                           .validate = window_validate_received};
const struct op op_message_rate = {OF_PAIRS("message_rate", OP_WINDOW), WINDOWS, .call = window_call,
                                   .validate = window_validate};
const struct op op_exchange = {OF_PAIRS("exchange", OP_EXCHANGE), ONE_MESSAGE, .call = exchange_call};
const struct op op_after_exchange = {OF_PAIRS("after_exchange", OP_EXCHANGE), ONE_MESSAGE, .before = exchange_call,
                                     .call = compute_call, .alone = compute_call};
const struct op op_one_way = {OF_PAIRS("one_way", OP_EXCHANGE),
                              .unsynchronized = true,
                              .prepare = one_way_prepare,
                              .fill = latency_fill,
                              .validate = one_way_validate,
                              .clean = op_release,
                              .before = one_way_before,
                              .call = one_way_call,
                              .alone = compute_call};
