// SPDX-License-Identifier: GPL-2.0-or-later
/* What the wire uses of QEMU: symbols that a QEMU with loadable modules exports, as QEMU 10 and 11 have them.
 *
 * src/nearmetal/hosts/lab/wire.py looks each of these names up before a machine starts (it reads this file). The places
 * of a few fields, which have no symbol, are found by experiment (layout.c).
 */
#ifndef WIRE_QEMU_H
#define WIRE_QEMU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { CLOCK_VIRTUAL = 1, SCALE_NS = 1, NOT_EXTERNAL = ~1 };

typedef struct CPUState CPUState;
typedef struct NetClientState NetClientState;

/* include/net/net.h: the leading fields of NetClientInfo; QEMU copies nothing and needs no others. */
struct net_client_info {
    int type;    /* NET_CLIENT_DRIVER_NONE */
    size_t size; /* of the object that QEMU makes: more than NetClientState needs */
    ssize_t (*receive)(NetClientState *client, const uint8_t *data, size_t bytes);
    void *others[61];
};
/* QEMUTimer has 56 bytes in 10.0. */
struct timer {
    _Alignas(64) char opaque[256];
};

/* clocks and timers: include/qemu/timer.h, include/exec/icount.h */
int64_t qemu_clock_get_ns(int clock);
int64_t qemu_clock_deadline_ns_all(int clock, int attributes);
bool qemu_clock_run_timers(int clock);
void timer_init_full(struct timer *timer, void *group, int clock, int scale, int attributes, void (*call)(void *),
                     void *data);
void timer_mod_ns(struct timer *timer, int64_t expire_ns);
typedef void notify_call(void *data, int clock);
void **timerlist_new(int clock, notify_call *call, void *data);
void timerlist_free(void **list);
bool timerlist_has_timers(void **list);
void qemu_timer_notify_cb(void *data, int clock);
int64_t icount_get(void);
void icount_prepare_for_run(void *cpu, int64_t budget);
void icount_start_warp_timer(void);
/* processors: include/hw/core/cpu.h, include/exec/cpu-common.h */
extern _Thread_local CPUState *current_cpu;
CPUState *qemu_get_cpu(int index);
void cpu_exit(void *cpu);
void tcg_kick_vcpu_thread(void *cpu) __attribute__((weak)); /* in 11.1: what cpu_exit did before */
_Noreturn void cpu_loop_exit_noexc(CPUState *cpu);
void async_run_on_cpu(CPUState *cpu, void (*work)(CPUState *, void *), void *data);
bool all_cpu_threads_idle(void);
/* translated blocks: include/exec/helper-head.h.inc, accel/tcg/ and target/i386/tcg/. A QEMU without those that are
 * weak does as well, only slower. */
#define IF_EXPORTED __attribute__((weak))
extern struct {
    const void *(*function)(void *env);
} helper_info_lookup_tb_ptr IF_EXPORTED;
extern struct {
    void (*function)(void *env);
} helper_info_pause IF_EXPORTED;
const void *helper_lookup_tb_ptr(void *env) IF_EXPORTED;
_Noreturn void helper_pause(void *env) IF_EXPORTED;
void helper_rechecking_single_step(void *env) IF_EXPORTED;
extern const void *tcg_code_gen_epilogue IF_EXPORTED;
uint32_t curr_cflags(CPUState *cpu) IF_EXPORTED;
uint64_t get_page_addr_code_hostp(void *env, uint64_t pc, void **host) IF_EXPORTED;
void tcg_flush_jmp_cache(void *cpu) IF_EXPORTED;
void tlb_flush_page(CPUState *cpu, uint64_t address) IF_EXPORTED;
/* the machine: include/qemu/main-loop.h, include/system/runstate.h, build/qapi/qapi-types-machine.h */
struct version {
    struct {
        int64_t major, minor, micro;
    } *qemu;
};
struct version *qmp_query_version(void **error);
void bql_unlock(void);
void bql_lock_impl(const char *file, int line);
bool runstate_is_running(void);
void *qemu_add_vm_change_state_handler(void (*changed)(void *, bool running, int state), void *data);
/* the network: include/net/net.h, net/hub.h */
NetClientState *qemu_new_net_client(struct net_client_info *info, NetClientState *peer, const char *model,
                                    const char *name);
NetClientState *net_hub_add_port(int hub, const char *name, NetClientState *peer);
ssize_t qemu_send_packet(NetClientState *client, const uint8_t *data, int bytes);
/* the public plugin interface: include/qemu/qemu-plugin.h */
struct scoreboard;
typedef struct {
    struct scoreboard *score;
    size_t offset;
} plugin_u64;
enum { PLUGIN_CB_NO_REGS = 0, PLUGIN_COND_GE = 7, PLUGIN_INLINE_ADD_U64 = 0 };
/* In the place of a callback whose parameters changed with interface 7 (QEMU 11.1): before it, the plugin comes first;
 * with it, `data` comes last, which QEMU before it does not look at. */
typedef void plugin_callback(void);
struct scoreboard *qemu_plugin_scoreboard_new(size_t element_bytes);
void *qemu_plugin_scoreboard_find(struct scoreboard *score, unsigned vcpu);
void qemu_plugin_register_flush_cb(uint64_t id, plugin_callback *flushed, void *data);
void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, plugin_callback *translated, void *data);
size_t qemu_plugin_tb_n_insns(const void *block);
void *qemu_plugin_tb_get_insn(const void *block, size_t index);
size_t qemu_plugin_insn_data(const void *instruction, void *to, size_t bytes);
void qemu_plugin_register_vcpu_insn_exec_cb(void *instruction, void (*call)(unsigned vcpu, void *data), int flags,
                                            void *data);
void qemu_plugin_register_vcpu_tb_exec_cond_cb(void *block, void (*call)(unsigned vcpu, void *data), int flags,
                                               int condition, plugin_u64 entry, uint64_t value, void *data);
void qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(void *block, int operation, plugin_u64 entry, uint64_t value);

#endif
