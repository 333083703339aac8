#include "options.h"

#include <limits.h>
#include <stdio.h>
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
    "  --large-from BYTES     sizes from this on use the next two options (default 65536)\n"
    "  --iterations-large N   (default: as --iterations)\n"
    "  --warmup-large N       (default: as --warmup)\n"
    "  --window N             messages in flight of bw, bibw and message_rate (default 64)\n"
    "  --sync METHOD          before each iteration: none, barrier or window (default: none for pairs, barrier\n"
    "                         where all ranks take part)\n"
    "  --sync-window-us N     length of a time window (default: from a few calls of each size)\n"
    "  --buffers WHICH        of a window: single (all messages share one, as in other suites) or many (default "
    "single)\n"
    "  --pace-us N            pause before each iteration, drawn from 0 to N us for each (default 0: back to back)\n"
    "  --seed N               decides the pauses (default 0)\n"
    "  --compute-us N         compute for N us before each iteration, as applications do (default 0)\n"
    "  --working-set BYTES    memory that it computes on, read and written in turn (default 1048576)\n"
    "  --check                verify the payload in separate rounds, before and after the timed ones\n"
    "  --list                 print the operations, one per line, and exit\n"
    "  --then                 begin the options of another measurement in the same launch; it has its own --out, and\n"
    "                         all are measured before the first is written\n"
    "\n"
    "exit status: 0 measured; 2 bad arguments; 3 measured, but a payload was wrong; 4 out of memory; 5 the file could\n"
    "not be written\n";

enum { MAX_COUNT = 1000000000 };

static bool read_sizes(const char *text, void *filled, char *message) {
    struct options *options = filled;
    options->size_count = 0;
    for (const char *item = text;; item++) {
        const char *end = item + strcspn(item, ",");
        if (options->size_count == OPTIONS_MAX_SIZES) {
            snprintf(message, ARGUMENTS_MESSAGE_CHARS, "--sizes takes at most %d sizes", OPTIONS_MAX_SIZES);
            return false;
        }
        int64_t *size = &options->sizes_bytes[options->size_count++];
        if (!arguments_number(item, end, size) || *size < 1 || *size > INT_MAX) {
            snprintf(message, ARGUMENTS_MESSAGE_CHARS, "--sizes needs bytes from 1 to %d, not '%.*s'", INT_MAX,
                     end - item > 60 ? 60 : (int)(end - item), item);
            return false;
        }
        if (*end == '\0')
            return true;
        item = end;
    }
}

static bool read_buffers(const char *value, void *filled, char *message) {
    struct options *options = filled;
    options->many_buffers = strcmp(value, "many") == 0;
    if (options->many_buffers || strcmp(value, "single") == 0)
        return true;
    snprintf(message, ARGUMENTS_MESSAGE_CHARS, "--buffers is single or many, not '%.60s'", value);
    return false;
}

#define FIELD(word, field) .name = word, .offset = offsetof(struct options, field)
static const struct argument table[] = {
    {FIELD("--op", operation), .text = true, .needed = "NAME"},
    {FIELD("--out", out), .text = true, .needed = "FILE"},
    {FIELD("--sync", sync), .text = true},
    {FIELD("--sizes", sizes_bytes), .read = read_sizes},
    {FIELD("--buffers", many_buffers), .read = read_buffers},
    {FIELD("--iterations", iterations), .least = 1, .most = MAX_COUNT},
    {FIELD("--warmup", warmup), .least = 0, .most = MAX_COUNT},
    {FIELD("--large-from", large_from_bytes), .least = 1, .most = INT_MAX},
    {FIELD("--iterations-large", iterations_large), .least = 1, .most = MAX_COUNT},
    {FIELD("--warmup-large", warmup_large), .least = 0, .most = MAX_COUNT},
    {FIELD("--window", window_messages), .least = 1, .most = 65536},
    {FIELD("--sync-window-us", sync_window_ns), .least = 1, .most = 60000000},
    {FIELD("--pace-us", pace_ns), .least = 0, .most = 60000000},
    {FIELD("--seed", seed), .least = 0, .most = INT64_MAX},
    {FIELD("--compute-us", compute_ns), .least = 0, .most = 60000000},
    {FIELD("--working-set", working_set_bytes), .least = 4096, .most = 1 << 30},
    {FIELD("--check", check), .switched = true},
    {FIELD("--list", list), .switched = true},
    {FIELD("--help", help), .switched = true},
};
#undef FIELD

enum { TABLE_ROWS = sizeof table / sizeof table[0] };

bool options_parse(int argc, char *const argv[], struct options *options, char message[ARGUMENTS_MESSAGE_CHARS]) {
    *options = (struct options){.sizes_bytes = {8},
                                .size_count = 1,
                                .iterations = 1000,
                                .warmup = 100,
                                .large_from_bytes = 65536,
                                .iterations_large = -1,
                                .warmup_large = -1,
                                .window_messages = 64,
                                .working_set_bytes = 1 << 20};
    if (!arguments_parse(argc, argv, table, TABLE_ROWS, options, message))
        return false;
    if (options->iterations_large < 0)
        options->iterations_large = options->iterations;
    if (options->warmup_large < 0)
        options->warmup_large = options->warmup;
    options->sync_window_ns *= 1000;
    options->pace_ns *= 1000;
    options->compute_ns *= 1000;
    return options->help || options->list || arguments_complete(table, TABLE_ROWS, options, message);
}

int64_t options_iterations(const struct options *options, int64_t size_bytes) {
    return size_bytes >= options->large_from_bytes ? options->iterations_large : options->iterations;
}

int64_t options_warmup(const struct options *options, int64_t size_bytes) {
    return size_bytes >= options->large_from_bytes ? options->warmup_large : options->warmup;
}
