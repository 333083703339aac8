/* Gather every rank's samples on rank 0 and write the fabric file. See docs/reference/fabric-file.md. */
#ifndef NMFABRIC_RECORD_H
#define NMFABRIC_RECORD_H

#include "measure.h"
#include "rounds.h"

/* Write the file; `rounds` is needed on rank 0 alone. Collective. Returns 0 or an errno, the same on every rank. */
int record_write(const struct part *part, const struct rounds *rounds);

#endif
