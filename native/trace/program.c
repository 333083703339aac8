#include "program.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The hash of a stretch is sum(hash[i] * BASE^(last - i)) modulo 2^64, so any stretch costs two look-ups. */
#define BASE UINT64_C(0xd1342543de82ef95)

enum { NO_STEP = NMT_WINDOW, BUCKETS = 2 * NMT_WINDOW };

enum token { TOKEN_CALL, TOKEN_GAP, TOKEN_REPEAT, TOKEN_STOP };

struct repeat;

/* A step: a repeat when `repeat` is set, else the gap (upper half, NMT_NONE for none) and the call in `value`. */
struct step {
    struct repeat *repeat;
    uint64_t value;
};

struct repeat {
    uint64_t count;
    uint64_t body_hash;
    uint32_t length;
    uint32_t depth;
    struct step body[];
};

/* A step that is open to folding, and how to find it. */
struct open_step {
    struct step step;
    uint64_t hash;
    uint32_t previous; /* the step before it in the same bucket */
    uint32_t due_next; /* the next older repeat that may grow at the same height */
};

struct nmt_program {
    struct open_step open[NMT_WINDOW];
    uint64_t prefix[NMT_WINDOW + 1];
    uint64_t power[NMT_WINDOW + 1];
    uint32_t height;
    uint32_t bucket[BUCKETS];     /* hash -> latest open step */
    uint32_t due[NMT_WINDOW + 1]; /* height -> latest repeat whose body would then have been seen once more */
    uint64_t live_steps;
    uint64_t calls;
    struct nmt_bytes encoded;
    uint64_t spilled_bytes;
    int spill_fd;
    const char *spill_directory;
    bool failed;
};

static uint64_t hash_step(const struct step *step) {
    if (!step->repeat)
        return nmt_mix(step->value + 1);
    return nmt_mix(step->repeat->body_hash ^ nmt_mix(step->repeat->count ^ UINT64_C(0x5bd1e9955bd1e995)) ^
                   step->repeat->length);
}

static bool same_steps(const struct step *a, const struct step *b, uint32_t length);

static bool same_step(const struct step *a, const struct step *b) {
    if (!a->repeat || !b->repeat)
        return !a->repeat && !b->repeat && a->value == b->value;
    return a->repeat == b->repeat || (a->repeat->count == b->repeat->count && a->repeat->length == b->repeat->length &&
                                      same_steps(a->repeat->body, b->repeat->body, a->repeat->length));
}

static bool same_steps(const struct step *a, const struct step *b, uint32_t length) {
    for (uint32_t i = 0; i < length; ++i)
        if (!same_step(&a[i], &b[i]))
            return false;
    return true;
}

static void free_step(struct nmt_program *program, struct step *step) {
    struct repeat *repeat = step->repeat;
    if (!repeat)
        return;
    for (uint32_t i = 0; i < repeat->length; ++i)
        free_step(program, &repeat->body[i]);
    program->live_steps -= repeat->length;
    free(repeat);
}

/* The height at which the body of the repeat at `position` would have been seen once more; above the window: never. */
static uint32_t due_height(const struct nmt_program *program, uint32_t position) {
    return position + 1 + program->open[position].step.repeat->length;
}

static void push_open(struct nmt_program *program, struct step step) {
    uint32_t at = program->height++;
    struct open_step *open = &program->open[at];
    open->step = step;
    open->hash = hash_step(&step);
    uint32_t *bucket = &program->bucket[open->hash % BUCKETS];
    open->previous = *bucket;
    *bucket = at;
    program->prefix[at + 1] = program->prefix[at] * BASE + open->hash;
    if (step.repeat && due_height(program, at) <= NMT_WINDOW) {
        uint32_t *due = &program->due[due_height(program, at)];
        open->due_next = *due;
        *due = at;
    }
}

/* Pop the latest step. Steps leave in reverse order, so both chains only lose their head. */
static struct step pop_open(struct nmt_program *program) {
    uint32_t at = --program->height;
    struct open_step *open = &program->open[at];
    program->bucket[open->hash % BUCKETS] = open->previous;
    if (open->step.repeat && due_height(program, at) <= NMT_WINDOW)
        program->due[due_height(program, at)] = open->due_next;
    return open->step;
}

static uint64_t hash_stretch(const struct nmt_program *program, uint32_t start, uint32_t length) {
    return program->prefix[start + length] - program->prefix[start] * program->power[length];
}

static void drop_open(struct nmt_program *program, uint32_t count) {
    while (count--) {
        struct step step = pop_open(program);
        free_step(program, &step);
    }
}

/* Extend a repeat by the latest steps when they match its body once more. */
static bool grow_repeat(struct nmt_program *program) {
    for (uint32_t at = program->due[program->height]; at != NO_STEP; at = program->open[at].due_next) {
        struct repeat *repeat = program->open[at].step.repeat;
        if (hash_stretch(program, at + 1, repeat->length) != repeat->body_hash)
            continue;
        bool same = true;
        for (uint32_t i = 0; i < repeat->length && same; ++i)
            same = same_step(&repeat->body[i], &program->open[at + 1 + i].step);
        if (!same)
            continue;
        drop_open(program, repeat->length);
        struct step grown = pop_open(program);
        ++grown.repeat->count;
        push_open(program, grown);
        return true;
    }
    return false;
}

static bool equal_stretches(const struct nmt_program *program, uint32_t first, uint32_t second, uint32_t length) {
    if (hash_stretch(program, first, length) != hash_stretch(program, second, length))
        return false;
    for (uint32_t i = 0; i < length; ++i)
        if (!same_step(&program->open[first + i].step, &program->open[second + i].step))
            return false;
    return true;
}

static uint32_t depth_of(const struct nmt_program *program, uint32_t start, uint32_t length) {
    uint32_t depth = 0;
    for (uint32_t i = start; i < start + length; ++i) {
        const struct repeat *repeat = program->open[i].step.repeat;
        if (repeat && repeat->depth > depth)
            depth = repeat->depth;
    }
    return depth;
}

/* Fold the latest `length` steps and the equal ones before them into a repeat of two. */
static bool fold(struct nmt_program *program, uint32_t length) {
    uint32_t second = program->height - length, first = second - length;
    uint32_t depth = depth_of(program, second, length) + 1;
    if (depth > NMT_MAX_DEPTH)
        return false;
    struct repeat *repeat = malloc(sizeof *repeat + length * sizeof repeat->body[0]);
    if (!repeat)
        return false;
    *repeat = (struct repeat){
        .count = 2, .body_hash = hash_stretch(program, first, length), .length = length, .depth = depth};
    drop_open(program, length);
    for (uint32_t i = length; i-- > 0;)
        repeat->body[i] = pop_open(program);
    program->live_steps += length;
    push_open(program, (struct step){.repeat = repeat});
    return true;
}

static bool make_repeat(struct nmt_program *program) {
    uint32_t last = program->height - 1, tried = 0;
    uint64_t hash = program->open[last].hash;
    for (uint32_t at = program->open[last].previous; at != NO_STEP; at = program->open[at].previous) {
        if (program->open[at].hash != hash)
            continue;
        uint32_t length = last - at;
        if (2 * length > program->height || ++tried > NMT_CANDIDATES)
            return false;
        if (equal_stretches(program, program->height - 2 * length, program->height - length, length) &&
            fold(program, length))
            return true;
    }
    return false;
}

static void encode_step(struct nmt_bytes *bytes, const struct step *step) {
    const struct repeat *repeat = step->repeat;
    if (!repeat) {
        uint32_t gap = (uint32_t)(step->value >> 32);
        if (gap != NMT_NONE)
            nmt_bytes_put_varint(bytes, (uint64_t)gap << 2 | TOKEN_GAP);
        nmt_bytes_put_varint(bytes, (step->value & UINT32_MAX) << 2 | TOKEN_CALL);
        return;
    }
    nmt_bytes_put_varint(bytes, repeat->count << 2 | TOKEN_REPEAT);
    for (uint32_t i = 0; i < repeat->length; ++i)
        encode_step(bytes, &repeat->body[i]);
    nmt_bytes_put_varint(bytes, TOKEN_STOP);
}

static bool write_all(int fd, const uint8_t *data, size_t size) {
    while (size) {
        ssize_t written = write(fd, data, size);
        if (written <= 0)
            return false;
        data += written;
        size -= (size_t)written;
    }
    return true;
}

/* Open a file without a name. Not O_TMPFILE: network file systems, where traces live, do not have it. */
static int open_unnamed(const char *directory) {
    char path[4096 + 32];
    int length = snprintf(path, sizeof path, "%s/.nmtrace-XXXXXX", directory);
    if (length < 0 || length >= (int)sizeof path)
        return -1;
    int fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0)
        unlink(path);
    return fd;
}

static void spill(struct nmt_program *program) {
    if (program->encoded.size < NMT_SPILL_BYTES || !program->spill_directory)
        return;
    if (program->spill_fd < 0)
        program->spill_fd = open_unnamed(program->spill_directory);
    if (program->spill_fd < 0 || !write_all(program->spill_fd, program->encoded.data, program->encoded.size)) {
        program->failed = true;
        return;
    }
    program->spilled_bytes += program->encoded.size;
    program->encoded.size = 0;
}

static void forget_chains(struct nmt_program *program) {
    for (uint32_t i = 0; i < BUCKETS; ++i)
        program->bucket[i] = NO_STEP;
    for (uint32_t i = 0; i <= NMT_WINDOW; ++i)
        program->due[i] = NO_STEP;
}

/* Encode the oldest steps until `keep` are open, and index the others at their new places. */
static void retire(struct nmt_program *program, uint32_t keep) {
    uint32_t count = program->height - keep;
    for (uint32_t i = 0; i < count; ++i) {
        encode_step(&program->encoded, &program->open[i].step);
        free_step(program, &program->open[i].step);
    }
    forget_chains(program);
    program->height = 0;
    for (uint32_t i = 0; i < keep; ++i)
        push_open(program, program->open[count + i].step);
    program->failed |= program->encoded.failed;
    if (!program->failed)
        spill(program);
}

struct nmt_program *nmt_program_new(const char *directory) {
    struct nmt_program *program = calloc(1, sizeof *program);
    if (!program)
        return NULL;
    program->spill_directory = directory;
    program->spill_fd = -1;
    program->power[0] = 1;
    for (uint32_t i = 0; i < NMT_WINDOW; ++i)
        program->power[i + 1] = program->power[i] * BASE;
    forget_chains(program);
    return program;
}

void nmt_program_push(struct nmt_program *program, uint32_t gap, uint32_t call) {
    if (program->failed)
        return;
    ++program->calls;
    if (program->height == NMT_WINDOW || program->live_steps > NMT_LIVE_STEPS)
        retire(program, program->height / 2);
    push_open(program, (struct step){.value = (uint64_t)gap << 32 | call});
    while (grow_repeat(program) || make_repeat(program)) {
    }
}

void nmt_program_finish(struct nmt_program *program) { retire(program, 0); }

bool nmt_program_failed(const struct nmt_program *program) { return program->failed; }

bool nmt_program_read(struct nmt_program *program, bool (*take)(void *context, const void *data, size_t size),
                      void *context) {
    uint8_t piece[65536];
    for (uint64_t at = 0; at < program->spilled_bytes;) {
        ssize_t got = pread(program->spill_fd, piece, sizeof piece, (off_t)at);
        if (got <= 0 || !take(context, piece, (size_t)got))
            return false;
        at += (uint64_t)got;
    }
    return take(context, program->encoded.data, program->encoded.size);
}

uint64_t nmt_program_size(const struct nmt_program *program) { return program->spilled_bytes + program->encoded.size; }

uint64_t nmt_program_calls(const struct nmt_program *program) { return program->calls; }

void nmt_program_free(struct nmt_program *program) {
    if (!program)
        return;
    for (uint32_t i = 0; i < program->height; ++i)
        free_step(program, &program->open[i].step);
    if (program->spill_fd >= 0)
        close(program->spill_fd);
    nmt_bytes_free(&program->encoded);
    free(program);
}
