#include "recorder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The version that older readers know, and the one of a trace of which they would misunderstand a call. */
enum { KNOWN_VERSION = 2, VERSION = 3, HEADER_BYTES = 64, SECTIONS = 9, TRACE_ID_AT = 24 };

/* ---------------------------------------------------------------- recording */

static void give_up(struct nmt_recorder *recorder, const char *why) {
    if (!recorder->failure)
        recorder->failure = why;
}

bool nmt_recorder_start(struct nmt_recorder *recorder, const char *directory) {
    *recorder = (struct nmt_recorder){.last_call = NMT_NONE};
    recorder->gaps = nmt_gaps_new();
    recorder->program = nmt_program_new(directory);
    return recorder->gaps && recorder->program;
}

/* Time since the program resumed: between two polls it counts as waiting when short, else as compute. */
static void count_pause(struct nmt_recorder *recorder, uint64_t enter_ns) {
    uint64_t pause_ns = enter_ns > recorder->left_ns ? enter_ns - recorder->left_ns : 0;
    if (recorder->polled && pause_ns < NMT_POLL_PAUSE_NS) {
        recorder->polling_ns += pause_ns;
        recorder->paused_ns += pause_ns < NMT_POLL_LOOP_NS ? 0 : pause_ns;
    } else {
        recorder->compute_ns += pause_ns;
        recorder->worked_ns += recorder->polled ? pause_ns : 0;
    }
}

/* Coarsen what makes calls distinct when there are too many of them. Collectives keep their sizes: ranks must agree. */
static void coarsen(struct nmt_recorder *recorder, struct nmt_call *call) {
    struct nmt_call exact = *call;
    if (call->kind == NMT_SEND || call->kind == NMT_SENDRECV)
        call->bytes = nmt_round_size(call->bytes, false);
    else if (call->kind == NMT_RECV)
        call->bytes = nmt_round_size(call->bytes, true);
    call->recv_bytes = nmt_round_size(call->recv_bytes, true);
    call->list_a = call->list_b = NMT_NONE;
    recorder->rounded += memcmp(&exact, call, sizeof exact) != 0;
}

static uint32_t gap_before(struct nmt_recorder *recorder, uint32_t call, uint64_t code) {
    if (recorder->last_call == NMT_NONE)
        return NMT_NONE;
    struct nmt_place place = {recorder->last_code, code, recorder->last_call, call};
    const struct nmt_call *entries = recorder->calls.entries;
    uint32_t kinds = (uint32_t)entries[recorder->last_call].kind << 16 | entries[call].kind;
    uint32_t gap = nmt_gaps_add(recorder->gaps, &place, kinds, recorder->compute_ns);
    if (gap == NMT_NONE)
        give_up(recorder, "out of memory for compute gaps");
    return gap;
}

uint64_t nmt_recorder_note(struct nmt_recorder *recorder, struct nmt_call call, uint64_t code, uint64_t enter_ns,
                           uint64_t leave_ns) {
    if (recorder->failure)
        return 0;
    count_pause(recorder, enter_ns);
    if (recorder->calls.count >= NMT_EXACT_CALLS)
        coarsen(recorder, &call);
    uint32_t index = nmt_calls_intern(&recorder->calls, &call);
    if (index == NMT_NONE || index >= NMT_MAX_CALLS) {
        give_up(recorder, index == NMT_NONE ? "out of memory for another distinct call"
                                            : "it makes too many distinct calls (a tag that counts up?)");
        return 0;
    }
    uint64_t inside_ns = (leave_ns > enter_ns ? leave_ns - enter_ns : 0) + recorder->polling_ns;
    struct nmt_call_time *time = &recorder->calls.times[index];
    ++time->calls;
    time->total_ns += inside_ns;
    time->max_ns = inside_ns > time->max_ns ? inside_ns : time->max_ns;
    nmt_program_push(recorder->program, gap_before(recorder, index, code), index);
    recorder->last_code = code;
    recorder->last_call = index;
    recorder->compute_ns = recorder->polling_ns = 0;
    recorder->polled = false;
    recorder->left_ns = leave_ns;
    return inside_ns;
}

void nmt_recorder_poll(struct nmt_recorder *recorder, uint64_t enter_ns, uint64_t leave_ns) {
    count_pause(recorder, enter_ns);
    recorder->polling_ns += leave_ns > enter_ns ? leave_ns - enter_ns : 0;
    recorder->polled = true;
    recorder->left_ns = leave_ns;
}

void nmt_recorder_skip(struct nmt_recorder *recorder, uint64_t idle_ns) { recorder->left_ns += idle_ns; }

void nmt_recorder_resume(struct nmt_recorder *recorder, uint64_t now_ns) { recorder->left_ns = now_ns; }

uint32_t nmt_recorder_add_comm(struct nmt_recorder *recorder, const struct nmt_comm *comm) {
    if (recorder->comm_count >= NMT_MAX_COMMUNICATORS ||
        !nmt_grow(&recorder->comms, &recorder->comms_room, recorder->comm_count + 1U, sizeof *recorder->comms)) {
        give_up(recorder, "it makes too many communicators");
        return NMT_NONE;
    }
    recorder->comms[recorder->comm_count] = *comm;
    return recorder->comm_count++;
}

uint32_t nmt_recorder_list(struct nmt_recorder *recorder, const uint64_t *values, size_t count) {
    uint32_t list = nmt_lists_intern(&recorder->lists, values, count);
    if (list == NMT_NONE)
        give_up(recorder, "out of memory for another list");
    return list;
}

uint64_t nmt_uid(const uint64_t *numbers, size_t count) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < count; ++i)
        for (int shift = 0; shift < 64; shift += 8)
            hash = (hash ^ (numbers[i] >> shift & 0xff)) * UINT64_C(0x100000001b3);
    return hash;
}

/* ---------------------------------------------------------------- writing */

struct output {
    int fd;
    int error;
    uint32_t crc;
    uint64_t size;
};

static void emit(struct output *output, const void *data, size_t size) {
    const uint8_t *byte = data;
    output->crc = nmt_crc32(output->crc, data, size);
    output->size += size;
    while (size && !output->error) {
        ssize_t written = write(output->fd, byte, size);
        if (written < 0 && errno != EINTR)
            output->error = errno;
        if (written > 0) {
            byte += written;
            size -= (size_t)written;
        }
    }
}

static uint16_t version_of(const struct nmt_calls *calls) {
    for (uint32_t i = 0; i < calls->count; ++i)
        if (calls->entries[i].flags & NMT_CANCELLED)
            return VERSION;
    return KNOWN_VERSION;
}

static void emit_header(struct output *output, const struct nmt_run *run, uint16_t version, uint32_t sections,
                        uint64_t calls) {
    struct nmt_bytes head = {0};
    static const uint8_t zeros[12];
    nmt_bytes_put(&head, "NMTR\r\n\x1a\n", 8);
    nmt_bytes_put_u16(&head, version);
    nmt_bytes_put_u16(&head, HEADER_BYTES);
    nmt_bytes_put_u32(&head, run->rank);
    nmt_bytes_put_u32(&head, run->ranks);
    nmt_bytes_put_u32(&head, sections);
    nmt_bytes_put_u64(&head, run->trace_id);
    nmt_bytes_put_u64(&head, run->elapsed_ns);
    nmt_bytes_put_u64(&head, calls);
    nmt_bytes_put(&head, zeros, sizeof zeros);
    nmt_bytes_put_u32(&head, nmt_crc32(0, head.data, head.size));
    output->error = head.failed ? ENOMEM : output->error;
    emit(output, head.data, head.size);
    nmt_bytes_free(&head);
}

static void emit_tag(struct output *output, const char *tag, uint32_t crc, uint64_t size) {
    emit(output, tag, 4);
    emit(output, &crc, sizeof crc);
    emit(output, &size, sizeof size);
}

static void emit_section(struct output *output, const char *tag, struct nmt_bytes *payload) {
    if (payload->failed)
        output->error = ENOMEM;
    emit_tag(output, tag, nmt_crc32(0, payload->data, payload->size), payload->size);
    emit(output, payload->data, payload->size);
    nmt_bytes_free(payload);
}

static bool add_to_crc(void *context, const void *data, size_t size) {
    uint32_t *crc = context;
    *crc = nmt_crc32(*crc, data, size);
    return true;
}

static bool add_to_output(void *context, const void *data, size_t size) {
    struct output *output = context;
    emit(output, data, size);
    return !output->error;
}

static void emit_program(struct output *output, struct nmt_program *program) {
    uint32_t crc = 0;
    if (!nmt_program_read(program, add_to_crc, &crc))
        output->error = EIO;
    emit_tag(output, "PROG", crc, nmt_program_size(program));
    if (!nmt_program_read(program, add_to_output, output) && !output->error)
        output->error = EIO;
}

static void emit_sections(struct output *output, struct nmt_recorder *recorder, const char *meta) {
    struct nmt_bytes payload = {0};
    nmt_bytes_put(&payload, meta, strlen(meta));
    emit_section(output, "META", &payload);
    nmt_bytes_put_varint(&payload, recorder->lists.count);
    nmt_bytes_put(&payload, recorder->lists.encoded.data, recorder->lists.encoded.size);
    emit_section(output, "LIST", &payload);
    nmt_bytes_put_u32(&payload, recorder->comm_count);
    nmt_bytes_put(&payload, recorder->comms, recorder->comm_count * sizeof *recorder->comms);
    emit_section(output, "COMM", &payload);
    nmt_bytes_put_u32(&payload, recorder->calls.count);
    nmt_bytes_put(&payload, recorder->calls.entries, recorder->calls.count * sizeof *recorder->calls.entries);
    emit_section(output, "CALL", &payload);
    nmt_bytes_put(&payload, recorder->calls.times, recorder->calls.count * sizeof *recorder->calls.times);
    emit_section(output, "TIME", &payload);
    nmt_gaps_encode(recorder->gaps, &payload);
    emit_section(output, "GAPS", &payload);
    nmt_gaps_encode_order(recorder->gaps, &payload);
    emit_section(output, "SEQU", &payload);
    emit_program(output, recorder->program);
    uint32_t crc = output->crc;
    uint64_t size = output->size;
    nmt_bytes_put_u32(&payload, crc);
    nmt_bytes_put_u64(&payload, size);
    emit_section(output, "END ", &payload);
}

int nmt_recorder_write(struct nmt_recorder *recorder, const struct nmt_run *run, const char *part, const char *path) {
    nmt_program_finish(recorder->program);
    if (recorder->failure || nmt_program_failed(recorder->program))
        return recorder->failure ? EOVERFLOW : ENOSPC;
    struct output output = {.fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)};
    if (output.fd < 0)
        return errno;
    emit_header(&output, run, version_of(&recorder->calls), SECTIONS, nmt_program_calls(recorder->program));
    emit_sections(&output, recorder, run->meta);
    if (!output.error && fsync(output.fd))
        output.error = errno;
    if (close(output.fd) && !output.error)
        output.error = errno;
    if (!output.error && rename(part, path))
        output.error = errno;
    return output.error;
}

int nmt_recorder_claim(const struct nmt_run *run, const char *part) {
    struct output output = {.fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)};
    if (output.fd < 0)
        return errno;
    emit_header(&output, run, VERSION, 0, 0);
    if (close(output.fd) && !output.error)
        output.error = errno;
    return output.error;
}

bool nmt_recorder_wrote(const struct nmt_run *run, const char *path) {
    uint8_t head[HEADER_BYTES] = {0};
    uint64_t trace_id;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool whole = fd >= 0 && read(fd, head, sizeof head) == (ssize_t)sizeof head;
    if (fd >= 0)
        close(fd);
    memcpy(&trace_id, head + TRACE_ID_AT, sizeof trace_id);
    return whole && trace_id == run->trace_id;
}

void nmt_recorder_free(struct nmt_recorder *recorder) {
    nmt_lists_free(&recorder->lists);
    nmt_calls_free(&recorder->calls);
    nmt_gaps_free(recorder->gaps);
    nmt_program_free(recorder->program);
    free(recorder->comms);
    *recorder = (struct nmt_recorder){0};
}
