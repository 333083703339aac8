/*
 * advection.c - the advection equation u_t + c . grad u = 0 on an X x Y x Z grid for T steps, the application of Nanos,
 * Goumas and Koziris, "Exploring I/O Virtualization Data paths for MPI Applications in a Cluster of VMs" (2011), over
 * any process grid: 16x1x1, 1x16x1 and 1x1x16 are the linear cases of that paper.
 *
 * First-order upwind scheme with positive velocities: each point needs its lower neighbour along x, y and z, so that
 * each rank sends one face up and receives one face from below along every divided axis, once a step. A chain of 16
 * ranks has 15 messages a step. Where ranks run (inter-node, intra-node, hybrid) is up to the launcher.
 *
 * Verification needs no stored values. A plane wave exp(i k.x) stays one under this scheme: each step multiplies
 * it by g = 1 - sum over d of c_d (1 - exp(-i k_d)) (von Neumann's analysis of the scheme). The field starts as 1 +
 * cos(k.x), the inflow faces are fed the exact wave, and after T steps
 *   - every point must equal 1 + Re(g^T exp(i k.x)) to rounding: a wrong, late or missing face shows;
 *   - the change of the total must equal what flowed in less what flowed out (conservation);
 *   - no value may leave [0, 2] (the scheme is monotone).
 */
#include "common/app.h"
#include "common/grid.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TAG_FACE = 1 };

static const struct {
    int64_t n, steps;
} classes[] = {{32, 64}, {64, 128}, {128, 128}, {256, 256}, {512, 512}};

static const double courant[3] = {0.25, 0.2, 0.15}; /* c_d dt / h_d; their sum must stay below 1 */
static const double waves[3] = {1.7, 2.3, 0.6}; /* periods across the grid; not whole, so that the total changes */

struct wave {
    double re, im;
};

struct advection {
    struct run *run;
    int parts[3], place[3];
    int below[3], above[3]; /* neighbour ranks, MPI_PROC_NULL at the border of the grid */
    int64_t n[3];           /* points here */
    int64_t row, plane;     /* points from one y, one z to the next */
    double *u, *next;       /* [n[2] + 1][n[1] + 1][n[0] + 1]; index 0 of each axis is the ghost layer */
    double *out[3], *in[3]; /* faces */
    struct wave *phase[3];  /* [n[d] + 1] exp(i k_d x) at each index, ghost included */
    struct wave gain, now;  /* g, and g^t */
    double inflow;          /* courant-weighted sum of what crossed the border of the grid here */
};

static struct wave times(struct wave a, struct wave b) {
    return (struct wave){a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

static int64_t at(const struct advection *a, int64_t x, int64_t y, int64_t z) { return z * a->plane + y * a->row + x; }

/* The exact solution of the scheme at step t: 1 + Re(g^t exp(i k.x)). */
static double exact(const struct advection *a, int64_t x, int64_t y, int64_t z) {
    return 1.0 + times(times(a->now, a->phase[2][z]), times(a->phase[1][y], a->phase[0][x])).re;
}

/* ---- faces ------------------------------------------------------------------------------------------------------- */

/* The points of the layer `index` of `axis`, in a fixed order; `visit` gets the place in the field and in the face. */
static int64_t face_points(const struct advection *a, int axis) { return a->n[0] * a->n[1] * a->n[2] / a->n[axis]; }

static int64_t face_place(const struct advection *a, int axis, int64_t layer, int64_t k) {
    const int fast = axis == 0 ? 1 : 0, slow = axis == 2 ? 1 : 2;
    int64_t index[3];
    index[axis] = layer;
    index[fast] = k % a->n[fast] + 1;
    index[slow] = k / a->n[fast] + 1;
    return at(a, index[0], index[1], index[2]);
}

static void exchange_faces(struct advection *a) {
    MPI_Request request[6];
    int requests = 0;
    for (int d = 0; d < 3; d++) {
        if (a->above[d] == MPI_PROC_NULL)
            continue;
        for (int64_t k = 0, count = face_points(a, d); k < count; k++)
            a->out[d][k] = a->u[face_place(a, d, a->n[d], k)];
    }
    for (int d = 0; d < 3; d++) {
        const int count = (int)face_points(a, d);
        if (a->below[d] != MPI_PROC_NULL)
            RUN_MPI(a->run, MPI_Irecv(a->in[d], count, MPI_DOUBLE, a->below[d], TAG_FACE, MPI_COMM_WORLD,
                                      &request[requests++]));
        if (a->above[d] != MPI_PROC_NULL)
            RUN_MPI(a->run, MPI_Isend(a->out[d], count, MPI_DOUBLE, a->above[d], TAG_FACE, MPI_COMM_WORLD,
                                      &request[requests++]));
    }
    RUN_MPI(a->run, MPI_Waitall(requests, request, MPI_STATUSES_IGNORE));
    for (int d = 0; d < 3; d++) {
        if (a->below[d] == MPI_PROC_NULL)
            continue;
        for (int64_t k = 0, count = face_points(a, d); k < count; k++)
            a->u[face_place(a, d, 0, k)] = a->in[d][k];
    }
}

/* Feed the inflow faces with the exact wave, and account what crosses the border of the grid in this step. */
static void cross_border(struct advection *a) {
    for (int d = 0; d < 3; d++) {
        double in = 0.0, out = 0.0;
        const int64_t count = face_points(a, d);
        const int fast = d == 0 ? 1 : 0, slow = d == 2 ? 1 : 2;
        for (int64_t k = 0; k < count && a->below[d] == MPI_PROC_NULL; k++) {
            const struct wave across = times(a->phase[fast][k % a->n[fast] + 1], a->phase[slow][k / a->n[fast] + 1]);
            in += a->u[face_place(a, d, 0, k)] = 1.0 + times(times(a->now, a->phase[d][0]), across).re;
        }
        for (int64_t k = 0; k < count && a->above[d] == MPI_PROC_NULL; k++)
            out += a->u[face_place(a, d, a->n[d], k)];
        a->inflow += courant[d] * (in - out);
    }
}

/* ---- the step ---------------------------------------------------------------------------------------------------- */

static void advance(struct advection *a) {
    const double centre = 1.0 - courant[0] - courant[1] - courant[2];
    for (int64_t z = 1; z <= a->n[2]; z++)
        for (int64_t y = 1; y <= a->n[1]; y++) {
            const double *u = a->u + at(a, 0, y, z), *south = u - a->row, *under = u - a->plane;
            double *restrict next = a->next + at(a, 0, y, z);
            for (int64_t x = 1; x <= a->n[0]; x++)
                next[x] = centre * u[x] + courant[0] * u[x - 1] + courant[1] * south[x] + courant[2] * under[x];
        }
    double *const before = a->u;
    a->u = a->next;
    a->next = before;
    a->now = times(a->now, a->gain);
}

static double total(const struct advection *a) {
    double sum = 0.0;
    for (int64_t z = 1; z <= a->n[2]; z++)
        for (int64_t y = 1; y <= a->n[1]; y++) {
            double row = 0.0; /* partial sums keep the rounding small */
            for (int64_t x = 1; x <= a->n[0]; x++)
                row += a->u[at(a, x, y, z)];
            sum += row;
        }
    return sum;
}

/* worst[0] = largest deviation from the exact wave, worst[1] = largest excursion beyond [0, 2]. */
static void worst_points(const struct advection *a, double worst[2]) {
    worst[0] = worst[1] = 0.0;
    for (int64_t z = 1; z <= a->n[2]; z++)
        for (int64_t y = 1; y <= a->n[1]; y++)
            for (int64_t x = 1; x <= a->n[0]; x++) {
                const double value = a->u[at(a, x, y, z)], deviation = fabs(value - exact(a, x, y, z));
                const double excursion = fmax(-value, value - 2.0);
                worst[0] = deviation <= worst[0] ? worst[0] : deviation; /* NaN is the worst */
                worst[1] = excursion <= worst[1] ? worst[1] : excursion;
            }
}

/* ---- set-up ------------------------------------------------------------------------------------------------------ */

/* Ranks are numbered x fastest, so that 16x1x1 is the order of MPI_COMM_WORLD. */
static void divide(struct advection *a) {
    struct run *run = a->run;
    if (run->process_grid[0] > 0)
        memcpy(a->parts, run->process_grid, sizeof a->parts);
    else
        MPI_Dims_create(run->ranks, 3, a->parts);
    const int stride[3] = {1, a->parts[0], a->parts[0] * a->parts[1]};
    for (int d = 0; d < 3; d++) {
        a->place[d] = run->rank / stride[d] % a->parts[d];
        a->below[d] = a->place[d] > 0 ? run->rank - stride[d] : MPI_PROC_NULL;
        a->above[d] = a->place[d] + 1 < a->parts[d] ? run->rank + stride[d] : MPI_PROC_NULL;
    }
}

static void set_wave(struct advection *a) {
    const double turn = 2.0 * acos(-1.0);
    a->gain = (struct wave){1.0, 0.0};
    for (int d = 0; d < 3; d++) {
        const double k = turn * waves[d] / (double)a->run->size[d];
        const int64_t first = grid_first(a->run->size[d], a->parts[d], a->place[d]);
        a->phase[d] = run_allocate(a->run, (size_t)a->n[d] + 1, sizeof *a->phase[d]);
        for (int64_t i = 0; i <= a->n[d]; i++)
            a->phase[d][i] = (struct wave){cos(k * (double)(first + i - 1)), sin(k * (double)(first + i - 1))};
        a->gain.re -= courant[d] * (1.0 - cos(k));
        a->gain.im -= courant[d] * sin(k);
    }
    a->now = (struct wave){1.0, 0.0};
}

static void set_field(struct advection *a) {
    for (int64_t z = 1; z <= a->n[2]; z++)
        for (int64_t y = 1; y <= a->n[1]; y++)
            for (int64_t x = 1; x <= a->n[0]; x++)
                a->u[at(a, x, y, z)] = exact(a, x, y, z);
    if (a->run->spoil && a->run->rank == 0)
        a->u[at(a, 1, 1, 1)] += 1.0;
}

static void allocate(struct advection *a) {
    for (int d = 0; d < 3; d++)
        a->n[d] = grid_first(a->run->size[d], a->parts[d], a->place[d] + 1) -
                  grid_first(a->run->size[d], a->parts[d], a->place[d]);
    a->row = a->n[0] + 1;
    a->plane = a->row * (a->n[1] + 1);
    const size_t points = (size_t)a->plane * (size_t)(a->n[2] + 1);
    a->u = run_allocate(a->run, points, sizeof(double));
    a->next = run_allocate(a->run, points, sizeof(double));
    for (int d = 0; d < 3; d++) {
        a->out[d] = run_allocate(a->run, (size_t)face_points(a, d), sizeof(double));
        a->in[d] = run_allocate(a->run, (size_t)face_points(a, d), sizeof(double));
    }
}

static void release(struct advection *a) {
    for (int d = 0; d < 3; d++) {
        free(a->out[d]);
        free(a->in[d]);
        free(a->phase[d]);
    }
    free(a->u);
    free(a->next);
}

static void verify(struct advection *a, double total_before) {
    const double sums_here[3] = {total_before, total(a), a->inflow};
    double worst_here[2], worst[2], sums[3];
    worst_points(a, worst_here);
    MPI_Allreduce(sums_here, sums, 3, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(worst_here, worst, 2, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    run_check(a->run, "total", sums[1], sums[0] + sums[2], 1e-12);
    run_check_true(a->run, "every point equals the exact wave to 1e-11", worst[0] <= 1e-11);
    run_check_true(a->run, "every point stays in [0, 2] to rounding", worst[1] <= 1e-12);
}

static void run_advection(struct run *run) {
    const int class_index = run_class_index(run);
    const int64_t steps = run->steps > 0 ? run->steps : classes[class_index].steps;
    struct advection a = {.run = run};
    run->operations = 7.0 * (double)steps; /* 4 products and 3 sums a point and step */
    for (int d = 0; d < 3; d++) {
        run->size[d] = run->grid_size[d] > 0 ? run->grid_size[d] : classes[class_index].n;
        run->operations *= (double)run->size[d];
    }
    run_plan(run, (int)steps);
    divide(&a);
    allocate(&a);
    set_wave(&a);
    set_field(&a);

    const double total_before = total(&a);
    exchange_faces(&a); /* not timed: the first contact of two ranks opens their connection, milliseconds over TCP */
    run_start(run);
    for (int64_t t = 0; t < steps; t++) {
        run_iteration_begin(run);
        exchange_faces(&a);
        cross_border(&a);
        advance(&a);
        run_iteration_end(run);
    }
    run_stop(run);
    verify(&a, total_before);
    release(&a);
}

/* The process grid must use every rank, and every rank must hold a point along every axis. */
static int accepts_advection(const struct run *run) {
    int parts[3] = {0, 0, 0};
    if (run->process_grid[0] > 0)
        memcpy(parts, run->process_grid, sizeof parts);
    else
        MPI_Dims_create(run->ranks, 3, parts);
    int fits = (int64_t)parts[0] * parts[1] * parts[2] == run->ranks;
    for (int d = 0; d < 3; d++)
        fits &= parts[d] <= (run->grid_size[d] > 0 ? run->grid_size[d] : classes[run_class_index(run)].n);
    return fits;
}

const struct app app_advection = {"advection",       "ADVECTION",
                                  "floating point",  "as many as the --grid XxYxZ has places",
                                  accepts_advection, run_advection};
