#include "options.h"

#include <limits.h>
#include <stddef.h>
#include <stdio.h>

const char options_usage[] =
    "usage: mpirun ... nmfabric --rounds FILE --out FILE [options]\n"
    "\n"
    "Measure pairs of ranks, many at the same time, round by round: a ping-pong, then windows of messages one way,\n"
    "then the other way. All ranks wait for each other between these steps. Every iteration is kept.\n"
    "\n"
    "  --rounds FILE               one line per round: a word, then pairs such as 0-5 4-1; read by rank 0\n"
    "  --out FILE                  the fabric file, written by rank 0 when all is measured\n"
    "  --latency-bytes N           size of a ping (default 8)\n"
    "  --latency-iterations N      (default 50)\n"
    "  --latency-warmup N          iterations before them, kept and marked (default 5)\n"
    "  --bandwidth-bytes N         size of a message of a window (default 65536)\n"
    "  --bandwidth-window N        messages in flight (default 16)\n"
    "  --bandwidth-iterations N    windows in each direction; 0: no bandwidth is measured (default 10)\n"
    "  --bandwidth-warmup N        windows before them, kept and marked (default 2)\n"
    "  --patience N                seconds without progress after which a rank gives up on its partner (default 30)\n"
    "\n"
    "exit status: 0 measured; 2 bad arguments or rounds; 4 out of memory; 5 the file could not be written; a rank\n"
    "that got no answer ends by SIGALRM\n";

static const int64_t max_window_bytes = 1 << 26;

#define FIELD(word, field) .name = word, .offset = offsetof(struct options, field)
static const struct argument table[] = {
    {FIELD("--rounds", rounds), .text = true, .needed = "FILE"},
    {FIELD("--out", out), .text = true, .needed = "FILE"},
    {FIELD("--latency-bytes", latency_bytes), .least = 1, .most = INT_MAX},
    {FIELD("--latency-iterations", latency_iterations), .least = 1, .most = 1000000},
    {FIELD("--latency-warmup", latency_warmup), .least = 0, .most = 1000000},
    {FIELD("--bandwidth-bytes", bandwidth_bytes), .least = 1, .most = INT_MAX},
    {FIELD("--bandwidth-window", bandwidth_window), .least = 1, .most = 65536},
    {FIELD("--bandwidth-iterations", bandwidth_iterations), .least = 0, .most = 1000000},
    {FIELD("--bandwidth-warmup", bandwidth_warmup), .least = 0, .most = 1000000},
    {FIELD("--patience", patience_s), .least = 1, .most = 86400},
    {FIELD("--help", help), .switched = true},
};
#undef FIELD

enum { TABLE_ROWS = sizeof table / sizeof table[0] };

int64_t options_latency_entries(const struct options *options) {
    return options->latency_warmup + options->latency_iterations;
}

int64_t options_bandwidth_entries(const struct options *options) {
    return options->bandwidth_iterations == 0 ? 0 : options->bandwidth_warmup + options->bandwidth_iterations;
}

bool options_parse(int argc, char *const argv[], struct options *options, char message[ARGUMENTS_MESSAGE_CHARS]) {
    *options = (struct options){.latency_bytes = 8,
                                .latency_iterations = 50,
                                .latency_warmup = 5,
                                .bandwidth_bytes = 65536,
                                .bandwidth_window = 16,
                                .bandwidth_iterations = 10,
                                .bandwidth_warmup = 2,
                                .patience_s = 30};
    if (!arguments_parse(argc, argv, table, TABLE_ROWS, options, message))
        return false;
    if (options->help)
        return true;
    if (!arguments_complete(table, TABLE_ROWS, options, message))
        return false;
    if (options->bandwidth_bytes <= max_window_bytes / options->bandwidth_window)
        return true;
    snprintf(message, ARGUMENTS_MESSAGE_CHARS, "a window of %lld messages of %lld bytes is more than %lld bytes",
             (long long)options->bandwidth_window, (long long)options->bandwidth_bytes, (long long)max_window_bytes);
    return false;
}
