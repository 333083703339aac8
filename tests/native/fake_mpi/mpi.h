/* An MPI whose every delay is known: ranks are coroutines of one process, each with a clock of its own.
 *
 * It stands in for a real one in tests of the instrument (tests/e2e/test_instrument.py): what the engine should have
 * stamped follows from the numbers below, to the nanosecond. It has only what nearmetal's own programs call. The
 * environment sets the numbers, all in ns:
 *
 *     FAKE_RANKS                 how many ranks
 *     FAKE_CLOCK=a,b,...         each rank's clock minus true time
 *     FAKE_EXTRA=a,b,...         extra time of each rank to leave a collective other than a barrier
 *     FAKE_STAMP, FAKE_PROBE     time to read the clock, and to probe for messages
 *     FAKE_SEND, FAKE_RECV       time of a rank for each message sent and received
 *     FAKE_WIRE, FAKE_BYTE       from the end of a send to the arrival: WIRE + bytes * BYTE
 *     FAKE_CALL                  from the last rank's arrival in a collective to its end, without EXTRA
 *     FAKE_TALLY                 a file that gets how many messages each rank sent, how often it probed, and yielded
 *     FAKE_SLOW_RANK, FAKE_SLOW_FROM, FAKE_SLOW_COUNT, FAKE_SLOW
 *                                this rank is this much late for this many collectives, from its n-th (from 0) on;
 *                                COUNT 0: for all from there
 *     FAKE_STALL_RANK, FAKE_STALL_FROM, FAKE_STALL_COUNT, FAKE_STALL
 *                                and this many of its sends take this much longer
 *     FAKE_COLD_FROM, FAKE_COLD_COUNT, FAKE_COLD
 *                                this many of each rank's clock readings take this much longer
 *     FAKE_FINALIZED             print `finalized RANK NS` on stderr, in true time
 *
 * One message can be corrupted, the FAKE_HARM_NUMBER-th (from 0) of FAKE_HARM_BYTES bytes that reaches FAKE_HARM_RANK;
 * in a collective, each rank's contribution is a message. FAKE_HARM says how: `flip` changes the byte FAKE_HARM_AT,
 * `short` omits the last byte, `lost` leaves the buffer as it was, `stale` delivers the previous message once more, and
 * `tag` changes the tag of the n-th message that this rank sends.
 *
 * It tolerates no errors: a length or type that differs from the sender's, ranks in different collectives, a request,
 * message, communicator or piece of memory that is left, and ranks that all wait, end the program with status 99. What
 * the machine below provides is in machine.h.
 */
#ifndef FAKE_MPI_H
#define FAKE_MPI_H

#include <stdint.h>

typedef int MPI_Comm;
typedef int MPI_Datatype; /* its size in bytes, and above 8 bits what it is */
typedef int MPI_Op;
typedef struct {
    int ignored;
} MPI_Status;
typedef struct {
    int open, receives;
    void *buffer;
    int count, peer, tag;
    MPI_Datatype type;
    MPI_Comm comm;
} MPI_Request;

enum { MPI_COMM_WORLD = 1, MPI_SUCCESS = 0, MPI_ANY_SOURCE = -1, MPI_MAX_PROCESSOR_NAME = 64 };
enum { MPI_MAX_LIBRARY_VERSION_STRING = 64, MPI_MAX = 1, MPI_SUM = 2, MPI_MIN = 3 };
enum {
    MPI_BYTE = 0x001,
    MPI_CHAR = 0x101,
    MPI_UINT8_T = 0x201,
    MPI_INT = 0x304,
    MPI_INT32_T = 0x404,
    MPI_FLOAT = 0x504,
    MPI_INT64_T = 0x608,
    MPI_UINT64_T = 0x708,
    MPI_DOUBLE = 0x808
};
#define MPI_IN_PLACE ((void *)-1)
#define MPI_STATUS_IGNORE ((MPI_Status *)0)
#define MPI_STATUSES_IGNORE ((MPI_Status *)0)

int MPI_Init(int *argc, char ***argv);
int MPI_Finalize(void);
_Noreturn int MPI_Abort(MPI_Comm comm, int status);
int MPI_Pcontrol(const int level, ...);
int MPI_Comm_rank(MPI_Comm comm, int *rank);
int MPI_Comm_size(MPI_Comm comm, int *size);
int MPI_Comm_dup(MPI_Comm comm, MPI_Comm *made);
int MPI_Comm_free(MPI_Comm *comm);
int MPI_Dims_create(int ranks, int dimensions, int *extents);
int MPI_Cart_create(MPI_Comm comm, int dimensions, const int *extents, const int *periodic, int reorder, MPI_Comm *made);
int MPI_Cart_shift(MPI_Comm comm, int dimension, int by, int *source, int *destination);
int MPI_Get_processor_name(char *name, int *length);
int MPI_Get_version(int *version, int *subversion);
int MPI_Get_library_version(char *version, int *length);

int MPI_Send(const void *data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm);
int MPI_Recv(void *data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Status *status);
int MPI_Sendrecv(const void *out, int out_count, MPI_Datatype out_type, int to, int out_tag, void *in, int in_count,
                 MPI_Datatype in_type, int from, int in_tag, MPI_Comm comm, MPI_Status *status);
int MPI_Isend(const void *data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request *made);
int MPI_Irecv(void *data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request *made);
int MPI_Waitall(int count, MPI_Request *requests, MPI_Status *statuses);
int MPI_Iprobe(int peer, int tag, MPI_Comm comm, int *found, MPI_Status *status);

int MPI_Barrier(MPI_Comm comm);
int MPI_Bcast(void *data, int count, MPI_Datatype type, int root, MPI_Comm comm);
int MPI_Reduce(const void *out, void *in, int count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm);
int MPI_Allreduce(const void *out, void *in, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm);
int MPI_Gather(const void *out, int out_count, MPI_Datatype out_type, void *in, int in_count, MPI_Datatype in_type,
               int root, MPI_Comm comm);
int MPI_Allgather(const void *out, int out_count, MPI_Datatype out_type, void *in, int in_count, MPI_Datatype in_type,
                  MPI_Comm comm);
int MPI_Scatter(const void *out, int out_count, MPI_Datatype out_type, void *in, int in_count, MPI_Datatype in_type,
                int root, MPI_Comm comm);
int MPI_Alltoall(const void *out, int out_count, MPI_Datatype out_type, void *in, int in_count, MPI_Datatype in_type,
                 MPI_Comm comm);

#endif
