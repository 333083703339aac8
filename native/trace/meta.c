#include "meta.h"

#include <elf.h>
#include <link.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { COMMAND_ROOM = 4096, BUILD_ROOM = 64 };

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

void nmt_add_meta(struct nmt_bytes *meta, const char *key, const char *value) {
    nmt_bytes_put(meta, key, strlen(key));
    nmt_bytes_put(meta, "=", 1);
    for (const char *at = value; *at; ++at)
        nmt_bytes_put(meta, *at == '\n' ? " " : (*at & 0x80) ? "?" : at, 1);
    nmt_bytes_put(meta, "\n", 1);
}

void nmt_add_meta_number(struct nmt_bytes *meta, const char *key, uint64_t value) {
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    nmt_add_meta(meta, key, text);
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
    nmt_add_meta_number(meta, "unsupported", unsupported->calls);
    nmt_add_meta_number(meta, "unsupported_ns", unsupported->ns);
    if (size)
        nmt_add_meta(meta, "unsupported_calls", text);
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
    nmt_add_meta(meta, "command", text);
}

/* Return the build id among the notes of a program, which its linker made of the contents; NULL when it has none. */
static const unsigned char *find_build_id(const char *at, const char *end, unsigned *size) {
    while (at + sizeof(ElfW(Nhdr)) <= end) {
        ElfW(Nhdr) note;
        memcpy(&note, at, sizeof note);
        const char *name = at + sizeof note, *value = name + ((note.n_namesz + 3U) & ~3U);
        *size = note.n_descsz;
        if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && !memcmp(name, "GNU", 4))
            return (const unsigned char *)value;
        at = value + ((note.n_descsz + 3U) & ~3U);
    }
    return NULL;
}

/* Called for the program itself first, and for nothing after it. */
static int add_build(struct dl_phdr_info *program, size_t size, void *meta) {
    (void)size;
    char text[2 * BUILD_ROOM + 1] = "";
    for (int i = 0; i < program->dlpi_phnum && !*text; ++i) {
        const char *notes = (const char *)program->dlpi_addr + program->dlpi_phdr[i].p_vaddr;
        unsigned bytes = 0;
        const unsigned char *id = program->dlpi_phdr[i].p_type == PT_NOTE
                                      ? find_build_id(notes, notes + program->dlpi_phdr[i].p_memsz, &bytes)
                                      : NULL;
        for (unsigned byte = 0; id && byte < bytes && byte < BUILD_ROOM; ++byte)
            snprintf(text + (size_t)2 * byte, 3, "%02x", id[byte]);
    }
    if (*text)
        nmt_add_meta(meta, "build", text);
    return 1;
}

uint64_t nmt_read_delay_ns(void) {
    unsigned long long ran_ns, delayed_ns = NMT_UNKNOWN_DELAY;
    FILE *file = fopen("/proc/thread-self/schedstat", "re");
    if (file && fscanf(file, "%llu %llu", &ran_ns, &delayed_ns) != 2)
        delayed_ns = NMT_UNKNOWN_DELAY;
    if (file)
        fclose(file);
    return delayed_ns;
}

/* Time without a processor in which the rank did not wait for one either: it slept, or waited for something else. */
static void add_blocked(struct nmt_bytes *meta, const struct nmt_facts *facts) {
    bool known = facts->delay_at_start_ns != NMT_UNKNOWN_DELAY && facts->delay_at_end_ns != NMT_UNKNOWN_DELAY;
    if (!facts->processor_time || !known || facts->of_several_threads)
        return;
    uint64_t delayed_ns = facts->delay_at_end_ns - facts->delay_at_start_ns;
    nmt_add_meta_number(meta, "blocked_ns", facts->skipped_ns > delayed_ns ? facts->skipped_ns - delayed_ns : 0);
}

void nmt_describe_run(struct nmt_bytes *meta, const struct nmt_facts *facts) {
    static const int levels[] = {MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED, MPI_THREAD_SERIALIZED, MPI_THREAD_MULTIPLE};
    static const char *const names[] = {"single", "funneled", "serialized", "multiple"};
    char node[256] = "", library[NMT_VERSION_ROOM] = "";
    gethostname(node, sizeof node - 1);
    nmt_add_meta(meta, "node", node);
    nmt_describe_processors(meta);
    add_command(meta);
    dl_iterate_phdr(add_build, meta);
    nmt_read_version(library);
    nmt_add_meta(meta, "library", library);
    for (size_t i = 0; i < 4; ++i)
        if (levels[i] == facts->threads)
            nmt_add_meta(meta, "threads", names[i]);
    if (facts->calling_threads)
        nmt_add_meta_number(meta, "calling_threads", facts->calling_threads);
    /* A gap that begins in one thread and ends in another is in elapsed time. */
    nmt_add_meta(meta, "gaps", facts->processor_time && facts->calling_threads < 2 ? "processor" : "elapsed");
    add_blocked(meta, facts);
    add_unsupported(meta, &facts->unsupported);
    nmt_add_meta_number(meta, "mixed_ns", facts->mixed_ns);
    nmt_add_meta_number(meta, "rounded", facts->rounded);
    nmt_add_meta_number(meta, "paused_ns", facts->paused_ns);
    nmt_add_meta_number(meta, "worked_ns", facts->worked_ns);
    nmt_add_meta_number(meta, "local_calls", facts->local_calls);
    nmt_add_meta_number(meta, "local_ns", facts->local_ns);
    nmt_add_meta_number(meta, "profiler_ns", facts->own_ns);
    nmt_bytes_put(meta, "", 1);
}
