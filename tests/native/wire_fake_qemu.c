// SPDX-License-Identifier: GPL-2.0-or-later
/* A stand-in for QEMU around the wire's own code: a clock that counts instructions, timers, one CPU that works, sends
 * and halts as a seed says, and blocks of host-dependent lengths. It prints what the machine saw, which must depend on
 * the seed alone.
 *
 * usage: wire_fake_qemu GUEST_SEED END_NS STALL WIRE_ARGUMENT...   (STALL 1: stop here and there, as on a busy
 * host; 2: hang half-way) */
#include <inttypes.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "guests.h"
#include "layout.h"
#include "machine.h"
#include "notices.h"

enum { BLOCK_MOST = 512, FRAME_BYTES = 64, TIMERS_MOST = 16, WORK_MOST = 64 };

extern int qemu_plugin_version;
int qemu_plugin_install(uint64_t plugin, const void *info, int count, char **arguments);

static uint64_t mixed(uint64_t *state) {
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* ---- clock and timers ---- */

static int64_t clock_ns = 1000; /* machines need not begin at zero */
static struct armed {
    struct timer *timer;
    int64_t at_ns;
    void (*call)(void *);
    bool set;
} timers[TIMERS_MOST]; /* set ones in order of time, the earlier set first */
static int timer_count;

int64_t qemu_clock_get_ns(int clock) { return clock == CLOCK_VIRTUAL ? clock_ns : -1; }
int64_t icount_get(void) { return clock_ns; }

void timer_init_full(struct timer *timer, void *group, int clock, int scale, int attributes, void (*call)(void *),
                     void *data) {
    timers[timer_count++] = (struct armed){timer, 0, call, false};
}

void timer_mod_ns(struct timer *timer, int64_t expire_ns) {
    int at = 0;
    while (timers[at].timer != timer)
        at++;
    struct armed moved = timers[at];
    moved.at_ns = expire_ns;
    moved.set = true;
    for (; at + 1 < timer_count; at++)
        timers[at] = timers[at + 1];
    while (at > 0 && !(timers[at - 1].set && timers[at - 1].at_ns <= expire_ns))
        timers[at] = timers[at - 1], at--;
    timers[at] = moved;
}

static struct armed *first_timer(void) {
    for (int i = 0; i < timer_count; i++)
        if (timers[i].set)
            return &timers[i];
    return NULL;
}

int64_t qemu_clock_deadline_ns_all(int clock, int attributes) {
    const struct armed *first = first_timer();
    return !first ? -1 : first->at_ns > clock_ns ? first->at_ns - clock_ns : 0;
}

bool qemu_clock_run_timers(int clock) {
    for (struct armed *first; (first = first_timer()) && first->at_ns <= clock_ns;) {
        first->set = false;
        first->call(NULL);
    }
    return true;
}

void icount_start_warp_timer(void) {
    const int64_t ahead_ns = qemu_clock_deadline_ns_all(CLOCK_VIRTUAL, NOT_EXTERNAL);
    clock_ns += ahead_ns > 0 ? ahead_ns : 0;
}

/* ---- the CPU ---- */

static bool halted, woken, over;
static uint64_t host_state, guest_state, seen = UINT64_C(14695981039346656037);
static struct {
    void (*work)(CPUState *, void *);
} works[WORK_MOST];
static int work_count;
static jmp_buf leave;

_Thread_local CPUState *current_cpu;
CPUState *qemu_get_cpu(int index) { return index ? NULL : (CPUState *)&halted; }
void async_run_on_cpu(CPUState *cpu, void (*work)(CPUState *, void *), void *data) { works[work_count++].work = work; }
bool all_cpu_threads_idle(void) { return halted && !woken && !work_count; }
bool runstate_is_running(void) { return !over; }
void bql_unlock(void) {}
void bql_lock_impl(const char *file, int line) {}
void layout_find(void) {}
void guests_repair(uint64_t *stale) {}
void notices_withhold(uint64_t *withheld) {}
bool jumps_begin(bool coupled) { return false; }
void jumps_check_soon(void) {}
void jumps_forget(void) {}
int64_t layout_time_in_block_ns(CPUState *cpu, uint64_t block_insns) { return clock_ns; }
_Noreturn void layout_leave_block(CPUState *cpu, uint64_t block_insns) { longjmp(leave, 1); }

static void work_queued(void) {
    while (work_count) {
        void (*work)(CPUState *, void *) = works[0].work;
        memmove(works, works + 1, sizeof *works * (size_t)--work_count);
        work(qemu_get_cpu(0), NULL);
    }
}

/* ---- the plugin interface: a block is its number of instructions ---- */

static plugin_callback *translated;
static void (*halt_call)(unsigned, void *), (*visit)(unsigned, void *);
static uint64_t counted, visit_from, last_is_halt;

struct scoreboard *qemu_plugin_scoreboard_new(size_t bytes) { return (struct scoreboard *)&counted; }
void *qemu_plugin_scoreboard_find(struct scoreboard *score, unsigned vcpu) { return score; }
void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, plugin_callback *call, void *data) { translated = call; }
void qemu_plugin_register_flush_cb(uint64_t id, plugin_callback *flushed, void *data) {}
/* This is QEMU 10.0, or with a word in the environment 11.1, whose interface is another. */
static bool is_later(void) { return getenv("LATER_QEMU"); }
struct version *qmp_query_version(void **error) {
    static int64_t numbers[] = {10, 0, 2}, later[] = {11, 1, 3};
    static struct version version;
    version.qemu = is_later() ? (void *)later : (void *)numbers;
    return &version;
}
static void translate(size_t *insns) {
    if (is_later())
        ((void (*)(void *, void *))translated)(insns, NULL);
    else
        ((void (*)(uint64_t, void *))translated)(1, insns);
}
size_t qemu_plugin_tb_n_insns(const void *block) { return *(const size_t *)block; }
void *qemu_plugin_tb_get_insn(const void *block, size_t index) { return (void *)(uintptr_t)block; }
size_t qemu_plugin_insn_data(const void *instruction, void *to, size_t bytes) {
    *(uint8_t *)to = last_is_halt ? 0xf4 : 0x90;
    return 1;
}
void qemu_plugin_register_vcpu_insn_exec_cb(void *i, void (*call)(unsigned, void *), int flags, void *data) {
    halt_call = call;
}
void qemu_plugin_register_vcpu_tb_exec_cond_cb(void *block, void (*call)(unsigned, void *), int flags, int condition,
                                               plugin_u64 entry, uint64_t value, void *data) {
    visit = call;
    visit_from = value;
}
void qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(void *block, int operation, plugin_u64 entry, uint64_t value) {}

static void (*on_state)(void *, bool, int);
void *qemu_add_vm_change_state_handler(void (*changed)(void *, bool, int), void *data) {
    on_state = changed;
    return NULL;
}

/* ---- the network ---- */

static struct net_client_info *network;
static NetClientState *clients[NETWORKS];
static int client_count, replies_owed[NETWORKS][NODES_MAX];

NetClientState *qemu_new_net_client(struct net_client_info *info, NetClientState *peer, const char *m, const char *n) {
    network = info;
    clients[client_count] = (NetClientState *)(uintptr_t)(client_count + 1);
    return clients[client_count++];
}
NetClientState *net_hub_add_port(int hub, const char *name, NetClientState *peer) { return peer; }

static void note(uint64_t value) { seen = (seen ^ value) * UINT64_C(1099511628211); }

ssize_t qemu_send_packet(NetClientState *client, const uint8_t *data, int bytes) {
    const int at = client == clients[1];
    note((uint64_t)(clock_ns - machine.began_ns));
    for (int i = 0; i < bytes; i++)
        note(data[i]);
    if (!(data[0] & 1) && mixed(&guest_state) % 3)
        replies_owed[at][data[11]]++;
    woken = true;
    return bytes;
}

static void send_frame(int at, int to) {
    uint8_t frame[FRAME_BYTES] = {2, 0, 0, 0, (uint8_t)at, (uint8_t)to, 2, 0, 0, 0, (uint8_t)at};
    frame[11] = (uint8_t)machine.options.node;
    if (to < 0)
        memset(frame, 0xff, MAC_BYTES);
    const uint64_t body = mixed(&guest_state);
    memcpy(frame + 14, &body, sizeof body);
    network->receive(clients[at], frame, sizeof frame);
}

/* ---- the guest ---- */

static void begin_block(size_t insns, bool is_halt) {
    last_is_halt = is_halt;
    translate(&insns);
    current_cpu = qemu_get_cpu(0);
    if (counted >= visit_from)
        visit(0, (void *)(uintptr_t)insns);
    counted += insns;
    if (is_halt)
        halt_call(0, NULL);
    current_cpu = NULL;
}

/* Let the CPU execute `insns`; its loop is left wherever a timer is due, as under -icount. */
static void execute(int64_t insns) {
    while (insns > 0) {
        const int64_t budget = qemu_clock_deadline_ns_all(CLOCK_VIRTUAL, NOT_EXTERNAL);
        int64_t block = 1 + (int64_t)(mixed(&host_state) % BLOCK_MOST);
        block = block < insns ? block : insns;
        block = budget >= 0 && budget < block ? budget : block;
        if (!block) {
            qemu_clock_run_timers(CLOCK_VIRTUAL);
            continue;
        }
        if (setjmp(leave))
            continue;
        begin_block((size_t)block, false);
        clock_ns += block;
        insns -= block;
    }
}

static void nothing(void *unused) { woken = true; }

static void halt_for(struct timer *alarm, int64_t ns) {
    timer_mod_ns(alarm, clock_ns + ns);
    while (!woken) {
        if (!setjmp(leave)) {
            while (qemu_clock_deadline_ns_all(CLOCK_VIRTUAL, NOT_EXTERNAL) == 0)
                qemu_clock_run_timers(CLOCK_VIRTUAL);
            begin_block(1, true);
            clock_ns++;
            halted = true;
            work_queued();
            halted = false;
        }
    }
    woken = false;
}

static void reply(void) {
    for (int at = 0; at < NETWORKS; at++)
        for (int to = 0; to < machine.options.nodes; to++)
            for (; replies_owed[at][to]; replies_owed[at][to]--) {
                execute(1 + (int64_t)(mixed(&guest_state) % 900));
                send_frame(at, to);
            }
}

static void live(int64_t end_ns, int stall) {
    static struct timer alarm;
    timer_init_full(&alarm, NULL, CLOCK_VIRTUAL, SCALE_NS, 0, nothing, NULL);
    while (clock_ns - machine.began_ns < end_ns) {
        execute(1 + (int64_t)(mixed(&guest_state) % 20000));
        const int to = (int)(mixed(&guest_state) % ((uint64_t)machine.options.nodes + 1)) - 1;
        if (mixed(&guest_state) % 4 == 0 && to != machine.options.node)
            send_frame((int)(mixed(&guest_state) % NETWORKS), to);
        if (mixed(&guest_state) % 2)
            halt_for(&alarm, 1 + (int64_t)(mixed(&guest_state) % 60000));
        reply();
        while (stall == 2 && clock_ns - machine.began_ns > end_ns / 2)
            ;
        if (stall && mixed(&host_state) % 16 == 0)
            usleep((useconds_t)(mixed(&host_state) % 300));
    }
}

int main(int count, char **arguments) {
    if (count < 4)
        return 2;
    const uint64_t seed = strtoull(arguments[1], NULL, 10);
    host_state = (uint64_t)wire_host_ns() ^ (uint64_t)getpid();
    if (qemu_plugin_version != (is_later() ? 7 : 4))
        return 3;
    qemu_plugin_install(1, NULL, count - 4, arguments + 4);
    guest_state = seed * 1000 + (uint64_t)machine.options.node;
    on_state(NULL, true, 0);
    work_queued();
    live(strtoll(arguments[2], NULL, 10), atoi(arguments[3]));
    machine_end();
    printf("%016" PRIx64 " sent %" PRIu64 " received %" PRIu64 " lost %" PRIu64 " dropped %" PRIu64 "\n", seen,
           machine.counts.sent, machine.counts.received, machine.counts.lost, machine.counts.dropped);
    return 0;
}
