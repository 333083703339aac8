#include "app.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void run_plan(struct run *run, int iterations) {
    run->iterations = iterations;
    run->begin_ns = run_allocate(run, (size_t)iterations, sizeof *run->begin_ns);
    run->end_ns = run_allocate(run, (size_t)iterations, sizeof *run->end_ns);
    run->inside_ns = run_allocate(run, (size_t)iterations, sizeof *run->inside_ns);
}

void run_start(struct run *run) {
    MPI_Barrier(MPI_COMM_WORLD);
    run->iterations_done = 0;
    run->communication_ns = 0;
    run->start_ns = clock_stamp_ns();
}

void run_stop(struct run *run) {
    run->stop_ns = clock_stamp_ns();
    run->timed_communication_ns = run->communication_ns;
    if (run->recording)
        run->offset = sync_widen(sync_estimate_offset(MPI_COMM_WORLD), clock_stamp_ns() - run->start_ns);
}

void run_iteration_begin(struct run *run) {
    run->iteration_mark_ns = run->communication_ns;
    MPI_Pcontrol(MARK_BEGIN);
    run->begin_ns[run->iterations_done] = run_stamp_ns();
}

void run_iteration_end(struct run *run) {
    run->end_ns[run->iterations_done] = run_stamp_ns();
    MPI_Pcontrol(MARK_END);
    run->inside_ns[run->iterations_done] = run->communication_ns - run->iteration_mark_ns;
    run->iterations_done++;
}

static void record_check(struct run *run, int holds) { run->verified = holds && run->verified != 0; }

void run_check(struct run *run, const char *what, double computed, double reference, double tolerance) {
    const double deviation = fabs(computed - reference);
    const int holds = deviation <= tolerance * fabs(reference); /* false for NaN */
    record_check(run, holds);
    if (run->rank == 0)
        printf(" %-8s %-14s %22.15e  reference %22.15e  deviation %9.2e\n", holds ? "" : "FAILURE:", what, computed,
               reference, reference == 0.0 ? deviation : deviation / fabs(reference));
}

void run_check_true(struct run *run, const char *what, int holds) {
    record_check(run, holds);
    if (run->rank == 0)
        printf(" %-8s %s\n", holds ? "" : "FAILURE:", what);
}

void *run_allocate(const struct run *run, size_t count, size_t bytes_each) {
    const size_t alignment = 64;
    if (count > (SIZE_MAX - alignment) / bytes_each)
        run_abort(run, "an array is larger than the address space");
    const size_t bytes = (count * bytes_each + alignment) / alignment * alignment; /* never 0 */
    void *memory = aligned_alloc(alignment, bytes);
    if (memory == NULL)
        run_abort(run, "out of memory");
    return memset(memory, 0, bytes); /* touches every page before the clock runs */
}

void run_abort(const struct run *run, const char *what) {
    fprintf(stderr, "nmapps: rank %d: %s\n", run->rank, what);
    /* A launcher drops the output that it has not read when the job aborts: give it time to read the message. */
    const struct timespec pause = {.tv_nsec = 200000000};
    nanosleep(&pause, NULL);
    MPI_Abort(MPI_COMM_WORLD, 3);
    abort();
}

int run_class_index(const struct run *run) { return (int)(strchr("SWABC", run->class_letter) - "SWABC"); }
