#include "options.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char options_usage[] =
    "usage: mpirun ... nmbench --op NAME --out FILE [options]\n"
    "\n"
    "Measure one MPI operation and keep every iteration of every rank.\n"
    "\n"
    "  --op NAME              the operation; --list shows all\n"
    "  --out FILE             the sample file, written by rank 0 when all is measured\n"
    "  --sizes A,B,...        message sizes in bytes (default 8)\n"
    "  --iterations N         measured iterations of each size (default 1000)\n"
    "  --warmup N             iterations before them, kept and marked (default 100)\n"
    "  --large-from BYTES     sizes from here on use the next two (default 65536)\n"
    "  --iterations-large N   (default: as --iterations)\n"
    "  --warmup-large N       (default: as --warmup)\n"
    "  --window N             messages in flight of bw, bibw and message_rate (default 64)\n"
    "  --sync METHOD          before each iteration: none, barrier or window (default: none for pairs, barrier\n"
    "                         where all ranks take part)\n"
    "  --sync-window-us N     length of a time window (default: from a few calls of each size)\n"
    "  --buffers WHICH        of a window: single (all messages share one, as in other suites) or many (default single)\n"
    "  --pace-us N            pause before each iteration, drawn from 0 to N us for each (default 0: back to back)\n"
    "  --seed N               decides the pauses (default 0)\n"
    "  --check                verify the payload in rounds of its own, before and after the timed ones\n"
    "  --list                 print the operations, one a line, and end\n"
    "\n"
    "exit status: 0 measured; 2 bad arguments; 3 measured, but a payload was wrong; 4 no memory; 5 the file could\n"
    "not be written\n";

enum { MAX_COUNT = 1000000000 };

/* Read a whole decimal number; the text ends at `end`. */
static bool parse_number(const char *text, const char *end, int64_t *value) {
    if (text == end || !isdigit((unsigned char)*text))
        return false;
    char *stop = NULL;
    errno = 0;
    const long long number = strtoll(text, &stop, 10);
    if (errno != 0 || stop != end)
        return false;
    *value = number;
    return true;
}

static bool parse_in_range(const char *name, const char *text, int64_t least, int64_t most, int64_t *value,
                           char *message) {
    if (parse_number(text, text + strlen(text), value) && *value >= least && *value <= most)
        return true;
    snprintf(message, OPTIONS_MESSAGE_CHARS, "%s needs a whole number from %lld to %lld, not '%.60s'", name,
             (long long)least, (long long)most, text);
    return false;
}

static bool parse_sizes(const char *text, struct options *options, char *message) {
    options->size_count = 0;
    for (const char *item = text;; item++) {
        const char *end = item + strcspn(item, ",");
        if (options->size_count == OPTIONS_MAX_SIZES) {
            snprintf(message, OPTIONS_MESSAGE_CHARS, "--sizes takes at most %d sizes", OPTIONS_MAX_SIZES);
            return false;
        }
        int64_t *size = &options->sizes_bytes[options->size_count++];
        if (!parse_number(item, end, size) || *size < 1 || *size > INT_MAX) {
            snprintf(message, OPTIONS_MESSAGE_CHARS, "--sizes needs bytes from 1 to %d, not '%.*s'", INT_MAX,
                     end - item > 60 ? 60 : (int)(end - item), item);
            return false;
        }
        if (*end == '\0')
            return true;
        item = end;
    }
}

/* One row a numeric option, so that parsing is a look-up. */
struct number_row {
    const char *name;
    size_t offset;
    int64_t least, most;
};

#define ROW(name, field, least, most) {name, offsetof(struct options, field), least, most}
static const struct number_row number_rows[] = {
    ROW("--iterations", iterations, 1, MAX_COUNT),        ROW("--warmup", warmup, 0, MAX_COUNT),
    ROW("--large-from", large_from_bytes, 1, INT_MAX),    ROW("--iterations-large", iterations_large, 1, MAX_COUNT),
    ROW("--warmup-large", warmup_large, 0, MAX_COUNT),    ROW("--window", window_messages, 1, 65536),
    ROW("--sync-window-us", sync_window_ns, 1, 60000000), ROW("--pace-us", pace_ns, 0, 60000000),
    ROW("--seed", seed, 0, INT64_MAX),
};
#undef ROW

static bool parse_valued(const char *name, const char *value, struct options *options, char *message) {
    if (strcmp(name, "--op") == 0) {
        options->operation = value;
        return true;
    }
    if (strcmp(name, "--sync") == 0) {
        options->sync = value;
        return true;
    }
    if (strcmp(name, "--out") == 0) {
        options->out = value;
        return true;
    }
    if (strcmp(name, "--sizes") == 0)
        return parse_sizes(value, options, message);
    if (strcmp(name, "--buffers") == 0) {
        options->many_buffers = strcmp(value, "many") == 0;
        if (options->many_buffers || strcmp(value, "single") == 0)
            return true;
        snprintf(message, OPTIONS_MESSAGE_CHARS, "--buffers is single or many, not '%.60s'", value);
        return false;
    }
    for (size_t i = 0; i < sizeof number_rows / sizeof number_rows[0]; i++) {
        const struct number_row *row = &number_rows[i];
        if (strcmp(name, row->name) == 0)
            return parse_in_range(name, value, row->least, row->most, (int64_t *)((char *)options + row->offset),
                                  message);
    }
    snprintf(message, OPTIONS_MESSAGE_CHARS, "there is no option '%.60s'; --help lists them", name);
    return false;
}

static bool *find_switch(const char *name, struct options *options) {
    if (strcmp(name, "--check") == 0)
        return &options->check;
    if (strcmp(name, "--list") == 0)
        return &options->list;
    if (strcmp(name, "--help") == 0)
        return &options->help;
    return NULL;
}

static bool complete(struct options *options, char *message) {
    if (options->iterations_large < 0)
        options->iterations_large = options->iterations;
    if (options->warmup_large < 0)
        options->warmup_large = options->warmup;
    options->sync_window_ns *= 1000;
    options->pace_ns *= 1000;
    if (options->help || options->list)
        return true;
    if (options->operation == NULL || options->out == NULL) {
        snprintf(message, OPTIONS_MESSAGE_CHARS, "%s is missing; --help shows the usage",
                 options->operation == NULL ? "--op NAME" : "--out FILE");
        return false;
    }
    return true;
}

bool options_parse(int argc, char *const argv[], struct options *options, char message[OPTIONS_MESSAGE_CHARS]) {
    *options = (struct options){.sizes_bytes = {8},
                                .size_count = 1,
                                .iterations = 1000,
                                .warmup = 100,
                                .large_from_bytes = 65536,
                                .iterations_large = -1,
                                .warmup_large = -1,
                                .window_messages = 64};
    for (int i = 1; i < argc; i++) {
        bool *flag = find_switch(argv[i], options);
        if (flag != NULL) {
            *flag = true;
            continue;
        }
        if (strncmp(argv[i], "--", 2) != 0) {
            snprintf(message, OPTIONS_MESSAGE_CHARS, "'%.60s' is not an option; --help lists them", argv[i]);
            return false;
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

int64_t options_iterations(const struct options *options, int64_t size_bytes) {
    return size_bytes >= options->large_from_bytes ? options->iterations_large : options->iterations;
}

int64_t options_warmup(const struct options *options, int64_t size_bytes) {
    return size_bytes >= options->large_from_bytes ? options->warmup_large : options->warmup;
}
