/* nmbench: measure one MPI operation, keep every iteration of every rank.
 *
 * Reading order: this file, measure.c (the timed loop), ops.h (the table), sync.h, record.h. The exit statuses are part
 * of the interface; options_usage lists them.
 */
#include <errno.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>

#include "launch.h"
#include "measure.h"
#include "ops.h"
#include "options.h"
#include "record.h"
#include "sample_file.h"
#include "sync.h"

enum { EXIT_MEASURED = 0, EXIT_ARGUMENTS = 2, EXIT_PAYLOAD = 3, EXIT_MEMORY = 4, EXIT_WRITE = 5 };

const char program_name[] = "nmbench";

static int list_operations(void) {
    for (size_t i = 0; i < op_count(); i++) {
        const struct op *op = op_at(i);
        printf("%s kind=%s min_ranks=%d max_ranks=%d even_ranks=%d has_size=%d\n", op->name, op_kind_name(op->kind),
               op->min_ranks, op->max_ranks, op->even_ranks, op->has_size);
    }
    return EXIT_MEASURED;
}

static int refuse_ranks(MPI_Comm comm, const struct op *op) {
    int ranks;
    MPI_Comm_size(comm, &ranks);
    if (ranks < op->min_ranks)
        return launch_refuse(comm, EXIT_ARGUMENTS, "%s needs at least %d ranks, there are %d", op->name, op->min_ranks,
                             ranks);
    if (op->max_ranks > 0 && ranks > op->max_ranks)
        return launch_refuse(comm, EXIT_ARGUMENTS, "%s takes at most %d ranks, there are %d", op->name, op->max_ranks,
                             ranks);
    if (op->even_ranks && ranks % 2 != 0)
        return launch_refuse(comm, EXIT_ARGUMENTS, "%s needs an even number of ranks, there are %d", op->name, ranks);
    return 0;
}

/* Check on rank 0 before anything is measured and tell every rank. Not by a broadcast: one-way messages leave Open
 * MPI's shared memory in a state in which small collectives take a fifth longer until the launch ends. */
static int refuse_output(MPI_Comm comm, const char *path) {
    int rank, error = 0;
    MPI_Comm_rank(comm, &rank);
    if (rank == 0 && !sample_file_probe(path))
        error = errno;
    MPI_Allreduce(MPI_IN_PLACE, &error, 1, MPI_INT, MPI_MAX, comm);
    return error == 0 ? 0 : launch_refuse(comm, EXIT_WRITE, "cannot write %s: %s", path, strerror(error));
}

/* Allocate all arrays before the first call. Returns 0 or EXIT_MEMORY, the same on every rank. */
static int allocate_cells(MPI_Comm comm, const struct op *op, const struct options *options, struct cell *cells,
                          size_t count) {
    int64_t wanted_bytes = 0, most_wanted_bytes;
    for (size_t c = 0; c < count; c++) {
        const int64_t size_bytes = op->has_size ? options->sizes_bytes[c] : 0;
        cells[c] = (struct cell){.size_bytes = size_bytes,
                                 .iterations = options_iterations(options, size_bytes),
                                 .warmup = options_warmup(options, size_bytes),
                                 .type_name = "byte"};
        wanted_bytes += (int64_t)cell_allocate(&cells[c]);
    }
    if (wanted_bytes > 0)
        measure_report_memory(comm, wanted_bytes, "time stamps; fewer iterations or sizes need less");
    MPI_Allreduce(&wanted_bytes, &most_wanted_bytes, 1, MPI_INT64_T, MPI_MAX, comm);
    return most_wanted_bytes == 0 ? 0 : EXIT_MEMORY;
}

static int measure_cells(const struct record *record) {
    for (size_t c = 0; c < record->cell_count; c++)
        if (measure_cell(record->op, record->method, record->options, record->comm, &record->cells[c]) != 0)
            return EXIT_MEMORY;
    measure_offsets(record->comm, record->cells, record->cell_count);
    const int error = record_write(record);
    if (error != 0)
        return launch_refuse(record->comm, EXIT_WRITE, "cannot write %s: %s", record->options->out, strerror(error));
    const int64_t failures = record_check_failures(record);
    if (failures > 0)
        return launch_refuse(record->comm, EXIT_PAYLOAD, "%lld messages of %s arrived with a wrong payload",
                             (long long)failures, record->op->name);
    sync_before_finalize(record->comm, record->cells[0].offset);
    return EXIT_MEASURED;
}

static int run(MPI_Comm comm, const struct options *options) {
    const struct op *op = op_find(options->operation);
    if (op == NULL)
        return launch_refuse(comm, EXIT_ARGUMENTS, "there is no operation '%s'; --list shows all", options->operation);
    const bool pairs = op->kind == OP_ROUND_TRIP || op->kind == OP_WINDOW;
    const char *sync_name = options->sync != NULL ? options->sync : pairs ? "none" : "barrier";
    const struct sync_method *method = sync_find(sync_name);
    if (method == NULL)
        return launch_refuse(comm, EXIT_ARGUMENTS, "--sync is none, barrier or window, not '%s'", sync_name);
    int status = refuse_ranks(comm, op);
    if (status == 0)
        status = refuse_output(comm, options->out);
    if (status != 0)
        return status;
    struct cell cells[OPTIONS_MAX_SIZES] = {{0}};
    const struct record record = {.op = op,
                                  .method = method,
                                  .options = options,
                                  .comm = comm,
                                  .cells = cells,
                                  .cell_count = op->has_size ? options->size_count : 1};
    status = allocate_cells(comm, op, options, cells, record.cell_count);
    if (status == 0)
        status = measure_cells(&record);
    for (size_t c = 0; c < record.cell_count; c++)
        cell_free(&cells[c]);
    return status;
}

int main(int argc, char *argv[]) {
    struct options options;
    char message[ARGUMENTS_MESSAGE_CHARS];
    const bool understood = options_parse(argc, argv, &options, message);
    if (understood && options.help)
        return fputs(options_usage, stdout) < 0 ? EXIT_WRITE : EXIT_MEASURED;
    if (understood && options.list)
        return list_operations();
    MPI_Init(NULL, NULL);
    MPI_Comm comm;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    const int status = understood ? run(comm, &options) : launch_refuse(comm, EXIT_ARGUMENTS, "%s", message);
    MPI_Comm_free(&comm);
    MPI_Finalize();
    return status;
}
