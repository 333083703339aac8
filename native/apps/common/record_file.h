/*
 * record_file.h - the per-iteration times of one run, in the format of native/common/sample_file.h, so that readers of
 * the engine's samples read these. One cell: one entry per iteration and rank, no warm-up (it runs untimed).
 */
#ifndef NEARMETAL_APPS_RECORD_FILE_H
#define NEARMETAL_APPS_RECORD_FILE_H

#include "app.h"

enum record_part {
    RECORD_ITERATION,    /* operation "cg.A": each iteration from its begin to its end */
    RECORD_COMMUNICATION /* operation "cg.A.communication": begin, and begin plus the time spent inside MPI calls */
};

/* Collective: every rank calls it; rank 0 writes `path`. A failure to write ends the job with a message. */
void record_file_write(const struct run *run, const char *app, enum record_part part, const char *path);

#endif
