// SPDX-License-Identifier: GPL-2.0-or-later
/* wire.so: a shared object that QEMU loads with -plugin. It couples machines under -icount into one virtual time, and
 * works around QEMU's defects that affect them. Alone (nodes=1) it only does the latter. */
#include <stdlib.h>

#include "grid.h"
#include "guests.h"
#include "jumps.h"
#include "layout.h"
#include "machine.h"
#include "notices.h"

__attribute__((visibility("default"))) int qemu_plugin_version = 4;
__attribute__((visibility("default"))) int qemu_plugin_install(uint64_t plugin, const void *info, int count,
                                                               char **arguments);

static bool finds_blocks_alike; /* as those that jumps.c was tried with */

/* QEMU looks at the interface's version when constructors have run. 10.0 takes 4; of 11.1, 7 is the least. */
__attribute__((constructor)) static void look_at_version(void) {
    const struct version *version = qmp_query_version(NULL);
    const int64_t major = version->qemu->major, minor = version->qemu->minor;
    if (major > 11 || (major == 11 && minor >= 1))
        qemu_plugin_version = 7;
    finds_blocks_alike = (major == 10 && minor == 0) || (major == 11 && minor == 1);
}

static void on_state(void *unused, bool running, int state) {
    (void)unused;
    (void)state;
    if (!running) {
        machine_end();
        return;
    }
    if (machine.began_ns >= 0) {
        if (machine.options.nodes > 1)
            wire_die("a coupled machine cannot be paused and resumed");
        return;
    }
    machine_begin(qemu_clock_get_ns(CLOCK_VIRTUAL));
    notices_withhold(&machine.counts.withheld);
    layout_find();
    machine.counts.finds_blocks = machine.options.jumps && finds_blocks_alike && jumps_begin(machine.options.nodes > 1);
    grid_begin();
    if (machine.options.guests)
        guests_repair(&machine.counts.stale);
}

int qemu_plugin_install(uint64_t plugin, const void *info, int count, char **arguments) {
    (void)info;
    struct options *options = &machine.options;
    options_read(options, count, arguments);
    const int coupled = options->nodes > 1;
    machine.member.spin_ns = options->spin_ns;
    machine.member.patience_ns = options->patience_s * INT64_C(1000000000);
    if (coupled) {
        cluster_join(&machine.member, options->shared_path, options->node, options->nodes, options->lookahead_ns);
        machine_plug_in();
    }
    grid_install(plugin, qemu_plugin_version >= 7, coupled);
    qemu_plugin_register_flush_cb(plugin, jumps_forget, NULL);
    qemu_add_vm_change_state_handler(on_state, NULL);
    atexit(machine_end);
    return 0;
}
