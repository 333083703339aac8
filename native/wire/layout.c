// SPDX-License-Identifier: GPL-2.0-or-later
#include "layout.h"

#include <string.h>

#include "report.h"

/* A CPU's instruction budget under -icount (accel/tcg/icount-common.c): `budget` was given; of it `low`, a 16-bit count
 * that generated code decrements, and `extra` are left. `high`, next to `low`, asks the CPU to leave its loop. */
static struct {
    size_t budget, extra, low;
} at;

enum { FAKE_BYTES = 1 << 16, GIVEN = 0x12345678, LOW_MOST = 0xffff };
static _Alignas(64) uint8_t fake[FAKE_BYTES];

/* Return the one place of a value of `bytes` bytes in the fake, or end the process. */
static size_t find_only_place(const char *what, uint64_t value, size_t bytes) {
    size_t found = FAKE_BYTES;
    for (size_t i = 0; i + bytes <= FAKE_BYTES; i += bytes) {
        if (memcmp(fake + i, &value, bytes) != 0)
            continue;
        if (found != FAKE_BYTES)
            wire_die("this QEMU is unknown: found more than one place for %s", what);
        found = i;
    }
    if (found == FAKE_BYTES)
        wire_die("this QEMU is unknown: found no place for %s", what);
    return found;
}

void layout_find(void) {
    memset(fake, 0, sizeof fake);
    (tcg_kick_vcpu_thread ? tcg_kick_vcpu_thread : cpu_exit)(fake);
    at.low = find_only_place("the request to leave", LOW_MOST, sizeof(uint16_t)) - sizeof(uint16_t);
    memset(fake, 0, sizeof fake);
    icount_prepare_for_run(fake, GIVEN);
    at.budget = find_only_place("the budget", GIVEN, sizeof(int64_t));
    at.extra = find_only_place("the rest of the budget", GIVEN - LOW_MOST, sizeof(int64_t));
    if (find_only_place("the count", LOW_MOST, sizeof(uint16_t)) != at.low)
        wire_die("this QEMU is unknown: the instruction count is not next to the request to leave");
}

/* Let QEMU empty what it takes for the jump cache of a fake CPU, all of whose fields point into `into`, each `apart`
 * bytes after the last. Return where that begins, or `bytes` when other than `slots` slots become empty. */
static size_t find_emptied(char *into, size_t bytes, size_t apart, size_t slots, size_t slot_bytes) {
    memset(into, 0xff, bytes);
    for (size_t i = 0; i < FAKE_BYTES / sizeof(char *); i++) {
        char *pointer = into + i * apart;
        memcpy(fake + i * sizeof pointer, &pointer, sizeof pointer);
    }
    tcg_flush_jmp_cache(fake);
    const char empty[sizeof(void *)] = {0};
    size_t first = bytes, emptied = 0;
    for (size_t i = 0; i + sizeof empty <= bytes; i += sizeof empty) {
        if (memcmp(into + i, empty, sizeof empty) != 0)
            continue;
        first = emptied ? first : i;
        if (i != first + emptied++ * slot_bytes)
            return bytes;
    }
    return emptied == slots ? first : bytes;
}

void *layout_jump_cache(const CPUState *cpu, size_t slots, size_t bytes) {
    static char into[FAKE_BYTES * 4];
    const size_t head = find_emptied(into, sizeof into, 0, slots, bytes);
    const size_t moved = find_emptied(into, sizeof into, sizeof(char *), slots, bytes);
    if (head == sizeof into || moved == sizeof into)
        return NULL;
    char *cache;
    memcpy(&cache, (const char *)cpu + (moved - head), sizeof cache);
    return cache ? cache + head : NULL;
}

static int64_t read_long(const CPUState *cpu, size_t place) {
    int64_t value;
    memcpy(&value, (const char *)cpu + place, sizeof value);
    return value;
}

static uint16_t *low_of(CPUState *cpu) { return (uint16_t *)((char *)cpu + at.low); }

uint8_t *layout_can_do_io(CPUState *cpu) { return (uint8_t *)(low_of(cpu) + 2); }

int64_t layout_time_in_block_ns(CPUState *cpu, uint64_t block_insns) {
    const int64_t done = read_long(cpu, at.budget) - read_long(cpu, at.extra) - *low_of(cpu) - (int64_t)block_insns;
    current_cpu = NULL; /* the time at which this budget began: without a CPU, QEMU adds nothing to it */
    const int64_t began_ns = icount_get();
    current_cpu = cpu;
    return began_ns + done;
}

_Noreturn void layout_leave_block(CPUState *cpu, uint64_t block_insns) {
    *low_of(cpu) = (uint16_t)(*low_of(cpu) + block_insns);
    cpu_loop_exit_noexc(cpu);
}
