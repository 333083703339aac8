/*
 * app.h - what every application shares: the facts of one run, its clock, its allocation, its verification.
 *
 * An application is one entry of the table in main.c. main.c reads the options, checks the rank count, calls run(),
 * prints the end block, writes the record and turns a failed verification into a non-zero exit status.
 *
 * run() must, in this order:
 *   1. fill `size` and `operations`, and call run_plan() with the number of iterations;
 *   2. set up; run_start(); run_iteration_begin() and run_iteration_end() around each iteration; run_stop();
 *   3. call run_check() once for each published value, which settles `verified`.
 *
 * Every MPI call inside the timed part goes through RUN_MPI(), so that communication time is counted separately.
 */
#ifndef NEARMETAL_APPS_APP_H
#define NEARMETAL_APPS_APP_H

#include "clock.h" /* of native/common, as sync.h: the clock of the applications is that of the engine */
#include "sync.h"
#include <mpi.h>
#include <stddef.h>
#include <stdint.h>

/* Levels of MPI_Pcontrol around each iteration: no effect in MPI, a mark in a trace. Profilers act on small levels: 0
 * to 2 switch and reset them as the standard advises, at 3 and 4 mpiP writes a report. */
enum { MARK_BEGIN = 1001, MARK_END = 1002 };

struct run {
    /* Set by main.c. */
    int rank, ranks;
    char class_letter;    /* 'S', 'W', 'A', 'B' or 'C' */
    int process_grid[3];  /* --grid: zeros mean "choose" */
    int64_t grid_size[3]; /* --size (advection only): zeros mean "as the class says" */
    int64_t steps;        /* --steps (advection only): 0 means "as the class says" */
    int recording;        /* --record or --record-communication: relate the clocks of the ranks */
    int spoil;            /* --spoil: corrupt the input slightly, to see verification fail */

    /* Set by the application. */
    int64_t size[3];   /* the end block's Size; unused dimensions are 0 */
    double operations; /* operations of all iterations and ranks, by the formula of the specification */
    int verified;      /* -1 unknown, 0 failed, 1 every check so far held */

    /* Kept by run.c. */
    int iterations, iterations_done;
    int64_t start_ns, stop_ns;              /* of the timed part on this rank */
    int64_t communication_ns;               /* spent inside RUN_MPI() on this rank since run_start() */
    int64_t timed_communication_ns;         /* the same, as it was at run_stop() */
    int64_t *begin_ns, *end_ns, *inside_ns; /* [iterations] stamps, and communication time of the iteration */
    int64_t iteration_mark_ns;
    struct clock_offset offset; /* of this rank's clock during the timed part, when recording */
};

struct app {
    const char *name;       /* on the command line */
    const char *title;      /* in the end block */
    const char *operation;  /* what Mop/s counts */
    const char *ranks_rule; /* the rank counts that it supports, in words */
    int (*accepts)(const struct run *run);
    void (*run)(struct run *run);
};

extern const struct app app_ep, app_cg, app_mg, app_ft, app_is, app_lu, app_sp, app_advection;

/* The stamp inside the timed part. Built with RUN_UNSTAMPED it costs nothing and returns 0: bench/apps_speed.py uses
 * that to show what stamping costs. */
static inline int64_t run_stamp_ns(void) {
#ifdef RUN_UNSTAMPED
    return 0;
#else
    return clock_stamp_ns();
#endif
}

/* Evaluate an MPI call (or several, separated by commas) and account its duration to communication. */
#define RUN_MPI(run, ...)                                                                                              \
    do {                                                                                                               \
        const int64_t mpi_begin_ns_ = run_stamp_ns();                                                                  \
        (void)(__VA_ARGS__);                                                                                           \
        (run)->communication_ns += run_stamp_ns() - mpi_begin_ns_;                                                     \
    } while (0)

/* Allocate the per-iteration stamps; nothing is allocated between run_start() and run_stop(). */
void run_plan(struct run *run, int iterations);

/* A barrier, then the beginning of the timed part; communication time counts from here. */
void run_start(struct run *run);
void run_stop(struct run *run);

void run_iteration_begin(struct run *run);
void run_iteration_end(struct run *run);

/*
 * Compare a computed value with the published one: |computed - reference| <= tolerance |reference|. NaN never passes.
 * Prints one line on rank 0 and folds the outcome into run->verified. Every rank must pass the same values.
 */
void run_check(struct run *run, const char *what, double computed, double reference, double tolerance);

/* The same for a condition that has no reference value. */
void run_check_true(struct run *run, const char *what, int holds);

/* Zeroed memory aligned to 64 bytes; a failed allocation ends the whole job with a message. Free with free(). */
void *run_allocate(const struct run *run, size_t count, size_t bytes_each);

/* End the whole job: for conditions that no rank can recover from. */
_Noreturn void run_abort(const struct run *run, const char *what);

/* Index of the class in tables ordered S, W, A, B, C. */
int run_class_index(const struct run *run);

#endif
