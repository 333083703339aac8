#include "record_file.h"
#include "launch.h"
#include "sample_file.h"
#include "text.h"
#include <stdlib.h>
#include <string.h>

enum { TAG_RECORD = 31 };

/* Of every rank, on rank 0 only. */
struct facts {
    int64_t *clock_cost_ns;
    struct clock_offset *offset;
    char *names; /* MPI_MAX_PROCESSOR_NAME a rank */
};

static void gather_facts(const struct run *run, struct facts *facts) {
    const size_t ranks = run->rank == 0 ? (size_t)run->ranks : 0;
    char name[MPI_MAX_PROCESSOR_NAME] = {0};
    int length;
    const int64_t cost_ns = clock_cost_ns();
    MPI_Get_processor_name(name, &length);
    facts->clock_cost_ns = run_allocate(run, ranks, sizeof *facts->clock_cost_ns);
    facts->offset = run_allocate(run, ranks, sizeof *facts->offset);
    facts->names = run_allocate(run, ranks, sizeof name);
    MPI_Gather(&cost_ns, 1, MPI_INT64_T, facts->clock_cost_ns, 1, MPI_INT64_T, 0, MPI_COMM_WORLD);
    MPI_Gather(&run->offset, 2, MPI_INT64_T, facts->offset, 2, MPI_INT64_T, 0, MPI_COMM_WORLD);
    MPI_Gather(name, sizeof name, MPI_CHAR, facts->names, sizeof name, MPI_CHAR, 0, MPI_COMM_WORLD);
}

static void free_facts(struct facts *facts) {
    free(facts->clock_cost_ns);
    free(facts->offset);
    free(facts->names);
}

/* One field of every rank's offset: a list of one cell. */
static void add_offsets(struct text *header, const char *key, const int64_t *first, int ranks) {
    text_add(header, ",\"%s\":[", key);
    launch_add_list(header, NULL, first, (size_t)ranks, sizeof(struct clock_offset) / sizeof *first);
    text_add(header, "]");
}

static void build_header(struct text *header, const struct run *run, const char *app, enum record_part part,
                         const struct facts *facts) {
    text_add(header, "{\"engine\":\"nmapps\",\"operation\":\"%s.%c%s\",\"kind\":\"collective\"", app, run->class_letter,
             part == RECORD_COMMUNICATION ? ".communication" : "");
    text_add(header, ",\"ranks\":%d,\"window_messages\":1,\"sync\":\"none\"", run->ranks);
    text_add(header, ",\"sizes_bytes\":[0],\"iterations\":[%d],\"warmup\":[0]", run->iterations_done);
    text_add(header, ",\"sync_window_ns\":[0],\"datatypes\":[\"\"],\"check_rounds\":0,\"check_failures\":[0]");
    launch_add_clock(header, facts->clock_cost_ns, run->ranks);
    add_offsets(header, "clock_offset_ns", &facts->offset->offset_ns, run->ranks);
    add_offsets(header, "clock_error_ns", &facts->offset->error_ns, run->ranks);
    launch_end_header(header, facts->names, run->ranks);
}

/* The stamps of this rank: all begins, then all ends. */
static int64_t *own_stamps(const struct run *run, enum record_part part) {
    const size_t n = (size_t)run->iterations_done;
    int64_t *stamps_ns = run_allocate(run, 2 * n, sizeof *stamps_ns);
    memcpy(stamps_ns, run->begin_ns, n * sizeof *stamps_ns);
    for (size_t i = 0; i < n; i++)
        stamps_ns[n + i] = part == RECORD_ITERATION ? run->end_ns[i] : run->begin_ns[i] + run->inside_ns[i];
    return stamps_ns;
}

/* Rank 0: write header and own stamps, then those of the other ranks as they come. */
static void write_all(const struct run *run, const struct text *header, int64_t *stamps_ns, const char *path) {
    const size_t n = (size_t)run->iterations_done;
    struct sample_file file;
    unsigned char *const flags = run_allocate(run, n, 1);
    sample_file_begin(&file, path, SAMPLE_FILE_MAGIC, SAMPLE_FILE_VERSION, header);
    for (int source = 0; source < run->ranks; source++) {
        if (source > 0)
            MPI_Recv(stamps_ns, 2 * (int)n, MPI_INT64_T, source, TAG_RECORD, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        sample_file_block(&file, stamps_ns, n * sizeof *stamps_ns);
        sample_file_block(&file, stamps_ns + n, n * sizeof *stamps_ns);
        sample_file_block(&file, flags, n);
    }
    free(flags);
    const int error = sample_file_commit(&file);
    if (error != 0) {
        launch_refuse(MPI_COMM_WORLD, error, "cannot write %s: %s", path, strerror(error));
        run_abort(run, "the record was not written");
    }
}

void record_file_write(const struct run *run, const char *app, enum record_part part, const char *path) {
    struct facts facts;
    int64_t *stamps_ns = own_stamps(run, part);
    gather_facts(run, &facts);
    if (run->rank == 0) {
        struct text header = {0};
        build_header(&header, run, app, part, &facts);
        write_all(run, &header, stamps_ns, path);
        text_free(&header);
    } else {
        MPI_Send(stamps_ns, 2 * run->iterations_done, MPI_INT64_T, 0, TAG_RECORD, MPI_COMM_WORLD);
    }
    free_facts(&facts);
    free(stamps_ns);
}
