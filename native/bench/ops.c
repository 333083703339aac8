#include "ops.h"

#include <stdlib.h>
#include <string.h>

#include "payload.h"

static const struct op *const table[] = {
    &op_latency, &op_multi_latency, &op_bw,        &op_bibw,           &op_message_rate, &op_barrier,
    &op_bcast,   &op_reduce,        &op_allreduce, &op_allgather,      &op_alltoall,     &op_gather,
    &op_scatter, &op_exchange,      &op_halo,      &op_after_exchange, &op_one_way,
};

size_t op_count(void) { return sizeof table / sizeof table[0]; }

const struct op *op_at(size_t index) { return table[index]; }

const struct op *op_find(const char *name) {
    for (size_t i = 0; i < op_count(); i++)
        if (strcmp(table[i]->name, name) == 0)
            return table[i];
    return NULL;
}

const char *op_kind_name(enum op_kind kind) {
    static const char *const names[] = {"round_trip", "window", "collective", "exchange"};
    return names[kind];
}

const char *op_type_name(const struct op_run *run) {
    if (run->type == MPI_FLOAT)
        return "float32";
    return run->type == MPI_UINT8_T ? "uint8" : "byte";
}

bool op_allocate(struct op_run *run, size_t send_bytes, size_t receive_bytes, size_t request_count) {
    run->send_bytes = send_bytes;
    run->receive_bytes = receive_bytes;
    run->send = payload_allocate(send_bytes);
    run->receive = payload_allocate(receive_bytes);
    run->requests = malloc((request_count + 1) * sizeof run->requests[0]);
    if (run->send != NULL && run->receive != NULL && run->requests != NULL)
        return true;
    run->wanted_bytes = send_bytes + receive_bytes + (request_count + 1) * sizeof run->requests[0];
    return false;
}

void op_release(struct op_run *run) {
    free(run->send);
    free(run->receive);
    free(run->requests);
    run->send = run->receive = NULL;
    run->requests = NULL;
}
