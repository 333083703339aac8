/* The command line's options. No MPI in here, so that it can be tested alone. */
#ifndef NMFABRIC_OPTIONS_H
#define NMFABRIC_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "arguments.h"

struct options {
    const char *rounds; /* --rounds */
    const char *out;    /* --out */
    int64_t latency_bytes, latency_iterations, latency_warmup;
    int64_t bandwidth_bytes, bandwidth_window, bandwidth_iterations, bandwidth_warmup;
    int64_t patience_s;
    bool help;
};

extern const char options_usage[];

/* Return the entries of a ping-pong or of one direction of the bandwidth test, the warm-up included. */
int64_t options_latency_entries(const struct options *options);
int64_t options_bandwidth_entries(const struct options *options);

/* Read the command line. Returns true and fills `options`, or false and leaves one sentence in `message`. Strings are
 * borrowed from argv. */
bool options_parse(int argc, char *const argv[], struct options *options, char message[ARGUMENTS_MESSAGE_CHARS]);

#endif
