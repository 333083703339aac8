/*
 * lu.c - symmetric successive over-relaxation on the flow problem of flow.h (report NAS-95-020, 3.3). The ranks divide
 * x and y; each sweep goes through the planes z as a wavefront, with one small message to each of two neighbours a
 * plane: the application of the suite that is most sensitive to latency.
 *
 * The implicit operator of a step is D + lower + upper. Its off-diagonal blocks are Jacobians of L at the neighbours;
 * they are never formed, only applied to vectors. The diagonal block D holds viscous Jacobians only, which are lower
 * triangular in this order of the quantities, so that D is solved by substitution. NPB 3 forms and eliminates full 5 x
 * 5 blocks: Mop/s counted by its formula look better here, and are not comparable with it.
 */
#include "common/app.h"
#include "common/flow.h"
#include "common/grid.h"
#include <stdlib.h>
#include <string.h>

enum { TAG_SWEEP = 1, TAG_FACE = 2 };

static const double relaxation = 1.2; /* the omega of the specification */

static const struct {
    int n, iterations;
    double dt, residual[FLOW_PARTS], error[FLOW_PARTS], surface;
} classes[] = {
    {12,
     50,
     5.0e-1,
     {1.6196343210976702e-02, 2.1976745164821318e-03, 1.5179927653399185e-03, 1.5029584435994323e-03,
      3.4264073155896461e-02},
     {6.4223319957960924e-04, 8.4144342047347926e-05, 5.8588269616485186e-05, 5.8474222595157350e-05,
      1.3103347914111294e-03},
     7.8418928865937083e+00},
    {33,
     300,
     1.5e-3,
     {0.1236511638192e+02, 0.1317228477799e+01, 0.2550120713095e+01, 0.2326187750252e+01, 0.2826799444189e+02},
     {0.4867877144216e+00, 0.5064652880982e-01, 0.9281818101960e-01, 0.8570126542733e-01, 0.1084277417792e+01},
     0.1161399311023e+02},
    {64,
     250,
     2.0e+0,
     {7.7902107606689367e+02, 6.3402765259692870e+01, 1.9499249727292479e+02, 1.7845301160418537e+02,
      1.8384760349464247e+03},
     {2.9964085685471943e+01, 2.8194576365003349e+00, 7.3473412698774742e+00, 6.7139225687777051e+00,
      7.0715315688392578e+01},
     2.6030925604886277e+01},
    {102,
     250,
     2.0e+0,
     {3.5532672969982736e+03, 2.6214750795310692e+02, 8.8333721850952190e+02, 7.7812774739425265e+02,
      7.3087969592545314e+03},
     {1.1401176380212709e+02, 8.1098963655421574e+00, 2.8480597317698308e+01, 2.5905394567832939e+01,
      2.6054907504857413e+02},
     4.7887162703308227e+01},
    {162,
     250,
     2.0e+0,
     {1.03766980323537846e+04, 8.92212458801008552e+02, 2.56238814582660871e+03, 2.19194343857831427e+03,
      1.78078057261061185e+04},
     {2.15986399716949279e+02, 1.55789559239863600e+01, 5.41318863077207766e+01, 4.82262643154045421e+01,
      4.55902910043250358e+02},
     6.66404553572181300e+01},
};

struct lu {
    struct run *run;
    struct flow flow;
    struct flow_block block;
    int below[2], above[2]; /* neighbour ranks along x and y; MPI_PROC_NULL at the border */
    double *out[2], *in[2]; /* faces and edges */
};

/* ---- Jacobians applied to a vector ------------------------------------------------------------------------------- */

/* out += scale * (t2 sign A + t1 N + t1 diffusion I) w at place p, for axis d: the derivative of L(u) at a neighbour of
 * p with respect to u at p, times w. A is the convective flux Jacobian, N the viscous one; sign is +1 when p lies
 * behind the neighbour, -1 when ahead. */
static inline void add_coupling(const struct lu *lu, int64_t p, int d, double sign, double scale, const double *w,
                                double *out) {
    const double *u = lu->block.u + FLOW_PARTS * p, *derived = lu->block.derived + FLOW_DERIVED * p;
    const double *v = derived + FLOW_VELOCITY, inverse = derived[FLOW_INVERSE_DENSITY];
    const double t1 = scale * lu->flow.t1, t2 = scale * sign * lu->flow.t2, diffusion = t1 * flow_diffusion[d];
    const double speed = v[d], flux = w[1 + d];
    const double pressure_change =
        FLOW_C2 * (w[4] - (v[0] * w[1] + v[1] * w[2] + v[2] * w[3]) + derived[FLOW_KINETIC] * w[0]);
    const double enthalpy = (FLOW_C1 * u[4] - FLOW_C2 * derived[FLOW_ENERGY]) * inverse;
    double heat = FLOW_C1345 * (w[4] - u[4] * inverse * w[0]);

    out[0] += t2 * flux + diffusion * w[0];
    for (int c = 0; c < 3; c++) {
        const double viscosity = c == d ? FLOW_C34 * 4.0 / 3.0 : FLOW_C34, change = w[1 + c] - v[c] * w[0];
        heat += (viscosity - FLOW_C1345) * v[c] * change;
        out[1 + c] += t2 * (speed * change + v[c] * flux + (c == d ? pressure_change : 0.0)) +
                      t1 * viscosity * change * inverse + diffusion * w[1 + c];
    }
    out[4] += t2 * ((w[4] + pressure_change) * speed + enthalpy * (flux - speed * w[0])) + t1 * heat * inverse +
              diffusion * w[4];
}

/* w = D^-1 w at place p. */
static inline void solve_diagonal(const struct lu *lu, int64_t p, double *w) {
    const double *u = lu->block.u + FLOW_PARTS * p, *derived = lu->block.derived + FLOW_DERIVED * p;
    const double *v = derived + FLOW_VELOCITY, inverse = derived[FLOW_INVERSE_DENSITY];
    const double twice = 2.0 * lu->flow.dt * lu->flow.t1, scaled = twice * inverse;
    const double diagonal = 1.0 + twice * (flow_diffusion[0] + flow_diffusion[1] + flow_diffusion[2]);
    const double momentum = FLOW_C34 * (1.0 + 1.0 + 4.0 / 3.0), energy = 3.0 * FLOW_C1345;

    w[0] /= diagonal;
    double heat = -energy * u[4] * inverse * w[0];
    for (int c = 0; c < 3; c++) {
        w[1 + c] = (w[1 + c] + scaled * momentum * v[c] * w[0]) / (diagonal + scaled * momentum);
        heat += (momentum - energy) * v[c] * (w[1 + c] - v[c] * w[0]);
    }
    w[4] = (w[4] - scaled * heat) / (diagonal + scaled * energy);
}

/* ---- the sweeps -------------------------------------------------------------------------------------------------- */

/* rhs along the row of points that plane z has at index `at` of axis `axis`, to or from a buffer. */
static int edge(const struct flow_block *block, int axis, int at, int z, double *buffer, int store) {
    const int other = 1 - axis;
    for (int k = 0; k < block->n[other]; k++) {
        double *const point = block->rhs + FLOW_PARTS * flow_place(block, axis == 0 ? at : k, axis == 0 ? k : at, z);
        double *const value = buffer + FLOW_PARTS * k;
        memcpy(store ? point : value, store ? value : point, FLOW_PARTS * sizeof(double));
    }
    return FLOW_PARTS * block->n[other];
}

/* Receive the edges of plane z that the neighbours `from` finished, into the ghosts. */
static void receive_edges(struct lu *lu, const int from[2], int upward, int z) {
    for (int axis = 0; axis < 2; axis++) {
        if (from[axis] == MPI_PROC_NULL)
            continue;
        RUN_MPI(lu->run, MPI_Recv(lu->in[axis], FLOW_PARTS * lu->block.n[1 - axis], MPI_DOUBLE, from[axis], TAG_SWEEP,
                                  MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        edge(&lu->block, axis, upward ? -1 : lu->block.n[axis], z, lu->in[axis], 1);
    }
}

static void send_edges(struct lu *lu, const int to[2], int upward, int z) {
    for (int axis = 0; axis < 2; axis++) {
        if (to[axis] == MPI_PROC_NULL)
            continue;
        const int count = edge(&lu->block, axis, upward ? lu->block.n[axis] - 1 : 0, z, lu->out[axis], 0);
        RUN_MPI(lu->run, MPI_Send(lu->out[axis], count, MPI_DOUBLE, to[axis], TAG_SWEEP, MPI_COMM_WORLD));
    }
}

/* (D + lower) new = rhs, from the low corner up. */
static void lower_plane(struct lu *lu, int z) {
    const struct flow_block *block = &lu->block;
    for (int y = block->inner[1][0]; y < block->inner[1][1]; y++)
        for (int x = block->inner[0][0]; x < block->inner[0][1]; x++) {
            const int64_t p = flow_place(block, x, y, z);
            double *rhs = block->rhs + FLOW_PARTS * p;
            for (int d = 2; d >= 0; d--) {
                const int64_t neighbour = p - block->stride[d];
                add_coupling(lu, neighbour, d, 1.0, relaxation * lu->flow.dt, block->rhs + FLOW_PARTS * neighbour, rhs);
            }
            solve_diagonal(lu, p, rhs);
        }
}

/* (D + upper) new = D rhs, from the high corner down. */
static void upper_plane(struct lu *lu, int z) {
    const struct flow_block *block = &lu->block;
    for (int y = block->inner[1][1] - 1; y >= block->inner[1][0]; y--)
        for (int x = block->inner[0][1] - 1; x >= block->inner[0][0]; x--) {
            const int64_t p = flow_place(block, x, y, z);
            double *rhs = block->rhs + FLOW_PARTS * p, change[FLOW_PARTS] = {0.0};
            for (int d = 2; d >= 0; d--) {
                const int64_t neighbour = p + block->stride[d];
                add_coupling(lu, neighbour, d, -1.0, relaxation * lu->flow.dt, block->rhs + FLOW_PARTS * neighbour,
                             change);
            }
            solve_diagonal(lu, p, change);
            for (int m = 0; m < FLOW_PARTS; m++)
                rhs[m] += change[m];
        }
}

static void exchange_faces(struct lu *lu) {
    for (int axis = 0; axis < 2; axis++) {
        const int rank[2] = {lu->below[axis], lu->above[axis]};
        const int count = FLOW_PARTS * FLOW_GHOSTS * lu->block.n[1 - axis] * lu->block.n[2];
        MPI_Request request[2];
        for (int side = 0; side < 2; side++)
            RUN_MPI(lu->run,
                    MPI_Irecv(lu->in[side], count, MPI_DOUBLE, rank[side], TAG_FACE, MPI_COMM_WORLD, &request[side]));
        for (int side = 0; side < 2; side++) {
            if (rank[side] == MPI_PROC_NULL)
                continue;
            flow_pack(&lu->block, axis, side, lu->out[side]);
            RUN_MPI(lu->run, MPI_Send(lu->out[side], count, MPI_DOUBLE, rank[side], TAG_FACE, MPI_COMM_WORLD));
        }
        RUN_MPI(lu->run, MPI_Waitall(2, request, MPI_STATUSES_IGNORE));
        for (int side = 0; side < 2; side++)
            if (rank[side] != MPI_PROC_NULL)
                flow_unpack(&lu->block, axis, side, lu->in[side]);
    }
}

/* Recompute rhs and the derived quantities from u. */
static void refresh(struct lu *lu) {
    exchange_faces(lu);
    flow_derive(&lu->block);
    flow_residual(&lu->flow, &lu->block);
}

static void iterate(struct lu *lu) {
    struct flow_block *block = &lu->block;
    const double step = 1.0 / (relaxation * (2.0 - relaxation));
    const int64_t values = block->places * FLOW_PARTS;
    for (int64_t i = 0; i < values; i++)
        block->rhs[i] *= lu->flow.dt;
    for (int z = block->inner[2][0]; z < block->inner[2][1]; z++) {
        receive_edges(lu, lu->below, 1, z);
        lower_plane(lu, z);
        send_edges(lu, lu->above, 1, z);
    }
    for (int z = block->inner[2][1] - 1; z >= block->inner[2][0]; z--) {
        receive_edges(lu, lu->above, 0, z);
        upper_plane(lu, z);
        send_edges(lu, lu->below, 0, z);
    }
    for (int64_t i = 0; i < values; i++)
        block->u[i] += step * block->rhs[i]; /* ghosts get wrong values here, and right ones in refresh() */
    refresh(lu);
}

/* ---- verification ------------------------------------------------------------------------------------------------ */

/* Trapezoid weight of index g in [low, high], 0 outside. */
static double weight(int g, int low, int high) { return g < low || g > high ? 0.0 : g == low || g == high ? 1.0 : 2.0; }

/* The surface integral of the pressure over the six faces of the box that the specification names. */
static double surface_integral(struct lu *lu) {
    const int n = lu->flow.n, low[3] = {1, 1, 2}, high[3] = {n - 2, n - 3, n - 2};
    double here = 0.0, everywhere;
    for (int z = 0; z < lu->block.n[2]; z++)
        for (int y = 0; y < lu->block.n[1]; y++)
            for (int x = 0; x < lu->block.n[0]; x++) {
                const int64_t p = flow_place(&lu->block, x, y, z);
                const int g[3] = {x + lu->block.first[0], y + lu->block.first[1], z + lu->block.first[2]};
                double faces = 0.0;
                for (int d = 0; d < 3; d++)
                    if (g[d] == low[d] || g[d] == high[d])
                        faces += weight(g[(d + 1) % 3], low[(d + 1) % 3], high[(d + 1) % 3]) *
                                 weight(g[(d + 2) % 3], low[(d + 2) % 3], high[(d + 2) % 3]);
                if (faces > 0.0)
                    here += faces * FLOW_C2 *
                            (lu->block.u[FLOW_PARTS * p + 4] - lu->block.derived[FLOW_DERIVED * p + FLOW_ENERGY]);
            }
    RUN_MPI(lu->run, MPI_Allreduce(&here, &everywhere, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD));
    return 0.25 * everywhere / ((n - 1.0) * (n - 1.0));
}

static void verify(struct lu *lu, int class_index) {
    static const char *const residual_names[] = {"residual 1", "residual 2", "residual 3", "residual 4", "residual 5"};
    static const char *const error_names[] = {"error 1", "error 2", "error 3", "error 4", "error 5"};
    double sums[2][FLOW_PARTS] = {{0.0}}, norms[FLOW_PARTS];
    flow_add_squares(&lu->flow, &lu->block, sums[0], sums[1]);
    flow_norms(lu->run, &lu->flow, sums[0], norms);
    for (int m = 0; m < FLOW_PARTS; m++)
        run_check(lu->run, residual_names[m], norms[m], classes[class_index].residual[m], 1e-8);
    flow_norms(lu->run, &lu->flow, sums[1], norms);
    for (int m = 0; m < FLOW_PARTS; m++)
        run_check(lu->run, error_names[m], norms[m], classes[class_index].error[m], 1e-8);
    run_check(lu->run, "surface", surface_integral(lu), classes[class_index].surface, 1e-8);
}

/* ---- set-up ------------------------------------------------------------------------------------------------------ */

static void start(struct lu *lu) {
    flow_set_initial(&lu->flow, &lu->block);
    refresh(lu);
}

static void divide(struct lu *lu) {
    int parts[2] = {0, 0}, n[3], first[3], face = 0;
    MPI_Dims_create(lu->run->ranks, 2, parts);
    const int stride[2] = {1, parts[0]};
    first[2] = 0;
    n[2] = lu->flow.n;
    for (int d = 0; d < 2; d++) {
        const int place = lu->run->rank / stride[d] % parts[d];
        lu->below[d] = place > 0 ? lu->run->rank - stride[d] : MPI_PROC_NULL;
        lu->above[d] = place + 1 < parts[d] ? lu->run->rank + stride[d] : MPI_PROC_NULL;
        first[d] = (int)grid_first(lu->flow.n, parts[d], place);
        n[d] = (int)grid_first(lu->flow.n, parts[d], place + 1) - first[d];
        face = n[d] > face ? n[d] : face;
    }
    flow_make_block(lu->run, &lu->flow, &lu->block, n, first);
    for (int k = 0; k < 2; k++) {
        lu->out[k] = run_allocate(lu->run, (size_t)(FLOW_GHOSTS * face * n[2]), FLOW_PARTS * sizeof(double));
        lu->in[k] = run_allocate(lu->run, (size_t)(FLOW_GHOSTS * face * n[2]), FLOW_PARTS * sizeof(double));
    }
    flow_set_forcing(&lu->flow, &lu->block);
    if (lu->run->spoil && lu->run->rank == 0)
        flow_spoil(&lu->block);
}

static double operations_of(double n, int iterations) {
    return iterations * (1984.77 * n * n * n - 10923.3 * n * n + 27770.9 * n - 144010.0);
}

static void run_lu(struct run *run) {
    const int class_index = run_class_index(run), iterations = classes[class_index].iterations;
    struct lu lu = {.run = run, .flow = flow_of(classes[class_index].n, classes[class_index].dt)};
    for (int d = 0; d < 3; d++)
        run->size[d] = lu.flow.n;
    run->operations = operations_of(lu.flow.n, iterations);
    run_plan(run, iterations);
    divide(&lu);
    start(&lu);
    iterate(&lu); /* untimed, as specified */
    start(&lu);

    run_start(run);
    for (int i = 0; i < iterations; i++) {
        run_iteration_begin(run);
        iterate(&lu);
        run_iteration_end(run);
    }
    run_stop(run);

    verify(&lu, class_index);
    flow_free_block(&lu.block);
    for (int k = 0; k < 2; k++) {
        free(lu.out[k]);
        free(lu.in[k]);
    }
}

/* A rank must own the layers that it sends. */
static int accepts_lu(const struct run *run) {
    int parts[2] = {0, 0};
    MPI_Dims_create(run->ranks, 2, parts);
    return classes[run_class_index(run)].n / parts[0] > FLOW_GHOSTS;
}

const struct app app_lu = {"lu",       "LU",  "floating point", "any that leaves each rank 3 points along x and y",
                           accepts_lu, run_lu};
