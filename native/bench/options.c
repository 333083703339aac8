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
    "  --large-from A,B,...   sizes from A bytes on use the first number of the next two options, sizes from B on the\n"
    "                         second, and so on (default 65536)\n"
    "  --iterations-large N,M,... (default: as --iterations)\n"
    "  --warmup-large N,M,... (default: as --warmup)\n"
    "  --window N             messages in flight of bw, bibw and message_rate (default 64)\n"
    "  --sync METHOD          before each iteration: none, barrier or window (default: none for pairs and one_way,\n"
    "                         barrier for others)\n"
    "  --sync-window-us N     length of a time window (default: from a few calls of each size)\n"
    "  --buffers WHICH        of a window: single (all messages share one, as in other suites) or many (default "
    "single)\n"
    "  --pace-us N            pause before each iteration, drawn from 0 to N us for each (default 0: back to back)\n"
    "  --seed N               decides the pauses (default 0)\n"
    "  --compute-us N         compute for N us before each iteration, as applications do (default 0); how long\n"
    "                         the computing of after_exchange and one_way takes if nothing disturbs it\n"
    "  --working-set BYTES    memory that it computes on, read and written in turn (default 1048576)\n"
    "  --check                verify the payload in separate rounds, before and after the timed ones\n"
    "  --list                 print the operations, one per line, and exit\n"
    "  --then                 begin the options of another measurement in the same launch; it has its own --out, and\n"
    "                         all are measured before the first is written\n"
    "\n"
    "exit status: 0 measured; 2 bad arguments; 3 measured, but a payload was wrong; 4 out of memory; 5 the file could\n"
    "not be written\n";

enum { MAX_COUNT = 1000000000 };

static bool read_numbers(const char *name, const char *text, int64_t least, int64_t most, struct numbers *numbers,
                         char *message) {
    numbers->count = 0;
    for (const char *item = text;; item++) {
        const char *end = item + strcspn(item, ",");
        if (numbers->count == OPTIONS_MAX_SIZES) {
            snprintf(message, ARGUMENTS_MESSAGE_CHARS, "%s takes at most %d numbers", name, OPTIONS_MAX_SIZES);
            return false;
        }
        int64_t *number = &numbers->items[numbers->count++];
        if (!arguments_number(item, end, number) || *number < least || *number > most) {
            snprintf(message, ARGUMENTS_MESSAGE_CHARS, "%s needs whole numbers from %d to %d, not '%.*s'", name,
                     (int)least, (int)most, end - item > 60 ? 60 : (int)(end - item), item);
            return false;
        }
        if (*end == '\0')
            return true;
        item = end;
    }
}

static bool read_sizes(const char *text, void *filled, char *message) {
    struct options *options = filled;
    return read_numbers("--sizes", text, 1, INT_MAX, &options->sizes_bytes, message);
}

static bool read_large_from(const char *text, void *filled, char *message) {
    struct numbers *from = &((struct options *)filled)->large_from_bytes;
    if (!read_numbers("--large-from", text, 1, INT_MAX, from, message))
        return false;
    for (size_t i = 1; i < from->count; i++)
        if (from->items[i] <= from->items[i - 1]) {
            snprintf(message, ARGUMENTS_MESSAGE_CHARS, "--large-from needs sizes that ascend, not '%.60s'", text);
            return false;
        }
    return true;
}

static bool read_iterations_large(const char *text, void *filled, char *message) {
    struct options *options = filled;
    return read_numbers("--iterations-large", text, 1, MAX_COUNT, &options->iterations_large, message);
}

static bool read_warmup_large(const char *text, void *filled, char *message) {
    struct options *options = filled;
    return read_numbers("--warmup-large", text, 0, MAX_COUNT, &options->warmup_large, message);
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
    {FIELD("--large-from", large_from_bytes), .read = read_large_from},
    {FIELD("--iterations-large", iterations_large), .read = read_iterations_large},
    {FIELD("--warmup-large", warmup_large), .read = read_warmup_large},
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

static bool one_for_each(const char *name, const struct numbers *large, const struct options *options, char *message) {
    const size_t wanted = options->large_from_bytes.count;
    if (large->count == 0 || large->count == wanted)
        return true;
    snprintf(message, ARGUMENTS_MESSAGE_CHARS, "%s needs one number for each of the %d of --large-from, not %d", name,
             (int)wanted, (int)large->count);
    return false;
}

bool options_parse(int argc, char *const argv[], struct options *options, char message[ARGUMENTS_MESSAGE_CHARS]) {
    *options = (struct options){.sizes_bytes = {{8}, 1},
                                .iterations = 1000,
                                .warmup = 100,
                                .large_from_bytes = {{65536}, 1},
                                .window_messages = 64,
                                .working_set_bytes = 1 << 20};
    if (!arguments_parse(argc, argv, table, TABLE_ROWS, options, message))
        return false;
    if (!one_for_each("--iterations-large", &options->iterations_large, options, message) ||
        !one_for_each("--warmup-large", &options->warmup_large, options, message))
        return false;
    options->sync_window_ns *= 1000;
    options->pace_ns *= 1000;
    options->compute_ns *= 1000;
    return options->help || options->list || arguments_complete(table, TABLE_ROWS, options, message);
}

/* Return the number of the last start that a size reaches, or `usual`. */
static int64_t of_size(int64_t size_bytes, const struct options *options, const struct numbers *large, int64_t usual) {
    for (size_t i = large->count; i > 0; i--)
        if (size_bytes >= options->large_from_bytes.items[i - 1])
            return large->items[i - 1];
    return usual;
}

int64_t options_iterations(const struct options *options, int64_t size_bytes) {
    return of_size(size_bytes, options, &options->iterations_large, options->iterations);
}

int64_t options_warmup(const struct options *options, int64_t size_bytes) {
    return of_size(size_bytes, options, &options->warmup_large, options->warmup);
}
