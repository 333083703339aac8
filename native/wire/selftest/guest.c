// SPDX-License-Identifier: GPL-2.0-or-later
/* All software of a machine, in place of its firmware: tests of the wire run on it, without an image.
 *
 * It works, sends frames, halts until a timer's interrupt and receives what has arrived, as its MAC address says (the
 * last byte is the seed, the one before it lengthens the run), and prints a hash of every frame and its arrival. Then
 * it switches off. 82540EM: Intel 8254x Software Developer's Manual, chapters 3 and 13; 8254 timer and 8259 interrupt
 * controller as on any PC. */
#include <stdint.h>

enum { ROUNDS = 300, SLOTS = 8, SLOT_BYTES = 2048, FRAME_BYTES = 64, TICKS_MOST = 120, WORK_MOST = 20000 };
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

void begin(void);
void on_timer(void);

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
        ".word 23\n"
        ".long table\n"
        ".balign 8\n"
        "table: .quad 0, 0x00cf9a000000ffff, 0x00cf92000000ffff\n"
        ".code32\n"
        "protected: mov $16, %eax\n"
        "mov %eax, %ds\n"
        "mov %eax, %es\n"
        "mov %eax, %ss\n"
        "mov $0x400000, %esp\n"
        "jmp begin\n"
        "on_timer: push %eax\n"
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

/* ---- interrupts: the timer alone ---- */

static void set_up_timer(void) {
    const uint32_t entry = (uint32_t)(uintptr_t)on_timer;
    gates[TIMER_VECTOR] = (struct gate){(uint16_t)entry, 8, 0x8e00, (uint16_t)(entry >> 16)};
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
    set_up_card();
    hash = UINT64_C(14695981039346656037);
    seed = card[RAH / 4] + ((uint64_t)card[RAL / 4] << 16);
    for (int i = 0; i < 20; i++)
        halt_for(0xffff);                                   /* QEMU's card receives nothing for the first second */
    const uint32_t rounds = ROUNDS << (card[RAH / 4] & 15); /* the fifth byte of the address */
    for (uint32_t round = 0; round < rounds; round++) {
        for (volatile uint32_t left = random_below(WORK_MOST); left; left--)
            ;
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
