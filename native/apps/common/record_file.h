/* record_file.h - the per-iteration record of one run, in the sample-file format of docs/reference/sample-file.md. */
#ifndef NEARMETAL_APPS_RECORD_FILE_H
#define NEARMETAL_APPS_RECORD_FILE_H

#include "app.h"

/* Collective: every rank calls it; rank 0 writes `path`. A failure to write ends the job with a message. */
void record_file_write(const struct run *run, const struct app *app, const char *path);

#endif
