/* The recorder of the applications, around iterations of one call each: iterations RECORD COMMUNICATION COUNT */
#include "app.h"
#include "launch.h"
#include "record_file.h"

#include <stdlib.h>

const char program_name[] = "iterations";

int main(int argc, char *argv[]) {
    struct run run = {.class_letter = 'S', .recording = 1, .verified = -1};
    if (argc != 4)
        return 2;
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &run.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &run.ranks);
    run_plan(&run, atoi(argv[3]));
    run_start(&run);
    for (int i = 0; i < run.iterations; i++) {
        double sum = 1.0;
        run_iteration_begin(&run);
        RUN_MPI(&run, MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD));
        run_iteration_end(&run);
    }
    run_stop(&run);
    record_file_write(&run, "fake", RECORD_ITERATION, argv[1]);
    record_file_write(&run, "fake", RECORD_COMMUNICATION, argv[2]);
    free(run.begin_ns);
    free(run.end_ns);
    free(run.inside_ns);
    MPI_Finalize();
    return 0;
}
