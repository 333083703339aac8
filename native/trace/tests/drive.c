/* drive.c - feeds the recorder from a script on stdin, so that tests need no MPI.
 *
 *   drive record PART FILE      lines: `call KIND PEER BYTES LIST CODE ENTER_NS LEAVE_NS` (LIST: -1 or how many equal
 *                               numbers 7), `poll ENTER_NS LEAVE_NS`; writes the file. Status 1 and the reason on
 *                               stderr when it cannot be written.
 *   drive requests              lines: `new HANDLE`, `null HANDLE`, `done HANDLE`, `persist HANDLE`, `start HANDLE`,
 *                               `free HANDLE`; prints the slot that each line took or completed, or -1.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "recorder.h"

static void add_world(struct nmt_recorder *recorder) {
    uint64_t members[] = {0, 1, 2, 3};
    struct nmt_comm world = {1, NMT_NONE, NMT_WORLD, 0, nmt_recorder_list(recorder, members, 4), 1, NMT_NONE, NMT_NONE};
    struct nmt_comm self = {3, NMT_NONE, NMT_SELF, 0, nmt_recorder_list(recorder, members + 1, 1),
                            0, NMT_NONE, NMT_NONE};
    nmt_recorder_add_comm(recorder, &world);
    nmt_recorder_add_comm(recorder, &self);
}

static uint32_t equal_list(struct nmt_recorder *recorder, int count) {
    uint64_t values[64];
    if (count < 0)
        return NMT_NONE;
    for (int i = 0; i < count && i < 64; ++i)
        values[i] = 7;
    return nmt_recorder_list(recorder, values, (size_t)(count < 64 ? count : 64));
}

static int record(const char *part, const char *path) {
    struct nmt_recorder recorder;
    char directory[] = ".", word[16];
    if (!nmt_recorder_start(&recorder, directory))
        return 1;
    add_world(&recorder);
    while (scanf("%15s", word) == 1) {
        uint64_t bytes, code, enter_ns, leave_ns;
        int kind, peer, list;
        if (!strcmp(word, "poll") && scanf("%" SCNu64 "%" SCNu64, &enter_ns, &leave_ns) == 2) {
            nmt_recorder_poll(&recorder, enter_ns, leave_ns);
        } else if (scanf("%d%d%" SCNu64 "%d%" SCNu64 "%" SCNu64 "%" SCNu64, &kind, &peer, &bytes, &list, &code,
                         &enter_ns, &leave_ns) == 7) {
            struct nmt_call call = nmt_blank_call(kind, 0);
            call.peer = peer;
            call.bytes = bytes;
            call.list_a = equal_list(&recorder, list);
            nmt_recorder_note(&recorder, call, code, enter_ns, leave_ns);
        } else {
            return 2;
        }
    }
    struct nmt_run run = {
        .rank = 1, .ranks = 4, .trace_id = 42, .elapsed_ns = 1000, .meta = "node=n1\ncommand=drive\n"};
    int error = nmt_recorder_write(&recorder, &run, part, path);
    if (error)
        fprintf(stderr, "%s\n", recorder.failure ? recorder.failure : strerror(error));
    nmt_recorder_free(&recorder);
    return error != 0;
}

static int64_t answer(uint32_t slot) { return slot < NMT_SILENT ? (int64_t)slot : (int64_t)slot - NMT_NONE - 1; }

static int follow_requests(void) {
    struct nmt_requests requests = {0};
    const struct nmt_call calls[] = {nmt_blank_call(NMT_SEND, 0), nmt_blank_call(NMT_UNSUPPORTED, 0)};
    char word[16];
    uint64_t handle;
    const struct nmt_call *call;
    while (scanf("%15s%" SCNu64, word, &handle) == 2) {
        uint32_t slot = NMT_NONE;
        if (!strcmp(word, "new") || !strcmp(word, "persist"))
            slot = nmt_requests_take_slot(&requests);
        if (!strcmp(word, "new") || !strcmp(word, "null") || !strcmp(word, "other") || !strcmp(word, "persist"))
            nmt_requests_add(&requests, handle, slot, &calls[word[0] == 'o'], word[0] == 'p');
        else if (!strcmp(word, "done"))
            slot = nmt_requests_complete(&requests, handle);
        else if (!strcmp(word, "find"))
            slot = nmt_requests_find(&requests, handle, &call);
        else if (!strcmp(word, "start"))
            slot = nmt_requests_start(&requests, handle) ? 1 : NMT_NONE;
        else
            slot = nmt_requests_forget(&requests, handle, NULL) ? 1 : NMT_NONE;
        printf("%" PRId64 "\n", answer(slot));
    }
    nmt_requests_free(&requests);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 4 && !strcmp(argv[1], "record"))
        return record(argv[2], argv[3]);
    if (argc == 2 && !strcmp(argv[1], "requests"))
        return follow_requests();
    fprintf(stderr, "usage: drive record PART FILE | drive requests\n");
    return 2;
}
