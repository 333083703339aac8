#include "measure.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "payload.h"

enum { TAG = 1, TAG_ACK = 2, COMPLAINT_CHARS = 2 * MPI_MAX_PROCESSOR_NAME + 160 };

/* ---- patience ---- */

/* Written before each step, so that the handler has nothing left to do but write(2). */
static char complaint[COMPLAINT_CHARS];
static size_t complaint_length;
static unsigned patience_s;

/* The last finished iteration, now and at the previous alarm: a slow partner makes progress, a dead one does not. The
 * loops set it between iterations, outside the timed region. */
static volatile sig_atomic_t finished, finished_before;

static void look(int signal_number) {
    (void)signal_number;
    if (finished != finished_before) {
        finished_before = finished;
        alarm(patience_s);
        return;
    }
    const ssize_t written = write(STDERR_FILENO, complaint, complaint_length);
    (void)written; /* there is nowhere else to report it */
    /* MPICH's launcher kills the other ranks if one ends by a signal, but not always if one exits. SIGALRM is
     * blocked until this returns. */
    signal(SIGALRM, SIG_DFL);
    raise(SIGALRM);
}

static const char *name_of(const struct part *part, int rank) {
    return part->names + (size_t)rank * MPI_MAX_PROCESSOR_NAME;
}

/* Start the timeout for `peer`; the caller ends it with alarm(0). */
static void start_timeout(const struct part *part, size_t round, int peer) {
    const int length =
        snprintf(complaint, sizeof complaint,
                 "nmfabric: rank %d on %s had no answer from rank %d on %s for %lld s (round %zu)\n", part->rank,
                 name_of(part, part->rank), peer, name_of(part, peer), (long long)part->options->patience_s, round);
    complaint_length = (size_t)length < sizeof complaint ? (size_t)length : sizeof complaint - 1;
    patience_s = (unsigned)part->options->patience_s;
    finished = finished_before = -1;
    alarm(patience_s);
}

/* ---- the two measured loops: stamp, call, stamp; nothing else may be computed there ---- */

static void ping(struct part *part, int peer, int64_t *samples_ns) {
    const int bytes = (int)part->options->latency_bytes;
    const int64_t entries = options_latency_entries(part->options);
    for (int64_t i = 0; i < entries; i++) {
        const int64_t begin_ns = clock_stamp_ns();
        MPI_Send(part->send, bytes, MPI_BYTE, peer, TAG, part->comm);
        MPI_Recv(part->receive, bytes, MPI_BYTE, peer, TAG, part->comm, MPI_STATUS_IGNORE);
        samples_ns[i] = clock_stamp_ns() - begin_ns;
        finished = (sig_atomic_t)i;
    }
}

static void pong(struct part *part, int peer) {
    const int bytes = (int)part->options->latency_bytes;
    const int64_t entries = options_latency_entries(part->options);
    for (int64_t i = 0; i < entries; i++) {
        MPI_Recv(part->receive, bytes, MPI_BYTE, peer, TAG, part->comm, MPI_STATUS_IGNORE);
        MPI_Send(part->send, bytes, MPI_BYTE, peer, TAG, part->comm);
        finished = (sig_atomic_t)i;
    }
}

static void send_windows(struct part *part, int peer, int64_t *samples_ns) {
    const int bytes = (int)part->options->bandwidth_bytes, window = (int)part->options->bandwidth_window;
    const int64_t entries = options_bandwidth_entries(part->options);
    for (int64_t i = 0; i < entries; i++) {
        const int64_t begin_ns = clock_stamp_ns();
        for (int k = 0; k < window; k++)
            MPI_Isend(part->send + (size_t)k * (size_t)bytes, bytes, MPI_BYTE, peer, TAG, part->comm,
                      &part->requests[k]);
        MPI_Waitall(window, part->requests, MPI_STATUSES_IGNORE);
        MPI_Recv(NULL, 0, MPI_BYTE, peer, TAG_ACK, part->comm, MPI_STATUS_IGNORE);
        samples_ns[i] = clock_stamp_ns() - begin_ns;
        finished = (sig_atomic_t)i;
    }
}

static void receive_windows(struct part *part, int peer) {
    const int bytes = (int)part->options->bandwidth_bytes, window = (int)part->options->bandwidth_window;
    const int64_t entries = options_bandwidth_entries(part->options);
    for (int64_t i = 0; i < entries; i++) {
        for (int k = 0; k < window; k++)
            MPI_Irecv(part->receive + (size_t)k * (size_t)bytes, bytes, MPI_BYTE, peer, TAG, part->comm,
                      &part->requests[k]);
        MPI_Waitall(window, part->requests, MPI_STATUSES_IGNORE);
        MPI_Send(NULL, 0, MPI_BYTE, peer, TAG_ACK, part->comm);
        finished = (sig_atomic_t)i;
    }
}

/* ---- rounds ---- */

enum step { STEP_LATENCY, STEP_FIRST_SENDS, STEP_SECOND_SENDS, STEP_COUNT };

/* Run one step with a partner; return how many samples this rank kept. */
static size_t work(struct part *part, enum step step, int32_t partner, int64_t *samples_ns) {
    const bool starts = partner > 0;
    const int peer = (starts ? partner : -partner) - 1;
    if (step == STEP_LATENCY) {
        if (starts)
            ping(part, peer, samples_ns);
        else
            pong(part, peer);
        return starts ? (size_t)options_latency_entries(part->options) : 0;
    }
    const bool sends = starts == (step == STEP_FIRST_SENDS);
    if (sends)
        send_windows(part, peer, samples_ns);
    else
        receive_windows(part, peer);
    return sends ? (size_t)options_bandwidth_entries(part->options) : 0;
}

void part_measure(struct part *part) {
    const int steps = part->options->bandwidth_iterations == 0 ? 1 : STEP_COUNT;
    int64_t *samples_ns = part->samples_ns;
    const struct sigaction action = {.sa_handler = look, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    for (size_t round = 0; round < part->rounds; round++) {
        const int32_t partner = part->partner[round];
        for (int step = 0; step < steps; step++) {
            MPI_Barrier(part->comm);
            if (partner == 0)
                continue;
            start_timeout(part, round, (partner > 0 ? partner : -partner) - 1);
            samples_ns += work(part, (enum step)step, partner, samples_ns);
            alarm(0);
        }
    }
    MPI_Barrier(part->comm);
    signal(SIGALRM, SIG_DFL);
}

/* ---- memory ---- */

static size_t count_samples(const struct part *part) {
    size_t count = 0;
    for (size_t round = 0; round < part->rounds; round++) {
        if (part->partner[round] != 0)
            count += (size_t)options_bandwidth_entries(part->options);
        if (part->partner[round] > 0)
            count += (size_t)options_latency_entries(part->options);
    }
    return count;
}

size_t part_allocate(struct part *part) {
    const size_t window = (size_t)part->options->bandwidth_window;
    const size_t window_bytes = window * (size_t)part->options->bandwidth_bytes;
    const size_t latency_bytes = (size_t)part->options->latency_bytes;
    const size_t buffer_bytes = window_bytes > latency_bytes ? window_bytes : latency_bytes;
    part->sample_count = count_samples(part);
    part->samples_ns = malloc((part->sample_count + 1) * sizeof part->samples_ns[0]);
    part->send = payload_allocate(buffer_bytes);
    part->receive = payload_allocate(buffer_bytes);
    part->requests = malloc(window * sizeof part->requests[0]);
    if (part->samples_ns == NULL || part->send == NULL || part->receive == NULL || part->requests == NULL)
        return 2 * buffer_bytes + (part->sample_count + 1) * sizeof part->samples_ns[0];
    memset(part->samples_ns, 0xff, (part->sample_count + 1) * sizeof part->samples_ns[0]);
    return 0;
}

void part_free(struct part *part) {
    free(part->partner);
    free(part->samples_ns);
    free(part->send);
    free(part->receive);
    free(part->requests);
    free(part->names);
}
