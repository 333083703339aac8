#include "record.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "launch.h"
#include "sample_file.h"
#include "text.h"

enum { TAG_STAMPS = 21, NAME_CHARS = MPI_MAX_PROCESSOR_NAME };

/* What rank 0 knows of all ranks. */
struct gathered {
    int ranks;
    int64_t *clock_cost_ns;  /* by rank */
    char *names;             /* NAME_CHARS a rank */
    int64_t *offset_ns;      /* by cell, then by rank: offset and error */
    int64_t *migrations;     /* by cell, then by rank */
    int64_t *check_failures; /* by cell */
    int64_t *stamps;         /* room for the longest array of any cell */
};

static size_t longest(const struct record *record) {
    size_t most = 0;
    for (size_t c = 0; c < record->cell_count; c++)
        if (cell_entries(&record->cells[c]) > most)
            most = cell_entries(&record->cells[c]);
    return most;
}

static bool gathered_allocate(const struct record *record, struct gathered *all) {
    MPI_Comm_size(record->comm, &all->ranks);
    const size_t ranks = (size_t)all->ranks;
    all->clock_cost_ns = calloc(ranks, sizeof(int64_t));
    all->names = calloc(ranks, NAME_CHARS);
    all->offset_ns = calloc(ranks * record->cell_count * 2, sizeof(int64_t));
    all->migrations = calloc(ranks * record->cell_count, sizeof(int64_t));
    all->check_failures = calloc(record->cell_count, sizeof(int64_t));
    all->stamps = calloc(longest(record) + 1, sizeof(int64_t));
    return all->clock_cost_ns != NULL && all->names != NULL && all->offset_ns != NULL && all->migrations != NULL &&
           all->check_failures != NULL && all->stamps != NULL;
}

static void gathered_free(struct gathered *all) {
    free(all->clock_cost_ns);
    free(all->names);
    free(all->offset_ns);
    free(all->migrations);
    free(all->check_failures);
    free(all->stamps);
}

static void gather_facts(const struct record *record, struct gathered *all) {
    char name[NAME_CHARS] = {0};
    int length;
    int64_t cost_ns = clock_cost_ns();
    MPI_Get_processor_name(name, &length);
    MPI_Gather(&cost_ns, 1, MPI_INT64_T, all->clock_cost_ns, 1, MPI_INT64_T, 0, record->comm);
    MPI_Gather(name, NAME_CHARS, MPI_CHAR, all->names, NAME_CHARS, MPI_CHAR, 0, record->comm);
    for (size_t c = 0; c < record->cell_count; c++) {
        const struct cell *cell = &record->cells[c];
        int64_t *offsets_ns = all->offset_ns == NULL ? NULL : all->offset_ns + c * 2 * (size_t)all->ranks;
        int64_t *migrations = all->migrations == NULL ? NULL : all->migrations + c * (size_t)all->ranks;
        int64_t *failures = all->check_failures == NULL ? NULL : all->check_failures + c;
        MPI_Gather(&cell->offset, 2, MPI_INT64_T, offsets_ns, 2, MPI_INT64_T, 0, record->comm);
        MPI_Gather(&cell->migrations, 1, MPI_INT64_T, migrations, 1, MPI_INT64_T, 0, record->comm);
        MPI_Reduce(&cell->check_failures, failures, 1, MPI_INT64_T, MPI_SUM, 0, record->comm);
    }
}

/* ---- the header ---- */

/* A number of every rank of every cell, every `stride`-th of `values`. */
static void add_rank_lists(struct text *header, const struct record *record, const struct gathered *all,
                           const char *key, const int64_t *values, size_t stride) {
    const size_t ranks = (size_t)all->ranks;
    text_add(header, ",\"%s\":[", key);
    for (size_t c = 0; c < record->cell_count; c++) {
        text_add(header, c == 0 ? "" : ",");
        launch_add_list(header, NULL, values + c * stride * ranks, ranks, stride);
    }
    text_add(header, "]");
}

/* One int64 field of every cell. */
static void add_cell_list(struct text *header, const struct record *record, const char *key, size_t offset) {
    text_add(header, ",\"%s\":[", key);
    for (size_t c = 0; c < record->cell_count; c++) {
        const int64_t *field = (const int64_t *)(const void *)((const char *)&record->cells[c] + offset);
        text_add(header, "%s%lld", c == 0 ? "" : ",", (long long)*field);
    }
    text_add(header, "]");
}

static void add_cells(struct text *header, const struct record *record) {
    const struct cell *cells = record->cells;
    add_cell_list(header, record, "sizes_bytes", offsetof(struct cell, size_bytes));
    add_cell_list(header, record, "iterations", offsetof(struct cell, iterations));
    add_cell_list(header, record, "warmup", offsetof(struct cell, warmup));
    add_cell_list(header, record, "calls", offsetof(struct cell, calls));
    add_cell_list(header, record, "sync_window_ns", offsetof(struct cell, sync_window_ns));
    text_add(header, ",\"datatypes\":[");
    for (size_t c = 0; c < record->cell_count; c++) {
        text_add(header, c == 0 ? "" : ",");
        text_add_json(header, cells[c].type_name);
    }
    text_add(header, "]");
}

static void build_header(struct text *header, const struct record *record, const struct gathered *all) {
    text_add(header, "{\"engine\":\"nmbench\",\"operation\":");
    text_add_json(header, record->op->name);
    text_add(header, ",\"kind\":\"%s\",\"ranks\":%d,\"window_messages\":%lld,\"sync\":\"%s\"",
             op_kind_name(record->op->kind), all->ranks,
             record->op->kind == OP_WINDOW ? (long long)record->options->window_messages : 1LL, record->method->name);
    if (record->options->pace_ns > 0)
        text_add(header, ",\"pace_ns\":%lld,\"seed\":%lld", (long long)record->options->pace_ns,
                 (long long)record->options->seed);
    if (record->options->compute_ns > 0)
        text_add(header, ",\"compute_ns\":%lld,\"working_set_bytes\":%lld", (long long)record->options->compute_ns,
                 (long long)record->options->working_set_bytes);
    if (record->op->kind == OP_WINDOW)
        text_add(header, ",\"buffers\":\"%s\"", record->options->many_buffers ? "many" : "single");
    add_cells(header, record);
    launch_add_clock(header, all->clock_cost_ns, all->ranks);
    add_rank_lists(header, record, all, "clock_offset_ns", all->offset_ns, 2);
    add_rank_lists(header, record, all, "clock_error_ns", all->offset_ns + 1, 2);
    add_rank_lists(header, record, all, "migrations", all->migrations, 1);
    text_add(header, ",\"check_rounds\":%lld", (long long)record->cells[0].check_rounds);
    launch_add_list(header, "check_failures", all->check_failures, record->cell_count, 1);
    launch_end_header(header, all->names, all->ranks);
}

/* ---- the blocks ---- */

static void send_cells(const struct record *record) {
    for (size_t c = 0; c < record->cell_count; c++) {
        const struct cell *cell = &record->cells[c];
        const int entries = (int)cell_entries(cell);
        MPI_Send(cell->begin_ns, entries, MPI_INT64_T, 0, TAG_STAMPS, record->comm);
        MPI_Send(cell->end_ns, entries, MPI_INT64_T, 0, TAG_STAMPS, record->comm);
        MPI_Send(cell->flags, entries, MPI_BYTE, 0, TAG_STAMPS, record->comm);
    }
}

static void write_received(const struct record *record, struct sample_file *file, struct gathered *all, int source,
                           int entries) {
    for (int part = 0; part < 3; part++) {
        const MPI_Datatype type = part < 2 ? MPI_INT64_T : MPI_BYTE;
        MPI_Recv(all->stamps, entries, type, source, TAG_STAMPS, record->comm, MPI_STATUS_IGNORE);
        sample_file_block(file, all->stamps, (size_t)entries * (part < 2 ? sizeof(int64_t) : 1));
    }
}

static void write_cells(const struct record *record, struct sample_file *file, struct gathered *all) {
    for (size_t c = 0; c < record->cell_count; c++) {
        const struct cell *cell = &record->cells[c];
        const size_t entries = cell_entries(cell);
        sample_file_block(file, cell->begin_ns, entries * sizeof(int64_t));
        sample_file_block(file, cell->end_ns, entries * sizeof(int64_t));
        sample_file_block(file, cell->flags, entries);
        for (int source = 1; source < all->ranks; source++)
            write_received(record, file, all, source, (int)entries);
    }
}

static int write_as_root(const struct record *record, struct gathered *all) {
    struct text header = {0};
    struct sample_file file;
    build_header(&header, record, all);
    sample_file_begin(&file, record->options->out, SAMPLE_FILE_MAGIC, SAMPLE_FILE_VERSION, &header);
    write_cells(record, &file, all);
    text_free(&header);
    return sample_file_commit(&file);
}

int record_write(const struct record *record) {
    struct gathered all = {0};
    int rank, error = 0;
    MPI_Comm_rank(record->comm, &rank);
    if (rank == 0 && !gathered_allocate(record, &all))
        error = ENOMEM;
    MPI_Bcast(&error, 1, MPI_INT, 0, record->comm);
    if (error == 0) {
        gather_facts(record, &all);
        if (rank == 0)
            error = write_as_root(record, &all);
        else
            send_cells(record);
        MPI_Bcast(&error, 1, MPI_INT, 0, record->comm);
    }
    gathered_free(&all);
    return error;
}

int64_t record_check_failures(const struct record *record) {
    int64_t mine = 0, total = 0;
    for (size_t c = 0; c < record->cell_count; c++)
        mine += record->cells[c].check_failures;
    MPI_Allreduce(&mine, &total, 1, MPI_INT64_T, MPI_SUM, record->comm);
    return total;
}
