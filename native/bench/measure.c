#include "measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"

enum { CHECK_ROUNDS = 4, TRIAL_CALLS = 9, WINDOW_ATTEMPTS = 5, WINDOW_GROWTH = 4 };

size_t cell_entries(const struct cell *cell) { return (size_t)(cell->warmup + cell->iterations); }

/* Mark the warm-up and nothing else. */
static void cell_clear(struct cell *cell) {
    memset(cell->flags, 0, cell_entries(cell));
    memset(cell->flags, FLAG_WARMUP, (size_t)cell->warmup);
}

size_t cell_allocate(struct cell *cell) {
    const size_t entries = cell_entries(cell);
    const size_t stamps_bytes = entries * sizeof(int64_t);
    cell->begin_ns = malloc(stamps_bytes);
    cell->end_ns = malloc(stamps_bytes);
    cell->flags = malloc(entries);
    if (cell->begin_ns == NULL || cell->end_ns == NULL || cell->flags == NULL)
        return 2 * stamps_bytes + entries;
    memset(cell->begin_ns, 0xff, stamps_bytes);
    memset(cell->end_ns, 0xff, stamps_bytes);
    cell_clear(cell);
    return 0;
}

void cell_free(struct cell *cell) {
    free(cell->begin_ns);
    free(cell->end_ns);
    free(cell->flags);
}

void measure_report_memory(MPI_Comm comm, int64_t wanted_bytes, const char *purpose) {
    char name[MPI_MAX_PROCESSOR_NAME];
    int length, rank;
    MPI_Get_processor_name(name, &length);
    MPI_Comm_rank(comm, &rank);
    fprintf(stderr, "nmbench: rank %d on %s: cannot allocate %lld bytes for %s\n", rank, name, (long long)wanted_bytes,
            purpose);
}

static void compute_before(struct op_run *run) { compute_run(&run->compute); }

/* The timed region of every operation: stamp, call, stamp. Nothing else may be computed here. */
static void timed_loop(const struct op *op, const struct sync_method *method, const struct sync *sync,
                       struct op_run *run, struct cell *cell) {
    const int64_t entries = cell->warmup + cell->iterations;
    void (*const before)(struct op_run *) =
        op->before != NULL ? op->before : run->compute.for_ns > 0 ? compute_before : NULL;
    void (*call)(struct op_run *) = op->alone;
    unsigned char (*const start)(const struct sync *, int64_t) = method->start;
    const int64_t first = op->alone != NULL ? cell->warmup : 0; /* without messages before it, a barrier's too */
    for (int64_t i = 0; i < entries; i++) {
        if (i >= first) {
            call = op->call;
            cell->flags[i] |= start(sync, i);
            if (sync->pace_ns > 0)
                sync_pause(sync, i - cell->warmup);
            if (before != NULL)
                before(run);
        }
        cell->begin_ns[i] = clock_stamp_ns();
        call(run);
        cell->end_ns[i] = clock_stamp_ns();
    }
    cell->calls += entries;
}

/* Separate rounds, so that neither filling nor comparing touches the caches between timed iterations. */
static void check_rounds(const struct op *op, struct op_run *run, struct cell *cell) {
    for (int i = 0; i < CHECK_ROUNDS; i++) {
        const int round = (int)cell->check_rounds++;
        op->fill(run, round);
        MPI_Barrier(run->comm);
        if (op->before != NULL)
            op->before(run);
        op->call(run);
        cell->check_failures += op->validate(run, round);
    }
    cell->calls += CHECK_ROUNDS;
}

static int compare_int64(const void *left, const void *right) {
    const int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

/* Only the timing rank of a pair pauses: its partner waits for the message in any case. */
static bool pauses(const struct op *op, const struct op_run *run) {
    return run->initiator || !(op->kind == OP_ROUND_TRIP || op->kind == OP_WINDOW);
}

/* Three times the median of a few calls (each that of its slowest rank) and 20 us: rarely missed, not much longer
 * than needed. */
static int64_t find_window_ns(const struct op *op, struct op_run *run) {
    int64_t slowest_ns[TRIAL_CALLS];
    for (int i = 0; i < TRIAL_CALLS; i++) {
        MPI_Barrier(run->comm);
        const int64_t begin_ns = clock_stamp_ns();
        op->call(run);
        int64_t mine_ns = clock_stamp_ns() - begin_ns;
        MPI_Allreduce(&mine_ns, &slowest_ns[i], 1, MPI_INT64_T, MPI_MAX, run->comm);
    }
    qsort(slowest_ns, TRIAL_CALLS, sizeof slowest_ns[0], compare_int64);
    return 3 * slowest_ns[TRIAL_CALLS / 2] + 20000;
}

/* Return the most windows that any rank missed after the warm-up. */
static int64_t most_missed(const struct op_run *run, const struct cell *cell) {
    int64_t mine = 0, most;
    for (size_t i = (size_t)cell->warmup; i < cell_entries(cell); i++)
        mine += (cell->flags[i] & FLAG_MISSED_WINDOW) != 0;
    MPI_Allreduce(&mine, &most, 1, MPI_INT64_T, MPI_MAX, run->comm);
    return most;
}

/* If a quarter of the iterations miss the estimated window, lengthen it and measure all again, a few times; a window
 * set by --sync-window-us is kept. */
static void measure_in_windows(const struct op *op, const struct sync_method *method, const struct options *options,
                               struct sync *sync, struct op_run *run, struct cell *cell) {
    const bool asked = options->sync_window_ns > 0;
    const int64_t before_ns = options->pace_ns + options->compute_ns;
    sync->window_ns = asked ? options->sync_window_ns : find_window_ns(op, run) + before_ns;
    cell->calls += asked ? 0 : TRIAL_CALLS;
    for (int attempt = 1;; attempt++) {
        cell_clear(cell);
        sync_open_windows(sync);
        timed_loop(op, method, sync, run, cell);
        MPI_Barrier(run->comm);
        if (asked || attempt == WINDOW_ATTEMPTS || 4 * most_missed(run, cell) <= cell->iterations)
            return;
        sync->window_ns *= WINDOW_GROWTH;
    }
}

/* Return how often the kernel has moved this process to another processor, -1 where it does not report it. */
static int64_t migrations_so_far(void) {
    char line[128];
    long long count = -1;
    FILE *const file = fopen("/proc/self/sched", "r");
    while (file != NULL && count < 0 && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "se.nr_migrations : %lld", &count) != 1)
            count = -1;
    if (file != NULL)
        fclose(file);
    return count;
}

static void measure_prepared(const struct op *op, const struct sync_method *method, const struct options *options,
                             struct op_run *run, struct cell *cell) {
    if (options->check)
        check_rounds(op, run, cell);
    struct sync sync = {.comm = run->comm,
                        .pace_ns = pauses(op, run) ? options->pace_ns : 0,
                        .seed = (uint64_t)options->seed ^ (uint64_t)run->message_bytes};
    const int64_t before = migrations_so_far();
    if (method->has_window) {
        sync.offset = sync_estimate_offset(run->comm);
        measure_in_windows(op, method, options, &sync, run, cell);
    } else {
        MPI_Barrier(run->comm);
        timed_loop(op, method, &sync, run, cell);
    }
    MPI_Barrier(run->comm);
    cell->migrations = before < 0 ? -1 : migrations_so_far() - before;
    cell->sync_window_ns = sync.window_ns;
    if (options->check)
        check_rounds(op, run, cell);
}

int64_t measure_cell(const struct op *op, const struct sync_method *method, const struct options *options,
                     MPI_Comm comm, struct cell *cell) {
    struct op_run run = {.comm = comm,
                         .message_bytes = (int)cell->size_bytes,
                         .window_messages = (int)options->window_messages,
                         .many_buffers = options->many_buffers};
    MPI_Comm_rank(comm, &run.rank);
    MPI_Comm_size(comm, &run.ranks);
    int64_t wanted_bytes = 0, most_wanted_bytes;
    if (!op->prepare(&run)) {
        wanted_bytes = (int64_t)run.wanted_bytes;
        measure_report_memory(comm, wanted_bytes, "message buffers");
    }
    const size_t set_bytes = compute_prepare(&run.compute, options->compute_ns, options->working_set_bytes);
    if (set_bytes > 0) {
        wanted_bytes += (int64_t)set_bytes;
        measure_report_memory(comm, (int64_t)set_bytes, "the working set of --compute-us");
    } else if (op->alone != NULL) {
        compute_fix(&run.compute);
    }
    MPI_Allreduce(&wanted_bytes, &most_wanted_bytes, 1, MPI_INT64_T, MPI_MAX, comm);
    if (most_wanted_bytes == 0) {
        cell->type_name = op_type_name(&run);
        measure_prepared(op, method, options, &run, cell);
    }
    op->clean(&run);
    compute_free(&run.compute);
    return most_wanted_bytes;
}

void measure_offsets(MPI_Comm comm, struct cell *cells, size_t count) {
    const struct clock_offset offset = sync_estimate_offset(comm);
    const int64_t now_ns = clock_stamp_ns();
    for (size_t c = 0; c < count; c++)
        cells[c].offset = sync_widen(offset, now_ns - cells[c].begin_ns[0]);
}
