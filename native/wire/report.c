// SPDX-License-Identifier: GPL-2.0-or-later
#include "report.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int own_node;
static struct end_reason *own_reason;

void wire_set_node(int node) { own_node = node; }

void wire_set_reason_place(struct end_reason *reason) { own_reason = reason; }

static _Noreturn void end(const char *reason) {
    fprintf(stderr, "wire: node %d: %s\n", own_node, reason);
    fflush(stderr);
    _exit(WIRE_EXIT);
}

_Noreturn void wire_die(const char *format, ...) {
    char reason[512];
    va_list list;
    va_start(list, format);
    vsnprintf(reason, sizeof reason, format, list);
    va_end(list);
    if (own_reason) {
        snprintf(own_reason->text, sizeof own_reason->text, "ended by node %d: %.220s", own_node, reason);
        own_reason->is_set = 1;
    }
    end(reason);
}

_Noreturn void wire_die_after(const struct end_reason *peers) {
    if (own_reason) {
        memcpy(own_reason->text, peers->text, sizeof own_reason->text);
        own_reason->is_set = 1;
    }
    end(peers->text);
}

int64_t wire_host_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

void wire_write_counts(const char *path, const struct counts *c, int64_t virtual_ns, int64_t elapsed_ns) {
    FILE *file = fopen(path, "we");
    if (!file)
        wire_die("cannot write %s: %s", path, strerror(errno));
    const struct {
        const char *name;
        uint64_t value;
    } rows[] = {
        {"virtual_ns", (uint64_t)virtual_ns},
        {"elapsed_ns", (uint64_t)elapsed_ns},
        {"visits", c->visits},
        {"waits", c->waits},
        {"waited_ns", (uint64_t)c->waited_ns},
        {"sleeps", c->sleeps},
        {"wakes", c->wakes},
        {"leaps", c->leaps},
        {"leapt_ns", (uint64_t)c->leapt_ns},
        {"idle_turns", c->idle_turns},
        {"aborts", c->aborts},
        {"stale_vectors", c->stale},
        {"withheld_notices", c->withheld},
        {"finds_blocks", c->finds_blocks},
        {"sent", c->sent},
        {"sent_bytes", c->sent_bytes},
        {"received", c->received},
        {"lost", c->lost},
        {"dropped", c->dropped},
    };
    const size_t count = sizeof rows / sizeof *rows;
    fputc('{', file);
    for (size_t i = 0; i < count; i++)
        fprintf(file, "%s\"%s\": %" PRIu64, i ? ", " : "", rows[i].name, rows[i].value);
    fputs("}\n", file);
    if (fclose(file))
        wire_die("cannot write %s: %s", path, strerror(errno));
}
