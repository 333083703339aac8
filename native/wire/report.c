// SPDX-License-Identifier: GPL-2.0-or-later
#include "report.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int named_node;
static struct last_words *own_words;

void wire_name_node(int node) { named_node = node; }

void wire_leave_words_at(struct last_words *words) { own_words = words; }

static _Noreturn void end(const char *reason) {
    fprintf(stderr, "wire: node %d: %s\n", named_node, reason);
    fflush(stderr);
    _exit(WIRE_EXIT);
}

_Noreturn void wire_die(const char *format, ...) {
    char reason[512];
    va_list list;
    va_start(list, format);
    vsnprintf(reason, sizeof reason, format, list);
    va_end(list);
    if (own_words) {
        snprintf(own_words->text, sizeof own_words->text, "ended by node %d: %s", named_node, reason);
        own_words->said = 1;
    }
    end(reason);
}

_Noreturn void wire_die_after(const struct last_words *peers) {
    if (own_words) {
        memcpy(own_words->text, peers->text, sizeof own_words->text);
        own_words->said = 1;
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
