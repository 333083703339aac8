/* nmbench: measure MPI operations, keep every iteration of every rank.
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
enum { PARTS_MAX = 8 };

/* What one set of options measures; a launch has one, or several in a row (--then). */
struct part {
    struct options options;
    struct cell cells[OPTIONS_MAX_SIZES];
    struct record record;
};

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
static int allocate_cells(const struct record *record) {
    int64_t wanted_bytes = 0, most_wanted_bytes;
    for (size_t c = 0; c < record->cell_count; c++) {
        struct cell *cell = &record->cells[c];
        const int64_t size_bytes = record->op->has_size ? record->options->sizes_bytes.items[c] : 0;
        *cell = (struct cell){.size_bytes = size_bytes,
                              .iterations = options_iterations(record->options, size_bytes),
                              .warmup = options_warmup(record->options, size_bytes),
                              .type_name = "byte"};
        wanted_bytes += (int64_t)cell_allocate(cell);
    }
    if (wanted_bytes > 0)
        measure_report_memory(record->comm, wanted_bytes, "time stamps; fewer iterations or sizes need less");
    MPI_Allreduce(&wanted_bytes, &most_wanted_bytes, 1, MPI_INT64_T, MPI_MAX, record->comm);
    return most_wanted_bytes == 0 ? 0 : EXIT_MEMORY;
}

/* Find what a part's options name, and check that it can be measured and written. Returns 0 or the exit status. */
static int begin_part(MPI_Comm comm, struct part *part) {
    const struct options *options = &part->options;
    const struct op *op = op_find(options->operation);
    if (op == NULL)
        return launch_refuse(comm, EXIT_ARGUMENTS, "there is no operation '%s'; --list shows all", options->operation);
    const bool unsynchronized = op->unsynchronized || op->kind == OP_ROUND_TRIP || op->kind == OP_WINDOW;
    const char *sync_name = options->sync != NULL ? options->sync : unsynchronized ? "none" : "barrier";
    const struct sync_method *method = sync_find(sync_name);
    if (method == NULL)
        return launch_refuse(comm, EXIT_ARGUMENTS, "--sync is none, barrier or window, not '%s'", sync_name);
    if (op->alone != NULL && (options->compute_ns == 0 || method->has_window))
        return launch_refuse(comm, EXIT_ARGUMENTS, "%s needs --compute-us above 0, and no --sync window", op->name);
    int status = refuse_ranks(comm, op);
    if (status == 0)
        status = refuse_output(comm, options->out);
    if (status != 0)
        return status;
    part->record = (struct record){.op = op,
                                   .method = method,
                                   .options = options,
                                   .comm = comm,
                                   .cells = part->cells,
                                   .cell_count = op->has_size ? options->sizes_bytes.count : 1};
    return allocate_cells(&part->record);
}

static int measure_part(struct part *part) {
    const struct record *record = &part->record;
    for (size_t c = 0; c < record->cell_count; c++)
        if (measure_cell(record->op, record->method, record->options, record->comm, &record->cells[c]) != 0)
            return EXIT_MEMORY;
    return 0;
}

static int write_part(struct part *part) {
    const struct record *record = &part->record;
    measure_offsets(record->comm, record->cells, record->cell_count);
    const int error = record_write(record);
    if (error != 0)
        return launch_refuse(record->comm, EXIT_WRITE, "cannot write %s: %s", record->options->out, strerror(error));
    const int64_t failures = record_check_failures(record);
    if (failures > 0)
        return launch_refuse(record->comm, EXIT_PAYLOAD, "%lld messages of %s arrived with a wrong payload",
                             (long long)failures, record->op->name);
    return 0;
}

/* Measure all parts before the first is written: gathering leaves the transport in another state. */
static int run(MPI_Comm comm, struct part *parts, size_t count) {
    int status = 0;
    for (size_t p = 0; p < count && status == 0; p++)
        status = begin_part(comm, &parts[p]);
    for (size_t p = 0; p < count && status == 0; p++)
        status = measure_part(&parts[p]);
    for (size_t p = 0; p < count && status == 0; p++)
        status = write_part(&parts[p]);
    if (status == 0)
        sync_before_finalize(comm, parts[count - 1].cells[0].offset);
    for (size_t p = 0; p < count; p++)
        for (size_t c = 0; c < parts[p].record.cell_count; c++)
            cell_free(&parts[p].cells[c]);
    return status;
}

/* Read the command line, a part up to each --then. Returns the number of parts, or 0 with a sentence in `message`. */
static size_t parse_parts(int argc, char *argv[], struct part parts[PARTS_MAX], char *message) {
    size_t count = 0;
    for (int begin = 0; begin < argc; count++) {
        int words = 1;
        while (begin + words < argc && strcmp(argv[begin + words], "--then") != 0)
            words++;
        if (count == PARTS_MAX) {
            snprintf(message, ARGUMENTS_MESSAGE_CHARS, "--then continues at most %d times", PARTS_MAX - 1);
            return 0;
        }
        if (!options_parse(words, argv + begin, &parts[count].options, message))
            return 0;
        begin += words;
    }
    return count;
}

int main(int argc, char *argv[]) {
    struct part parts[PARTS_MAX] = {0};
    char message[ARGUMENTS_MESSAGE_CHARS];
    const size_t count = parse_parts(argc, argv, parts, message);
    if (count > 0 && parts[0].options.help)
        return fputs(options_usage, stdout) < 0 ? EXIT_WRITE : EXIT_MEASURED;
    if (count > 0 && parts[0].options.list)
        return list_operations();
    MPI_Init(NULL, NULL);
    MPI_Comm comm;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    const int status = count > 0 ? run(comm, parts, count) : launch_refuse(comm, EXIT_ARGUMENTS, "%s", message);
    MPI_Comm_free(&comm);
    MPI_Finalize();
    return status;
}
