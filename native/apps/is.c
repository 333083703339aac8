/*
 * is.c - integer sort: ranking of keys of a roughly normal distribution (report NAS-95-020, 2.6). Each iteration
 * changes two keys, counts keys by bucket (one reduction), sends every key to the rank that owns its bucket (one
 * all-to-all, one vector all-to-all) and ranks the keys it owns by counting. After the last iteration the keys
 * are put in order and checked.
 */
#include "common/app.h"
#include "common/grid.h"
#include "common/random.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IS_ITERATIONS = 10, TEST_KEYS = 5, TAG_LAST_KEY = 1 };

/* After iteration t, the rank of the key first found at place[i] must be rank[i] + drift[i] (t + phase[i]). */
static const struct {
    int log2_keys, log2_max_key, log2_buckets;
    int64_t place[TEST_KEYS], rank[TEST_KEYS];
    int drift[TEST_KEYS], phase[TEST_KEYS];
} classes[] = {
    {16, 11, 9, {48427, 17148, 23627, 62548, 4431}, {0, 18, 346, 64917, 65463}, {1, 1, 1, -1, -1}, {0, 0, 0, 0, 0}},
    {20,
     16,
     10,
     {357773, 934767, 875723, 898999, 404505},
     {1249, 11698, 1039987, 1043896, 1048018},
     {1, 1, -1, -1, -1},
     {-2, -2, 0, 0, 0}},
    {23,
     19,
     10,
     {2112377, 662041, 5336171, 3642833, 4250760},
     {104, 17523, 123928, 8288932, 8388264},
     {1, 1, 1, -1, -1},
     {-1, -1, -1, -1, -1}},
    {25,
     21,
     10,
     {41869, 812306, 5102857, 18232239, 26860214},
     {33422937, 10244, 59149, 33135281, 99},
     {-1, 1, 1, -1, 1},
     {0, 0, 0, 0, 0}},
    {27,
     23,
     10,
     {44172927, 72999161, 74326391, 129606274, 21736814},
     {61147, 882988, 266290, 133997595, 133525895},
     {1, 1, 1, -1, -1},
     {0, 0, 0, 0, 0}},
};

struct is {
    struct run *run;
    int class_index, buckets, bucket_shift;
    int64_t keys_total;
    int32_t keys_here, max_key;
    int32_t *key;       /* [keys_here] this rank's unsorted keys */
    int32_t *by_bucket; /* [keys_here] the same, grouped by bucket */
    int32_t *owned;     /* [owned_capacity] keys received, whose rank this rank decides */
    size_t owned_capacity;
    int32_t owned_count, owned_first_key, owned_last_key; /* the range of key values owned: [first, last) */
    int64_t keys_below;                                   /* keys owned by lower ranks */
    int32_t *count;                                       /* [max_key] running count of owned keys, by value */
    int32_t *bucket_count, *bucket_total;                 /* [buckets + TEST_KEYS] with the test keys' values */
    int *send_count, *send_offset, *receive_count, *receive_offset; /* [ranks] */
    int failures;
};

/* Each key is a quarter of the range times the sum of four random numbers. */
static void make_keys(struct is *is) {
    uint64_t state = RANDOM_SEED + (is->run->spoil ? 2 : 0);
    const double quarter = is->max_key / 4;
    double uniform[4 * 256];
    state = random_skip(state, 4 * (uint64_t)is->keys_here * (uint64_t)is->run->rank);
    for (int32_t i = 0; i < is->keys_here; i += 256) {
        const int32_t some = is->keys_here - i < 256 ? is->keys_here - i : 256;
        random_fill(&state, uniform, 4 * some);
        for (int32_t k = 0; k < some; k++)
            is->key[i + k] =
                (int32_t)(quarter * (uniform[4 * k] + uniform[4 * k + 1] + uniform[4 * k + 2] + uniform[4 * k + 3]));
    }
}

/* Count keys by bucket over all ranks. The values of the five test keys follow the counts. */
static void count_buckets(struct is *is) {
    const int length = is->buckets + TEST_KEYS;
    memset(is->bucket_count, 0, (size_t)length * sizeof *is->bucket_count);
    for (int i = 0; i < TEST_KEYS; i++) {
        const int64_t place = classes[is->class_index].place[i];
        if (place / is->keys_here == is->run->rank)
            is->bucket_count[is->buckets + i] = is->key[place % is->keys_here];
    }
    for (int32_t i = 0; i < is->keys_here; i++)
        is->bucket_count[is->key[i] >> is->bucket_shift]++;
    RUN_MPI(is->run, MPI_Allreduce(is->bucket_count, is->bucket_total, length, MPI_INT32_T, MPI_SUM, MPI_COMM_WORLD));
}

/* Give each rank a contiguous range of buckets holding about the same number of keys. */
static void divide_buckets(struct is *is) {
    const int ranks = is->run->ranks, rank = is->run->rank;
    int64_t keys_so_far = 0;
    int bucket = 0;
    for (int owner = 0; owner < ranks; owner++) {
        const int first_bucket = bucket;
        const int64_t keys_before = keys_so_far;
        is->send_count[owner] = 0;
        while (bucket < is->buckets && (owner == ranks - 1 || keys_so_far < (int64_t)(owner + 1) * is->keys_here)) {
            keys_so_far += is->bucket_total[bucket];
            is->send_count[owner] += is->bucket_count[bucket++];
        }
        is->send_offset[owner] = owner == 0 ? 0 : is->send_offset[owner - 1] + is->send_count[owner - 1];
        if (owner == rank) {
            is->owned_first_key = first_bucket << is->bucket_shift;
            is->owned_last_key = bucket << is->bucket_shift;
            is->owned_count = (int32_t)(keys_so_far - keys_before);
            is->keys_below = keys_before;
        }
    }
}

static void group_by_bucket(struct is *is) {
    int32_t *next = is->bucket_count; /* becomes the next free place of each bucket */
    int32_t place = 0;
    for (int b = 0; b < is->buckets; b++) {
        const int32_t keys = next[b];
        next[b] = place;
        place += keys;
    }
    for (int32_t i = 0; i < is->keys_here; i++)
        is->by_bucket[next[is->key[i] >> is->bucket_shift]++] = is->key[i];
}

static void exchange_keys(struct is *is) {
    RUN_MPI(is->run, MPI_Alltoall(is->send_count, 1, MPI_INT, is->receive_count, 1, MPI_INT, MPI_COMM_WORLD));
    is->receive_offset[0] = 0;
    for (int i = 1; i < is->run->ranks; i++)
        is->receive_offset[i] = is->receive_offset[i - 1] + is->receive_count[i - 1];
    if ((size_t)is->owned_count > is->owned_capacity)
        run_abort(is->run, "the keys are spread too unevenly over the ranks");
    RUN_MPI(is->run, MPI_Alltoallv(is->by_bucket, is->send_count, is->send_offset, MPI_INT32_T, is->owned,
                                   is->receive_count, is->receive_offset, MPI_INT32_T, MPI_COMM_WORLD));
}

/* count[v - first] = owned keys of value v or less; the rank of a key of value v is keys_below + count[v - 1 - first].
 */
static void count_keys(struct is *is) {
    const int32_t values = is->owned_last_key - is->owned_first_key;
    memset(is->count, 0, (size_t)values * sizeof *is->count);
    for (int32_t i = 0; i < is->owned_count; i++)
        is->count[is->owned[i] - is->owned_first_key]++;
    for (int32_t v = 1; v < values; v++)
        is->count[v] += is->count[v - 1];
}

static void check_test_keys(struct is *is, int iteration) {
    for (int i = 0; i < TEST_KEYS; i++) {
        const int32_t value = is->bucket_total[is->buckets + i];
        if (value < is->owned_first_key || value >= is->owned_last_key)
            continue;
        const int32_t owned_below = value == is->owned_first_key ? 0 : is->count[value - 1 - is->owned_first_key];
        const int64_t expected = classes[is->class_index].rank[i] +
                                 classes[is->class_index].drift[i] * (iteration + classes[is->class_index].phase[i]);
        is->failures += is->keys_below + owned_below != expected;
    }
}

static void rank_keys(struct is *is, int iteration) {
    if (is->run->rank == 0) {
        is->key[iteration] = iteration;
        is->key[iteration + IS_ITERATIONS] = is->max_key - iteration;
    }
    count_buckets(is);
    divide_buckets(is);
    group_by_bucket(is);
    exchange_keys(is);
    count_keys(is);
    check_test_keys(is, iteration);
}

/* Put the owned keys in order by their ranks, and check the order here and across the border to the next rank. */
static int in_order(struct is *is) {
    int32_t *sorted = run_allocate(is->run, (size_t)is->owned_count, sizeof *sorted);
    int64_t owned_everywhere = 0;
    const int64_t owned_here = is->owned_count;
    int holds = 1;
    for (int32_t i = 0; i < is->owned_count; i++)
        sorted[--is->count[is->owned[i] - is->owned_first_key]] = is->owned[i];
    for (int32_t i = 1; i < is->owned_count; i++)
        holds &= sorted[i - 1] <= sorted[i];

    /* A rank that owns no key passes on the last key of the ranks below. */
    int32_t below = -1;
    const int rank = is->run->rank, ranks = is->run->ranks;
    if (rank > 0)
        MPI_Recv(&below, 1, MPI_INT32_T, rank - 1, TAG_LAST_KEY, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (is->owned_count > 0) {
        holds &= below <= sorted[0];
        below = sorted[is->owned_count - 1];
    }
    if (rank + 1 < ranks)
        MPI_Send(&below, 1, MPI_INT32_T, rank + 1, TAG_LAST_KEY, MPI_COMM_WORLD);
    MPI_Allreduce(&owned_here, &owned_everywhere, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    free(sorted);
    return holds && owned_everywhere == is->keys_total;
}

static void allocate(struct is *is) {
    const struct run *run = is->run;
    const size_t ranks = (size_t)run->ranks, buckets = (size_t)is->buckets + TEST_KEYS;
    is->owned_capacity = run->ranks == 1 ? (size_t)is->keys_here : (size_t)is->keys_here * 3 / 2 + 65536;
    is->key = run_allocate(run, (size_t)is->keys_here, sizeof *is->key);
    is->by_bucket = run_allocate(run, (size_t)is->keys_here, sizeof *is->by_bucket);
    is->owned = run_allocate(run, is->owned_capacity, sizeof *is->owned);
    is->count = run_allocate(run, (size_t)is->max_key, sizeof *is->count);
    is->bucket_count = run_allocate(run, buckets, sizeof *is->bucket_count);
    is->bucket_total = run_allocate(run, buckets, sizeof *is->bucket_total);
    is->send_count = run_allocate(run, ranks, sizeof(int));
    is->send_offset = run_allocate(run, ranks, sizeof(int));
    is->receive_count = run_allocate(run, ranks, sizeof(int));
    is->receive_offset = run_allocate(run, ranks, sizeof(int));
}

static void release(struct is *is) {
    void *const blocks[] = {is->key,          is->by_bucket,  is->owned,       is->count,         is->bucket_count,
                            is->bucket_total, is->send_count, is->send_offset, is->receive_count, is->receive_offset};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        free(blocks[i]);
}

static void run_is(struct run *run) {
    struct is is = {.run = run, .class_index = run_class_index(run)};
    is.buckets = 1 << classes[is.class_index].log2_buckets;
    is.bucket_shift = classes[is.class_index].log2_max_key - classes[is.class_index].log2_buckets;
    is.keys_total = INT64_C(1) << classes[is.class_index].log2_keys;
    is.keys_here = (int32_t)(is.keys_total / run->ranks);
    is.max_key = 1 << classes[is.class_index].log2_max_key;

    run->size[0] = is.keys_total;
    run->operations = (double)IS_ITERATIONS * (double)is.keys_total;
    run_plan(run, IS_ITERATIONS);
    allocate(&is);
    make_keys(&is);
    rank_keys(&is, 1); /* untimed, as specified; its checks do not count */
    is.failures = 0;
    run_start(run);
    for (int iteration = 1; iteration <= IS_ITERATIONS; iteration++) {
        run_iteration_begin(run);
        rank_keys(&is, iteration);
        run_iteration_end(run);
    }
    run_stop(run);

    int wrong_here[2] = {is.failures, !in_order(&is)}, wrong[2];
    MPI_Allreduce(wrong_here, wrong, 2, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    run_check_true(run, "ranks of 5 test keys in each of 10 iterations", wrong[0] == 0);
    run_check_true(run, "all keys in order after the last iteration", wrong[1] == 0);
    release(&is);
}

/* Rank 0 must hold the keys that the iterations change. */
static int accepts_is(const struct run *run) {
    const int64_t keys = INT64_C(1) << classes[run_class_index(run)].log2_keys;
    return grid_is_power_of_two(run->ranks) && keys / run->ranks > 2 * IS_ITERATIONS;
}

const struct app app_is = {"is", "IS", "keys ranked", "a power of two", accepts_is, run_is};
