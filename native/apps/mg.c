/*
 * mg.c - four V-cycles (or 20) of a multigrid solver for the Poisson equation on a periodic cube
 * (report NAS-95-020, 2.5). Nearest-neighbour exchanges of faces from large to tiny as the levels get coarser.
 *
 * A level holds n[0] x n[1] x n[2] interior points of this rank (x fastest) inside one layer of ghost points. Levels
 * that have fewer points than ranks along an axis are not divided: the first of them is gathered, and every rank
 * computes it and the coarser ones in full. With up to 8 ranks no level is gathered.
 */
#include "common/app.h"
#include "common/grid.h"
#include "common/random.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LEVELS = 12, CHARGES = 10, TAG_UP = 1, TAG_DOWN = 2 };

static const struct {
    int log2_n, iterations;
    double norm;
    double smoother[3];
} classes[] = {
    {5, 4, 0.5307707005734e-4, {-3.0 / 8.0, 1.0 / 32.0, -1.0 / 64.0}},
    {7, 4, 0.6467329375339e-5, {-3.0 / 8.0, 1.0 / 32.0, -1.0 / 64.0}},
    {8, 4, 0.2433365309069e-5, {-3.0 / 8.0, 1.0 / 32.0, -1.0 / 64.0}},
    {8, 20, 0.1800564401355e-5, {-3.0 / 17.0, 1.0 / 33.0, -1.0 / 61.0}},
    {9, 20, 0.5706732285740e-6, {-3.0 / 17.0, 1.0 / 33.0, -1.0 / 61.0}},
};

/* The 27-point operator by distance class: centre, edges, corners; the weight of the faces is 0. */
static const double operator_centre = -8.0 / 3.0, operator_edge = 1.0 / 6.0, operator_corner = 1.0 / 12.0;

struct level {
    int n[3];               /* interior points here */
    int parts[3];           /* ranks along each axis; 1 1 1 when every rank holds the level in full */
    int row, plane;         /* points from one y, one z to the next */
    double *u, *r;          /* solution and residual, ghosts included */
    double *out[2], *in[2]; /* faces being sent and received, sized for the largest */
};

struct mg {
    struct run *run;
    int parts[3], place[3]; /* the process grid, and where this rank is in it */
    int up[3], down[3];     /* neighbour ranks along each axis */
    int top;                /* finest level */
    int gathered;           /* finest level held in full, 0 if none */
    struct level level[MAX_LEVELS + 1];
    struct level own_part; /* this rank's share of level `gathered` */
    double *v;             /* right-hand side on the finest level */
    double *line[2];       /* scratch rows */
    const double *smoother;
};

static double *row_at(const struct level *level, double *field, int y, int z) {
    return field + (int64_t)z * level->plane + (int64_t)y * level->row;
}

static size_t points(const struct level *level) { return (size_t)level->plane * (size_t)(level->n[2] + 2); }

/* ---- ghost points ----------------------------------------------------------------------------------------------- */

/* The box of one layer at index `at` of `axis`: all points of lower axes with ghosts, interior of higher axes. */
static void face_box(const struct level *level, int axis, int at, int first[3], int last[3]) {
    for (int d = 0; d < 3; d++) {
        first[d] = d < axis ? 0 : 1;
        last[d] = d < axis ? level->n[d] + 1 : level->n[d];
    }
    first[axis] = last[axis] = at;
}

static int pack(const struct level *level, double *field, int axis, int at, double *buffer) {
    int first[3], last[3], count = 0;
    face_box(level, axis, at, first, last);
    for (int z = first[2]; z <= last[2]; z++)
        for (int y = first[1]; y <= last[1]; y++)
            for (int x = first[0]; x <= last[0]; x++)
                buffer[count++] = row_at(level, field, y, z)[x];
    return count;
}

static void unpack(const struct level *level, double *field, int axis, int at, const double *buffer) {
    int first[3], last[3], count = 0;
    face_box(level, axis, at, first, last);
    for (int z = first[2]; z <= last[2]; z++)
        for (int y = first[1]; y <= last[1]; y++)
            for (int x = first[0]; x <= last[0]; x++)
                row_at(level, field, y, z)[x] = buffer[count++];
}

/* Fill the ghosts of a periodic field, axis after axis, so that edges and corners travel with the later faces. */
static void exchange(struct mg *mg, const struct level *level, double *field) {
    for (int axis = 0; axis < 3; axis++) {
        const int n = level->n[axis];
        const int count = pack(level, field, axis, n, level->out[0]);
        pack(level, field, axis, 1, level->out[1]);
        if (level->parts[axis] == 1) {
            unpack(level, field, axis, 0, level->out[0]);
            unpack(level, field, axis, n + 1, level->out[1]);
            continue;
        }
        MPI_Request request[2];
        RUN_MPI(mg->run,
                MPI_Irecv(level->in[0], count, MPI_DOUBLE, mg->down[axis], TAG_UP, MPI_COMM_WORLD, &request[0]),
                MPI_Irecv(level->in[1], count, MPI_DOUBLE, mg->up[axis], TAG_DOWN, MPI_COMM_WORLD, &request[1]),
                MPI_Send(level->out[0], count, MPI_DOUBLE, mg->up[axis], TAG_UP, MPI_COMM_WORLD),
                MPI_Send(level->out[1], count, MPI_DOUBLE, mg->down[axis], TAG_DOWN, MPI_COMM_WORLD),
                MPI_Waitall(2, request, MPI_STATUSES_IGNORE));
        unpack(level, field, axis, 0, level->in[0]);
        unpack(level, field, axis, n + 1, level->in[1]);
    }
}

/* ---- the four operators ----------------------------------------------------------------------------------------- */

/* faces[x], edges[x]: sums of the 4 face and the 4 edge neighbours of point x that have the same x. */
static void sum_rows(const struct level *level, double *field, int y, int z, double *restrict faces,
                     double *restrict edges) {
    const double *north = row_at(level, field, y + 1, z), *south = row_at(level, field, y - 1, z);
    const double *above = row_at(level, field, y, z + 1), *below = row_at(level, field, y, z - 1);
    const double *north_above = row_at(level, field, y + 1, z + 1), *south_above = row_at(level, field, y - 1, z + 1);
    const double *north_below = row_at(level, field, y + 1, z - 1), *south_below = row_at(level, field, y - 1, z - 1);
    for (int x = 0; x <= level->n[0] + 1; x++) {
        faces[x] = north[x] + south[x] + above[x] + below[x];
        edges[x] = north_above[x] + south_above[x] + north_below[x] + south_below[x];
    }
}

/* r = v - A u; v may be r. */
static void residual(struct mg *mg, struct level *level, double *v) {
    double *restrict faces = mg->line[0], *restrict edges = mg->line[1];
    for (int z = 1; z <= level->n[2]; z++) {
        for (int y = 1; y <= level->n[1]; y++) {
            const double *u = row_at(level, level->u, y, z), *right = row_at(level, v, y, z);
            double *r = row_at(level, level->r, y, z);
            sum_rows(level, level->u, y, z, faces, edges);
            for (int x = 1; x <= level->n[0]; x++)
                r[x] = right[x] - operator_centre * u[x] - operator_edge * (edges[x] + faces[x - 1] + faces[x + 1]) -
                       operator_corner * (edges[x - 1] + edges[x + 1]);
        }
    }
    exchange(mg, level, level->r);
}

/* u = u + C r, the smoother. */
static void smooth(struct mg *mg, struct level *level) {
    const double centre = mg->smoother[0], face = mg->smoother[1], edge = mg->smoother[2];
    double *restrict faces = mg->line[0], *restrict edges = mg->line[1];
    for (int z = 1; z <= level->n[2]; z++) {
        for (int y = 1; y <= level->n[1]; y++) {
            double *restrict u = row_at(level, level->u, y, z);
            const double *r = row_at(level, level->r, y, z);
            sum_rows(level, level->r, y, z, faces, edges);
            for (int x = 1; x <= level->n[0]; x++)
                u[x] += centre * r[x] + face * (r[x - 1] + r[x + 1] + faces[x]) +
                        edge * (edges[x] + faces[x - 1] + faces[x + 1]);
        }
    }
    exchange(mg, level, level->u);
}

/* coarse r = P fine r: full weighting around every second point. */
static void restrict_residual(struct mg *mg, const struct level *fine, struct level *coarse) {
    double *faces = mg->line[0], *edges = mg->line[1];
    for (int z = 1; z <= coarse->n[2]; z++) {
        for (int y = 1; y <= coarse->n[1]; y++) {
            const double *r = row_at(fine, fine->r, 2 * y, 2 * z);
            double *s = row_at(coarse, coarse->r, y, z);
            sum_rows(fine, fine->r, 2 * y, 2 * z, faces, edges);
            for (int x = 1; x <= coarse->n[0]; x++) {
                const int i = 2 * x;
                s[x] = 0.5 * r[i] + 0.25 * (r[i - 1] + r[i + 1] + faces[i]) +
                       0.125 * (faces[i - 1] + faces[i + 1] + edges[i]) + 0.0625 * (edges[i - 1] + edges[i + 1]);
            }
        }
    }
    exchange(mg, coarse, coarse->r);
}

/* fine u += Q coarse u, trilinear; the ghosts of the coarse level give those of the fine one. */
static void interpolate(struct mg *mg, const struct level *coarse, struct level *fine) {
    double *restrict sum = mg->line[0];
    for (int z = 0; z <= fine->n[2] + 1; z++) {
        for (int y = 0; y <= fine->n[1] + 1; y++) {
            double *restrict u = row_at(fine, fine->u, y, z);
            const double *near = row_at(coarse, coarse->u, y / 2, z / 2);
            const double *next_y = row_at(coarse, coarse->u, (y + 1) / 2, z / 2);
            const double *next_z = row_at(coarse, coarse->u, y / 2, (z + 1) / 2);
            const double *next_yz = row_at(coarse, coarse->u, (y + 1) / 2, (z + 1) / 2);
            for (int x = 0; x <= coarse->n[0] + 1; x++)
                sum[x] = 0.25 * (near[x] + next_y[x] + next_z[x] + next_yz[x]);
            for (int x = 0; x <= coarse->n[0]; x++) {
                u[2 * x] += sum[x];
                u[2 * x + 1] += 0.5 * (sum[x] + sum[x + 1]);
            }
        }
    }
}

/* ---- levels that are not divided ---------------------------------------------------------------------------------*/

static void place_of(const struct mg *mg, int rank, int place[3]) {
    place[0] = rank % mg->parts[0];
    place[1] = rank / mg->parts[0] % mg->parts[1];
    place[2] = rank / (mg->parts[0] * mg->parts[1]);
}

/* Copy the interior of `part`, the share of the rank at `place`, into its place of `whole`. */
static void put_part(const struct level *part, const double *interior, const int place[3], const struct level *whole) {
    for (int z = 0; z < part->n[2]; z++)
        for (int y = 0; y < part->n[1]; y++)
            memcpy(row_at(whole, whole->r, place[1] * part->n[1] + y + 1, place[2] * part->n[2] + z + 1) +
                       place[0] * part->n[0] + 1,
                   interior + ((size_t)z * (size_t)part->n[1] + (size_t)y) * (size_t)part->n[0],
                   (size_t)part->n[0] * sizeof(double));
}

/* Every rank's share of the residual becomes the whole level on every rank. */
static void gather_level(struct mg *mg) {
    const struct level *part = &mg->own_part, *whole = &mg->level[mg->gathered];
    const int count = part->n[0] * part->n[1] * part->n[2];
    double *mine = run_allocate(mg->run, (size_t)count, sizeof *mine);
    double *all = run_allocate(mg->run, (size_t)count * (size_t)mg->run->ranks, sizeof *all);
    int k = 0;
    for (int z = 1; z <= part->n[2]; z++)
        for (int y = 1; y <= part->n[1]; y++)
            for (int x = 1; x <= part->n[0]; x++)
                mine[k++] = row_at(part, part->r, y, z)[x];
    RUN_MPI(mg->run, MPI_Allgather(mine, count, MPI_DOUBLE, all, count, MPI_DOUBLE, MPI_COMM_WORLD));
    for (int rank = 0; rank < mg->run->ranks; rank++) {
        int place[3];
        place_of(mg, rank, place);
        put_part(part, all + (size_t)rank * (size_t)count, place, whole);
    }
    exchange(mg, whole, whole->r);
    free(all);
    free(mine);
}

/* This rank's share of the solution, ghosts included, out of the whole level. */
static void take_part(struct mg *mg) {
    const struct level *part = &mg->own_part, *whole = &mg->level[mg->gathered];
    for (int z = 0; z <= part->n[2] + 1; z++)
        for (int y = 0; y <= part->n[1] + 1; y++)
            memcpy(row_at(part, part->u, y, z),
                   row_at(whole, whole->u, mg->place[1] * part->n[1] + y, mg->place[2] * part->n[2] + z) +
                       mg->place[0] * part->n[0],
                   (size_t)part->row * sizeof(double));
}

/* ---- the cycle -------------------------------------------------------------------------------------------------- */

static void go_down(struct mg *mg, int from) {
    if (from - 1 == mg->gathered) {
        restrict_residual(mg, &mg->level[from], &mg->own_part);
        gather_level(mg);
    } else {
        restrict_residual(mg, &mg->level[from], &mg->level[from - 1]);
    }
}

static void go_up(struct mg *mg, int to) {
    if (to - 1 == mg->gathered) {
        take_part(mg);
        interpolate(mg, &mg->own_part, &mg->level[to]);
    } else {
        interpolate(mg, &mg->level[to - 1], &mg->level[to]);
    }
}

static void v_cycle(struct mg *mg) {
    for (int k = mg->top; k > 1; k--)
        go_down(mg, k);
    memset(mg->level[1].u, 0, points(&mg->level[1]) * sizeof(double));
    smooth(mg, &mg->level[1]);
    for (int k = 2; k < mg->top; k++) {
        memset(mg->level[k].u, 0, points(&mg->level[k]) * sizeof(double));
        go_up(mg, k);
        residual(mg, &mg->level[k], mg->level[k].r);
        smooth(mg, &mg->level[k]);
    }
    go_up(mg, mg->top);
    residual(mg, &mg->level[mg->top], mg->v);
    smooth(mg, &mg->level[mg->top]);
}

static double norm(struct mg *mg) {
    const struct level *level = &mg->level[mg->top];
    double here = 0.0, everywhere;
    for (int z = 1; z <= level->n[2]; z++)
        for (int y = 1; y <= level->n[1]; y++) {
            const double *r = row_at(level, level->r, y, z);
            for (int x = 1; x <= level->n[0]; x++)
                here += r[x] * r[x];
        }
    RUN_MPI(mg->run, MPI_Allreduce(&here, &everywhere, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD));
    return sqrt(everywhere / pow(2.0, 3.0 * mg->top));
}

/* ---- the right-hand side ---------------------------------------------------------------------------------------- */

struct place {
    double value;
    double index; /* of the global point, exact in a double */
};

/* Keep the CHARGES largest values of sign * value, largest first. */
static void keep_largest(struct place *kept, double sign, struct place candidate) {
    if (sign * candidate.value <= sign * kept[CHARGES - 1].value)
        return;
    int k = CHARGES - 1;
    for (; k > 0 && sign * candidate.value > sign * kept[k - 1].value; k--)
        kept[k] = kept[k - 1];
    kept[k] = candidate;
}

static void clear_places(struct place kept[2][CHARGES]) {
    for (int k = 0; k < CHARGES; k++) {
        kept[0][k] = (struct place){-1.0, 0.0};
        kept[1][k] = (struct place){2.0, 0.0};
    }
}

/* The ten largest and the ten smallest of the n^3 random numbers of the whole grid. */
static void find_charges(struct mg *mg, struct place charges[2][CHARGES]) {
    const struct level *level = &mg->level[mg->top];
    const int64_t n = INT64_C(1) << mg->top;
    struct place here[2][CHARGES];
    clear_places(here);
    for (int z = 0; z < level->n[2]; z++) {
        for (int y = 0; y < level->n[1]; y++) {
            const int64_t line = (mg->place[2] * level->n[2] + z) * n + mg->place[1] * level->n[1] + y;
            const int64_t first = line * n + mg->place[0] * level->n[0];
            uint64_t state = random_skip(RANDOM_SEED + (mg->run->spoil ? 2 : 0), (uint64_t)first);
            random_fill(&state, mg->line[0], level->n[0]);
            for (int x = 0; x < level->n[0]; x++) {
                const struct place candidate = {mg->line[0][x], (double)(first + x)};
                keep_largest(here[0], 1.0, candidate);
                keep_largest(here[1], -1.0, candidate);
            }
        }
    }
    struct place(*all)[2][CHARGES] = run_allocate(mg->run, (size_t)mg->run->ranks, sizeof here);
    MPI_Allgather(here, 4 * CHARGES, MPI_DOUBLE, all, 4 * CHARGES, MPI_DOUBLE, MPI_COMM_WORLD);
    clear_places(charges);
    for (int rank = 0; rank < mg->run->ranks; rank++)
        for (int k = 0; k < CHARGES; k++) {
            keep_largest(charges[0], 1.0, all[rank][0][k]);
            keep_largest(charges[1], -1.0, all[rank][1][k]);
        }
    free(all);
}

/* v = +1 at the places of the ten largest numbers, -1 at the ten smallest, 0 elsewhere; u = 0. */
static void set_problem(struct mg *mg) {
    const struct level *level = &mg->level[mg->top];
    const int64_t n = INT64_C(1) << mg->top;
    struct place charges[2][CHARGES];
    find_charges(mg, charges);
    memset(mg->v, 0, points(level) * sizeof(double));
    memset(level->u, 0, points(level) * sizeof(double));
    for (int sign = 0; sign < 2; sign++) {
        for (int k = 0; k < CHARGES; k++) {
            const int64_t index = (int64_t)charges[sign][k].index;
            const int64_t at[3] = {index % n - (int64_t)mg->place[0] * level->n[0],
                                   index / n % n - (int64_t)mg->place[1] * level->n[1],
                                   index / (n * n) - (int64_t)mg->place[2] * level->n[2]};
            int here = 1;
            for (int d = 0; d < 3; d++)
                here &= at[d] >= 0 && at[d] < level->n[d];
            if (here)
                row_at(level, mg->v, (int)at[1] + 1, (int)at[2] + 1)[at[0] + 1] = sign == 0 ? 1.0 : -1.0;
        }
    }
    exchange(mg, level, mg->v);
}

/* ---- set-up ------------------------------------------------------------------------------------------------------*/

static void make_level(struct mg *mg, struct level *level, int log2_n, const int parts[3]) {
    int extent[3];
    for (int d = 0; d < 3; d++) {
        level->parts[d] = parts[d];
        level->n[d] = (1 << log2_n) / parts[d];
        extent[d] = level->n[d] + 2;
    }
    level->row = extent[0];
    level->plane = extent[0] * extent[1];
    level->u = run_allocate(mg->run, points(level), sizeof(double));
    level->r = run_allocate(mg->run, points(level), sizeof(double));
    const int side = extent[2] > extent[1] ? extent[2] : extent[1];
    const size_t face = (size_t)side * (size_t)(side > extent[0] ? side : extent[0]);
    for (int k = 0; k < 2; k++) {
        level->out[k] = run_allocate(mg->run, face, sizeof(double));
        level->in[k] = run_allocate(mg->run, face, sizeof(double));
    }
}

static void free_level(struct level *level) {
    double *const blocks[] = {level->u, level->r, level->out[0], level->out[1], level->in[0], level->in[1]};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        free(blocks[i]);
}

/* Halve z, y, x in turn: faces across z need no gathering of scattered points. */
static void divide(struct mg *mg) {
    for (int d = 0; d < 3; d++)
        mg->parts[d] = 1;
    for (int ranks = mg->run->ranks, axis = 2; ranks > 1; ranks /= 2, axis = (axis + 2) % 3)
        mg->parts[axis] *= 2;
    place_of(mg, mg->run->rank, mg->place);
    const int step[3] = {1, mg->parts[0], mg->parts[0] * mg->parts[1]};
    for (int d = 0; d < 3; d++) {
        const int line = mg->run->rank - mg->place[d] * step[d];
        mg->up[d] = line + (mg->place[d] + 1) % mg->parts[d] * step[d];
        mg->down[d] = line + (mg->place[d] + mg->parts[d] - 1) % mg->parts[d] * step[d];
    }
}

static void make_levels(struct mg *mg) {
    static const int undivided[3] = {1, 1, 1};
    int coarsest_divided = 1; /* one point a rank along the most divided axis, which is z */
    while (1 << coarsest_divided < mg->parts[2])
        coarsest_divided++;
    mg->gathered = coarsest_divided > 1 ? coarsest_divided : 0;
    for (int k = 1; k <= mg->top; k++)
        make_level(mg, &mg->level[k], k, k <= mg->gathered ? undivided : mg->parts);
    if (mg->gathered > 0)
        make_level(mg, &mg->own_part, mg->gathered, mg->parts);
    mg->v = run_allocate(mg->run, points(&mg->level[mg->top]), sizeof(double));
    for (int k = 0; k < 2; k++)
        mg->line[k] = run_allocate(mg->run, (size_t)(1 << mg->top) + 2, sizeof(double));
}

static void release(struct mg *mg) {
    for (int k = 1; k <= mg->top; k++)
        free_level(&mg->level[k]);
    if (mg->gathered > 0)
        free_level(&mg->own_part);
    free(mg->v);
    free(mg->line[0]);
    free(mg->line[1]);
}

static void run_mg(struct run *run) {
    const int class_index = run_class_index(run), iterations = classes[class_index].iterations;
    struct mg mg = {.run = run, .top = classes[class_index].log2_n, .smoother = classes[class_index].smoother};
    for (int d = 0; d < 3; d++)
        run->size[d] = INT64_C(1) << mg.top;
    run->operations = 58.0 * iterations * pow(2.0, 3.0 * mg.top);
    run_plan(run, iterations);
    divide(&mg);
    make_levels(&mg);

    struct level *finest = &mg.level[mg.top];
    set_problem(&mg);
    residual(&mg, finest, mg.v); /* one untimed cycle, as specified */
    v_cycle(&mg);
    set_problem(&mg);
    run_start(run);
    residual(&mg, finest, mg.v);
    for (int i = 0; i < iterations; i++) {
        run_iteration_begin(run);
        v_cycle(&mg);
        residual(&mg, finest, mg.v);
        run_iteration_end(run);
    }
    const double residual_norm = norm(&mg);
    run_stop(run);

    run_check(run, "residual norm", residual_norm, classes[class_index].norm, 1e-8);
    release(&mg);
}

/* Two points a rank along each axis of the finest level is the least that can be restricted. */
static int accepts_mg(const struct run *run) {
    return grid_is_power_of_two(run->ranks) && run->ranks <= 1 << 3 * (classes[run_class_index(run)].log2_n - 1);
}

const struct app app_mg = {"mg", "MG", "floating point", "a power of two", accepts_mg, run_mg};
