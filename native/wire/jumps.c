// SPDX-License-Identifier: GPL-2.0-or-later
/* At the end of a block, a jump to another page, or to an address in a register, looks for the next block: first in the
 * jump cache of QEMU (accel/tcg/tb-jmp-cache.h), which has 4096 slots, and otherwise in a hash table that is rarely in
 * the processor's cache. A machine of the lab uses more blocks than that, and one with guests empties the slots often,
 * so a fifth of the emulator's time went into it. Here is a larger cache in front of QEMU's.
 *
 * QEMU empties its slots when an address may mean another page, or a block is no longer valid: all, or the 64 of a page
 * and of the page before. So each such group of slots holds a marker. While that is there, what was found in its pages
 * is right. When it is gone, a block is right again if its address still means the same place and it is valid. A marker
 * goes, too, when QEMU uses its slot for a block.
 *
 * PAUSE lets QEMU leave the CPU's loop so that another CPU may run (target/i386/tcg/misc_helper.c). The one CPU of a
 * coupled machine goes on with the next block instead. */
#include "jumps.h"

#include <string.h>

#include "fields.h"
#include "layout.h"
#include "qemu.h"
#include "report.h"

enum { SLOTS = 4096, GROUP_SLOTS = 64, GROUPS = SLOTS / GROUP_SLOTS, PAGE = 4096 };
enum { FOUND_BITS = 14, BLOCK_ALIGNED = 64, SPAN_BEFORE = 1 << 24, GENERATIONS = 256, FLAGS_SHIFT = 32 };
enum { CODE_SEGMENT = 1, BREAKPOINTS_ENABLED = 0xff };
/* target/i386/cpu.h, and what cpu_get_tb_cpu_state takes of the flags: IOPL, TF, RF, VM and AC */
enum { HF_INHIBIT_IRQ = 1 << 3, HF_CS64 = 1 << 15, RF = 1 << 16, EFLAGS_OF_BLOCK = 0x73100 };
#define CF_PCREL (UINT32_C(1) << 17) /* include/exec/translation-block.h */
#define NUMBER UINT64_C(0xffffff00)  /* of a block, in `rest` */
#define NUMBER_1 UINT64_C(0x100)
#define NOWHERE UINT64_MAX
#define NO_PC (UINT64_C(1) << 62) /* not an address that x86 can have */

/* ---- what is known of the CPU ---- */

static struct {
    CPUState *itself;
    const uint64_t *eip, *code_base, *debug7;
    uint64_t *eflags;
    uint32_t *hflags;
    uint8_t *can_do_io;
} cpu;

/* ---- QEMU's jump cache ---- */

struct slot {
    const void *block;
    uint64_t pc;
};

/* A slot's block while it is a marker; no code of QEMU looks into it, because no address equals NO_PC. */
static const uint64_t marker[32];

static struct group {
    struct slot *slots;
    const void *const *marked; /* where its marker is */
    uint32_t index, generation; /* from 1 */
} groups[GROUPS];

static uint64_t slot_of(uint64_t pc) {
    const uint64_t mixed = pc ^ (pc / GROUP_SLOTS);
    return ((mixed / GROUP_SLOTS) & (SLOTS - GROUP_SLOTS)) | (mixed & (GROUP_SLOTS - 1));
}

static struct group *group_of(uint64_t pc) { return &groups[slot_of(pc) / GROUP_SLOTS]; }

/* ---- blocks that were found ---- */

/* The leading fields of a TranslationBlock (include/exec/translation-block.h). */
struct block {
    uint64_t pc, code_base;
    uint32_t flags, cflags;
    uint16_t bytes, insns;
    const void *code;
};

/* In 16 bytes, of which four fit into a line of the host's cache: `rest` is the block's flags, its number among the
 * places of the code buffer where blocks may begin, and the generation of its group. */
static struct found {
    uint64_t pc, rest;
} found[1 << FOUND_BITS];
static uint64_t physical_of[1 << FOUND_BITS]; /* where pc was; or NOWHERE, if the block is in another page as well */

static const char *first_place; /* where the block numbered 0 would begin */
static ptrdiff_t code_apart;    /* from a block to its code: they have the same distance */

/* What a group's marker must be; or what no slot ever has, so that the next block is compared with QEMU's. */
static const void *expected = marker;

static size_t place_of(uint64_t pc) { return (pc * UINT64_C(0x9E3779B97F4A7C15)) >> (64 - FOUND_BITS); }

static const struct block *block_of(const struct found *one) {
    return (const void *)(first_place + (one->rest & NUMBER) / (NUMBER_1 / BLOCK_ALIGNED));
}

static const void *code_of(const struct found *one) { return (const char *)block_of(one) + code_apart; }

static bool is_of(const struct found *one, uint64_t pc, uint32_t flags) {
    return one->pc == pc && one->rest >> FLAGS_SHIFT == flags;
}

/* Forget what was found in the group's pages, and mark it again: elsewhere, if QEMU used the slot for a block. */
static void mark(struct group *group) {
    if (*group->marked)
        group->index = (group->index + 1) % GROUP_SLOTS;
    struct slot *slot = &group->slots[group->index];
    group->generation = (group->generation + 1) % GENERATIONS;
    if (!group->generation) { /* those of long ago must not become valid again */
        for (size_t i = 0; i < sizeof found / sizeof *found; i++)
            found[i].rest &= ~(uint64_t)(GENERATIONS - 1);
        group->generation = 1;
    }
    slot->pc = NO_PC;
    *(const void *volatile *)&slot->block = marker;
    group->marked = &slot->block;
}

/* Keep a block that QEMU found, if it is as all others are. */
static void keep(size_t place, uint64_t pc, uint32_t flags, uint32_t cflags, const void *code, uint64_t physical) {
    const struct group *group = group_of(pc);
    const struct block *block = group->slots[slot_of(pc) % GROUP_SLOTS].block;
    if (!first_place) {
        first_place = (const char *)block - SPAN_BEFORE;
        code_apart = (const char *)code - (const char *)block;
    }
    const uint64_t from_first = (uint64_t)((const char *)block - first_place);
    if (block->code != code || (const char *)block + code_apart != code || from_first % BLOCK_ALIGNED ||
        from_first / BLOCK_ALIGNED > NUMBER / NUMBER_1 || block->flags != flags || block->cflags != cflags ||
        block->code_base)
        return;
    found[place] = (struct found){pc, (uint64_t)flags << FLAGS_SHIFT | from_first / BLOCK_ALIGNED * NUMBER_1 |
                                          group->generation};
    physical_of[place] = (pc & (PAGE - 1)) + block->bytes <= PAGE ? physical : NOWHERE;
}

/* Return whether the place has this block, when the group's slots were emptied since it was found: its address means
 * the same page, and it was not translated anew. */
static bool is_still_there(const struct found *one, uint64_t pc, uint32_t flags, uint64_t physical) {
    return is_of(one, pc, flags) && physical != NOWHERE && physical_of[one - found] == physical &&
           block_of(one)->cflags == curr_cflags(cpu.itself);
}

/* Let QEMU find a block, and keep it; or compare it with the one that is kept. */
static const void *find_by_qemu(void *env, uint64_t pc, uint32_t flags, uint64_t physical, bool is_known) {
    struct group *group = group_of(pc);
    const size_t place = place_of(pc);
    *cpu.can_do_io = 0;
    const void *code = helper_lookup_tb_ptr(env);
    if (*cpu.can_do_io != 1)
        wire_die("this QEMU is unknown: it does not allow I/O where a block is looked for");
    if (*group->marked && *group->marked != marker)
        mark(group); /* this block's slot is where the marker was */
    else if (code != tcg_code_gen_epilogue && *group->marked) { /* it is translated, and the group not emptied */
        if (is_known && code_of(&found[place]) != code)
            wire_die("another block than QEMU's was found at %#llx", (unsigned long long)pc);
        if (!is_known)
            keep(place, pc, flags, curr_cflags(cpu.itself), code, physical);
    }
    return code;
}

/* Find a block that is not at hand: as it was before, or by QEMU. */
static __attribute__((noinline)) const void *find(void *env, uint64_t pc, uint32_t flags) {
    if (*cpu.debug7 & BREAKPOINTS_ENABLED)
        return helper_lookup_tb_ptr(env);
    *cpu.can_do_io = 1;
    struct group *group = group_of(pc);
    struct found *one = &found[place_of(pc)];
    if (*group->marked != marker)
        mark(group);
    uint64_t physical = NOWHERE;
    bool is_known = is_of(one, pc, flags) && one->rest % GENERATIONS == group->generation;
    if (!is_known) {
        void *host; /* QEMU 11.1 writes there whatever it is */
        physical = get_page_addr_code_hostp(env, pc, &host);
        is_known = is_still_there(one, pc, flags, physical) && *group->marked == marker;
        if (is_known)
            one->rest = (one->rest & ~(uint64_t)(GENERATIONS - 1)) | group->generation;
    }
    if (is_known && expected == marker)
        return code_of(one);
    expected = marker;
    return find_by_qemu(env, pc, flags, physical, is_known);
}

/* In place of helper_lookup_tb_ptr (accel/tcg/cpu-exec.c): return the code that follows, as translated for the host. */
static const void *jump(void *env) {
    const uint32_t hflags = *cpu.hflags, flags = hflags | (uint32_t)(*cpu.eflags & EFLAGS_OF_BLOCK);
    uint64_t pc = *cpu.eip;
    if (__builtin_expect(!(hflags & HF_CS64), 0)) {
        if (*cpu.code_base)
            return helper_lookup_tb_ptr(env);
        pc = (uint32_t)pc;
    }
    const struct group *group = group_of(pc);
    const struct found *one = &found[place_of(pc)];
    const uint64_t rest = (uint64_t)flags << FLAGS_SHIFT | group->generation;
    if (__builtin_expect(one->pc != pc || (one->rest & ~NUMBER) != rest || *group->marked != expected ||
                             (*cpu.debug7 & BREAKPOINTS_ENABLED),
                         0))
        return find(env, pc, flags);
    *cpu.can_do_io = 1;
    return code_of(one);
}

/* ---- PAUSE ---- */

#ifdef __x86_64__
const void *jumps_after_pause(void *env); /* not static: it is called by its name */

/* Do what helper_pause does before it leaves the loop, and return the code that follows. */
const void *jumps_after_pause(void *env) {
    *cpu.hflags &= ~(uint32_t)HF_INHIBIT_IRQ;
    *cpu.eflags &= ~(uint64_t)RF;
    helper_rechecking_single_step(env);
    return jump(env);
}

/* In place of helper_pause, behind which a block has no code: drop the place to return to, and jump. Translated code
 * has no frame of its own, so this is what it does itself where a block ends with a jump (goto_ptr). */
__attribute__((naked)) static void pause_in_loop(void *env __attribute__((unused))) {
    __asm__("sub $8, %rsp\n\t" /* a call needs a stack aligned to 16 bytes */
            "call jumps_after_pause\n\t"
            "add $16, %rsp\n\t"
            "jmp *%rax");
}

static void replace_pause(void) {
    if (&helper_info_pause && helper_rechecking_single_step && helper_info_pause.function == helper_pause)
        helper_info_pause.function = pause_in_loop;
}
#else
static void replace_pause(void) {}
#endif

/* ---- putting the hooks in place ---- */

/* Return whether emptying a page's slots of the jump cache empties those that are expected here. */
static bool groups_fit(CPUState *one) {
    static const uint64_t pages[] = {0, 0x1000, UINT64_C(0x7f1234567000), UINT64_C(0xffffffff81234000)};
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++) {
        for (int group = 0; group < GROUPS; group++)
            mark(&groups[group]);
        tlb_flush_page(one, pages[i]);
        for (int group = 0; group < GROUPS; group++) {
            const bool is_emptied = &groups[group] == group_of(pages[i]) || &groups[group] == group_of(pages[i] - 4096);
            if ((*groups[group].marked == NULL) != is_emptied)
                return false;
        }
    }
    return true;
}

static bool prepare(CPUState *one) {
    if (!&helper_info_lookup_tb_ptr || !&tcg_code_gen_epilogue || !tcg_flush_jmp_cache || !tlb_flush_page ||
        !get_page_addr_code_hostp || !curr_cflags || !helper_lookup_tb_ptr ||
        helper_info_lookup_tb_ptr.function != helper_lookup_tb_ptr || !(curr_cflags(one) & CF_PCREL))
        return false;
    struct slot *slots = layout_jump_cache(one, SLOTS, sizeof *slots);
    for (int group = 0; slots && group < GROUPS; group++) {
        groups[group].slots = slots + (ptrdiff_t)group * GROUP_SLOTS;
        groups[group].marked = &groups[group].slots->block;
    }
    return slots && groups_fit(one);
}

bool jumps_begin(bool coupled) {
    CPUState *one = qemu_get_cpu(0);
    if (qemu_get_cpu(1) || !prepare(one))
        return false;
    char *fields = (char *)one;
    cpu.itself = one;
    cpu.eip = (void *)(fields + fields_of_cpu("env.eip", 8));
    cpu.eflags = (void *)(fields + fields_of_cpu("env.eflags", 8));
    cpu.hflags = (void *)(fields + fields_of_cpu("env.hflags", 4));
    cpu.debug7 = (void *)(fields + fields_of_cpu("env.dr", 8) + 7 * sizeof(uint64_t));
    cpu.code_base = (void *)(fields + fields_segment_base(CODE_SEGMENT));
    cpu.can_do_io = layout_can_do_io(one);
    helper_info_lookup_tb_ptr.function = jump;
    if (coupled)
        replace_pause();
    return true;
}

void jumps_forget(void) {
    memset(found, 0, sizeof found);
}

void jumps_check_soon(void) { expected = &expected; }
