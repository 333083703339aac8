/* wrap_c.c - the C wrappers: calls.h twice, with int counts and, where MPI has them, with MPI_Count counts. */
#include "each.h"
#include "interpose.h"

#define CODE __builtin_return_address(0)

/* The C type of each kind of parameter that has the same one in both forms. */
#define C_IN_BUFFER(x) const void *x
#define C_OUT_BUFFER(x) void *x
#define C_INT(x) int x
#define C_INTS(x) const int x[]
#define C_INT_OUT(x) int x[]
#define C_TYPE(x) MPI_Datatype x
#define C_TYPES(x) const MPI_Datatype x[]
#define C_TYPE_OUT(x) MPI_Datatype *x
#define C_OP(x) MPI_Op x
#define C_COMM(x) MPI_Comm x
#define C_COMM_OUT(x) MPI_Comm *x
#define C_GROUP(x) MPI_Group x
#define C_INFO(x) MPI_Info x
#define C_STATUS(x) MPI_Status x[]
#define C_REQUEST(x) MPI_Request x
#define C_REQUESTS(x) MPI_Request x[]
#define C_REQUESTS_IN(x) const MPI_Request x[]
#define C_REQUEST_OUT(x) MPI_Request *x
#define C_MESSAGES(x) MPI_Message *x
#define C_ADDRESS(x) MPI_Aint x
#define C_ADDRESSES(x) const MPI_Aint x[]
#define C_ADDRESS_OUT(x) void *x
#define C_WINDOW(x) MPI_Win x
#define C_WINDOW_OUT(x) MPI_Win *x
#define C_FILE_HANDLE(x) MPI_File x
#define C_FILE_OUT(x) MPI_File *x
#define C_OFFSET(x) MPI_Offset x
#define C_LARGE_COUNT(x) MPI_Count x
#define C_TEXT(x) const char *x
#define C_TEXTS(x) char *x[]
#define C_TEXT_LISTS(x) char **x[]
#define C_INFOS(x) const MPI_Info x[]
#define C_HANDLER(x) MPI_Errhandler x

#define DECLARE(kind, x) C_##kind(x)
#define PASS(kind, x) x

#define OUT_REQUEST(x) (*x)
#define OUT_COMM(x) (*x)
#define OUT_MESSAGE(x) (*x)
#define OUT_INT(x) (*x)
#define INT_LIST(x) x
#define FIRST_INDEX 0
#define SNAPSHOT(count, requests) nmt_snapshot(&mark, count, requests)
#define SNAPSHOT_ONE(request) nmt_snapshot(&mark, 1, &request)
#define SNAPSHOT_MESSAGE(message) nmt_snapshot_message(&mark, message)
#define TYPES(x) {x, false}

#define WRAP(Name, before, after, ...)                                                                                 \
    int MPI_##Name(NMT_LIST(DECLARE, __VA_ARGS__)) {                                                                   \
        struct nmt_mark mark;                                                                                          \
        if (!nmt_enter(&mark, #Name, CODE))                                                                            \
            return PMPI_##Name(NMT_LIST(PASS, __VA_ARGS__));                                                           \
        before;                                                                                                        \
        int status_of_call = PMPI_##Name(NMT_LIST(PASS, __VA_ARGS__));                                                 \
        nmt_leave(&mark);                                                                                              \
        if (status_of_call == MPI_SUCCESS)                                                                             \
            after;                                                                                                     \
        else                                                                                                           \
            nmt_note_failed(&mark);                                                                                    \
        nmt_done(&mark);                                                                                               \
        return status_of_call;                                                                                         \
    }

#pragma GCC visibility push(default)

int MPI_Init(int *argc, char ***argv) {
    uint64_t enter_ns = nmt_now_ns();
    nmt_nest(1);
    int result = PMPI_Init(argc, argv), threads = MPI_THREAD_SINGLE;
    if (result == MPI_SUCCESS)
        PMPI_Query_thread(&threads);
    nmt_init(result, enter_ns, threads);
    nmt_nest(-1);
    return result;
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided) {
    uint64_t enter_ns = nmt_now_ns();
    nmt_nest(1);
    int result = PMPI_Init_thread(argc, argv, required, provided);
    nmt_init(result, enter_ns, *provided);
    nmt_nest(-1);
    return result;
}

int MPI_Finalize(void) {
    nmt_finalize(CODE);
    return PMPI_Finalize();
}

/* Further arguments are for other profilers: this one takes none and passes none on. */
int MPI_Pcontrol(const int level, ...) {
    struct nmt_mark mark;
    int status = PMPI_Pcontrol(level);
    if (nmt_enter(&mark, "Pcontrol", CODE)) {
        nmt_leave(&mark);
        nmt_mark_level(&mark, level);
        nmt_done(&mark);
    }
    return status;
}

#define C_COUNT(x) int x
#define C_COUNT_OUT(x) int *x
#define C_UNIT(x) int x
#define C_COUNTS(x) const int x[]
#define C_DISPLACEMENTS(x) const int x[]
#define COUNTS(x) {x, false}
#define ROW(Name, name, before, after, ...) WRAP(Name, before, after, __VA_ARGS__)
#define PLAIN(Name, name, before, after, ...) WRAP(Name, before, after, __VA_ARGS__)
#include "calls.h"

/* Not in calls.h: Fortran passes the lengths of strings as further arguments (wrap_fortran.c). */
#define WITH_TEXT(Name, ...) WRAP(Name, NOTHING, nmt_note_unsupported(&mark), __VA_ARGS__)

WITH_TEXT(Comm_spawn, (TEXT, command), (TEXTS, arguments), (INT, most), (INFO, info), (INT, root), (COMM, comm),
          (COMM_OUT, created), (INT_OUT, errors))
WITH_TEXT(Comm_spawn_multiple, (INT, count), (TEXTS, commands), (TEXT_LISTS, arguments), (INTS, most), (INFOS, infos),
          (INT, root), (COMM, comm), (COMM_OUT, created), (INT_OUT, errors))
WITH_TEXT(Comm_accept, (TEXT, port), (INFO, info), (INT, root), (COMM, comm), (COMM_OUT, created))
WITH_TEXT(Comm_connect, (TEXT, port), (INFO, info), (INT, root), (COMM, comm), (COMM_OUT, created))
WITH_TEXT(File_open, (COMM, comm), (TEXT, path), (INT, how), (INFO, info), (FILE_OUT, file))
WITH_TEXT(File_delete, (TEXT, path), (INFO, info))
WITH_TEXT(File_set_view, (FILE_HANDLE, file), (OFFSET, from), (TYPE, type), (TYPE, file_type), (TEXT, how),
          (INFO, info))
#if NMT_MPI4
WITH_TEXT(Comm_create_from_group, (GROUP, group), (TEXT, tag), (INFO, info), (HANDLER, handler), (COMM_OUT, created))
WITH_TEXT(Intercomm_create_from_groups, (GROUP, group), (INT, leader), (GROUP, remote), (INT, remote_leader),
          (TEXT, tag), (INFO, info), (HANDLER, handler), (COMM_OUT, created))
#endif

#if MPI_VERSION >= 4
#undef C_COUNT
#undef C_COUNT_OUT
#undef C_UNIT
#undef C_COUNTS
#undef C_DISPLACEMENTS
#undef COUNTS
#undef ROW
#undef PLAIN
#define C_COUNT(x) MPI_Count x
#define C_COUNT_OUT(x) MPI_Count *x
#define C_UNIT(x) MPI_Aint x
#define C_COUNTS(x) const MPI_Count x[]
#define C_DISPLACEMENTS(x) const MPI_Aint x[]
#define COUNTS(x) {x, true}
#define ROW(Name, name, before, after, ...) WRAP(Name##_c, before, after, __VA_ARGS__)
#define PLAIN(...)
#include "calls.h"
#endif

#pragma GCC visibility pop
