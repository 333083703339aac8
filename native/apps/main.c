/*
 * nmapps - application-level workloads: the NAS Parallel Benchmarks, written from their published specification
 * (report NAS-95-020, "The NAS Parallel Benchmarks 2.0", and RNR-94-007), and an advection equation.
 *
 *     mpirun -n RANKS nmapps NAME --class S|W|A|B|C [--record FILE] [--record-communication FILE] [--spoil]
 *     mpirun -n RANKS nmapps advection [--grid XxYxZ] [--size NXxNYxNZ] [--steps T] ...
 *
 * Exit status: 0 verified, 1 verification failed, 2 wrong options or rank count, 3 the run failed.
 */
#include "common/app.h"
#include "common/record_file.h"
#include "launch.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STATUS_VERIFIED = 0, STATUS_UNVERIFIED = 1, STATUS_USAGE = 2, STATUS_FAILED = 3 };

static const struct app *const apps[] = {&app_ep, &app_cg, &app_mg, &app_ft, &app_is, &app_lu, &app_sp, &app_advection};
enum { APPS = sizeof apps / sizeof *apps };

const char program_name[] = "nmapps";

struct options {
    const struct app *app;
    const char *record_path, *communication_path; /* NULL: no record */
};

static int complain(const char *what, const char *value) {
    return launch_refuse(MPI_COMM_WORLD, STATUS_USAGE, "%s%s%s", what, value[0] ? ": " : "", value);
}

static int print_help(const struct run *run) {
    if (run->rank != 0)
        return STATUS_USAGE;
    fputs("usage: nmapps NAME [--class S|W|A|B|C] [--record FILE] [--record-communication FILE] [--spoil]\n"
          "       nmapps advection ... [--grid XxYxZ] [--size NXxNYxNZ] [--steps T]\n",
          stderr);
    for (int i = 0; i < APPS; i++)
        fprintf(stderr, "  %-10s ranks: %s\n", apps[i]->name, apps[i]->ranks_rule);
    return STATUS_USAGE;
}

/* "4x2x1" into three positive numbers; 0 when the text is anything else. */
static int parse_triple(const char *text, int64_t triple[3]) {
    for (int d = 0; d < 3; d++) {
        char *end;
        triple[d] = strtoll(text, &end, 10);
        if (end == text || triple[d] < 1 || triple[d] > 1 << 20 || *end != (d < 2 ? 'x' : '\0'))
            return 0;
        text = end + 1;
    }
    return 1;
}

static int parse_class(const char *text, struct run *run) {
    run->class_letter = text[0];
    return text[0] != '\0' && text[1] == '\0' && strchr("SWABC", text[0]) != NULL;
}

static int parse_steps(const char *text, struct run *run) {
    char *end;
    run->steps = strtoll(text, &end, 10);
    return end != text && *end == '\0' && run->steps >= 1 && run->steps <= 100000000;
}

static int parse_process_grid(const char *text, struct run *run) {
    int64_t triple[3];
    if (!parse_triple(text, triple))
        return 0;
    for (int d = 0; d < 3; d++)
        run->process_grid[d] = (int)triple[d];
    return 1;
}

/* Returns 1 when understood, else 0. */
static int parse_value(const char *name, const char *value, struct run *run, struct options *options) {
    if (strcmp(name, "--class") == 0)
        return parse_class(value, run);
    if (strcmp(name, "--record") == 0)
        return (options->record_path = value)[0] != '\0';
    if (strcmp(name, "--record-communication") == 0)
        return (options->communication_path = value)[0] != '\0';
    if (options->app != &app_advection)
        return 0;
    if (strcmp(name, "--grid") == 0)
        return parse_process_grid(value, run);
    if (strcmp(name, "--size") == 0)
        return parse_triple(value, run->grid_size);
    if (strcmp(name, "--steps") == 0)
        return parse_steps(value, run);
    return 0;
}

static int parse_options(int argc, char **argv, struct run *run, struct options *options) {
    if (argc < 2)
        return print_help(run);
    for (int i = 0; i < APPS; i++)
        if (strcmp(argv[1], apps[i]->name) == 0)
            options->app = apps[i];
    if (options->app == NULL) {
        print_help(run);
        return complain("unknown application", argv[1]);
    }
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--spoil") == 0) {
            run->spoil = 1;
            continue;
        }
        if (i + 1 == argc || !parse_value(argv[i], argv[i + 1], run, options))
            return complain("unknown option, or missing or wrong value", argv[i]);
        i++;
    }
    if (!options->app->accepts(run)) {
        if (run->rank == 0)
            fprintf(stderr, "nmapps: %s cannot run on %d ranks with these options; it takes: %s\n", options->app->name,
                    run->ranks, options->app->ranks_rule);
        return STATUS_USAGE;
    }
    return 0;
}

static void print_size(const struct run *run) {
    char text[64];
    if (run->size[1] == 0)
        snprintf(text, sizeof text, "%lld", (long long)run->size[0]);
    else
        snprintf(text, sizeof text, "%lldx%4lldx%4lld", (long long)run->size[0], (long long)run->size[1],
                 (long long)run->size[2]);
    printf(" Size            = %24s\n", text);
}

/* The end block has the keys of the NAS benchmarks, so that readers of theirs read ours. */
static void print_end_block(const struct app *app, const struct run *run) {
    const double mine_s[2] = {(double)(run->stop_ns - run->start_ns) * 1e-9,
                              (double)run->timed_communication_ns * 1e-9};
    double slowest_s[2], sum_s[2];
    MPI_Reduce(mine_s, slowest_s, 2, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    MPI_Reduce(mine_s, sum_s, 2, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (run->rank != 0)
        return;
    const double mops = run->operations / slowest_s[0] * 1e-6;
    printf("\n %s Benchmark Completed.\n", app->title);
    printf(" Class           = %24c\n", run->class_letter);
    print_size(run);
    printf(" Iterations      = %24d\n", run->iterations);
    printf(" Time in seconds = %24.9f\n", slowest_s[0]);
    printf(" Mean comm. time = %24.9f\n", sum_s[1] / run->ranks);
    printf(" Max comm. time  = %24.9f\n", slowest_s[1]);
    printf(" Total processes = %24d\n", run->ranks);
    printf(" Mop/s total     = %24.2f\n", mops);
    printf(" Mop/s/process   = %24.2f\n", mops / run->ranks);
    printf(" Operation type  = %24s\n", app->operation);
    printf(" Verification    = %24s\n", run->verified == 1 ? "SUCCESSFUL" : "UNSUCCESSFUL");
    printf(" Version         = %24s\n", "nearmetal 1");
}

static void write_records(const struct run *run, const struct options *options) {
    const char *const name = options->app->name;
    if (options->record_path != NULL)
        record_file_write(run, name, RECORD_ITERATION, options->record_path);
    if (options->communication_path != NULL)
        record_file_write(run, name, RECORD_COMMUNICATION, options->communication_path);
}

int main(int argc, char **argv) {
    struct run run = {.class_letter = 'S', .verified = -1};
    struct options options = {0};

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &run.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &run.ranks);
    int status = parse_options(argc, argv, &run, &options);
    if (status == 0) {
        run.recording = options.record_path != NULL || options.communication_path != NULL;
        options.app->run(&run);
        print_end_block(options.app, &run);
        write_records(&run, &options);
        status = run.verified == 1 ? STATUS_VERIFIED : STATUS_UNVERIFIED;
        if (run.recording)
            sync_before_finalize(MPI_COMM_WORLD, run.offset);
        free(run.begin_ns);
        free(run.end_ns);
        free(run.inside_ns);
    }
    MPI_Finalize();
    return status;
}
