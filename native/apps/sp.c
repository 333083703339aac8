/*
 * sp.c - approximate factorisation with scalar pentadiagonal solvers on the flow problem of flow.h
 * (report NAS-95-020, 3.4). Each step solves three sets of lines, along x, y and z.
 *
 * q^2 ranks cut the cube into q^3 cells, and rank (a, b) owns the q cells (a + k, b + k, k) mod q: one in every slab of
 * every axis. So all ranks work at each stage of a line solve, all neighbours in one direction of a rank's cells
 * belong to one rank, and a stage ends with one long message (report NAS-95-020, 3.4: the multi-partition scheme).
 */
#include "common/app.h"
#include "common/characteristics.h"
#include "common/flow.h"
#include "common/grid.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TAG_FACE = 1, TAG_FORWARD = 2, TAG_BACK = 3 };
enum { SYSTEMS = 3, MAX_SIDE = 16 };

/* What a line carries over a cell border: of two rows, the two upper coefficients of each system and the 5 right-hand
 * sides going forward; the 5 solutions coming back. */
enum { ROW_FORWARD = 2 * SYSTEMS + FLOW_PARTS, FORWARD = 2 * ROW_FORWARD, BACK = 2 * FLOW_PARTS };

/* Of the 5 characteristic quantities, the first three travel with the flow, the others with sound to either side. */
static const int system_of[FLOW_PARTS] = {0, 0, 0, 1, 2};

static const struct {
    int n, iterations;
    double dt, residual[FLOW_PARTS], error[FLOW_PARTS];
} classes[] = {
    {12,
     100,
     1.5e-2,
     {2.7470315451339479e-02, 1.0360746705285417e-02, 1.6235745065095532e-02, 1.5840557224455615e-02,
      3.4849040609362460e-02},
     {2.7289258557377227e-05, 1.0364446640837285e-05, 1.6154798287166471e-05, 1.5750704994480102e-05,
      3.4177666183390531e-05}},
    {36,
     400,
     1.5e-3,
     {0.1893253733584e-02, 0.1717075447775e-03, 0.2778153350936e-03, 0.2887475409984e-03, 0.3143611161242e-02},
     {0.7542088599534e-04, 0.6512852253086e-05, 0.1049092285688e-04, 0.1128838671535e-04, 0.1212845639773e-03}},
    {64,
     400,
     1.5e-3,
     {2.4799822399300195e0, 1.1276337964368832e0, 1.5028977888770491e0, 1.4217816211695179e0, 2.1292113035138280e0},
     {1.0900140297820550e-04, 3.7343951769282091e-05, 5.0092785406541633e-05, 4.7671093939528255e-05,
      1.3621613399213001e-04}},
    {102,
     400,
     1.0e-3,
     {0.6903293579998e+02, 0.3095134488084e+02, 0.4103336647017e+02, 0.3864769009604e+02, 0.5643482272596e+02},
     {0.9810006190188e-02, 0.1022827905670e-02, 0.1720597911692e-02, 0.1694479428231e-02, 0.1847456263981e-01}},
    {162,
     400,
     0.67e-3,
     {0.5881691581829e+03, 0.2454417603569e+03, 0.3293829191851e+03, 0.3081924971891e+03, 0.4597223799176e+03},
     {0.2598120500183e+00, 0.2590888922315e-01, 0.5132886416320e-01, 0.4806073419454e-01, 0.5483377491301e+00}},
};

struct cell {
    struct flow_block block;
    int place[3];  /* of the cell in the q x q x q cells */
    double *upper; /* [places][SYSTEMS][2] normalised coefficients of the next and the next but one unknown */
};

struct sp {
    struct run *run;
    struct flow flow;
    int side;                /* q */
    int ahead[3], behind[3]; /* the ranks that own the next and the previous cells along each axis */
    struct cell cell[MAX_SIDE];
    double *carried, *carried_next; /* what the lines of one face carry */
    double *message[2], *arrived[2];
};

/* ---- ghost points ------------------------------------------------------------------------------------------------ */

/* Along each axis, one message each way for all cells; cells at the border of the cube take no part. */
static void exchange_axis(struct sp *sp, int axis) {
    const int rank[2] = {sp->behind[axis], sp->ahead[axis]};
    const int border[2] = {0, sp->side - 1};
    MPI_Request request[4];
    int expected[2] = {0, 0}, count[2] = {0, 0};
    for (int k = 0; k < sp->side; k++) {
        const struct cell *cell = &sp->cell[k];
        const int face = cell->block.n[0] * cell->block.n[1] * cell->block.n[2] / cell->block.n[axis];
        for (int side = 0; side < 2; side++) {
            if (cell->place[axis] == border[side])
                continue;
            expected[side] += face * FLOW_GHOSTS * FLOW_PARTS;
            count[side] += flow_pack(&cell->block, axis, side, sp->message[side] + count[side]);
        }
    }
    for (int side = 0; side < 2;
         side++) /* each direction has its own tag: both neighbours may be one rank */
        RUN_MPI(sp->run,
                MPI_Irecv(sp->arrived[side], expected[side], MPI_DOUBLE, rank[side], TAG_FACE + 10 * (1 - side),
                          MPI_COMM_WORLD, &request[side]),
                MPI_Isend(sp->message[side], count[side], MPI_DOUBLE, rank[side], TAG_FACE + 10 * side, MPI_COMM_WORLD,
                          &request[2 + side]));
    RUN_MPI(sp->run, MPI_Waitall(4, request, MPI_STATUSES_IGNORE));
    for (int side = 0; side < 2; side++) {
        /* The sender packed in the order of its cells, which is the order of place along z. */
        int taken = 0;
        for (int z = 0; z < sp->side; z++)
            for (int k = 0; k < sp->side; k++) {
                struct cell *cell = &sp->cell[k];
                const int sender_z = axis != 2 ? cell->place[2] : cell->place[2] + (side == 0 ? -1 : 1);
                if (sender_z == z && cell->place[axis] != border[side])
                    taken += flow_unpack(&cell->block, axis, side, sp->arrived[side] + taken);
            }
    }
}

static void exchange_faces(struct sp *sp) {
    for (int axis = 0; axis < 3 && sp->side > 1; axis++)
        exchange_axis(sp, axis);
}

/* ---- changes of variables ---------------------------------------------------------------------------------------- */

static void change_variables(struct sp *sp, characteristics_change *change) {
    for (int k = 0; k < sp->side; k++) {
        const struct flow_block *block = &sp->cell[k].block;
        for (int z = block->inner[2][0]; z < block->inner[2][1]; z++)
            for (int y = block->inner[1][0]; y < block->inner[1][1]; y++)
                for (int x = block->inner[0][0]; x < block->inner[0][1]; x++) {
                    const int64_t p = flow_place(block, x, y, z);
                    change(block->u + FLOW_PARTS * p, block->derived + FLOW_DERIVED * p, block->rhs + FLOW_PARTS * p);
                }
    }
}

/* ---- line solves ------------------------------------------------------------------------------------------------- */

/* The largest viscous eigenvalue along axis d. Of the four candidates of the specification it is always the one of the
 * energy equation, since 1.96 > 4/3 > 1 > 0 multiply the same positive viscosity. */
static inline double bound(const double *derived, int d) {
    return flow_diffusion[d] + FLOW_C15 * FLOW_C34 * derived[FLOW_INVERSE_DENSITY];
}

/* One row of the three systems at place p, global index g of axis d: coefficients of the 5 unknowns g-2 ... g+2. */
static inline void make_row(const struct sp *sp, const struct flow_block *block, int64_t p, int d, int g,
                            double row[SYSTEMS][5]) {
    const int64_t step = block->stride[d] * FLOW_DERIVED;
    const double *here = block->derived + FLOW_DERIVED * p, *aft = here - step, *fore = here + step;
    const double first = sp->flow.dt * sp->flow.t2, second = sp->flow.dt * sp->flow.t1;
    const double damping = sp->flow.dt * FLOW_DISSIPATION;
    const int n = sp->flow.n, v = FLOW_VELOCITY + d;
    const double common[5] = {
        g > 2 ? damping : 0.0,
        -second * bound(aft, d) - (g > 1 ? 4.0 * damping : 0.0),
        1.0 + 2.0 * second * bound(here, d) + (g > 1 && g < n - 2 ? 6.0 : 5.0) * damping,
        -second * bound(fore, d) - (g < n - 2 ? 4.0 * damping : 0.0),
        g < n - 3 ? damping : 0.0,
    };
    for (int s = 0; s < SYSTEMS; s++) {
        const double sound = s == 0 ? 0.0 : s == 1 ? first : -first; /* u, u + c, u - c */
        memcpy(row[s], common, sizeof common);
        row[s][1] -= first * aft[v] + sound * aft[FLOW_SOUND];
        row[s][3] += first * fore[v] + sound * fore[FLOW_SOUND];
    }
}

/* Eliminate the two unknowns before the row, given the two rows before it, and normalise; the result replaces the
 * older one. */
static inline void eliminate(double row[SYSTEMS][5], double *restrict rhs, const double *restrict recent,
                             double *restrict older) {
    double scale[SYSTEMS], lower[SYSTEMS];
    for (int s = 0; s < SYSTEMS; s++) {
        lower[s] = row[s][1] - row[s][0] * older[2 * s];
        scale[s] = 1.0 / (row[s][2] - row[s][0] * older[2 * s + 1] - lower[s] * recent[2 * s]);
    }
    for (int m = 0; m < FLOW_PARTS; m++) {
        const int s = system_of[m];
        rhs[m] = scale[s] * (rhs[m] - row[s][0] * older[2 * SYSTEMS + m] - lower[s] * recent[2 * SYSTEMS + m]);
        older[2 * SYSTEMS + m] = rhs[m];
    }
    for (int s = 0; s < SYSTEMS; s++) {
        older[2 * s] = scale[s] * (row[s][3] - lower[s] * recent[2 * s + 1]);
        older[2 * s + 1] = scale[s] * row[s][4];
    }
}

/* Adjacent inner lines of a block along one axis, processed together, point by point: each line is one long chain of
 * dependent operations, and a processor overlaps the stalls of one with the work of the others. */
struct line_group {
    int64_t first;  /* place of point 0 of line 0 */
    int64_t across; /* from one line to the next */
    int lines;
};

static int line_groups_of(const struct flow_block *block, int d) {
    const int slow = d == 2 ? 1 : 2;
    return block->inner[slow][1] - block->inner[slow][0];
}

static struct line_group line_group_of(const struct flow_block *block, int d, int number) {
    const int fast = d == 0 ? 1 : 0, slow = d == 2 ? 1 : 2;
    int at[3];
    at[d] = 0;
    at[fast] = block->inner[fast][0];
    at[slow] = block->inner[slow][0] + number;
    return (struct line_group){flow_place(block, at[0], at[1], at[2]), block->stride[fast],
                               block->inner[fast][1] - block->inner[fast][0]};
}

/* Forward elimination; `carried` [line][2][ROW_FORWARD] holds the last two rows before, then those of here, most recent
 * first. */
static void eliminate_lines(struct sp *sp, struct cell *cell, int d, struct line_group group, double *carried) {
    struct flow_block *block = &cell->block;
    int recent = 0; /* which of the two rows is the most recent */
    for (int i = block->inner[d][0]; i < block->inner[d][1]; i++, recent = !recent) {
        for (int line = 0; line < group.lines; line++) {
            const int64_t p = group.first + line * group.across + i * block->stride[d];
            double *const rows = carried + (size_t)line * FORWARD;
            double row[SYSTEMS][5];
            make_row(sp, block, p, d, block->first[d] + i, row);
            eliminate(row, block->rhs + FLOW_PARTS * p, rows + recent * ROW_FORWARD, rows + !recent * ROW_FORWARD);
            memcpy(cell->upper + 2 * SYSTEMS * p, rows + !recent * ROW_FORWARD, 2 * SYSTEMS * sizeof(double));
        }
    }
    for (int line = 0; recent == 1 && line < group.lines; line++) {
        double *const rows = carried + (size_t)line * FORWARD, older[ROW_FORWARD];
        memcpy(older, rows, sizeof older);
        memcpy(rows, rows + ROW_FORWARD, sizeof older);
        memcpy(rows + ROW_FORWARD, older, sizeof older);
    }
}

/* Back substitution; `carried` [line][2][FLOW_PARTS] holds the two unknowns after, nearest first, then those of here.
 */
static void substitute_lines(struct cell *cell, int d, struct line_group group, double *carried) {
    struct flow_block *block = &cell->block;
    for (int i = block->inner[d][1] - 1; i >= block->inner[d][0]; i--) {
        for (int line = 0; line < group.lines; line++) {
            const int64_t p = group.first + line * group.across + i * block->stride[d];
            double *restrict rhs = block->rhs + FLOW_PARTS * p;
            double *restrict next = carried + (size_t)line * BACK, *second = next + FLOW_PARTS;
            const double *restrict upper = cell->upper + 2 * SYSTEMS * p;
            for (int m = 0; m < FLOW_PARTS; m++) {
                rhs[m] -= upper[2 * system_of[m]] * next[m] + upper[2 * system_of[m] + 1] * second[m];
                second[m] = next[m];
                next[m] = rhs[m];
            }
        }
    }
}

/* All lines of a cell; both return the number of values to carry on. */
static int forward(struct sp *sp, struct cell *cell, int d, double *carried) {
    int lines = 0;
    for (int k = 0; k < line_groups_of(&cell->block, d); k++) {
        const struct line_group group = line_group_of(&cell->block, d, k);
        eliminate_lines(sp, cell, d, group, carried + (size_t)lines * FORWARD);
        lines += group.lines;
    }
    return lines * FORWARD;
}

static int backward(struct cell *cell, int d, double *carried) {
    int lines = 0;
    for (int k = 0; k < line_groups_of(&cell->block, d); k++) {
        const struct line_group group = line_group_of(&cell->block, d, k);
        substitute_lines(cell, d, group, carried + (size_t)lines * BACK);
        lines += group.lines;
    }
    return lines * BACK;
}

/* The cell that this rank owns in slab `slab` of axis d. */
static struct cell *cell_in_slab(struct sp *sp, int d, int slab) {
    int k = 0;
    while (sp->cell[k].place[d] != slab)
        k++;
    return &sp->cell[k];
}

static int lines_of(struct sp *sp, int d, int slab) {
    const struct flow_block *block = &cell_in_slab(sp, d, slab)->block;
    int lines = 1;
    for (int axis = 0; axis < 3; axis++)
        lines *= axis == d ? 1 : block->inner[axis][1] - block->inner[axis][0];
    return lines;
}

/* Send `values` carried values to rank `to`, and receive those of the next cell from rank `from`. All ranks do so at
 * once around a ring: the receive is posted first, so that no blocking send can deadlock. */
static void pass_carried(struct sp *sp, int to, int from, int tag, int values, int values_next) {
    double *const given = sp->carried;
    MPI_Request request;
    sp->carried = sp->carried_next;
    sp->carried_next = given;
    RUN_MPI(sp->run, MPI_Irecv(sp->carried, values_next, MPI_DOUBLE, from, tag, MPI_COMM_WORLD, &request),
            MPI_Send(given, values, MPI_DOUBLE, to, tag, MPI_COMM_WORLD), MPI_Wait(&request, MPI_STATUS_IGNORE));
}

static void solve_lines(struct sp *sp, int d) {
    const int last = sp->side - 1;
    memset(sp->carried, 0, (size_t)lines_of(sp, d, 0) * FORWARD * sizeof(double));
    for (int slab = 0; slab <= last; slab++) {
        const int values = forward(sp, cell_in_slab(sp, d, slab), d, sp->carried);
        if (slab < last)
            pass_carried(sp, sp->ahead[d], sp->behind[d], TAG_FORWARD, values, lines_of(sp, d, slab + 1) * FORWARD);
    }
    memset(sp->carried, 0, (size_t)lines_of(sp, d, last) * BACK * sizeof(double));
    for (int slab = last; slab >= 0; slab--) {
        const int values = backward(cell_in_slab(sp, d, slab), d, sp->carried);
        if (slab > 0)
            pass_carried(sp, sp->behind[d], sp->ahead[d], TAG_BACK, values, lines_of(sp, d, slab - 1) * BACK);
    }
}

/* ---- the step ---------------------------------------------------------------------------------------------------- */

static void set_sound_speed(struct flow_block *block) {
    for (int64_t p = 0; p < block->places; p++) {
        double *derived = block->derived + FLOW_DERIVED * p;
        const double inner_energy = block->u[FLOW_PARTS * p + 4] - derived[FLOW_ENERGY];
        derived[FLOW_SOUND] = sqrt(FLOW_C1 * FLOW_C2 * derived[FLOW_INVERSE_DENSITY] * fabs(inner_energy));
    }
}

/* Recompute rhs and the derived quantities from u. */
static void refresh(struct sp *sp) {
    exchange_faces(sp);
    for (int k = 0; k < sp->side; k++) {
        flow_derive(&sp->cell[k].block);
        set_sound_speed(&sp->cell[k].block);
        flow_residual(&sp->flow, &sp->cell[k].block);
    }
}

static void iterate(struct sp *sp) {
    refresh(sp);
    for (int k = 0; k < sp->side; k++)
        for (int64_t i = 0; i < sp->cell[k].block.places * FLOW_PARTS; i++)
            sp->cell[k].block.rhs[i] *= sp->flow.dt;
    change_variables(sp, characteristics_of_x);
    solve_lines(sp, 0);
    change_variables(sp, characteristics_x_to_y);
    solve_lines(sp, 1);
    change_variables(sp, characteristics_y_to_z);
    solve_lines(sp, 2);
    change_variables(sp, characteristics_undo);
    for (int k = 0; k < sp->side; k++)
        for (int64_t i = 0; i < sp->cell[k].block.places * FLOW_PARTS; i++)
            sp->cell[k].block.u[i] += sp->cell[k].block.rhs[i];
}

static void verify(struct sp *sp, int class_index) {
    static const char *const residual_names[] = {"residual 1", "residual 2", "residual 3", "residual 4", "residual 5"};
    static const char *const error_names[] = {"error 1", "error 2", "error 3", "error 4", "error 5"};
    double residual[FLOW_PARTS] = {0.0}, error[FLOW_PARTS] = {0.0}, norms[FLOW_PARTS];
    refresh(sp);
    for (int k = 0; k < sp->side; k++)
        flow_add_squares(&sp->flow, &sp->cell[k].block, residual, error);
    flow_norms(sp->run, &sp->flow, residual, norms);
    for (int m = 0; m < FLOW_PARTS; m++)
        run_check(sp->run, residual_names[m], norms[m], classes[class_index].residual[m], 1e-8);
    flow_norms(sp->run, &sp->flow, error, norms);
    for (int m = 0; m < FLOW_PARTS; m++)
        run_check(sp->run, error_names[m], norms[m], classes[class_index].error[m], 1e-8);
}

/* ---- set-up ------------------------------------------------------------------------------------------------------ */

static int owner(const struct sp *sp, int x, int y, int z) {
    const int q = sp->side;
    return (x - z + q) % q + q * ((y - z + q) % q);
}

static void make_cell(struct sp *sp, int k) {
    struct cell *cell = &sp->cell[k];
    const int start[3] = {sp->run->rank % sp->side, sp->run->rank / sp->side, 0};
    int n[3], first[3];
    for (int d = 0; d < 3; d++) {
        cell->place[d] = (start[d] + k) % sp->side;
        first[d] = (int)grid_first(sp->flow.n, sp->side, cell->place[d]);
        n[d] = (int)grid_first(sp->flow.n, sp->side, cell->place[d] + 1) - first[d];
    }
    flow_make_block(sp->run, &sp->flow, &cell->block, n, first);
    flow_set_forcing(&sp->flow, &cell->block);
    if (sp->run->spoil && sp->run->rank == 0 && k == 0)
        flow_spoil(&cell->block);
    cell->upper = run_allocate(sp->run, (size_t)cell->block.places, 2 * SYSTEMS * sizeof(double));
}

static void divide(struct sp *sp) {
    const int q = sp->side;
    for (int k = 0; k < q; k++)
        make_cell(sp, k);
    for (int d = 0; d < 3; d++) {
        int next[3], previous[3];
        memcpy(next, sp->cell[0].place, sizeof next);
        memcpy(previous, sp->cell[0].place, sizeof previous);
        next[d] = (next[d] + 1) % q;
        previous[d] = (previous[d] + q - 1) % q;
        sp->ahead[d] = owner(sp, next[0], next[1], next[2]);
        sp->behind[d] = owner(sp, previous[0], previous[1], previous[2]);
    }
    const size_t edge = (size_t)(sp->flow.n / q + 1), face = edge * edge;
    sp->carried = run_allocate(sp->run, face, FORWARD * sizeof(double));
    sp->carried_next = run_allocate(sp->run, face, FORWARD * sizeof(double));
    for (int k = 0; k < 2; k++) {
        sp->message[k] = run_allocate(sp->run, face * (size_t)q, FLOW_GHOSTS * FLOW_PARTS * sizeof(double));
        sp->arrived[k] = run_allocate(sp->run, face * (size_t)q, FLOW_GHOSTS * FLOW_PARTS * sizeof(double));
    }
}

static void start(struct sp *sp) {
    for (int k = 0; k < sp->side; k++)
        flow_set_initial(&sp->flow, &sp->cell[k].block);
}

static void release(struct sp *sp) {
    for (int k = 0; k < sp->side; k++) {
        flow_free_block(&sp->cell[k].block);
        free(sp->cell[k].upper);
    }
    for (int k = 0; k < 2; k++) {
        free(sp->message[k]);
        free(sp->arrived[k]);
    }
    free(sp->carried);
    free(sp->carried_next);
}

static double operations_of(double n, int iterations) {
    return iterations * (881.174 * n * n * n - 4683.91 * n * n + 11484.5 * n - 19272.4);
}

static void run_sp(struct run *run) {
    const int class_index = run_class_index(run), iterations = classes[class_index].iterations;
    struct sp sp = {.run = run,
                    .flow = flow_of(classes[class_index].n, classes[class_index].dt),
                    .side = grid_square_root(run->ranks)};
    for (int d = 0; d < 3; d++)
        run->size[d] = sp.flow.n;
    run->operations = operations_of(sp.flow.n, iterations);
    run_plan(run, iterations);
    divide(&sp);
    start(&sp);
    iterate(&sp); /* untimed, as specified */
    start(&sp);

    run_start(run);
    for (int i = 0; i < iterations; i++) {
        run_iteration_begin(run);
        iterate(&sp);
        run_iteration_end(run);
    }
    run_stop(run);

    verify(&sp, class_index);
    release(&sp);
}

/* A cell must hold the layers that it sends. */
static int accepts_sp(const struct run *run) {
    const int side = grid_square_root(run->ranks);
    return side > 0 && side <= MAX_SIDE && classes[run_class_index(run)].n / side > FLOW_GHOSTS;
}

const struct app app_sp = {
    "sp", "SP", "floating point", "a square, up to 256, that leaves each cell 3 points a side", accepts_sp, run_sp};
