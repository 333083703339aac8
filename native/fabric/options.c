#include "options.h"

#include <errno.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char options_usage[] =
    "usage: mpirun ... nmfabric --rounds FILE --out FILE [options]\n"
    "\n"
    "Measure pairs of ranks, many at the same time, round by round: a ping-pong, then windows of messages one way,\n"
    "then the other way. All ranks wait for each other between these steps. Every iteration is kept.\n"
    "\n"
    "  --rounds FILE               a line a round: a word, then pairs such as 0-5 4-1; read by rank 0\n"
    "  --out FILE                  the fabric file, written by rank 0 when all is measured\n"
    "  --latency-bytes N           size of a ping (default 8)\n"
    "  --latency-iterations N      (default 50)\n"
    "  --latency-warmup N          iterations before them, kept and marked (default 5)\n"
    "  --bandwidth-bytes N         size of a message of a window (default 65536)\n"
    "  --bandwidth-window N        messages in flight (default 16)\n"
    "  --bandwidth-iterations N    windows in each direction; 0: no bandwidth is measured (default 10)\n"
    "  --bandwidth-warmup N        windows before them, kept and marked (default 2)\n"
    "  --patience N                seconds without progress after which a rank gives its partner up (default 30)\n"
    "\n"
    "exit status: 0 measured; 2 bad arguments or rounds; 4 no memory; 5 the file could not be written; 6 a rank got\n"
    "no answer\n";

static const int64_t max_window_bytes = 1 << 26;

struct row {
    const char *name;
    size_t offset;
    int64_t least, most;
};

#define ROW(name, field, least, most) {name, offsetof(struct options, field), least, most}
static const struct row rows[] = {
    ROW("--latency-bytes", latency_bytes, 1, INT_MAX),
    ROW("--latency-iterations", latency_iterations, 1, 1000000),
    ROW("--latency-warmup", latency_warmup, 0, 1000000),
    ROW("--bandwidth-bytes", bandwidth_bytes, 1, INT_MAX),
    ROW("--bandwidth-window", bandwidth_window, 1, 65536),
    ROW("--bandwidth-iterations", bandwidth_iterations, 0, 1000000),
    ROW("--bandwidth-warmup", bandwidth_warmup, 0, 1000000),
    ROW("--patience", patience_s, 1, 86400),
};
#undef ROW

int64_t options_latency_entries(const struct options *options) {
    return options->latency_warmup + options->latency_iterations;
}

int64_t options_bandwidth_entries(const struct options *options) {
    return options->bandwidth_iterations == 0 ? 0 : options->bandwidth_warmup + options->bandwidth_iterations;
}

static bool parse_number(const struct row *row, const char *text, struct options *options, char *message) {
    char *stop = NULL;
    errno = 0;
    const long long value = strtoll(text, &stop, 10);
    if (errno == 0 && stop != text && *stop == '\0' && value >= row->least && value <= row->most) {
        *(int64_t *)(void *)((char *)options + row->offset) = value;
        return true;
    }
    snprintf(message, OPTIONS_MESSAGE_CHARS, "%s needs a whole number from %lld to %lld, not '%.60s'", row->name,
             (long long)row->least, (long long)row->most, text);
    return false;
}

static bool parse_valued(const char *name, const char *value, struct options *options, char *message) {
    if (strcmp(name, "--rounds") == 0) {
        options->rounds = value;
        return true;
    }
    if (strcmp(name, "--out") == 0) {
        options->out = value;
        return true;
    }
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strcmp(name, rows[i].name) == 0)
            return parse_number(&rows[i], value, options, message);
    snprintf(message, OPTIONS_MESSAGE_CHARS, "there is no option '%.60s'; --help lists them", name);
    return false;
}

static bool complete(const struct options *options, char *message) {
    if (options->help)
        return true;
    if (options->rounds == NULL || options->out == NULL) {
        snprintf(message, OPTIONS_MESSAGE_CHARS, "%s is missing; --help shows the usage",
                 options->rounds == NULL ? "--rounds FILE" : "--out FILE");
        return false;
    }
    if (options->bandwidth_bytes > max_window_bytes / options->bandwidth_window) {
        snprintf(message, OPTIONS_MESSAGE_CHARS, "a window of %lld messages of %lld bytes is more than %lld bytes",
                 (long long)options->bandwidth_window, (long long)options->bandwidth_bytes,
                 (long long)max_window_bytes);
        return false;
    }
    return true;
}

bool options_parse(int argc, char *const argv[], struct options *options, char message[OPTIONS_MESSAGE_CHARS]) {
    *options = (struct options){.latency_bytes = 8,
                                .latency_iterations = 50,
                                .latency_warmup = 5,
                                .bandwidth_bytes = 65536,
                                .bandwidth_window = 16,
                                .bandwidth_iterations = 10,
                                .bandwidth_warmup = 2,
                                .patience_s = 30};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            options->help = true;
            continue;
        }
        if (i + 1 == argc) {
            snprintf(message, OPTIONS_MESSAGE_CHARS, "%.60s needs a value; --help lists the options", argv[i]);
            return false;
        }
        if (!parse_valued(argv[i], argv[i + 1], options, message))
            return false;
        i++;
    }
    return complete(options, message);
}
