#include "meta.h"

#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { COMMAND_ROOM = 4096, LINE_ROOM = 512 };

void nmt_count_unsupported(struct nmt_unsupported *unsupported, const char *name) {
    ++unsupported->calls;
    unsigned at = 0;
    while (at < unsupported->names && strcmp(unsupported->by_name[at].name, name) != 0)
        ++at;
    if (at == NMT_NAMES)
        return;
    if (at == unsupported->names)
        unsupported->by_name[unsupported->names++].name = name;
    ++unsupported->by_name[at].calls;
}

void nmt_read_version(char version[NMT_VERSION_ROOM]) {
    int length;
    PMPI_Get_library_version(version, &length);
    version[strcspn(version, "\n")] = 0;
    for (char *at = version; *at; ++at)
        *at = *at == '\t' ? ' ' : *at;
}

/* Copy text into a META line: a new line in it would end the line, and bytes outside ASCII might not be UTF-8. */
static void add_meta(struct nmt_bytes *meta, const char *key, const char *value) {
    nmt_bytes_put(meta, key, strlen(key));
    nmt_bytes_put(meta, "=", 1);
    for (const char *at = value; *at; ++at)
        nmt_bytes_put(meta, *at == '\n' ? " " : (*at & 0x80) ? "?" : at, 1);
    nmt_bytes_put(meta, "\n", 1);
}

static void add_meta_number(struct nmt_bytes *meta, const char *key, uint64_t value) {
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    add_meta(meta, key, text);
}

/* How many calls were not recorded, and which: `Put 4,Win_fence 2`. */
static void add_unsupported(struct nmt_bytes *meta, const struct nmt_unsupported *unsupported) {
    char text[NMT_NAMES * 64] = "";
    size_t size = 0;
    for (unsigned i = 0; i < unsupported->names; ++i) {
        int added = snprintf(text + size, sizeof text - size, "%s%s %llu", i ? "," : "", unsupported->by_name[i].name,
                             (unsigned long long)unsupported->by_name[i].calls);
        size += added > 0 && (size_t)added < sizeof text - size ? (size_t)added : 0;
    }
    text[size] = 0;
    add_meta_number(meta, "unsupported", unsupported->calls);
    if (size)
        add_meta(meta, "unsupported_calls", text);
}

/* The command line, arguments joined by spaces. */
static void add_command(struct nmt_bytes *meta) {
    char text[COMMAND_ROOM];
    FILE *file = fopen("/proc/self/cmdline", "re");
    size_t size = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file)
        fclose(file);
    while (size && !text[size - 1])
        --size;
    for (size_t i = 0; i < size; ++i)
        text[i] = text[i] ? text[i] : ' ';
    text[size] = 0;
    add_meta(meta, "command", text);
}

/* The processor whose clock the gaps were measured by: its model, where the kernel tells it, and how many there are. */
static void add_processors(struct nmt_bytes *meta) {
    char line[LINE_ROOM];
    FILE *file = fopen("/proc/cpuinfo", "re");
    while (file && fgets(line, sizeof line, file)) {
        const char *colon = strncmp(line, "model name", 10) ? NULL : strchr(line, ':');
        if (!colon)
            continue;
        line[strcspn(line, "\n")] = 0;
        add_meta(meta, "processor", colon + 1 + strspn(colon + 1, " \t"));
        break;
    }
    if (file)
        fclose(file);
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    if (online > 0)
        add_meta_number(meta, "processors", (uint64_t)online);
}

void nmt_describe_run(struct nmt_bytes *meta, const struct nmt_facts *facts) {
    static const int levels[] = {MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED, MPI_THREAD_SERIALIZED, MPI_THREAD_MULTIPLE};
    static const char *const names[] = {"single", "funneled", "serialized", "multiple"};
    char node[256] = "", library[NMT_VERSION_ROOM] = "";
    gethostname(node, sizeof node - 1);
    add_meta(meta, "node", node);
    add_processors(meta);
    add_command(meta);
    nmt_read_version(library);
    add_meta(meta, "library", library);
    for (size_t i = 0; i < 4; ++i)
        if (levels[i] == facts->threads)
            add_meta(meta, "threads", names[i]);
    add_meta(meta, "gaps", facts->processor_time ? "processor" : "elapsed");
    add_unsupported(meta, &facts->unsupported);
    add_meta_number(meta, "rounded", facts->rounded);
    add_meta_number(meta, "local_calls", facts->local_calls);
    add_meta_number(meta, "local_ns", facts->local_ns);
    add_meta_number(meta, "profiler_ns", facts->own_ns);
    nmt_bytes_put(meta, "", 1);
}
