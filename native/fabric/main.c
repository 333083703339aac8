/* nmfabric: measure all pairs of a fabric in rounds of disjoint pairs, keep every iteration.
 *
 * Reading order: this file, rounds.h (which ranks are paired), measure.c (the steps of a round), record.h. The exit
 * statuses are part of the interface; options_usage lists them.
 */
#include <errno.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launch.h"
#include "measure.h"
#include "options.h"
#include "record.h"
#include "rounds.h"
#include "sample_file.h"

enum { EXIT_MEASURED = 0, EXIT_ARGUMENTS = 2, EXIT_MEMORY = 4, EXIT_WRITE = 5 };

const char program_name[] = "nmfabric";

/* Return the whole file with a NUL behind it, or NULL with errno. */
static char *read_text(const char *path) {
    FILE *stream = fopen(path, "rb");
    if (stream == NULL)
        return NULL;
    char *text = NULL;
    size_t length = 0, capacity = 1 << 16;
    for (;;) {
        char *const grown = realloc(text, capacity);
        if (grown == NULL)
            break;
        text = grown;
        length += fread(text + length, 1, capacity - 1 - length, stream);
        if (length < capacity - 1) {
            text[length] = '\0';
            const bool whole = !ferror(stream) && memchr(text, '\0', length) == NULL;
            if (!whole)
                errno = EINVAL;
            fclose(stream);
            if (whole)
                return text;
            free(text);
            return NULL;
        }
        capacity *= 2;
    }
    fclose(stream);
    free(text);
    errno = ENOMEM;
    return NULL;
}

/* On rank 0: read the rounds and check that the file can be written. Returns a status. */
static int prepare_root(const struct part *part, struct rounds *rounds) {
    char message[ROUNDS_MESSAGE_CHARS];
    char *text = read_text(part->options->rounds);
    if (text == NULL)
        return launch_refuse(part->comm, EXIT_ARGUMENTS, "cannot read %s: %s", part->options->rounds, strerror(errno));
    const bool understood = rounds_parse(text, part->ranks, rounds, message);
    free(text);
    if (!understood)
        return launch_refuse(part->comm, EXIT_ARGUMENTS, "%s", message);
    if (!sample_file_probe(part->options->out))
        return launch_refuse(part->comm, EXIT_WRITE, "cannot write %s: %s", part->options->out, strerror(errno));
    return 0;
}

/* Give every rank its own column of the rounds, the names of all, and its memory. Returns a status, the same on all. */
static int prepare(struct part *part, struct rounds *rounds) {
    int status = part->rank == 0 ? prepare_root(part, rounds) : 0;
    MPI_Bcast(&status, 1, MPI_INT, 0, part->comm);
    if (status != 0)
        return status;
    uint64_t count = rounds->count;
    MPI_Bcast(&count, 1, MPI_UINT64_T, 0, part->comm);
    part->rounds = (size_t)count;
    part->partner = malloc(part->rounds * sizeof part->partner[0]);
    part->names = calloc((size_t)part->ranks, MPI_MAX_PROCESSOR_NAME);
    int failed = part->partner == NULL || part->names == NULL;
    MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, part->comm);
    if (failed)
        return launch_refuse(part->comm, EXIT_MEMORY, "no memory for %llu rounds", (unsigned long long)count);
    MPI_Scatter(rounds->partner, (int)count, MPI_INT32_T, part->partner, (int)count, MPI_INT32_T, 0, part->comm);
    char name[MPI_MAX_PROCESSOR_NAME] = {0};
    int length;
    MPI_Get_processor_name(name, &length);
    MPI_Allgather(name, sizeof name, MPI_CHAR, part->names, sizeof name, MPI_CHAR, part->comm);
    int64_t wanted_bytes = (int64_t)part_allocate(part);
    MPI_Allreduce(MPI_IN_PLACE, &wanted_bytes, 1, MPI_INT64_T, MPI_MAX, part->comm);
    if (wanted_bytes > 0)
        return launch_refuse(part->comm, EXIT_MEMORY, "a rank cannot allocate %lld bytes", (long long)wanted_bytes);
    return 0;
}

static int run(MPI_Comm comm, const struct options *options) {
    struct part part = {.comm = comm, .options = options};
    struct rounds rounds = {0};
    MPI_Comm_rank(comm, &part.rank);
    MPI_Comm_size(comm, &part.ranks);
    int status = prepare(&part, &rounds);
    if (status == 0) {
        part_measure(&part);
        const int error = record_write(&part, &rounds);
        if (error != 0)
            status = launch_refuse(comm, EXIT_WRITE, "cannot write %s: %s", options->out, strerror(error));
    }
    part_free(&part);
    rounds_free(&rounds);
    return status;
}

int main(int argc, char *argv[]) {
    struct options options;
    char message[ARGUMENTS_MESSAGE_CHARS];
    const bool understood = options_parse(argc, argv, &options, message);
    if (understood && options.help)
        return fputs(options_usage, stdout) < 0 ? EXIT_WRITE : EXIT_MEASURED;
    MPI_Init(NULL, NULL);
    const int status =
        understood ? run(MPI_COMM_WORLD, &options) : launch_refuse(MPI_COMM_WORLD, EXIT_ARGUMENTS, "%s", message);
    MPI_Finalize();
    return status;
}
