#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "meta.h"

enum { LINE_ROOM = 512, PATH_ROOM = 4096, MOST_PROCESSORS = 1 << 16 };

/* The processor whose clock measured the gaps: its model, where the kernel reports it, and how many there are. */
static void add_processors(struct nmt_bytes *meta) {
    char line[LINE_ROOM];
    FILE *file = fopen("/proc/cpuinfo", "re");
    while (file && fgets(line, sizeof line, file)) {
        const char *colon = strncmp(line, "model name", 10) ? NULL : strchr(line, ':');
        if (!colon)
            continue;
        line[strcspn(line, "\n")] = 0;
        nmt_add_meta(meta, "processor", colon + 1 + strspn(colon + 1, " \t"));
        break;
    }
    if (file)
        fclose(file);
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    if (online > 0)
        nmt_add_meta_number(meta, "processors", (uint64_t)online);
}

/* Append the numbers of a set as a list such as `0-3,8`. */
static void list_processors(struct nmt_bytes *text, const cpu_set_t *set, size_t size, int room) {
    for (int first = 0; first < room; ++first) {
        int last = first;
        if (!CPU_ISSET_S((unsigned)first, size, set))
            continue;
        while (last + 1 < room && CPU_ISSET_S((unsigned)last + 1, size, set))
            ++last;
        char run[32];
        snprintf(run, sizeof run, first < last ? "%s%d-%d" : "%s%d", text->size ? "," : "", first, last);
        nmt_bytes_put(text, run, strlen(run));
        first = last;
    }
    nmt_bytes_put(text, "", 1);
}

/* The processors that this rank may use: fewer than there are if it is bound, or in a container or an allocation. */
static void add_affinity(struct nmt_bytes *meta) {
    for (int room = CPU_SETSIZE; room <= MOST_PROCESSORS; room *= 2) {
        struct nmt_bytes text = {0};
        cpu_set_t *set = CPU_ALLOC((size_t)room);
        size_t size = CPU_ALLOC_SIZE((size_t)room);
        bool known = set && !sched_getaffinity(0, size, set); /* it does not fit: EINVAL */
        if (known)
            list_processors(&text, set, size, room);
        if (known && !text.failed)
            nmt_add_meta(meta, "affinity", (const char *)text.data);
        nmt_bytes_free(&text);
        if (set)
            CPU_FREE(set);
        if (known)
            return;
    }
}

/* Read up to two numbers from the file of a control group, and return how many there are. */
static int read_numbers(const char *form, const char *group, long long numbers[2]) {
    char path[PATH_ROOM + LINE_ROOM];
    snprintf(path, sizeof path, form, group);
    FILE *file = fopen(path, "re");
    int found = file ? fscanf(file, "%lld %lld", &numbers[0], &numbers[1]) : 0;
    if (file)
        fclose(file);
    return found;
}

/* How many whole processors the quota of a control group (of version 2 or 1) holds, at least 1; 0 without a quota. */
static long long processors_in_quota(const char *group) {
    long long of[2] = {0, 0}, period[2] = {0, 0};
    if (read_numbers("/sys/fs/cgroup%s/cpu.max", group, of) < 2) {
        of[0] = read_numbers("/sys/fs/cgroup/cpu%s/cpu.cfs_quota_us", group, of) == 1 ? of[0] : 0;
        of[1] = read_numbers("/sys/fs/cgroup/cpu%s/cpu.cfs_period_us", group, period) == 1 ? period[0] : 0;
    }
    if (of[0] <= 0 || of[1] <= 0)
        return 0;
    return of[0] < of[1] ? 1 : of[0] / of[1];
}

static void list_quota(struct nmt_bytes *text, const char *group) {
    long long processors = processors_in_quota(group);
    if (!processors)
        return;
    char number[32];
    snprintf(number, sizeof number, "%s%lld ", text->size ? "," : "", processors);
    nmt_bytes_put(text, number, strlen(number));
    for (const char *at = *group ? group : "/"; *at; ++at)
        nmt_bytes_put(text, *at == ',' ? "?" : at, 1);
}

/* Return the path in a line `4:cpu,cpuacct:/path` of /proc/self/cgroup; NULL where it is of other controllers. */
static char *path_of_group(char *line) {
    line[strcspn(line, "\n")] = 0;
    char *controllers = strchr(line, ':'), *path = controllers ? strchr(++controllers, ':') : NULL;
    if (!path)
        return NULL;
    *path++ = 0;
    bool any = !*controllers; /* version 2 */
    char *rest = controllers;
    for (char *name = strtok_r(rest, ",", &rest); name; name = strtok_r(NULL, ",", &rest))
        any |= !strcmp(name, "cpu");
    return any ? path : NULL;
}

/* Quotas of processor time: those of the rank's control groups and of all above them. A container sees its own group as
 * the top one, whatever its name is. */
static void add_quotas(struct nmt_bytes *meta) {
    char line[PATH_ROOM];
    struct nmt_bytes text = {0};
    list_quota(&text, "");
    FILE *file = fopen("/proc/self/cgroup", "re");
    while (file && fgets(line, sizeof line, file)) {
        char *group = path_of_group(line);
        for (char *end = group ? strrchr(group, '/') : NULL; end; end = strrchr(group, '/')) {
            if (end[1])
                list_quota(&text, group);
            *end = 0;
        }
    }
    if (file)
        fclose(file);
    nmt_bytes_put(&text, "", 1);
    if (text.size > 1 && !text.failed)
        nmt_add_meta(meta, "quotas", (const char *)text.data);
    nmt_bytes_free(&text);
}

void nmt_describe_processors(struct nmt_bytes *meta) {
    add_processors(meta);
    add_affinity(meta);
    add_quotas(meta);
}
