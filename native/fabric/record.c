#include "record.h"

#include <errno.h>
#include <stdlib.h>

#include "clock.h"
#include "launch.h"
#include "sample_file.h"
#include "text.h"

#define FABRIC_FILE_MAGIC "NMFABRIC"

enum { FABRIC_FILE_VERSION = 1, TAG_SAMPLES = 21 };

static void add_numbers(struct text *header, const struct part *part, const int64_t *clock_cost_ns) {
    const struct options *options = part->options;
    text_add(header, ",\"latency_bytes\":%lld,\"latency_iterations\":%lld,\"latency_warmup\":%lld",
             (long long)options->latency_bytes, (long long)options->latency_iterations,
             (long long)options->latency_warmup);
    text_add(header,
             ",\"bandwidth_bytes\":%lld,\"bandwidth_window\":%lld,\"bandwidth_iterations\":%lld"
             ",\"bandwidth_warmup\":%lld",
             (long long)options->bandwidth_bytes, (long long)options->bandwidth_window,
             (long long)options->bandwidth_iterations,
             (long long)(options_bandwidth_entries(options) - options->bandwidth_iterations));
    launch_add_clock(header, clock_cost_ns, part->ranks);
}

static void build_header(struct text *header, const struct part *part, const struct rounds *rounds,
                         const int64_t *clock_cost_ns) {
    text_add(header, "{\"engine\":\"nmfabric\",\"ranks\":%d,\"phases\":[", part->ranks);
    for (size_t i = 0; i < rounds->phase_count; i++)
        text_add(header, "%s[\"%s\",%lld]", i == 0 ? "" : ",", rounds->phases[i].name,
                 (long long)rounds->phases[i].rounds);
    text_add(header, "]");
    add_numbers(header, part, clock_cost_ns);
    launch_end_header(header, part->names, part->ranks);
}

/* One rank after another; a rank may have more samples than rank 0, so each gets its own buffer. */
static void write_ranks(const struct part *part, const struct rounds *rounds, struct sample_file *file) {
    for (int rank = 0; rank < part->ranks; rank++) {
        uint64_t count = part->sample_count;
        int64_t *samples_ns = part->samples_ns;
        if (rank > 0) {
            MPI_Recv(&count, 1, MPI_UINT64_T, rank, TAG_SAMPLES, part->comm, MPI_STATUS_IGNORE);
            samples_ns = malloc((count + 1) * sizeof samples_ns[0]);
            if (samples_ns == NULL)
                MPI_Abort(part->comm, ENOMEM); /* the other ranks are sending already: no recovery */
            MPI_Recv(samples_ns, (int)count, MPI_INT64_T, rank, TAG_SAMPLES, part->comm, MPI_STATUS_IGNORE);
        }
        sample_file_block(file, rounds->partner + (size_t)rank * part->rounds, part->rounds * sizeof(int32_t));
        sample_file_block(file, samples_ns, count * sizeof samples_ns[0]);
        if (rank > 0)
            free(samples_ns);
    }
}

static int write_as_root(const struct part *part, const struct rounds *rounds, const int64_t *clock_cost_ns) {
    struct text header = {0};
    struct sample_file file;
    build_header(&header, part, rounds, clock_cost_ns);
    sample_file_begin(&file, part->options->out, FABRIC_FILE_MAGIC, FABRIC_FILE_VERSION, &header);
    write_ranks(part, rounds, &file);
    text_free(&header);
    return sample_file_commit(&file);
}

static void send_samples(const struct part *part) {
    const uint64_t count = part->sample_count;
    MPI_Send(&count, 1, MPI_UINT64_T, 0, TAG_SAMPLES, part->comm);
    MPI_Send(part->samples_ns, (int)count, MPI_INT64_T, 0, TAG_SAMPLES, part->comm);
}

int record_write(const struct part *part, const struct rounds *rounds) {
    const int64_t cost_ns = clock_cost_ns();
    int64_t *costs_ns = calloc((size_t)part->ranks, sizeof costs_ns[0]);
    int error = costs_ns == NULL ? ENOMEM : 0;
    MPI_Allreduce(MPI_IN_PLACE, &error, 1, MPI_INT, MPI_MAX, part->comm);
    if (error == 0) {
        MPI_Gather(&cost_ns, 1, MPI_INT64_T, costs_ns, 1, MPI_INT64_T, 0, part->comm);
        if (part->rank == 0)
            error = write_as_root(part, rounds, costs_ns);
        else
            send_samples(part);
        MPI_Bcast(&error, 1, MPI_INT, 0, part->comm);
    }
    free(costs_ns);
    return error;
}
