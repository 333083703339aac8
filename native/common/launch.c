#include "launch.h"

#include <stdarg.h>
#include <stdio.h>

#include "clock.h"

int launch_refuse(MPI_Comm comm, int status, const char *format, ...) {
    int rank;
    MPI_Comm_rank(comm, &rank);
    if (rank != 0)
        return status;
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "%s: ", program_name);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    return status;
}

void launch_add_list(struct text *header, const char *key, const int64_t *values, size_t count, size_t stride) {
    if (key != NULL)
        text_add(header, ",\"%s\":", key);
    text_add(header, "[");
    for (size_t i = 0; i < count; i++)
        text_add(header, "%s%lld", i == 0 ? "" : ",", (long long)values[i * stride]);
    text_add(header, "]");
}

void launch_add_clock(struct text *header, const int64_t *cost_ns, int ranks) {
    text_add(header, ",\"clock\":\"%s\"", CLOCK_NAME);
    launch_add_list(header, "clock_cost_ns", cost_ns, (size_t)ranks, 1);
}

void launch_end_header(struct text *header, const char *names, int ranks) {
    char library[MPI_MAX_LIBRARY_VERSION_STRING];
    int length, version, subversion;
    MPI_Get_version(&version, &subversion);
    MPI_Get_library_version(library, &length);
    text_add(header, ",\"mpi_standard\":\"%d.%d\",\"mpi_library\":", version, subversion);
    text_add_json(header, library);
    text_add(header, ",\"processors\":[");
    for (int rank = 0; rank < ranks; rank++) {
        text_add(header, rank == 0 ? "" : ",");
        text_add_json(header, names + (size_t)rank * MPI_MAX_PROCESSOR_NAME);
    }
    text_add(header, "]}");
}
