/* calls.h - every MPI call that is traced, one row each; read by wrap_c.c and wrap_fortran.c, which define:
 *
 *   ROW(Name, name, before, after, parameters...)   a call with counts: also wrapped in its large-count form
 *   PLAIN(Name, name, before, after, parameters...) a call without counts
 *
 * `before` runs before the real call, `after` when it has succeeded. A parameter is (KIND, name); the kinds are the C
 * and Fortran types of wrap_*.c. In `after`, inputs go by their names; OUT_REQUEST(x), OUT_COMM(x), OUT_MESSAGE(x) and
 * OUT_INT(x) read outputs; COUNTS(x) and TYPES(x) pass arrays on; FIRST_INDEX is what arrays of indices count from.
 * `mark` is the call in progress.
 *
 * Blocking, non-blocking and persistent forms of one operation differ only in how they are noted, so they share a row:
 * P2P and COLLECTIVE below.
 */

#define NOTHING (void)0

#define BLOCKING(call) nmt_note(&mark, call)
#define REQUESTED(call) nmt_note_request(&mark, call, OUT_REQUEST(request))
#define PREPARED(call) nmt_note_persistent(&mark, call, OUT_REQUEST(request))

#define P2P(Name, name, call, ...)                                                                                     \
    ROW(Name, name, NOTHING, BLOCKING(call), __VA_ARGS__)                                                              \
    ROW(I##name, i##name, NOTHING, REQUESTED(call), __VA_ARGS__, (REQUEST_OUT, request))                               \
    ROW(Name##_init, name##_init, NOTHING, PREPARED(call), __VA_ARGS__, (REQUEST_OUT, request))

/* Persistent collectives came with MPI 4; Open MPI 5 has them although it calls itself 3.1. */
#if MPI_VERSION >= 4 || (defined(OPEN_MPI) && OMPI_MAJOR_VERSION >= 5)
#define NMT_MPI4 1
#define MPI4_ROW ROW
#define MPI4_PLAIN PLAIN
#else
#define NMT_MPI4 0
#define MPI4_ROW(...)
#define MPI4_PLAIN(...)
#endif

#define NMT_MPI41 (MPI_VERSION > 4 || (MPI_VERSION == 4 && MPI_SUBVERSION >= 1))

#define COLLECTIVE(Name, name, call, ...)                                                                              \
    ROW(Name, name, NOTHING, BLOCKING(call), __VA_ARGS__)                                                              \
    ROW(I##name, i##name, NOTHING, REQUESTED(call), __VA_ARGS__, (REQUEST_OUT, request))                               \
    MPI4_ROW(Name##_init, name##_init, NOTHING, PREPARED(call), __VA_ARGS__, (INFO, info), (REQUEST_OUT, request))

/* Neighbour collectives and scans exist in all three forms too; only the barrier has no counts. */
PLAIN(Barrier, barrier, NOTHING, BLOCKING(nmt_barrier(comm)), (COMM, comm))
PLAIN(Ibarrier, ibarrier, NOTHING, REQUESTED(nmt_barrier(comm)), (COMM, comm), (REQUEST_OUT, request))
MPI4_PLAIN(Barrier_init, barrier_init, NOTHING, PREPARED(nmt_barrier(comm)), (COMM, comm), (INFO, info),
           (REQUEST_OUT, request))

/* ---------------------------------------------------------------- one peer */

#define SEND_PARAMETERS (IN_BUFFER, buffer), (COUNT, count), (TYPE, type), (INT, peer), (INT, tag), (COMM, comm)
#define RECV_PARAMETERS (OUT_BUFFER, buffer), (COUNT, count), (TYPE, type), (INT, peer), (INT, tag), (COMM, comm)
#define ONE(kind, flags) nmt_p2p(kind, flags, count, type, peer, tag, comm)

P2P(Send, send, ONE(NMT_SEND, 0), SEND_PARAMETERS)
P2P(Ssend, ssend, ONE(NMT_SEND, NMT_SYNCHRONOUS), SEND_PARAMETERS)
P2P(Bsend, bsend, ONE(NMT_SEND, NMT_BUFFERED), SEND_PARAMETERS)
P2P(Rsend, rsend, ONE(NMT_SEND, NMT_READY), SEND_PARAMETERS)
ROW(Recv, recv, NOTHING, BLOCKING(ONE(NMT_RECV, 0)), RECV_PARAMETERS, (STATUS, status))
ROW(Irecv, irecv, NOTHING, REQUESTED(ONE(NMT_RECV, 0)), RECV_PARAMETERS, (REQUEST_OUT, request))
ROW(Recv_init, recv_init, NOTHING, PREPARED(ONE(NMT_RECV, 0)), RECV_PARAMETERS, (REQUEST_OUT, request))

#define BOTH                                                                                                           \
    nmt_sendrecv(nmt_p2p(NMT_SEND, 0, sendcount, sendtype, dest, sendtag, comm),                                       \
                 nmt_p2p(NMT_RECV, 0, recvcount, recvtype, source, recvtag, comm))
#define BOTH_PARAMETERS                                                                                                \
    (IN_BUFFER, sendbuf), (COUNT, sendcount), (TYPE, sendtype), (INT, dest), (INT, sendtag), (OUT_BUFFER, recvbuf),    \
        (COUNT, recvcount), (TYPE, recvtype), (INT, source), (INT, recvtag), (COMM, comm)
#define REPLACE                                                                                                        \
    nmt_sendrecv(nmt_p2p(NMT_SEND, 0, count, type, dest, sendtag, comm),                                               \
                 nmt_p2p(NMT_RECV, 0, count, type, source, recvtag, comm))
#define REPLACE_PARAMETERS                                                                                             \
    (OUT_BUFFER, buffer), (COUNT, count), (TYPE, type), (INT, dest), (INT, sendtag), (INT, source), (INT, recvtag),    \
        (COMM, comm)

ROW(Sendrecv, sendrecv, NOTHING, BLOCKING(BOTH), BOTH_PARAMETERS, (STATUS, status))
ROW(Sendrecv_replace, sendrecv_replace, NOTHING, BLOCKING(REPLACE), REPLACE_PARAMETERS, (STATUS, status))
/* One request for a send and a receive: a trace has one slot per request and one direction per slot. */
#define NEITHER nmt_blank_call(NMT_UNSUPPORTED, 0)
MPI4_ROW(Isendrecv, isendrecv, NOTHING, REQUESTED(NEITHER), BOTH_PARAMETERS, (REQUEST_OUT, request))
MPI4_ROW(Isendrecv_replace, isendrecv_replace, NOTHING, REQUESTED(NEITHER), REPLACE_PARAMETERS, (REQUEST_OUT, request))

/* ---------------------------------------------------------------- requests */

#define ALL 0, NULL, FIRST_INDEX
/* Even when they fail, as of a message that is too long, these end the requests. */
#define ENDED(count, requests) (SNAPSHOT(count, requests), (void)(mark.ends = true))

PLAIN(Wait, wait, ENDED(1, request), nmt_note_completed(&mark, 0, ALL), (REQUESTS, request), (STATUS, status))
PLAIN(Waitall, waitall, ENDED(count, requests), nmt_note_completed(&mark, 0, ALL), (INT, count), (REQUESTS, requests),
      (STATUS, statuses))
PLAIN(Waitany, waitany, SNAPSHOT(count, requests),
      nmt_note_completed(&mark, 0, OUT_INT(index) != MPI_UNDEFINED, INT_LIST(index), FIRST_INDEX), (INT, count),
      (REQUESTS, requests), (INT_OUT, index), (STATUS, status))
PLAIN(Waitsome, waitsome, SNAPSHOT(count, requests),
      nmt_note_completed(&mark, 0, OUT_INT(done) == MPI_UNDEFINED ? 0 : OUT_INT(done), INT_LIST(indices), FIRST_INDEX),
      (INT, count), (REQUESTS, requests), (INT_OUT, done), (INT_OUT, indices), (STATUS, statuses))
PLAIN(Test, test, ENDED(1, request), nmt_note_tested(&mark, OUT_INT(flag) != 0, ALL), (REQUESTS, request),
      (INT_OUT, flag), (STATUS, status))
PLAIN(Testall, testall, ENDED(count, requests), nmt_note_tested(&mark, OUT_INT(flag) != 0, ALL), (INT, count),
      (REQUESTS, requests), (INT_OUT, flag), (STATUS, statuses))
PLAIN(Testany, testany, SNAPSHOT(count, requests),
      nmt_note_tested(&mark, OUT_INT(flag) != 0, OUT_INT(index) != MPI_UNDEFINED, INT_LIST(index), FIRST_INDEX),
      (INT, count), (REQUESTS, requests), (INT_OUT, index), (INT_OUT, flag), (STATUS, status))
PLAIN(Testsome, testsome, SNAPSHOT(count, requests),
      nmt_note_tested(&mark, OUT_INT(done) != 0, OUT_INT(done) == MPI_UNDEFINED ? 0 : OUT_INT(done), INT_LIST(indices),
                      FIRST_INDEX),
      (INT, count), (REQUESTS, requests), (INT_OUT, done), (INT_OUT, indices), (STATUS, statuses))
PLAIN(Request_get_status, request_get_status, SNAPSHOT_ONE(request), nmt_note_queried(&mark, OUT_INT(flag) != 0),
      (REQUEST, request), (INT_OUT, flag), (STATUS, status))
/* MPI 4.1 queries several at once. Their time is waiting, and the wait that follows says what is complete. */
#if NMT_MPI41
#define QUERY(Name, name, ...)                                                                                         \
    PLAIN(Name, name, SNAPSHOT(count, requests), nmt_note_tested(&mark, false, ALL), (INT, count), __VA_ARGS__)
QUERY(Request_get_status_any, request_get_status_any, (REQUESTS_IN, requests), (INT_OUT, index), (INT_OUT, flag),
      (STATUS, status))
QUERY(Request_get_status_all, request_get_status_all, (REQUESTS_IN, requests), (INT_OUT, flag), (STATUS, statuses))
QUERY(Request_get_status_some, request_get_status_some, (REQUESTS_IN, requests), (INT_OUT, done), (INT_OUT, indices),
      (STATUS, statuses))
#endif
PLAIN(Start, start, SNAPSHOT(1, request), nmt_note_started(&mark), (REQUESTS, request))
PLAIN(Startall, startall, SNAPSHOT(count, requests), nmt_note_started(&mark), (INT, count), (REQUESTS, requests))
PLAIN(Request_free, request_free, SNAPSHOT(1, request), nmt_note_request_freed(&mark), (REQUESTS, request))
PLAIN(Cancel, cancel, SNAPSHOT(1, request), nmt_note_cancelled(&mark), (REQUESTS, request))

/* ---------------------------------------------------------------- probes */

#define MESSAGE nmt_message(&mark, count, type)

PLAIN(Probe, probe, NOTHING, nmt_note_probe(&mark, true, 0, source, tag, comm), (INT, source), (INT, tag), (COMM, comm),
      (STATUS, status))
PLAIN(Iprobe, iprobe, NOTHING, nmt_note_probe(&mark, OUT_INT(flag) != 0, NMT_POLLED, source, tag, comm), (INT, source),
      (INT, tag), (COMM, comm), (INT_OUT, flag), (STATUS, status))
PLAIN(Mprobe, mprobe, NOTHING,
      (nmt_note_probe(&mark, true, 0, source, tag, comm),
       nmt_note_message(&mark, source, tag, comm, OUT_MESSAGE(message))),
      (INT, source), (INT, tag), (COMM, comm), (MESSAGES, message), (STATUS, status))
PLAIN(Improbe, improbe, NOTHING,
      (nmt_note_probe(&mark, OUT_INT(flag) != 0, NMT_POLLED, source, tag, comm),
       OUT_INT(flag) ? nmt_note_message(&mark, source, tag, comm, OUT_MESSAGE(message)) : NOTHING),
      (INT, source), (INT, tag), (COMM, comm), (INT_OUT, flag), (MESSAGES, message), (STATUS, status))
ROW(Mrecv, mrecv, SNAPSHOT_MESSAGE(message), BLOCKING(MESSAGE), (OUT_BUFFER, buffer), (COUNT, count), (TYPE, type),
    (MESSAGES, message), (STATUS, status))
ROW(Imrecv, imrecv, SNAPSHOT_MESSAGE(message), REQUESTED(MESSAGE), (OUT_BUFFER, buffer), (COUNT, count), (TYPE, type),
    (MESSAGES, message), (REQUEST_OUT, request))

/* ---------------------------------------------------------------- collectives */

#define SIDE(buffer, count, type) ((struct nmt_side){buffer, count, type})
#define VECTOR(buffer, counts, type) ((struct nmt_vector){buffer, COUNTS(counts), {NULL, false}, type})
#define TYPED_VECTOR(buffer, counts, types) ((struct nmt_vector){buffer, COUNTS(counts), TYPES(types), MPI_BYTE})
#define SENT SIDE(sendbuf, sendcount, sendtype)
#define RECEIVED SIDE(recvbuf, recvcount, recvtype)
#define SENT_MANY VECTOR(sendbuf, sendcounts, sendtype)
#define RECEIVED_MANY VECTOR(recvbuf, recvcounts, recvtype)
#define SENT_TYPED TYPED_VECTOR(sendbuf, sendcounts, sendtypes)
#define RECEIVED_TYPED TYPED_VECTOR(recvbuf, recvcounts, recvtypes)

#define GIVE (IN_BUFFER, sendbuf), (COUNT, sendcount), (TYPE, sendtype)
#define TAKE (OUT_BUFFER, recvbuf), (COUNT, recvcount), (TYPE, recvtype)
#define GIVE_MANY (IN_BUFFER, sendbuf), (COUNTS, sendcounts), (DISPLACEMENTS, sdispls), (TYPE, sendtype)
#define TAKE_MANY (OUT_BUFFER, recvbuf), (COUNTS, recvcounts), (DISPLACEMENTS, rdispls), (TYPE, recvtype)
#define GIVE_TYPED(how) (IN_BUFFER, sendbuf), (COUNTS, sendcounts), (how, sdispls), (TYPES, sendtypes)
#define TAKE_TYPED(how) (OUT_BUFFER, recvbuf), (COUNTS, recvcounts), (how, rdispls), (TYPES, recvtypes)
#define REDUCTION (IN_BUFFER, sendbuf), (OUT_BUFFER, recvbuf), (COUNT, count), (TYPE, type), (OP, op)
#define ROOTED (INT, root), (COMM, comm)

COLLECTIVE(Bcast, bcast, nmt_whole(NMT_BCAST, count, type, root, comm, NULL), (OUT_BUFFER, buffer), (COUNT, count),
           (TYPE, type), ROOTED)
COLLECTIVE(Reduce, reduce, nmt_whole(NMT_REDUCE, count, type, root, comm, sendbuf), REDUCTION, ROOTED)
COLLECTIVE(Allreduce, allreduce, nmt_whole(NMT_ALLREDUCE, count, type, -1, comm, sendbuf), REDUCTION, (COMM, comm))
COLLECTIVE(Scan, scan, nmt_whole(NMT_SCAN, count, type, -1, comm, sendbuf), REDUCTION, (COMM, comm))
COLLECTIVE(Exscan, exscan, nmt_whole(NMT_EXSCAN, count, type, -1, comm, sendbuf), REDUCTION, (COMM, comm))
COLLECTIVE(Reduce_scatter_block, reduce_scatter_block, nmt_whole(NMT_REDUCE_SCATTER, count, type, -1, comm, sendbuf),
           REDUCTION, (COMM, comm))
COLLECTIVE(Reduce_scatter, reduce_scatter,
           nmt_one_to_many(NMT_REDUCE_SCATTER, SIDE(sendbuf, 0, type), VECTOR(recvbuf, counts, type), -1, comm),
           (IN_BUFFER, sendbuf), (OUT_BUFFER, recvbuf), (COUNTS, counts), (TYPE, type), (OP, op), (COMM, comm))
COLLECTIVE(Gather, gather, nmt_exchange(NMT_GATHER, SENT, RECEIVED, root, comm), GIVE, TAKE, ROOTED)
COLLECTIVE(Allgather, allgather, nmt_exchange(NMT_ALLGATHER, SENT, RECEIVED, -1, comm), GIVE, TAKE, (COMM, comm))
COLLECTIVE(Scatter, scatter, nmt_exchange(NMT_SCATTER, RECEIVED, SENT, root, comm), GIVE, TAKE, ROOTED)
COLLECTIVE(Alltoall, alltoall, nmt_exchange(NMT_ALLTOALL, SENT, RECEIVED, -1, comm), GIVE, TAKE, (COMM, comm))
COLLECTIVE(Gatherv, gatherv, nmt_one_to_many(NMT_GATHER, SENT, RECEIVED_MANY, root, comm), GIVE, TAKE_MANY, ROOTED)
COLLECTIVE(Scatterv, scatterv, nmt_one_to_many(NMT_SCATTER, RECEIVED, SENT_MANY, root, comm), GIVE_MANY, TAKE, ROOTED)
COLLECTIVE(Allgatherv, allgatherv, nmt_one_to_many(NMT_ALLGATHER, SENT, RECEIVED_MANY, -1, comm), GIVE, TAKE_MANY,
           (COMM, comm))
COLLECTIVE(Alltoallv, alltoallv, nmt_many_to_many(NMT_ALLTOALL, SENT_MANY, RECEIVED_MANY, comm), GIVE_MANY, TAKE_MANY,
           (COMM, comm))
COLLECTIVE(Alltoallw, alltoallw, nmt_many_to_many(NMT_ALLTOALL, SENT_TYPED, RECEIVED_TYPED, comm),
           GIVE_TYPED(DISPLACEMENTS), TAKE_TYPED(DISPLACEMENTS), (COMM, comm))
COLLECTIVE(Neighbor_allgather, neighbor_allgather, nmt_exchange(NMT_NEIGHBOR_ALLGATHER, SENT, RECEIVED, -1, comm), GIVE,
           TAKE, (COMM, comm))
COLLECTIVE(Neighbor_allgatherv, neighbor_allgatherv,
           nmt_one_to_many(NMT_NEIGHBOR_ALLGATHER, SENT, RECEIVED_MANY, -1, comm), GIVE, TAKE_MANY, (COMM, comm))
COLLECTIVE(Neighbor_alltoall, neighbor_alltoall, nmt_exchange(NMT_NEIGHBOR_ALLTOALL, SENT, RECEIVED, -1, comm), GIVE,
           TAKE, (COMM, comm))
COLLECTIVE(Neighbor_alltoallv, neighbor_alltoallv,
           nmt_many_to_many(NMT_NEIGHBOR_ALLTOALL, SENT_MANY, RECEIVED_MANY, comm), GIVE_MANY, TAKE_MANY, (COMM, comm))
COLLECTIVE(Neighbor_alltoallw, neighbor_alltoallw,
           nmt_many_to_many(NMT_NEIGHBOR_ALLTOALL, SENT_TYPED, RECEIVED_TYPED, comm), GIVE_TYPED(ADDRESSES),
           TAKE_TYPED(ADDRESSES), (COMM, comm))

/* ---------------------------------------------------------------- communicators */

#define MADE_BY(call, kind, rule) nmt_note_new_comm(&mark, call, kind, rule, comm, OUT_COMM(created))
#define MADE(call, kind) MADE_BY(call, kind, NMT_AS_TOLD)
/* The ranks of each node, or of each part of one: other ranks where ranks are placed in another way. */
#define BY_PLACE (colour == MPI_COMM_TYPE_SHARED ? NMT_BY_NODE : NMT_BY_PART)

PLAIN(Comm_dup, comm_dup, NOTHING, MADE(NMT_COMM_DUP, NMT_DUP), (COMM, comm), (COMM_OUT, created))
PLAIN(Comm_dup_with_info, comm_dup_with_info, NOTHING, MADE(NMT_COMM_DUP, NMT_DUP), (COMM, comm), (INFO, info),
      (COMM_OUT, created))
PLAIN(Comm_split, comm_split, NOTHING, MADE(NMT_COMM_SPLIT, NMT_SPLIT), (COMM, comm), (INT, colour), (INT, key),
      (COMM_OUT, created))
PLAIN(Comm_split_type, comm_split_type, NOTHING, MADE_BY(NMT_COMM_SPLIT, NMT_SPLIT, BY_PLACE), (COMM, comm),
      (INT, colour), (INT, key), (INFO, info), (COMM_OUT, created))
PLAIN(Comm_create, comm_create, NOTHING, MADE(NMT_COMM_CREATE, NMT_CREATE), (COMM, comm), (GROUP, group),
      (COMM_OUT, created))
PLAIN(Comm_create_group, comm_create_group, NOTHING, nmt_note_group_comm(&mark, comm, OUT_COMM(created)), (COMM, comm),
      (GROUP, group), (INT, tag), (COMM_OUT, created))
PLAIN(Intercomm_create, intercomm_create, NOTHING, nmt_note_inter_comm(&mark, comm, OUT_COMM(created)), (COMM, comm),
      (INT, leader), (COMM, peer_comm), (INT, remote_leader), (INT, tag), (COMM_OUT, created))
PLAIN(Intercomm_merge, intercomm_merge, NOTHING, MADE(NMT_COMM_CREATE, NMT_CREATE), (COMM, comm), (INT, high),
      (COMM_OUT, created))
PLAIN(Cart_create, cart_create, NOTHING, MADE(NMT_CART_CREATE, NMT_CART), (COMM, comm), (INT, dimensions), (INTS, dims),
      (INTS, periods), (INT, reorder), (COMM_OUT, created))
PLAIN(Cart_sub, cart_sub, NOTHING, MADE(NMT_COMM_SPLIT, NMT_CART), (COMM, comm), (INTS, remain), (COMM_OUT, created))
PLAIN(Graph_create, graph_create, NOTHING, MADE(NMT_COMM_CREATE, NMT_CREATE), (COMM, comm), (INT, nodes),
      (INTS, degrees), (INTS, edges), (INT, reorder), (COMM_OUT, created))
PLAIN(Dist_graph_create_adjacent, dist_graph_create_adjacent, NOTHING, MADE(NMT_COMM_CREATE, NMT_CREATE), (COMM, comm),
      (INT, indegree), (INTS, sources), (INTS, sourceweights), (INT, outdegree), (INTS, destinations),
      (INTS, destweights), (INFO, info), (INT, reorder), (COMM_OUT, created))
PLAIN(Dist_graph_create, dist_graph_create, NOTHING, MADE(NMT_COMM_CREATE, NMT_CREATE), (COMM, comm), (INT, nodes),
      (INTS, sources), (INTS, degrees), (INTS, destinations), (INTS, weights), (INFO, info), (INT, reorder),
      (COMM_OUT, created))
PLAIN(Comm_free, comm_free, nmt_snapshot_comm(&mark, OUT_COMM(comm)), nmt_note_comm_freed(&mark), (COMM_OUT, comm))
PLAIN(Comm_disconnect, comm_disconnect, nmt_snapshot_comm(&mark, OUT_COMM(comm)), nmt_note_comm_freed(&mark),
      (COMM_OUT, comm))

/* MPI_Comm_idup: the known libraries set its handle at once, and it is used only after the request completed. */
#define MADE_SOON                                                                                                      \
    (MADE(NMT_COMM_DUP, NMT_DUP), nmt_note_request(&mark, nmt_blank_call(NMT_SKIP, 0), OUT_REQUEST(request)))

PLAIN(Comm_idup, comm_idup, NOTHING, MADE_SOON, (COMM, comm), (COMM_OUT, created), (REQUEST_OUT, request))
MPI4_PLAIN(Comm_idup_with_info, comm_idup_with_info, NOTHING, MADE_SOON, (COMM, comm), (INFO, info),
           (COMM_OUT, created), (REQUEST_OUT, request))

/* ---------------------------------------------------------------- on this rank only: counted, part of compute */

#define LOCAL(Name, name, ...) ROW(Name, name, NOTHING, nmt_note_local(&mark), __VA_ARGS__)
#define LOCAL_PLAIN(Name, name, ...) PLAIN(Name, name, NOTHING, nmt_note_local(&mark), __VA_ARGS__)

LOCAL(Type_contiguous, type_contiguous, (COUNT, count), (TYPE, type), (TYPE_OUT, created))
LOCAL(Type_vector, type_vector, (COUNT, count), (COUNT, length), (COUNT, stride), (TYPE, type), (TYPE_OUT, created))
LOCAL(Type_indexed, type_indexed, (COUNT, count), (COUNTS, lengths), (COUNTS, displs), (TYPE, type),
      (TYPE_OUT, created))
LOCAL(Type_create_indexed_block, type_create_indexed_block, (COUNT, count), (COUNT, length), (COUNTS, displs),
      (TYPE, type), (TYPE_OUT, created))
LOCAL(Type_create_subarray, type_create_subarray, (INT, dimensions), (COUNTS, sizes), (COUNTS, subsizes),
      (COUNTS, starts), (INT, order), (TYPE, type), (TYPE_OUT, created))
LOCAL_PLAIN(Type_create_struct, type_create_struct, (INT, count), (INTS, lengths), (ADDRESSES, displs), (TYPES, types),
            (TYPE_OUT, created))
LOCAL_PLAIN(Type_create_hvector, type_create_hvector, (INT, count), (INT, length), (ADDRESS, stride), (TYPE, type),
            (TYPE_OUT, created))
LOCAL_PLAIN(Type_create_hindexed, type_create_hindexed, (INT, count), (INTS, lengths), (ADDRESSES, displs),
            (TYPE, type), (TYPE_OUT, created))
LOCAL_PLAIN(Type_create_resized, type_create_resized, (TYPE, type), (ADDRESS, lower), (ADDRESS, extent),
            (TYPE_OUT, created))
LOCAL_PLAIN(Type_dup, type_dup, (TYPE, type), (TYPE_OUT, created))
LOCAL_PLAIN(Type_commit, type_commit, (TYPE_OUT, type))
LOCAL_PLAIN(Type_free, type_free, (TYPE_OUT, type))
LOCAL_PLAIN(Cart_coords, cart_coords, (COMM, comm), (INT, rank), (INT, dimensions), (INT_OUT, coordinates))
LOCAL_PLAIN(Cart_rank, cart_rank, (COMM, comm), (INTS, coordinates), (INT_OUT, rank))
LOCAL_PLAIN(Cart_shift, cart_shift, (COMM, comm), (INT, direction), (INT, by), (INT_OUT, source), (INT_OUT, dest))

/* ---------------------------------------------------------------- seen, but the format has no kind for them */

#define UNSUPPORTED(Name, name, ...) ROW(Name, name, NOTHING, nmt_note_unsupported(&mark), __VA_ARGS__)
#define UNSUPPORTED_PLAIN(Name, name, ...) PLAIN(Name, name, NOTHING, nmt_note_unsupported(&mark), __VA_ARGS__)

#define TARGET (INT, target), (ADDRESS, displacement), (COUNT, target_count), (TYPE, target_type)
#define ORIGIN(how) (how, origin), (COUNT, count), (TYPE, type)

UNSUPPORTED(Put, put, ORIGIN(IN_BUFFER), TARGET, (WINDOW, window))
UNSUPPORTED(Get, get, ORIGIN(OUT_BUFFER), TARGET, (WINDOW, window))
UNSUPPORTED(Accumulate, accumulate, ORIGIN(IN_BUFFER), TARGET, (OP, op), (WINDOW, window))
UNSUPPORTED(Rput, rput, ORIGIN(IN_BUFFER), TARGET, (WINDOW, window), (REQUEST_OUT, request))
UNSUPPORTED(Rget, rget, ORIGIN(OUT_BUFFER), TARGET, (WINDOW, window), (REQUEST_OUT, request))
UNSUPPORTED(Raccumulate, raccumulate, ORIGIN(IN_BUFFER), TARGET, (OP, op), (WINDOW, window), (REQUEST_OUT, request))
UNSUPPORTED(Get_accumulate, get_accumulate, ORIGIN(IN_BUFFER), (OUT_BUFFER, result), (COUNT, result_count),
            (TYPE, result_type), TARGET, (OP, op), (WINDOW, window))
UNSUPPORTED_PLAIN(Fetch_and_op, fetch_and_op, (IN_BUFFER, origin), (OUT_BUFFER, result), (TYPE, type), (INT, target),
                  (ADDRESS, displacement), (OP, op), (WINDOW, window))
UNSUPPORTED_PLAIN(Compare_and_swap, compare_and_swap, (IN_BUFFER, origin), (IN_BUFFER, compare), (OUT_BUFFER, result),
                  (TYPE, type), (INT, target), (ADDRESS, displacement), (WINDOW, window))
UNSUPPORTED_PLAIN(Win_fence, win_fence, (INT, assertion), (WINDOW, window))
UNSUPPORTED_PLAIN(Win_post, win_post, (GROUP, group), (INT, assertion), (WINDOW, window))
UNSUPPORTED_PLAIN(Win_start, win_start, (GROUP, group), (INT, assertion), (WINDOW, window))
UNSUPPORTED_PLAIN(Win_complete, win_complete, (WINDOW, window))
UNSUPPORTED_PLAIN(Win_wait, win_wait, (WINDOW, window))
UNSUPPORTED_PLAIN(Win_lock, win_lock, (INT, kind), (INT, rank), (INT, assertion), (WINDOW, window))
UNSUPPORTED_PLAIN(Win_unlock, win_unlock, (INT, rank), (WINDOW, window))
UNSUPPORTED_PLAIN(Win_lock_all, win_lock_all, (INT, assertion), (WINDOW, window))
UNSUPPORTED_PLAIN(Win_unlock_all, win_unlock_all, (WINDOW, window))
UNSUPPORTED_PLAIN(Win_flush, win_flush, (INT, rank), (WINDOW, window))
UNSUPPORTED_PLAIN(Win_flush_all, win_flush_all, (WINDOW, window))

UNSUPPORTED(Rget_accumulate, rget_accumulate, ORIGIN(IN_BUFFER), (OUT_BUFFER, result), (COUNT, result_count),
            (TYPE, result_type), TARGET, (OP, op), (WINDOW, window), (REQUEST_OUT, request))
UNSUPPORTED_PLAIN(Win_flush_local, win_flush_local, (INT, rank), (WINDOW, window))
UNSUPPORTED_PLAIN(Win_flush_local_all, win_flush_local_all, (WINDOW, window))
UNSUPPORTED_PLAIN(Win_test, win_test, (WINDOW, window), (INT_OUT, flag))
UNSUPPORTED_PLAIN(Win_sync, win_sync, (WINDOW, window))

#define WINDOW_PARAMETERS (INFO, info), (COMM, comm), (ADDRESS_OUT, base), (WINDOW_OUT, window)

UNSUPPORTED(Win_create, win_create, (OUT_BUFFER, base), (ADDRESS, size), (UNIT, unit), (INFO, info), (COMM, comm),
            (WINDOW_OUT, window))
UNSUPPORTED(Win_allocate, win_allocate, (ADDRESS, size), (UNIT, unit), WINDOW_PARAMETERS)
UNSUPPORTED(Win_allocate_shared, win_allocate_shared, (ADDRESS, size), (UNIT, unit), WINDOW_PARAMETERS)
UNSUPPORTED_PLAIN(Win_create_dynamic, win_create_dynamic, (INFO, info), (COMM, comm), (WINDOW_OUT, window))
UNSUPPORTED_PLAIN(Win_free, win_free, (WINDOW_OUT, window))

/* It waits until all buffered messages have left. */
UNSUPPORTED(Buffer_detach, buffer_detach, (ADDRESS_OUT, buffer), (COUNT_OUT, size))
#if NMT_MPI41
UNSUPPORTED(Comm_detach_buffer, comm_detach_buffer, (COMM, comm), (ADDRESS_OUT, buffer), (COUNT_OUT, size))
UNSUPPORTED_PLAIN(Comm_flush_buffer, comm_flush_buffer, (COMM, comm))
#endif

/* Partitioned messages: the requests are not known to us, so starting them and waiting for them is not recorded.
 * MPI_Pready_list has no one prototype. */
#define PARTITIONED(Name, name, ...) MPI4_PLAIN(Name, name, NOTHING, nmt_note_unsupported(&mark), __VA_ARGS__)
#define PARTS(how)                                                                                                     \
    (how, buffer), (INT, parts), (LARGE_COUNT, count), (TYPE, type), (INT, peer), (INT, tag), (COMM, comm),            \
        (INFO, info), (REQUEST_OUT, request)

PARTITIONED(Psend_init, psend_init, PARTS(IN_BUFFER))
PARTITIONED(Precv_init, precv_init, PARTS(OUT_BUFFER))
PARTITIONED(Pready, pready, (INT, part), (REQUEST, request))
PARTITIONED(Pready_range, pready_range, (INT, first), (INT, last), (REQUEST, request))
PARTITIONED(Parrived, parrived, (REQUEST, request), (INT, part), (INT_OUT, flag))

#define FILE_WRITE (IN_BUFFER, buffer), (COUNT, count), (TYPE, type), (STATUS, status)
#define FILE_READ (OUT_BUFFER, buffer), (COUNT, count), (TYPE, type), (STATUS, status)

UNSUPPORTED(File_read, file_read, (FILE_HANDLE, file), FILE_READ)
UNSUPPORTED(File_read_all, file_read_all, (FILE_HANDLE, file), FILE_READ)
UNSUPPORTED(File_read_at, file_read_at, (FILE_HANDLE, file), (OFFSET, offset), FILE_READ)
UNSUPPORTED(File_read_at_all, file_read_at_all, (FILE_HANDLE, file), (OFFSET, offset), FILE_READ)
UNSUPPORTED(File_write, file_write, (FILE_HANDLE, file), FILE_WRITE)
UNSUPPORTED(File_write_all, file_write_all, (FILE_HANDLE, file), FILE_WRITE)
UNSUPPORTED(File_write_at, file_write_at, (FILE_HANDLE, file), (OFFSET, offset), FILE_WRITE)
UNSUPPORTED(File_write_at_all, file_write_at_all, (FILE_HANDLE, file), (OFFSET, offset), FILE_WRITE)
UNSUPPORTED(File_read_shared, file_read_shared, (FILE_HANDLE, file), FILE_READ)
UNSUPPORTED(File_read_ordered, file_read_ordered, (FILE_HANDLE, file), FILE_READ)
UNSUPPORTED(File_write_shared, file_write_shared, (FILE_HANDLE, file), FILE_WRITE)
UNSUPPORTED(File_write_ordered, file_write_ordered, (FILE_HANDLE, file), FILE_WRITE)

#define IN_MEMORY (IN_BUFFER, buffer), (COUNT, count), (TYPE, type)
#define OUT_MEMORY (OUT_BUFFER, buffer), (COUNT, count), (TYPE, type)

UNSUPPORTED(File_iread, file_iread, (FILE_HANDLE, file), OUT_MEMORY, (REQUEST_OUT, request))
UNSUPPORTED(File_iread_all, file_iread_all, (FILE_HANDLE, file), OUT_MEMORY, (REQUEST_OUT, request))
UNSUPPORTED(File_iread_at, file_iread_at, (FILE_HANDLE, file), (OFFSET, offset), OUT_MEMORY, (REQUEST_OUT, request))
UNSUPPORTED(File_iread_at_all, file_iread_at_all, (FILE_HANDLE, file), (OFFSET, offset), OUT_MEMORY,
            (REQUEST_OUT, request))
UNSUPPORTED(File_iread_shared, file_iread_shared, (FILE_HANDLE, file), OUT_MEMORY, (REQUEST_OUT, request))
UNSUPPORTED(File_iwrite, file_iwrite, (FILE_HANDLE, file), IN_MEMORY, (REQUEST_OUT, request))
UNSUPPORTED(File_iwrite_all, file_iwrite_all, (FILE_HANDLE, file), IN_MEMORY, (REQUEST_OUT, request))
UNSUPPORTED(File_iwrite_at, file_iwrite_at, (FILE_HANDLE, file), (OFFSET, offset), IN_MEMORY, (REQUEST_OUT, request))
UNSUPPORTED(File_iwrite_at_all, file_iwrite_at_all, (FILE_HANDLE, file), (OFFSET, offset), IN_MEMORY,
            (REQUEST_OUT, request))
UNSUPPORTED(File_iwrite_shared, file_iwrite_shared, (FILE_HANDLE, file), IN_MEMORY, (REQUEST_OUT, request))
UNSUPPORTED(File_read_all_begin, file_read_all_begin, (FILE_HANDLE, file), OUT_MEMORY)
UNSUPPORTED(File_read_at_all_begin, file_read_at_all_begin, (FILE_HANDLE, file), (OFFSET, offset), OUT_MEMORY)
UNSUPPORTED(File_read_ordered_begin, file_read_ordered_begin, (FILE_HANDLE, file), OUT_MEMORY)
UNSUPPORTED(File_write_all_begin, file_write_all_begin, (FILE_HANDLE, file), IN_MEMORY)
UNSUPPORTED(File_write_at_all_begin, file_write_at_all_begin, (FILE_HANDLE, file), (OFFSET, offset), IN_MEMORY)
UNSUPPORTED(File_write_ordered_begin, file_write_ordered_begin, (FILE_HANDLE, file), IN_MEMORY)

#define READ (FILE_HANDLE, file), (OUT_BUFFER, buffer), (STATUS, status)
#define WRITTEN (FILE_HANDLE, file), (IN_BUFFER, buffer), (STATUS, status)

UNSUPPORTED_PLAIN(File_read_all_end, file_read_all_end, READ)
UNSUPPORTED_PLAIN(File_read_at_all_end, file_read_at_all_end, READ)
UNSUPPORTED_PLAIN(File_read_ordered_end, file_read_ordered_end, READ)
UNSUPPORTED_PLAIN(File_write_all_end, file_write_all_end, WRITTEN)
UNSUPPORTED_PLAIN(File_write_at_all_end, file_write_at_all_end, WRITTEN)
UNSUPPORTED_PLAIN(File_write_ordered_end, file_write_ordered_end, WRITTEN)
UNSUPPORTED_PLAIN(File_close, file_close, (FILE_OUT, file))
UNSUPPORTED_PLAIN(File_sync, file_sync, (FILE_HANDLE, file))
UNSUPPORTED_PLAIN(File_preallocate, file_preallocate, (FILE_HANDLE, file), (OFFSET, size))
UNSUPPORTED_PLAIN(File_set_size, file_set_size, (FILE_HANDLE, file), (OFFSET, size))
UNSUPPORTED_PLAIN(File_set_atomicity, file_set_atomicity, (FILE_HANDLE, file), (INT, atomic))
UNSUPPORTED_PLAIN(File_set_info, file_set_info, (FILE_HANDLE, file), (INFO, info))
UNSUPPORTED_PLAIN(File_seek_shared, file_seek_shared, (FILE_HANDLE, file), (OFFSET, offset), (INT, from))
