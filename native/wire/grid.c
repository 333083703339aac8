// SPDX-License-Identifier: GPL-2.0-or-later
/* While its CPU works, a machine synchronizes with the others every `step_ns` of its time: it promises, waits until it
 * may continue, and learns what arrives. The plugin interface counts instructions inside the generated code and calls
 * when the next block would go past a limit; one instruction is one nanosecond. That costs no exit from the CPU's loop,
 * no timer and no lock. The count may run ahead of the clock, where a block was left early; it never lags, and each
 * visit corrects it.
 *
 * While its CPU is halted, a machine leaps from event to event. QEMU does that in its main loop, which sees a halted
 * CPU before what that CPU ran is accounted for, and then leaps too far. So a hook at HLT and MWAIT queues work for the
 * CPU's own thread, which leaps instead; while work is queued the main loop considers no CPU idle. */
#include "grid.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "jumps.h"
#include "layout.h"
#include "machine.h"

enum { VISITS_PER_CHECK = 64 };
#define LIMIT (UINT64_C(1) << 40) /* of the count: where a visit is due */

static plugin_u64 count;
static bool is_coupled;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* Let the CPU run for `insns` instructions before the next visit. */
static void run_for(unsigned vcpu, int64_t insns) {
    uint64_t *counted = qemu_plugin_scoreboard_find(count.score, vcpu);
    *counted = LIMIT - (uint64_t)insns;
}

/* For tests: where visits fall, and where the CPU's loop is left, must not change any result. */
static int64_t fuzzed_step_ns(int64_t now_ns) {
    static struct timer extra;
    static uint64_t state;
    if (!state) {
        state = machine.options.fuzz ^ (uint64_t)wire_host_ns();
        timer_init_full(&extra, NULL, CLOCK_VIRTUAL, SCALE_NS, 0, free, NULL);
    }
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    const int64_t step_ns = 1 + (int64_t)((state >> 33) % (uint64_t)machine.options.step_ns);
    if (state >> 62 == 0)
        timer_mod_ns(&extra, machine.began_ns + now_ns + 1 + (int64_t)((state >> 20) % 700));
    return step_ns;
}

static int64_t step_ns(int64_t now_ns) {
    return machine.options.fuzz ? fuzzed_step_ns(now_ns) : machine.options.step_ns;
}

/* ---- a CPU at work ---- */

/* A block of `insns` instructions is about to begin that would go past the limit of the last visit. */
static void visit(unsigned vcpu, void *insns) {
    CPUState *cpu = current_cpu;
    const uint64_t block_insns = (uint64_t)(uintptr_t)insns;
    if (machine.began_ns < 0) {
        run_for(vcpu, INT32_MAX);
        return;
    }
    const int64_t now_ns = layout_time_in_block_ns(cpu, block_insns) - machine.began_ns;
    const int64_t end_ns = now_ns + (int64_t)block_insns;
    if (machine.counts.visits++ % VISITS_PER_CHECK == 0)
        jumps_check_soon();
    if (now_ns > machine.known_ns)
        wire_die("at %lld ns arrivals are known only until %lld ns", (long long)now_ns, (long long)machine.known_ns);
    cluster_promise(&machine.member, now_ns);
    int64_t granted_ns = cluster_granted_ns(machine.member.shared, machine.member.self);
    if (granted_ns <= end_ns) {
        if (!cluster_wait(&machine.member, end_ns + 1))
            layout_leave_block(cpu, block_insns); /* the machine is being stopped */
        granted_ns = cluster_granted_ns(machine.member.shared, machine.member.self);
    }
    cluster_drain(&machine.member);
    const int64_t due_ns = machine_set_known(granted_ns - 1);
    const int64_t next_ns = most(end_ns, least(granted_ns - 1, now_ns + step_ns(now_ns)));
    run_for(vcpu, next_ns - now_ns);
    if (due_ns < end_ns) {
        machine.counts.aborts++;
        layout_leave_block(cpu, block_insns); /* QEMU makes a shorter one, which ends at the arrival */
    }
}

/* ---- a halted CPU ---- */

static void pass_idle_time(CPUState *cpu, void *unused);

/* Wait, as an idle machine with no event of its own before `event_ns`, until that instant or an earlier arrival is
 * safe. Others may use QEMU meanwhile: false means that this work was queued again. */
static bool wait_until_known(CPUState *cpu, int64_t event_ns) {
    struct member *m = &machine.member;
    cluster_promise_idle(m, event_ns, machine_next_frame_ns);
    bool kept_lock = true;
    if (machine.options.person) {
        cluster_wait_idle(m); /* the main loop would handle a key press, and wake the CPU before the promised time */
    } else if (cluster_granted_ns(m->shared, m->self) < m->me->need_ns) {
        async_run_on_cpu(cpu, pass_idle_time, NULL);
        bql_unlock();
        cluster_wait_idle(m);
        bql_lock_impl(__FILE__, __LINE__);
        kept_lock = false;
    }
    const int64_t granted_ns = cluster_granted_ns(m->shared, m->self);
    cluster_drain(m);
    machine_set_known(granted_ns - 1);
    return kept_lock;
}

/* Leap to the next event, if it is known to be the next. False: another thread continues from here. */
static bool leap(CPUState *cpu) {
    const int64_t ahead_ns = qemu_clock_deadline_ns_all(CLOCK_VIRTUAL, NOT_EXTERNAL);
    if (is_coupled) {
        const int64_t now_ns = machine_now_ns(), event_ns = ahead_ns < 0 ? NEVER_NS : now_ns + ahead_ns;
        if (least(event_ns, machine_next_frame_ns(NULL)) > machine.known_ns)
            return wait_until_known(cpu, event_ns);
        machine_set_known(machine.known_ns);
        if (event_ns > machine.known_ns)
            return true; /* a frame goes first: it is set now, or was dropped */
    }
    if (ahead_ns < 0)
        return false; /* no event is pending at all */
    machine.counts.leaps++;
    machine.counts.leapt_ns += ahead_ns;
    icount_start_warp_timer();
    qemu_clock_run_timers(CLOCK_VIRTUAL);
    return true;
}

/* Let QEMU's main loop run once; queued work keeps it from leaping. */
static void run_main_loop(CPUState *cpu, void (*later)(CPUState *, void *)) {
    async_run_on_cpu(cpu, later, NULL);
    bql_unlock();
    sched_yield();
    bql_lock_impl(__FILE__, __LINE__);
}

static void pass_idle_time(CPUState *cpu, void *unused) {
    (void)unused;
    if (is_coupled && machine.began_ns < 0)
        return;
    machine.counts.idle_turns++;
    while (runstate_is_running() && all_cpu_threads_idle() && leap(cpu))
        if (machine.options.person && machine_now_ns() >= machine.member.me->promise_ns) {
            run_main_loop(cpu, pass_idle_time);
            break;
        }
    if (is_coupled && runstate_is_running() && !all_cpu_threads_idle()) {
        const int64_t now_ns = machine_now_ns();
        run_for(0, most(0, least(machine.known_ns, now_ns + step_ns(now_ns)) - now_ns));
    }
}

static void on_halt(unsigned vcpu, void *unused) {
    (void)unused;
    async_run_on_cpu(qemu_get_cpu((int)vcpu), pass_idle_time, NULL);
}

/* ---- a CPU that is stopped ---- */

/* A guest stops its machine by writing to a port. Its CPU is stopped at once, the machine when the main loop comes to
 * it, and until then that loop may consider the stopped CPU idle and leap. So work stays queued for such a CPU. */
static void keep_loop_busy(CPUState *cpu, void *unused) {
    (void)unused;
    if (!runstate_is_running() || !all_cpu_threads_idle())
        return;
    run_main_loop(cpu, keep_loop_busy);
}

static void on_output(unsigned vcpu, void *unused) {
    (void)unused;
    async_run_on_cpu(qemu_get_cpu((int)vcpu), keep_loop_busy, NULL);
}

/* ---- translation ---- */

static bool outputs(void *instruction) {
    uint8_t code[3];
    const size_t bytes = qemu_plugin_insn_data(instruction, code, sizeof code);
    return (bytes == 1 && (code[0] == 0xee || code[0] == 0xef)) || /* OUT to the port in DX */
           (bytes == 2 && (code[0] == 0xe6 || code[0] == 0xe7));   /* OUT to a port by number */
}

static bool halts(void *instruction) {
    uint8_t code[3];
    const size_t bytes = qemu_plugin_insn_data(instruction, code, sizeof code);
    return (bytes == 1 && code[0] == 0xf4) ||                                     /* HLT */
           (bytes == 3 && code[0] == 0x0f && code[1] == 0x01 && code[2] == 0xc9); /* MWAIT */
}

static void on_translated(void *block) {
    const size_t insns = qemu_plugin_tb_n_insns(block);
    void *last = qemu_plugin_tb_get_insn(block, insns - 1);
    if (halts(last))
        qemu_plugin_register_vcpu_insn_exec_cb(last, on_halt, PLUGIN_CB_NO_REGS, NULL);
    if (!is_coupled) {
        if (outputs(last))
            qemu_plugin_register_vcpu_insn_exec_cb(last, on_output, PLUGIN_CB_NO_REGS, NULL);
        return;
    }
    qemu_plugin_register_vcpu_tb_exec_cond_cb(block, visit, PLUGIN_CB_NO_REGS, PLUGIN_COND_GE, count, LIMIT - insns + 1,
                                              (void *)(uintptr_t)insns);
    qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(block, PLUGIN_INLINE_ADD_U64, count, insns);
}

static void on_translated_by(uint64_t plugin, void *block) {
    (void)plugin;
    on_translated(block);
}

void grid_install(uint64_t plugin, int block_first, int coupled) {
    is_coupled = coupled;
    if (is_coupled)
        count.score = qemu_plugin_scoreboard_new(sizeof(uint64_t));
    plugin_callback *translated = block_first ? (plugin_callback *)on_translated : (plugin_callback *)on_translated_by;
    qemu_plugin_register_vcpu_tb_trans_cb(plugin, translated, NULL);
}

void grid_begin(void) {
    if (qemu_get_cpu(1) && is_coupled)
        wire_die("machines with several CPUs cannot be coupled: each CPU would need its own clock");
    if (is_coupled)
        run_for(0, 0);
    async_run_on_cpu(qemu_get_cpu(0), pass_idle_time, NULL); /* it may be halted already */
}
