/* A preloaded library that injects faults into MPI programs, through the profiling interface. MEDDLE selects one:
 * "flip": one byte of everything received is changed; "die": rank 1 is gone at its 40th send or receive; "stop": it
 * stands still there; "linger": patience ends while ranks make progress; "move": it continues on another processor. */
#include <mpi.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

static unsigned char *last_posted;

static int asked(const char *harm) {
    const char *value = getenv("MEDDLE");
    return value != NULL && strcmp(value, harm) == 0;
}

static void flip(void *bytes) {
    if (bytes != NULL && asked("flip"))
        ((unsigned char *)bytes)[0] ^= 0x40;
}

/* Continue on the next of the processors that the program was given. */
static void move(int turn) {
    static cpu_set_t all;
    cpu_set_t one;
    if (CPU_COUNT(&all) == 0)
        sched_getaffinity(0, sizeof all, &all);
    CPU_ZERO(&one);
    for (int cpu = 0, left = turn % CPU_COUNT(&all); left >= 0; cpu++)
        if (CPU_ISSET(cpu, &all) && left-- == 0)
            CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
}

static int is_second(void) {
    static int rank = -1;
    if (rank < 0)
        PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank == 1;
}

/* Patience as a program asks for it. That of "linger" ends after so many receives, not after a time: on a busy machine
 * none may be received in a second. For the same reason a rank that will stop does not lose its patience before. */
enum { PATIENT_RECEIVES = 20 };
static volatile sig_atomic_t receives_left;

unsigned alarm(unsigned seconds) {
    receives_left = seconds > 0 ? PATIENT_RECEIVES : 0;
    if (!asked("linger") && !(asked("stop") && is_second()))
        setitimer(ITIMER_REAL, &(const struct itimerval){.it_value.tv_sec = seconds}, NULL);
    return 0;
}

static void maybe_ring(void) {
    static const char message[] = "meddle: patience has ended\n";
    if (!asked("linger") || receives_left == 0 || --receives_left > 0)
        return;
    if (write(STDERR_FILENO, message, sizeof message - 1) > 0)
        raise(SIGALRM);
}

static void maybe_die(void) {
    static int calls;
    if (is_second() && ++calls == 40 && (asked("die") || asked("stop")))
        raise(asked("die") ? SIGKILL : SIGSTOP);
    if (is_second() && asked("move"))
        move(calls);
}

int MPI_Recv(void *bytes, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Status *status) {
    maybe_die();
    const int result = PMPI_Recv(bytes, count, type, source, tag, comm, status);
    maybe_ring();
    if (type == MPI_BYTE && tag == 1)
        flip(bytes);
    return result;
}

int MPI_Sendrecv(const void *out, int sent, MPI_Datatype type, int to, int tag, void *in, int count,
                 MPI_Datatype in_type, int from, int in_tag, MPI_Comm comm, MPI_Status *status) {
    const int result = PMPI_Sendrecv(out, sent, type, to, tag, in, count, in_type, from, in_tag, comm, status);
    if (in_type == MPI_BYTE && in_tag == 1)
        flip(in);
    return result;
}

int MPI_Irecv(void *bytes, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Request *request) {
    last_posted = bytes;
    return PMPI_Irecv(bytes, count, type, source, tag, comm, request);
}

int MPI_Waitall(int count, MPI_Request requests[], MPI_Status *statuses) {
    const int result = PMPI_Waitall(count, requests, statuses);
    flip(last_posted);
    return result;
}

int MPI_Bcast(void *bytes, int count, MPI_Datatype type, int root, MPI_Comm comm) {
    const int result = PMPI_Bcast(bytes, count, type, root, comm);
    if (type == MPI_BYTE)
        flip(bytes);
    return result;
}

int MPI_Reduce(const void *from, void *to, int count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm) {
    const int result = PMPI_Reduce(from, to, count, type, op, root, comm);
    if (type == MPI_FLOAT)
        flip(to);
    return result;
}

int MPI_Allreduce(const void *from, void *to, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
    const int result = PMPI_Allreduce(from, to, count, type, op, comm);
    if (type == MPI_FLOAT)
        flip(to);
    return result;
}

#define MOVER(NAME, ...)                                                                                               \
    int MPI_##NAME(const void *from, int sent, MPI_Datatype sent_type, void *to, int got, MPI_Datatype got_type,       \
                   __VA_ARGS__)

MOVER(Allgather, MPI_Comm comm) {
    const int result = PMPI_Allgather(from, sent, sent_type, to, got, got_type, comm);
    flip(to);
    return result;
}

MOVER(Alltoall, MPI_Comm comm) {
    const int result = PMPI_Alltoall(from, sent, sent_type, to, got, got_type, comm);
    flip(to);
    return result;
}

MOVER(Gather, int root, MPI_Comm comm) {
    const int result = PMPI_Gather(from, sent, sent_type, to, got, got_type, root, comm);
    if (sent_type == MPI_BYTE)
        flip(to);
    return result;
}

MOVER(Scatter, int root, MPI_Comm comm) {
    const int result = PMPI_Scatter(from, sent, sent_type, to, got, got_type, root, comm);
    flip(to);
    return result;
}
