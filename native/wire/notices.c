// SPDX-License-Identifier: GPL-2.0-or-later
/* Under -icount, a CPU's thread that reaches a timer notifies every event loop of the program before it runs the timer
 * itself (icount_notify_aio_contexts in accel/tcg/tcg-accel-ops-icount.c). Each notice wakes a thread: QEMU's main loop
 * and the monitor's, which find nothing to do, but take the processor and QEMU's big lock from the CPU on the way. The
 * loops that are notified like this have lists of timers of their own, nearly always empty ones. So each of these lists
 * gets a callback that passes on what a list with timers is to learn, and nothing else.
 *
 * The lists of a clock are linked (util/qemu-timer.c). QEMU exports how to make a list, and two that are made here show
 * where a list keeps its callback and its neighbour. Where they do not, nothing is withheld, which only costs time. */
#include "notices.h"

#include <malloc.h>
#include <stdbool.h>
#include <stddef.h>

#include "qemu.h"

enum { LIST_WORDS_MOST = 64, LISTS_MOST = 64, LINK_WORDS = 2 };

struct kept {
    void **list;
    notify_call *call;
    void *data;
};

static struct kept kept[LISTS_MOST];
static int kept_count;
static uint64_t *withheld_count;

static void made_here(void *data, int clock) {
    (void)data;
    (void)clock;
}

static void pass_on(void *data, int clock) {
    const struct kept *one = data;
    if (timerlist_has_timers(one->list))
        one->call(one->data, clock);
    else
        ++*withheld_count;
}

/* Return at which word a list that was made here keeps its callback, which its callback's data follows; 0: nowhere. */
static size_t callback_word(void **list, const void *data) {
    const size_t words = malloc_usable_size(list) / sizeof *list;
    for (size_t i = LINK_WORDS; i + 1 < words && i < LIST_WORDS_MOST; i++)
        if (list[i] == (void *)(uintptr_t)made_here && list[i + 1] == data)
            return i;
    return 0;
}

static void keep(void **list, size_t callback) {
    struct kept *one = &kept[kept_count++];
    *one = (struct kept){list, (notify_call *)(uintptr_t)list[callback], list[callback + 1]};
    list[callback] = (void *)(uintptr_t)pass_on;
    list[callback + 1] = one;
}

/* Keep the lists from this one on, but for those whose callback only asks the CPU to look at its timers. */
static void keep_all(void **list, size_t callback) {
    for (; list && kept_count < LISTS_MOST; list = list[callback - LINK_WORDS])
        if (list[callback] != (void *)(uintptr_t)qemu_timer_notify_cb)
            keep(list, callback);
}

void notices_withhold(uint64_t *withheld) {
    static char marks[2];
    withheld_count = withheld;
    void **first = timerlist_new(CLOCK_VIRTUAL, made_here, &marks[0]);
    void **second = timerlist_new(CLOCK_VIRTUAL, made_here, &marks[1]);
    const size_t callback = callback_word(first, &marks[0]);
    if (callback && callback_word(second, &marks[1]) == callback && second[callback - LINK_WORDS] == first)
        keep_all(first[callback - LINK_WORDS], callback);
    timerlist_free(second);
    timerlist_free(first);
}
