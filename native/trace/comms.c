#include "comms.h"

#include <stdlib.h>
#include <string.h>

struct occurrence {
    uint64_t name;
    uint64_t count;
};

static struct {
    MPI_Group world;
    struct nmt_comm_info *infos;
    size_t room;
    uint32_t count;
    uint32_t latest; /* the entry found last: most programs use one communicator for long */
    struct occurrence *occurrences;
    size_t occurrences_room;
    size_t occurrences_count;
} comms;

struct nmt_comm_info *nmt_comms_find(MPI_Comm comm) {
    uint64_t handle = NMT_HANDLE(comm);
    if (comms.latest < comms.count && comms.infos[comms.latest].handle == handle)
        return &comms.infos[comms.latest];
    for (uint32_t i = 0; i < comms.count; ++i)
        if (comms.infos[i].handle == handle)
            return &comms.infos[comms.latest = i];
    return NULL;
}

void nmt_comms_forget(uint32_t entry) {
    for (uint32_t i = 0; i < comms.count; ++i) {
        if (comms.infos[i].entry == entry) {
            comms.infos[i] = comms.infos[--comms.count];
            return;
        }
    }
}

/* Return the world ranks of a group's first members; NULL without memory. The caller frees them. */
static uint64_t *world_ranks(MPI_Group group, int size) {
    uint64_t *ranks = malloc((size_t)size * sizeof *ranks + 1);
    int *own = calloc(2 * (size_t)size + 1, sizeof *own);
    if (ranks && own) {
        int *world = own + size;
        for (int i = 0; i < size; ++i)
            own[i] = i;
        PMPI_Group_translate_ranks(group, size, own, comms.world, world);
        for (int i = 0; i < size; ++i)
            ranks[i] = (uint64_t)world[i];
    } else {
        free(ranks);
        ranks = NULL;
    }
    free(own);
    return ranks;
}

static uint64_t *members_of(MPI_Comm comm, int *size) {
    MPI_Group group;
    PMPI_Comm_group(comm, &group);
    PMPI_Comm_size(comm, size); /* MPICH 5.0.2 returns the group of the parent for a grid of its first ranks */
    uint64_t *ranks = world_ranks(group, *size);
    PMPI_Group_free(&group);
    return ranks;
}

static uint64_t *remote_members_of(MPI_Comm comm, int *size) {
    MPI_Group group;
    PMPI_Comm_remote_group(comm, &group);
    PMPI_Comm_remote_size(comm, size);
    uint64_t *ranks = world_ranks(group, *size);
    PMPI_Group_free(&group);
    return ranks;
}

uint64_t nmt_comms_uid(uint64_t parent_uid, uint64_t nth, MPI_Comm created) {
    int size, inter;
    PMPI_Comm_test_inter(created, &inter);
    uint64_t *members = members_of(created, &size), first = members && size ? members[0] : 0;
    free(members);
    if (inter) {
        /* Both sides must derive the same uid: both use the lower of the two first members. */
        uint64_t *remote = remote_members_of(created, &size);
        first = remote && size && remote[0] < first ? remote[0] : first;
        free(remote);
    }
    return nmt_uid((uint64_t[]){parent_uid, nth, first}, 3);
}

static uint64_t earlier(uint64_t name) {
    for (size_t i = 0; i < comms.occurrences_count; ++i)
        if (comms.occurrences[i].name == name)
            return ++comms.occurrences[i].count;
    if (nmt_grow(&comms.occurrences, &comms.occurrences_room, comms.occurrences_count + 1, sizeof *comms.occurrences))
        comms.occurrences[comms.occurrences_count++] = (struct occurrence){.name = name};
    return 0;
}

uint64_t nmt_comms_uid_by_members(uint64_t parent_uid, MPI_Comm created) {
    int size, other_size = 0, inter;
    PMPI_Comm_test_inter(created, &inter);
    uint64_t *members = members_of(created, &size), *others = inter ? remote_members_of(created, &other_size) : NULL;
    uint64_t name = members ? nmt_uid(members, (size_t)size) : 0;
    uint64_t other_name = others ? nmt_uid(others, (size_t)other_size) : 0;
    bool swap = members && others && others[0] < members[0];
    name = nmt_uid((uint64_t[]){parent_uid, swap ? other_name : name, swap ? name : other_name}, 3);
    free(members);
    free(others);
    return nmt_uid((uint64_t[]){name, earlier(name)}, 2);
}

/* Add the Cartesian shape of a communicator, when it has one, as lists. */
static int add_shape(struct nmt_recorder *recorder, MPI_Comm comm, struct nmt_comm *entry) {
    int topology, dimensions = 0;
    PMPI_Topo_test(comm, &topology);
    if (topology != MPI_CART)
        return 0;
    PMPI_Cartdim_get(comm, &dimensions);
    if (dimensions < 1)
        return 0;
    size_t count = (size_t)dimensions;
    int *shape = malloc(3 * count * sizeof *shape);
    uint64_t *values = malloc(2 * count * sizeof *values);
    if (shape && values) {
        PMPI_Cart_get(comm, dimensions, shape, shape + count, shape + 2 * count);
        for (size_t i = 0; i < count; ++i) {
            values[i] = (uint64_t)shape[i];
            values[count + i] = shape[count + i] != 0;
        }
        entry->dims = nmt_recorder_list(recorder, values, count);
        entry->periods = nmt_recorder_list(recorder, values + count, count);
    }
    free(shape);
    free(values);
    return dimensions;
}

uint32_t nmt_comms_add(struct nmt_recorder *recorder, MPI_Comm comm, int kind, uint32_t parent, uint64_t uid) {
    struct nmt_comm_info info = {.handle = NMT_HANDLE(comm), .uid = uid};
    int inter;
    PMPI_Comm_test_inter(comm, &inter);
    info.inter = inter != 0;
    PMPI_Comm_rank(comm, &info.my_rank);
    struct nmt_comm entry = {.uid = uid,
                             .parent = parent,
                             .kind = (uint16_t)(info.inter ? NMT_INTER : kind),
                             .my_rank = (uint32_t)info.my_rank,
                             .dims = NMT_NONE,
                             .periods = NMT_NONE};
    uint64_t *members = members_of(comm, &info.size);
    if (!members || !nmt_grow(&comms.infos, &comms.room, comms.count + 1U, sizeof *comms.infos)) {
        free(members);
        return NMT_NONE;
    }
    entry.members = nmt_recorder_list(recorder, members, (size_t)info.size);
    free(members);
    info.dimensions = info.inter ? 0 : add_shape(recorder, comm, &entry);
    info.entry = nmt_recorder_add_comm(recorder, &entry);
    if (info.entry != NMT_NONE)
        comms.infos[comms.count++] = info;
    return info.entry;
}

bool nmt_comms_start(struct nmt_recorder *recorder) {
    int rank;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    PMPI_Comm_group(MPI_COMM_WORLD, &comms.world);
    return nmt_comms_add(recorder, MPI_COMM_WORLD, NMT_WORLD, NMT_NONE, 1) == 0 &&
           nmt_comms_add(recorder, MPI_COMM_SELF, NMT_SELF, NMT_NONE, 2 + (uint64_t)rank) == 1;
}

void nmt_comms_free(void) {
    PMPI_Group_free(&comms.world);
    free(comms.infos);
    free(comms.occurrences);
    memset(&comms, 0, sizeof comms);
}
