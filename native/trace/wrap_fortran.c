/* wrap_fortran.c - the Fortran wrappers: calls.h once for each binding that calls PMPI_ functions in C, where a tracer
 * never sees them: Open MPI's `mpif.h`, `use mpi` and `use mpi_f08`, MPICH's `use mpi_f08` (its others call MPI_).
 *
 * All bindings pass every argument by reference and every handle as one integer (the types of mpi_f08 hold nothing
 * else), so one wrapper shape serves all. Only buffers differ: in MPICH's mpi_f08 calls with a buffer, whose names end
 * in `f08ts`, a buffer comes as an array descriptor, which starts with the address. Arguments are passed on unchanged;
 * only the description of the call reads them. `ierror` is optional in mpi_f08.
 */
#include "interpose.h"

#if defined(OPEN_MPI) || defined(MPICH_VERSION)

#include <dlfcn.h>
#include <string.h>

#include "each.h"

#define CODE __builtin_return_address(0)

_Static_assert(sizeof(MPI_Fint) == sizeof(int), "Fortran's default INTEGER must be C's int");

typedef void any_function(void);

/* Return the library's own function, looking it up at the first call. */
static any_function *real_function(const char *name) {
    void *symbol = dlsym(RTLD_NEXT, name);
    any_function *function;
    memcpy(&function, &symbol, sizeof function);
    return function;
}

/* The Fortran MPI_IN_PLACE is a variable of the library, known by its address. */
static const void *buffer_at(const void *buffer) {
    static const void *in_place;
    if (!in_place)
        in_place = dlsym(RTLD_DEFAULT, "mpi_fortran_in_place_");
    if (!in_place)
        in_place = dlsym(RTLD_DEFAULT, "MPIR_F08_MPI_IN_PLACE");
    return in_place && buffer == in_place ? MPI_IN_PLACE : buffer;
}

#ifdef MPICH_VERSION
static const void *buffer_of_descriptor(const void *descriptor) {
    const void *buffer;
    memcpy(&buffer, descriptor, sizeof buffer);
    return buffer_at(buffer);
}
#endif

#define c_buffer buffer_at

/* How an argument comes in, and what the description of a call reads. */
#define DECLARE(kind, x) void *f_##x
#define PASS(kind, x) f_##x
#define CONVERT(kind, x) __attribute__((unused)) V_##kind(x)
#define FINT(x) (*(const MPI_Fint *)f_##x)

#define V_IN_BUFFER(x) const void *x = c_buffer(f_##x)
#define V_OUT_BUFFER(x) const void *x = c_buffer(f_##x)
#define V_INT(x) int x = FINT(x)
#define V_COUNT(x) int x = FINT(x)
#define V_TYPE(x) MPI_Datatype x = PMPI_Type_f2c(FINT(x))
#define V_COMM(x) MPI_Comm x = PMPI_Comm_f2c(FINT(x))
#define V_COUNTS(x) const int *x = f_##x
#define V_TYPES(x) const MPI_Fint *x = f_##x
#define V_INT_OUT(x) const int *x = f_##x
#define V_INTS(x) void *x = f_##x
#define V_DISPLACEMENTS(x) void *x = f_##x
#define V_ADDRESS(x) void *x = f_##x
#define V_ADDRESSES(x) void *x = f_##x
#define V_ADDRESS_OUT(x) void *x = f_##x
#define V_COUNT_OUT(x) void *x = f_##x
#define V_UNIT(x) void *x = f_##x
#define V_TYPE_OUT(x) void *x = f_##x
#define V_OP(x) void *x = f_##x
#define V_COMM_OUT(x) void *x = f_##x
#define V_GROUP(x) void *x = f_##x
#define V_INFO(x) void *x = f_##x
#define V_STATUS(x) void *x = f_##x
#define V_REQUEST(x) void *x = f_##x
#define V_LARGE_COUNT(x) void *x = f_##x
#define V_REQUESTS(x) void *x = f_##x
#define V_REQUESTS_IN(x) void *x = f_##x
#define V_REQUEST_OUT(x) void *x = f_##x
#define V_MESSAGES(x) void *x = f_##x
#define V_WINDOW(x) void *x = f_##x
#define V_WINDOW_OUT(x) void *x = f_##x
#define V_FILE_HANDLE(x) void *x = f_##x
#define V_FILE_OUT(x) void *x = f_##x
#define V_OFFSET(x) void *x = f_##x

#define OUT_REQUEST(x) PMPI_Request_f2c(FINT(x))
#define OUT_COMM(x) PMPI_Comm_f2c(FINT(x))
#define OUT_MESSAGE(x) PMPI_Message_f2c(FINT(x))
#define OUT_INT(x) (*x)
#define INT_LIST(x) x
#define FIRST_INDEX 1
#define SNAPSHOT(count, requests) nmt_snapshot_fortran(&mark, count, f_##requests)
#define SNAPSHOT_ONE(request) nmt_snapshot_fortran(&mark, 1, f_##request)
#define SNAPSHOT_MESSAGE(message) nmt_snapshot_message_fortran(&mark, f_##message)
#define COUNTS(x) {x, false}
#define TYPES(x) {x, true}

/* One wrapper under the name `symbol`, for the library's function of that name. */
#define WRAP(symbol, Name, before, after, ...)                                                                         \
    void symbol(NMT_LIST(DECLARE, __VA_ARGS__), MPI_Fint *ierror);                                                     \
    void symbol(NMT_LIST(DECLARE, __VA_ARGS__), MPI_Fint *ierror) {                                                    \
        static void (*real)(NMT_LIST(DECLARE, __VA_ARGS__), MPI_Fint * error);                                         \
        if (!real)                                                                                                     \
            real = (void (*)(NMT_LIST(DECLARE, __VA_ARGS__), MPI_Fint * error)) real_function(#symbol);                \
        struct nmt_mark mark;                                                                                          \
        if (!nmt_enter(&mark, #Name, CODE)) {                                                                          \
            real(NMT_LIST(PASS, __VA_ARGS__), ierror);                                                                 \
            return;                                                                                                    \
        }                                                                                                              \
        NMT_STATEMENTS(CONVERT, __VA_ARGS__);                                                                          \
        before;                                                                                                        \
        real(NMT_LIST(PASS, __VA_ARGS__), ierror);                                                                     \
        nmt_leave(&mark);                                                                                              \
        if (!ierror || *ierror == MPI_SUCCESS)                                                                         \
            after;                                                                                                     \
        else                                                                                                           \
            nmt_note_failed(&mark);                                                                                    \
        nmt_done(&mark);                                                                                               \
    }

/* Strings come with their lengths as further arguments, behind `ierror`. */
#define WRAP_TEXT(symbol, Name, ...)                                                                                   \
    void symbol(NMT_LIST(DECLARE, __VA_ARGS__));                                                                       \
    void symbol(NMT_LIST(DECLARE, __VA_ARGS__)) {                                                                      \
        static void (*real)(NMT_LIST(DECLARE, __VA_ARGS__));                                                           \
        if (!real)                                                                                                     \
            real = (void (*)(NMT_LIST(DECLARE, __VA_ARGS__)))real_function(#symbol);                                   \
        struct nmt_mark mark;                                                                                          \
        bool noted = nmt_enter(&mark, #Name, CODE);                                                                    \
        real(NMT_LIST(PASS, __VA_ARGS__));                                                                             \
        if (!noted)                                                                                                    \
            return;                                                                                                    \
        nmt_leave(&mark);                                                                                              \
        nmt_note_unsupported(&mark);                                                                                   \
        nmt_done(&mark);                                                                                               \
    }

#define SPAWNED (INT, root), (COMM, comm), (COMM_OUT, created), (INT_OUT, errors), (INT_OUT, ierror)
#define CONNECTED                                                                                                      \
    (TEXT, port), (INFO, info), (INT, root), (COMM, comm), (COMM_OUT, created), (INT_OUT, ierror), (LENGTH, of_port)
#define FROM_GROUP                                                                                                     \
    (TEXT, tag), (INFO, info), (HANDLER, handler), (COMM_OUT, created), (INT_OUT, ierror), (LENGTH, of_tag)
#define WITH_TEXT(ROW)                                                                                                 \
    ROW(Comm_spawn, comm_spawn, (TEXT, command), (TEXTS, arguments), (INT, most), (INFO, info), SPAWNED,               \
        (LENGTH, of_command), (LENGTH, of_arguments))                                                                  \
    ROW(Comm_spawn_multiple, comm_spawn_multiple, (INT, count), (TEXTS, commands), (TEXT_LISTS, arguments),            \
        (INTS, most), (INFOS, infos), SPAWNED, (LENGTH, of_commands), (LENGTH, of_arguments))                          \
    ROW(Comm_accept, comm_accept, CONNECTED)                                                                           \
    ROW(Comm_connect, comm_connect, CONNECTED)                                                                         \
    ROW(File_open, file_open, (COMM, comm), (TEXT, path), (INT, how), (INFO, info), (FILE_OUT, file),                  \
        (INT_OUT, ierror), (LENGTH, of_path))                                                                          \
    ROW(File_delete, file_delete, (TEXT, path), (INFO, info), (INT_OUT, ierror), (LENGTH, of_path))                    \
    ROW(File_set_view, file_set_view, (FILE_HANDLE, file), (OFFSET, from), (TYPE, type), (TYPE, file_type),            \
        (TEXT, how), (INFO, info), (INT_OUT, ierror), (LENGTH, of_how))                                                \
    ROW(Comm_create_from_group, comm_create_from_group, (GROUP, group), FROM_GROUP)                                    \
    ROW(Intercomm_create_from_groups, intercomm_create_from_groups, (GROUP, group), (INT, leader), (GROUP, remote),    \
        (INT, remote_leader), FROM_GROUP)

/* The same function under the names that other compilers use. */
#define ALIAS(symbol, other) extern __typeof__(symbol) other __attribute__((alias(#symbol)))

/* The library's own Fortran start does more than MPI_Init, such as finding Fortran's constants: it must run. */
#define WRAP_START(symbol)                                                                                             \
    void symbol(MPI_Fint *ierror);                                                                                     \
    void symbol(MPI_Fint *ierror) {                                                                                    \
        uint64_t enter_ns = nmt_now_ns();                                                                              \
        int threads = MPI_THREAD_SINGLE;                                                                               \
        MPI_Fint status = MPI_SUCCESS;                                                                                 \
        nmt_nest(1);                                                                                                   \
        ((void (*)(MPI_Fint *))real_function(#symbol))(&status);                                                       \
        if (status == MPI_SUCCESS)                                                                                     \
            PMPI_Query_thread(&threads);                                                                               \
        nmt_init(status, enter_ns, threads);                                                                           \
        nmt_nest(-1);                                                                                                  \
        if (ierror)                                                                                                    \
            *ierror = status;                                                                                          \
    }

#define WRAP_START_THREADS(symbol)                                                                                     \
    void symbol(MPI_Fint *required, MPI_Fint *provided, MPI_Fint *ierror);                                             \
    void symbol(MPI_Fint *required, MPI_Fint *provided, MPI_Fint *ierror) {                                            \
        uint64_t enter_ns = nmt_now_ns();                                                                              \
        MPI_Fint status = MPI_SUCCESS;                                                                                 \
        nmt_nest(1);                                                                                                   \
        ((void (*)(MPI_Fint *, MPI_Fint *, MPI_Fint *))real_function(#symbol))(required, provided, &status);           \
        nmt_init(status, enter_ns, *provided);                                                                         \
        nmt_nest(-1);                                                                                                  \
        if (ierror)                                                                                                    \
            *ierror = status;                                                                                          \
    }

#define WRAP_END(symbol)                                                                                               \
    void symbol(MPI_Fint *ierror);                                                                                     \
    void symbol(MPI_Fint *ierror) {                                                                                    \
        nmt_finalize(CODE);                                                                                            \
        ((void (*)(MPI_Fint *))real_function(#symbol))(ierror);                                                        \
    }

/* It has no `ierror`. */
#define WRAP_MARK(symbol)                                                                                              \
    void symbol(const MPI_Fint *level);                                                                                \
    void symbol(const MPI_Fint *level) {                                                                               \
        struct nmt_mark mark;                                                                                          \
        if (!nmt_enter(&mark, "Pcontrol", CODE))                                                                       \
            return;                                                                                                    \
        nmt_leave(&mark);                                                                                              \
        nmt_mark_level(&mark, *level);                                                                                 \
        nmt_done(&mark);                                                                                               \
    }

#pragma GCC visibility push(default)

#define PLAIN ROW

#ifdef OPEN_MPI
#define BY_OLD_NAMES(symbol)                                                                                           \
    ALIAS(symbol##_, symbol);                                                                                          \
    ALIAS(symbol##_, symbol##__)

WRAP_START(mpi_init_)
WRAP_START_THREADS(mpi_init_thread_)
WRAP_END(mpi_finalize_)
WRAP_MARK(mpi_pcontrol_)
BY_OLD_NAMES(mpi_init);
BY_OLD_NAMES(mpi_init_thread);
BY_OLD_NAMES(mpi_finalize);
BY_OLD_NAMES(mpi_pcontrol);
#define ROW(Name, name, before, after, ...)                                                                            \
    WRAP(mpi_##name##_, Name, before, after, __VA_ARGS__)                                                              \
    BY_OLD_NAMES(mpi_##name);
#include "calls.h"
/* The same with an address of the type C_PTR, as in `use mpi`. */
UNSUPPORTED(Win_allocate, win_allocate_cptr, (ADDRESS, size), (UNIT, unit), WINDOW_PARAMETERS)
UNSUPPORTED(Win_allocate_shared, win_allocate_shared_cptr, (ADDRESS, size), (UNIT, unit), WINDOW_PARAMETERS)
#undef ROW
#define BY_REFERENCE(Name, name, ...)                                                                                  \
    WRAP_TEXT(mpi_##name##_, Name, __VA_ARGS__)                                                                        \
    BY_OLD_NAMES(mpi_##name);
WITH_TEXT(BY_REFERENCE)
#endif

WRAP_START(mpi_init_f08_)
WRAP_START_THREADS(mpi_init_thread_f08_)
WRAP_END(mpi_finalize_f08_)
WRAP_MARK(mpi_pcontrol_f08_)
#define ROW(Name, name, before, after, ...) WRAP(mpi_##name##_f08_, Name, before, after, __VA_ARGS__)
#include "calls.h"
#undef ROW
#define OF_F08(Name, name, ...) WRAP_TEXT(mpi_##name##_f08_, Name, __VA_ARGS__)
WITH_TEXT(OF_F08)

#ifdef MPICH_VERSION
#undef c_buffer
#define c_buffer buffer_of_descriptor
#define ROW(Name, name, before, after, ...) WRAP(mpi_##name##_f08ts_, Name, before, after, __VA_ARGS__)
#include "calls.h"
#undef ROW
#endif

#pragma GCC visibility pop

#else

/* ISO C wants a declaration in every file. */
typedef int nmt_no_fortran_wrappers;

#endif
