// SPDX-License-Identifier: GPL-2.0-or-later
/* All software of a machine, in place of its firmware: tests of the wire run on it, without an image.
 *
 * First it calls code that changes in the ways that jumps.c must notice, and prints how often other code ran than that.
 * Then it works, sends frames, halts until a timer's interrupt and receives what has arrived, as its MAC address says
 * (the last byte is the seed, the one before it lengthens the run), and prints a hash of every frame and its arrival.
 * Then it switches off. 82540EM: Intel 8254x Software Developer's Manual, chapters 3 and 13; 8254 timer and 8259
 * interrupt controller as on any PC. */
#include <stddef.h>
#include <stdint.h>

enum { ROUNDS = 300, SLOTS = 8, SLOT_BYTES = 2048, FRAME_BYTES = 64, TICKS_MOST = 120, WORK_MOST = 20000 };
enum { PAGE = 4096, CHANGES = 250, CODE_32 = 8, CODE_16 = 24, CODE_16_A_PAGE_ON = 32 };
enum { SERIAL = 0x3f8, PIC = 0x20, TIMER = 0x40, TIMER_MODE = 0x43, TIMER_VECTOR = 0x20 };
enum { RCTL = 0x100, TCTL = 0x400, RDBAL = 0x2800, TDBAL = 0x3800, RAL = 0x5400, RAH = 0x5404 };

struct descriptor {
    uint64_t address;
    uint16_t bytes;
    uint8_t checksum_from, command; /* of a sent frame; a received one has its check sum there */
    uint8_t status, others[3];
};
struct gate {
    uint16_t low, selector, kind, high;
};

static volatile uint32_t *const card = (volatile uint32_t *)0xe0000000;
static volatile struct descriptor receiving[SLOTS] __attribute__((aligned(16)));
static volatile struct descriptor sending[SLOTS] __attribute__((aligned(16)));
static uint8_t received[SLOTS][SLOT_BYTES], sent[SLOTS][SLOT_BYTES];
static struct gate gates[TIMER_VECTOR + 1];
static uint64_t seed, hash;
static uint32_t frames;
volatile uint32_t breakpoints, interrupted_at;

void begin(void);
void on_timer(void);
void on_breakpoint(void);

/* At 0xf0000; its first instruction is where the reset vector jumps to. */
__asm__(".section .reset, \"ax\"\n"
        ".code16\n"
        "ljmp $0xf000, $0\n"
        ".balign 16\n"
        ".section .start, \"ax\"\n"
        "cli\n"
        "lgdtl %cs:0x40\n"
        "mov %cr0, %eax\n"
        "or $1, %al\n"
        "mov %eax, %cr0\n"
        "ljmpl $8, $protected\n"
        ".org 0x40\n"
        ".word 39\n"
        ".long table\n"
        ".balign 8\n"
        "table: .quad 0, 0x00cf9a000000ffff, 0x00cf92000000ffff, 0x008f9a000000ffff, 0x008f9a001000ffff\n"
        ".code32\n"
        "protected: mov $16, %eax\n"
        "mov %eax, %ds\n"
        "mov %eax, %es\n"
        "mov %eax, %ss\n"
        "mov $0x400000, %esp\n"
        "jmp begin\n"
        "on_breakpoint: incl breakpoints\n"
        "orl $0x10000, 8(%esp)\n" /* RF: not at once again */
        "iret\n"
        "on_timer: push %eax\n"
        "push %edx\n"
        "rdtsc\n"
        "mov %eax, interrupted_at\n"
        "pop %edx\n"
        "mov $0x20, %al\n"
        "out %al, $0x20\n"
        "pop %eax\n"
        "iret\n"
        ".text\n");

static void out8(uint16_t port, uint8_t value) { __asm__ volatile("outb %0, %1" ::"a"(value), "Nd"(port)); }
static void out32(uint16_t port, uint32_t value) { __asm__ volatile("outl %0, %1" ::"a"(value), "Nd"(port)); }
static uint32_t in32(uint16_t port) {
    uint32_t value;
    __asm__ volatile("inl %1, %0" : "=a"(value) : "Nd"(port));
    return value;
}
static uint64_t clock_now(void) {
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    return (uint64_t)high << 32 | low;
}
static void fence(void) { __asm__ volatile("" ::: "memory"); }

static uint32_t random_below(uint32_t below) {
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(seed >> 40) % below;
}

static void note(uint64_t value) { hash = (hash ^ value) * UINT64_C(1099511628211); }

static void print_hex(uint64_t value) {
    for (int shift = 60; shift >= 0; shift -= 4)
        out8(SERIAL, (uint8_t)"0123456789abcdef"[value >> shift & 15]);
    out8(SERIAL, '\n');
}

/* ---- interrupts: the timer and breakpoints ---- */

static void set_gate(unsigned vector, void (*handler)(void)) {
    const uint32_t entry = (uint32_t)(uintptr_t)handler;
    gates[vector] = (struct gate){(uint16_t)entry, CODE_32, 0x8e00, (uint16_t)(entry >> 16)};
}

static void set_up_timer(void) {
    set_gate(1, on_breakpoint);
    set_gate(TIMER_VECTOR, on_timer);
    struct __attribute__((packed)) {
        uint16_t limit;
        uint32_t base;
    } table = {sizeof gates - 1, (uint32_t)(uintptr_t)gates};
    __asm__ volatile("lidt %0" ::"m"(table));
    const uint8_t controller[][2] = {{0, 0x11}, {1, TIMER_VECTOR}, {1, 4}, {1, 1}, {1, 0xfe}};
    for (unsigned i = 0; i < sizeof controller / sizeof *controller; i++)
        out8(PIC + controller[i][0], controller[i][1]);
    *(volatile uint32_t *)0xfee000f0 = 0x1ff; /* local APIC: on, */
    *(volatile uint32_t *)0xfee00350 = 0x700; /* and accepting the 8259 */
}

/* Halt for a number of the timer's ticks of 838 ns. */
static void halt_for(uint32_t ticks) {
    out8(TIMER_MODE, 0x30);
    out8(TIMER, (uint8_t)ticks);
    out8(TIMER, (uint8_t)(ticks >> 8));
    __asm__ volatile("sti\nhlt\ncli" ::: "memory");
}

/* ---- code that changes ---- */

static uint32_t directory[PAGE / 4] __attribute__((aligned(PAGE))), entries[PAGE / 4] __attribute__((aligned(PAGE)));
static uint8_t pages[4][PAGE] __attribute__((aligned(PAGE)));
static uint8_t *const window = (uint8_t *)0x1000000; /* addresses whose pages change */

/* Let the window's page `index` be one of the pages. */
static void map(unsigned index, const uint8_t *page, int all) {
    entries[index] = (uint32_t)(uintptr_t)page | 3;
    if (all)
        __asm__ volatile("mov %%cr3, %%eax\nmov %%eax, %%cr3" ::: "eax", "memory");
    else
        __asm__ volatile("invlpg (%0)" ::"r"(window + index * PAGE) : "memory");
}

static void set_up_paging(void) {
    for (uint32_t i = 0; i < PAGE / 4; i++)
        directory[i] = i << 22 | 0x83; /* 4 MB that mean themselves */
    directory[(uint32_t)(uintptr_t)window >> 22] = (uint32_t)(uintptr_t)entries | 3;
    __asm__ volatile("mov %%cr4, %%eax\nor $0x10, %%eax\nmov %%eax, %%cr4\nmov %0, %%cr3\n"
                     "mov %%cr0, %%eax\nor $0x80000000, %%eax\nmov %%eax, %%cr0" ::"r"(directory)
                     : "eax", "memory");
}

/* Write a function that returns `value`. */
static void write_function(uint8_t *at, uint32_t value) {
    at[0] = 0xb8;
    for (int i = 0; i < 4; i++)
        at[1 + i] = (uint8_t)(value >> 8 * i);
    at[5] = 0xc3;
}

static uint32_t call(const uint8_t *function) {
    uint32_t result;
    __asm__ volatile("call *%1" : "=a"(result) : "r"(function) : "memory");
    return result;
}

/* Call a function in a segment of 16 bits. In one of 32 bits, it is another: here it returns a value's lower half. */
static uint32_t call_far(uint16_t segment, const uint8_t *function) {
    uint32_t result = 0;
    const struct __attribute__((packed)) {
        uint32_t offset;
        uint16_t segment;
    } there = {(uint32_t)(uintptr_t)function, segment};
    __asm__ volatile("lcall *%1" : "+a"(result) : "m"(there) : "memory");
    return result;
}

static void set_breakpoints(const uint8_t *first, const uint8_t *second, uint32_t enabled) {
    __asm__ volatile("mov %0, %%db0\nmov %1, %%db1\nmov %2, %%db7" ::"r"(first), "r"(second), "r"(enabled));
    breakpoints = 0;
}

/* Places of functions in a page. The value of one that both sizes of operands can run has a far return in its upper
 * half, and what PAUSE's function does comes after its two bytes. */
enum { OTHER = 0x800, PAUSING = 0xc00, AT_END = PAGE - 2, BOTH_SIZES = 0xcb660000 };

/* Write each page's functions, for values that differ from page to page. */
static void write_functions(uint32_t value) {
    for (uint32_t page = 0; page < 4; page++)
        write_function(pages[page] + OTHER, BOTH_SIZES | value << 8 | page);
    for (uint32_t page = 0; page < 2; page++) {
        write_function(pages[page], value << 8 | page);
        write_function(pages[page] + PAUSING + 2, value << 8 | page);
        pages[page][PAUSING] = 0xf3;
        pages[page][PAUSING + 1] = 0x90;
        write_function(pages[2 + page] - 2, (value + page) << 16 | 7); /* at AT_END of the page before */
    }
}

/* Return how often a call runs other code than is there: after its address came to mean another page, its bytes or
 * those in its second page changed, the size of its operands or its segment changed, or it got breakpoints. */
static uint32_t call_changing_code(void) {
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < CHANGES; i++) {
        write_functions(i);
        for (uint32_t again = 0; again < 8; again++) {
            const uint32_t page = again % 2, value = i << 8 | page;
            map(0, pages[1 - page], again & 2);
            wrong += call(window) != (value ^ 1);
            map(0, pages[page], again & 4);
            map(1, pages[2 + page], 0);
            wrong += call(window) != value;
            wrong += call(window + OTHER) != (BOTH_SIZES | value);
            wrong += call_far(CODE_16, window + OTHER) != value;
            wrong += call_far(CODE_16_A_PAGE_ON, window + OTHER) != value + 2;
            wrong += call(window + OTHER) != (BOTH_SIZES | value);
            set_breakpoints(window, NULL, page);
            wrong += call(window) != value || breakpoints != page;
            set_breakpoints(window + PAUSING, window + PAUSING + 2, page * 5);
            wrong += call(window + PAUSING) != value || breakpoints != page * 2;
            set_breakpoints(NULL, NULL, 0);
            map(0, pages[1], 0);
            map(1, pages[2 + page], again & 2);
            wrong += call(window + AT_END) != ((i + page) << 16 | 7);
        }
    }
    return wrong;
}

/* The same, where between two calls of a function its page changes as often as a count of 8 bits holds. */
static uint32_t call_after_many_changes(void) {
    uint32_t wrong = 0;
    for (uint32_t changes = 250; changes < 260; changes++) {
        map(0, pages[0], 0);
        for (uint32_t again = 0; again < 4; again++)
            wrong += call(window) != (CHANGES - 1) << 8;
        for (uint32_t i = 0; i < changes; i++) {
            map(0, pages[1], 0);
            call(window + OTHER);
        }
        wrong += call(window) != ((CHANGES - 1) << 8 | 1);
    }
    return wrong;
}

/* Let the timer's interrupt be due, and allow interrupts for as long as PAUSE takes. */
static void pause_for_interrupt(void) {
    out8(TIMER_MODE, 0x30);
    out8(TIMER, 2);
    out8(TIMER, 0);
    for (volatile uint32_t left = WORK_MOST; left; left--)
        ;
    __asm__ volatile("sti\npause\ncli" ::: "memory");
    note(interrupted_at);
}

/* ---- the network card ---- */

static uint32_t configuration(uint32_t device, uint32_t place) { return 0x80000000 | device << 11 | place; }

static void set_up_card(void) {
    for (uint32_t device = 0; device < 32; device++) {
        out32(0xcf8, configuration(device, 0));
        if (in32(0xcfc) != 0x100e8086)
            continue;
        out32(0xcf8, configuration(device, 0x10));
        out32(0xcfc, (uint32_t)(uintptr_t)card);
        out32(0xcf8, configuration(device, 4));
        out32(0xcfc, 6); /* memory, bus master */
    }
    for (int i = 0; i < SLOTS; i++) {
        receiving[i].address = (uintptr_t)received[i];
        sending[i].address = (uintptr_t)sent[i];
    }
    const uint32_t rings[][2] = {{RDBAL, (uint32_t)(uintptr_t)receiving}, {TDBAL, (uint32_t)(uintptr_t)sending}};
    for (int i = 0; i < 2; i++) {
        card[rings[i][0] / 4] = rings[i][1];
        card[rings[i][0] / 4 + 1] = 0;
        card[rings[i][0] / 4 + 2] = SLOTS * sizeof(struct descriptor);
    }
    card[(RDBAL + 0x18) / 4] = SLOTS - 1;
    card[RCTL / 4] = 0x801a; /* on, all unicast and multicast, broadcast */
    card[TCTL / 4] = 0x0a;   /* on, pad short frames */
    card[0] = 0x40;          /* link up */
}

static void send_frame(uint32_t number) {
    const uint32_t slot = frames++ % SLOTS;
    uint8_t *frame = sent[slot];
    for (int i = 0; i < 6; i++)
        frame[i] = 0xff;
    for (int i = 0; i < 4; i++) {
        frame[6 + i] = (uint8_t)(card[RAL / 4] >> 8 * i);
        frame[16 + i] = (uint8_t)(number >> 8 * i);
    }
    frame[10] = (uint8_t)card[RAH / 4];
    frame[11] = (uint8_t)(card[RAH / 4] >> 8);
    fence();
    sending[slot].bytes = FRAME_BYTES;
    sending[slot].command = 0x0b; /* end of packet, add the check sum, report */
    sending[slot].status = 0;
    card[(TDBAL + 0x18) / 4] = frames % SLOTS;
}

static void take_frames(void) {
    static uint32_t next;
    for (; receiving[next].status & 1; next = (next + 1) % SLOTS) {
        fence();
        note(clock_now());
        for (int i = 6; i < 20; i++)
            note(received[next][i]);
        receiving[next].status = 0;
        card[(RDBAL + 0x18) / 4] = next;
    }
}

void begin(void) {
    set_up_timer();
    set_up_paging();
    print_hex(call_changing_code() + call_after_many_changes());
    set_up_card();
    hash = UINT64_C(14695981039346656037);
    pause_for_interrupt();
    seed = card[RAH / 4] + ((uint64_t)card[RAL / 4] << 16);
    for (int i = 0; i < 20; i++)
        halt_for(0xffff);                                   /* QEMU's card receives nothing for the first second */
    const uint32_t rounds = ROUNDS << (card[RAH / 4] & 15); /* the fifth byte of the address */
    for (uint32_t round = 0; round < rounds; round++) {
        for (volatile uint32_t left = random_below(WORK_MOST); left; left--)
            __builtin_ia32_pause();
        if (random_below(2))
            send_frame(round);
        if (random_below(2))
            halt_for(1 + random_below(TICKS_MOST));
        take_frames();
    }
    print_hex(hash);
    print_hex(clock_now());
    __asm__ volatile("lidt %0\nint3" ::"m"(*(const struct gate *)gates)); /* a limit of 0: the machine resets */
    for (;;)
        ;
}
