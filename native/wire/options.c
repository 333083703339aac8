// SPDX-License-Identifier: GPL-2.0-or-later
/* The arguments of -plugin file=wire.so,KEY=VALUE,... */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "machine.h"

enum { SPIN_NS = 20000, STEPS_A_LOOKAHEAD = 4, LOOKAHEAD_NS_MIN = 600, PATIENCE_S = 60 };

static struct number {
    const char *key;
    int64_t least, most, value;
} numbers[] = {
    {"node", 0, NODES_MAX - 1, 0},
    {"nodes", 1, NODES_MAX, 1},
    {"seed", 0, INT64_MAX, 0},
    {"guests", 0, 1, 0},
    {"person", 0, 1, 0},
    {"fuzz", 0, INT64_MAX, 0},
    {"jumps", 0, 1, 1}, /* 0, for tests: QEMU finds all blocks itself */
    {"step", 1, 1000000, 0},
    {"spin", 0, 1000000, SPIN_NS},
    {"patience", 1, 1000000, PATIENCE_S},
    /* for the measured network; with a 1 appended, for the management network */
    {"delay", 0, 1000000000, 2000},
    {"rate", 0, 1000000, 0},
    {"queue", 0, 1 << 30, 1 << 20},
    {"loss", 0, 1000000, 0},
    {"delay1", 0, 1000000000, 2000},
    {"rate1", 0, 1000000, 0},
    {"queue1", 0, 1 << 30, 1 << 20},
    {"loss1", 0, 1000000, 0},
};

static struct number *find_number(const char *key) {
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!strcmp(numbers[i].key, key))
            return &numbers[i];
    return NULL;
}

static void read_number(const char *key, const char *text) {
    struct number *number = find_number(key);
    if (!number)
        wire_die("unknown argument '%s'", key);
    char *end = NULL;
    errno = 0;
    number->value = strtoll(text, &end, 10);
    if (errno || end == text || *end || number->value < number->least || number->value > number->most)
        wire_die("%s needs a whole number from %lld to %lld, not '%s'", key, (long long)number->least,
                 (long long)number->most, text);
}

static void read_one(struct options *options, char *argument) {
    char *value = strchr(argument, '=');
    if (!value)
        wire_die("bad argument '%s'", argument);
    *value++ = 0;
    const char **path = !strcmp(argument, "shm")     ? &options->shared_path
                        : !strcmp(argument, "stat")  ? &options->counts_path
                        : !strcmp(argument, "trace") ? &options->trace_path
                                                     : NULL;
    if (path)
        *path = strdup(value);
    else
        read_number(argument, value);
}

static struct link link_of(const char *suffix) {
    char key[16];
    int64_t values[4];
    const char *const names[] = {"delay", "rate", "queue", "loss"};
    for (int i = 0; i < 4; i++) {
        snprintf(key, sizeof key, "%s%s", names[i], suffix);
        values[i] = find_number(key)->value;
    }
    return (struct link){
        .delay_ns = values[0], .rate_mbps = values[1], .queue_bytes = values[2], .loss_ppm = values[3]};
}

static int64_t lookahead_ns(const struct options *options) {
    const int64_t first = port_lookahead_ns(&options->link[0]), second = port_lookahead_ns(&options->link[1]);
    return first < second ? first : second;
}

static int cores(void) {
    cpu_set_t allowed;
    return sched_getaffinity(0, sizeof allowed, &allowed) ? 1 : CPU_COUNT(&allowed);
}

void options_read(struct options *options, int count, char **arguments) {
    for (int i = 0; i < count; i++)
        read_one(options, arguments[i]);
    options->node = (int)find_number("node")->value;
    options->nodes = (int)find_number("nodes")->value;
    wire_set_node(options->node);
    options->seed = (uint64_t)find_number("seed")->value;
    options->guests = find_number("guests")->value != 0;
    options->person = find_number("person")->value != 0;
    options->jumps = find_number("jumps")->value != 0;
    options->fuzz = (uint64_t)find_number("fuzz")->value;
    options->spin_ns = cores() > 1 ? find_number("spin")->value : 0;
    options->patience_s = find_number("patience")->value;
    options->link[0] = link_of("");
    options->link[1] = link_of("1");
    options->lookahead_ns = lookahead_ns(options);
    options->step_ns = find_number("step")->value;
    if (!options->step_ns)
        options->step_ns = options->lookahead_ns / STEPS_A_LOOKAHEAD;
    if (options->node >= options->nodes)
        wire_die("node=%d is not one of nodes=%d", options->node, options->nodes);
    if (options->nodes > 1 && !options->shared_path)
        wire_die("shm=PATH is missing");
    if (options->lookahead_ns < LOOKAHEAD_NS_MIN)
        wire_die("delay and rate let a frame arrive after %lld ns; the wire needs %d ns at least",
                 (long long)options->lookahead_ns, LOOKAHEAD_NS_MIN);
}
