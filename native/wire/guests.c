// SPDX-License-Identifier: GPL-2.0-or-later
/* helper_vmrun (target/i386/tcg/system/svm_helper.c) delivers an injected external interrupt at once, and leaves its
 * vector in `exception_index`, where an exception waits for delivery. When QEMU leaves its inner loop before something
 * clears it, the vector is delivered again, whatever the guest's interrupt flag, and the request to leave is lost: a
 * timer that was set meanwhile, such as a frame's arrival, would be late. Such a delivery can be told from every other:
 * in guest mode, by hardware, and with the next instruction pointer -1, which only VMRUN writes; of what VMRUN injects,
 * exceptions have vectors below 32 and software interrupts are marked as such.
 *
 * The hook takes the place of one function in a copy of the CPU class's table of operations. The table is found by
 * that function; fields are found by their names in QEMU's descriptions for migration. */
#include "guests.h"

#include <malloc.h>
#include <string.h>

#include "fields.h"
#include "qemu.h"
#include "report.h"

enum { CLASS_WORDS_MOST = 512, OPERATIONS_MOST = 64 };
enum { VECTOR_FIRST = 32, VECTOR_LAST = 255, VECTOR_PAGE_FAULT = 14, CHECKS = 1000, FAULT_APART_MOST = 16384 };
#define HF_GUEST (UINT32_C(1) << 21) /* target/i386/cpu.h */

void *object_get_class(void *object);
void x86_cpu_do_interrupt(CPUState *cpu);

static struct {
    size_t index, is_int, next_eip, eip, hflags;
} at;
static uint64_t *stale_count;

static uint64_t read_field(const CPUState *cpu, size_t place, size_t bytes) {
    uint64_t value = 0;
    memcpy(&value, (const char *)cpu + place, bytes);
    return value;
}

/* Where exceptions leave the next instruction pointer is inferred from its neighbour; a page fault's is near where it
 * happened (it is written before the fault's own place within its block is computed). */
static void check(const CPUState *cpu, int vector) {
    static int checked;
    if (vector != VECTOR_PAGE_FAULT || checked == CHECKS)
        return;
    checked++;
    const int64_t apart = (int64_t)(read_field(cpu, at.next_eip, 8) - read_field(cpu, at.eip, 8));
    if (apart > FAULT_APART_MOST || apart < -FAULT_APART_MOST || read_field(cpu, at.is_int, 4))
        wire_die("this QEMU is unknown: a page fault's next instruction is not in the expected place");
}

static void do_interrupt(CPUState *cpu) {
    const int vector = (int)read_field(cpu, at.index, 4);
    check(cpu, vector);
    if (vector >= VECTOR_FIRST && vector <= VECTOR_LAST && read_field(cpu, at.next_eip, 8) == UINT64_MAX &&
        !read_field(cpu, at.is_int, 4) && (read_field(cpu, at.hflags, 4) & HF_GUEST)) {
        ++*stale_count;
        cpu_exit(cpu); /* QEMU takes the vector for the reason it left its loop, and drops the request to leave */
        return;        /* it clears the vector */
    }
    x86_cpu_do_interrupt(cpu);
}

/* Return the index of x86_cpu_do_interrupt in a table of operations, or -1. */
static int index_in(void *const *table) {
    if (!fields_in_program(table, OPERATIONS_MOST * sizeof *table))
        return -1;
    for (int i = 0; i < OPERATIONS_MOST; i++)
        if (table[i] == (void *)(uintptr_t)x86_cpu_do_interrupt)
            return i;
    return -1;
}

static void hook(void) {
    static void *operations[OPERATIONS_MOST];
    void **class = object_get_class(qemu_get_cpu(0));
    const size_t words = malloc_usable_size(class) / sizeof *class;
    for (size_t i = 0; i < words && i < CLASS_WORDS_MOST; i++) {
        const int index = index_in(class[i]);
        if (index < 0)
            continue;
        memcpy(operations, class[i], sizeof operations);
        operations[index] = (void *)(uintptr_t)do_interrupt;
        class[i] = operations;
        return;
    }
    wire_die("this QEMU is unknown: its CPU class has no operation to deliver interrupts");
}

void guests_repair(uint64_t *stale) {
    stale_count = stale;
    at.index = fields_exception_index();
    at.eip = fields_of_cpu("env.eip", 8);
    at.hflags = fields_of_cpu("env.hflags", 4);
    at.next_eip = fields_of_cpu("env.dr", 8) - 8; /* just before the debug registers */
    at.is_int = at.next_eip - 4;
    hook();
}
