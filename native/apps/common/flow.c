#include "flow.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Coefficients of the polynomial, table of report NAS-95-020, section 3: constant, then x y z, x2 y2 z2, ... x4 y4 z4.
 */
static const double polynomial[FLOW_PARTS][13] = {
    {2.0, 0.0, 0.0, 4.0, 5.0, 3.0, 0.5, 0.02, 0.01, 0.03, 0.5, 0.4, 0.3},
    {1.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 0.01, 0.03, 0.02, 0.4, 0.3, 0.5},
    {2.0, 2.0, 0.0, 0.0, 0.0, 2.0, 3.0, 0.04, 0.03, 0.05, 0.3, 0.5, 0.4},
    {2.0, 2.0, 0.0, 0.0, 0.0, 2.0, 3.0, 0.03, 0.05, 0.04, 0.2, 0.1, 0.3},
    {5.0, 4.0, 3.0, 2.0, 0.1, 0.4, 0.3, 0.05, 0.04, 0.03, 0.1, 0.3, 0.2},
};

struct flow flow_of(int n, double dt) {
    const double inverse_h = n - 1;
    return (struct flow){.n = n, .dt = dt, .t1 = inverse_h * inverse_h, .t2 = 0.5 * inverse_h};
}

void flow_make_block(const struct run *run, const struct flow *flow, struct flow_block *block, const int n[3],
                     const int first[3]) {
    block->places = 1;
    for (int d = 0; d < 3; d++) {
        block->n[d] = n[d];
        block->first[d] = first[d];
        block->inner[d][0] = first[d] == 0;
        block->inner[d][1] = first[d] + n[d] == flow->n ? n[d] - 1 : n[d];
        block->stride[d] = block->places;
        block->places *= n[d] + 2 * FLOW_GHOSTS;
    }
    const size_t places = (size_t)block->places;
    block->u = run_allocate(run, places, FLOW_PARTS * sizeof(double));
    block->rhs = run_allocate(run, places, FLOW_PARTS * sizeof(double));
    block->forcing = run_allocate(run, places, FLOW_PARTS * sizeof(double));
    block->derived = run_allocate(run, places, FLOW_DERIVED * sizeof(double));
    for (int64_t p = 0; p < block->places; p++)
        block->u[p * FLOW_PARTS] = 1.0; /* ghost corners are never set; a density of 1 keeps them harmless */
}

void flow_free_block(struct flow_block *block) {
    free(block->u);
    free(block->rhs);
    free(block->forcing);
    free(block->derived);
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

void flow_exact(const struct flow *flow, int x, int y, int z, double value[FLOW_PARTS]) {
    const double scale = 1.0 / (flow->n - 1);
    const double at[3] = {x * scale, y * scale, z * scale};
    for (int m = 0; m < FLOW_PARTS; m++) {
        const double *c = polynomial[m];
        value[m] = c[0];
        for (int d = 0; d < 3; d++)
            value[m] += at[d] * (c[1 + d] + at[d] * (c[4 + d] + at[d] * (c[7 + d] + at[d] * c[10 + d])));
    }
}

typedef void point_value(const struct flow *flow, const int at[3], double value[FLOW_PARTS]);

static void exact_value(const struct flow *flow, const int at[3], double value[FLOW_PARTS]) {
    flow_exact(flow, at[0], at[1], at[2], value);
}

/* The transfinite blend of the linear interpolations a, b, c between opposite border points: 1 - (1-a)(1-b)(1-c). */
static void initial_value(const struct flow *flow, const int at[3], double value[FLOW_PARTS]) {
    double along[3][FLOW_PARTS];
    const int last = flow->n - 1;
    for (int d = 0; d < 3; d++) {
        double low[FLOW_PARTS], high[FLOW_PARTS];
        int border[3] = {at[0], at[1], at[2]};
        if (at[d] == 0 || at[d] == last) {
            exact_value(flow, at, value);
            return;
        }
        const double position = (double)at[d] / last;
        border[d] = 0;
        exact_value(flow, border, low);
        border[d] = last;
        exact_value(flow, border, high);
        for (int m = 0; m < FLOW_PARTS; m++)
            along[d][m] = position * high[m] + (1.0 - position) * low[m];
    }
    for (int m = 0; m < FLOW_PARTS; m++) {
        const double a = along[0][m], b = along[1][m], c = along[2][m];
        value[m] = a + b + c - a * b - a * c - b * c + a * b * c;
    }
}

/* Set u at every point of the cube that the block holds, ghosts included. */
static void set_points(const struct flow *flow, struct flow_block *block, point_value *value) {
    int from[3], to[3];
    for (int d = 0; d < 3; d++) {
        from[d] = block->first[d] == 0 ? 0 : -FLOW_GHOSTS;
        to[d] = block->first[d] + block->n[d] == flow->n ? block->n[d] : block->n[d] + FLOW_GHOSTS;
    }
    for (int z = from[2]; z < to[2]; z++)
        for (int y = from[1]; y < to[1]; y++)
            for (int x = from[0]; x < to[0]; x++) {
                const int at[3] = {block->first[0] + x, block->first[1] + y, block->first[2] + z};
                value(flow, at, block->u + FLOW_PARTS * flow_place(block, x, y, z));
            }
}

void flow_set_initial(const struct flow *flow, struct flow_block *block) { set_points(flow, block, initial_value); }

void flow_spoil(struct flow_block *block) {
    const int64_t p = flow_place(block, block->inner[0][0], block->inner[1][0], block->inner[2][0]);
    block->forcing[FLOW_PARTS * p + 4] += 1.0;
}

void flow_derive(struct flow_block *block) {
    for (int64_t p = 0; p < block->places; p++) {
        const double *restrict u = block->u + FLOW_PARTS * p;
        double *restrict derived = block->derived + FLOW_DERIVED * p;
        const double inverse = 1.0 / u[0];
        derived[FLOW_INVERSE_DENSITY] = inverse;
        derived[FLOW_ENERGY] = 0.5 * (u[1] * u[1] + u[2] * u[2] + u[3] * u[3]) * inverse;
        derived[FLOW_KINETIC] = derived[FLOW_ENERGY] * inverse;
        for (int d = 0; d < 3; d++)
            derived[FLOW_VELOCITY + d] = u[1 + d] * inverse;
    }
}

/* ---- the operator ------------------------------------------------------------------------------------------------ */

/* Fourth difference with the one-sided forms next to the border, at global index g of 1 ... n - 2. */
static inline void dissipate(const double *u, int64_t step, int g, int n, double out[FLOW_PARTS]) {
    const double low2 = g > 2 ? 1.0 : 0.0, low1 = g > 1 ? -4.0 : 0.0, centre = g > 1 && g < n - 2 ? 6.0 : 5.0;
    const double high1 = g < n - 2 ? -4.0 : 0.0, high2 = g < n - 3 ? 1.0 : 0.0;
    for (int m = 0; m < FLOW_PARTS; m++)
        out[m] -= FLOW_DISSIPATION * (low2 * u[m - 2 * step] + low1 * u[m - step] + centre * u[m] +
                                      high1 * u[m + step] + high2 * u[m + 2 * step]);
}

/* Add the part of L along axis d at place p. */
static inline void along_axis(const struct flow *flow, const struct flow_block *block, int64_t p, int d,
                              double out[FLOW_PARTS]) {
    const int64_t step = block->stride[d] * FLOW_PARTS, derived_step = block->stride[d] * FLOW_DERIVED;
    const double *u = block->u + FLOW_PARTS * p, *ahead = u + step, *behind = u - step;
    const double *here = block->derived + FLOW_DERIVED * p, *fore = here + derived_step, *aft = here - derived_step;
    const double w_fore = fore[FLOW_VELOCITY + d], w_aft = aft[FLOW_VELOCITY + d], w = here[FLOW_VELOCITY + d];
    const double viscosity = FLOW_C34 * flow->t1;

    for (int m = 0; m < FLOW_PARTS; m++)
        out[m] += flow_diffusion[d] * flow->t1 * (ahead[m] - 2.0 * u[m] + behind[m]);
    out[0] -= flow->t2 * (ahead[1 + d] - behind[1 + d]);
    for (int c = 0; c < 3; c++) {
        const int v = FLOW_VELOCITY + c;
        out[1 + c] += viscosity * (c == d ? 4.0 / 3.0 : 1.0) * (fore[v] - 2.0 * here[v] + aft[v]) -
                      flow->t2 * (ahead[1 + c] * w_fore - behind[1 + c] * w_aft);
    }
    out[1 + d] -= flow->t2 * FLOW_C2 * ((ahead[4] - fore[FLOW_ENERGY]) - (behind[4] - aft[FLOW_ENERGY]));
    out[4] += viscosity * ((1.0 - FLOW_C15) * (fore[FLOW_KINETIC] - 2.0 * here[FLOW_KINETIC] + aft[FLOW_KINETIC]) +
                           (w_fore * w_fore - 2.0 * w * w + w_aft * w_aft) / 6.0 +
                           FLOW_C15 * (ahead[4] * fore[0] - 2.0 * u[4] * here[0] + behind[4] * aft[0])) -
              flow->t2 * ((FLOW_C1 * ahead[4] - FLOW_C2 * fore[FLOW_ENERGY]) * w_fore -
                          (FLOW_C1 * behind[4] - FLOW_C2 * aft[FLOW_ENERGY]) * w_aft);
}

void flow_residual(const struct flow *flow, struct flow_block *block) {
    for (int z = block->inner[2][0]; z < block->inner[2][1]; z++)
        for (int y = block->inner[1][0]; y < block->inner[1][1]; y++)
            for (int x = block->inner[0][0]; x < block->inner[0][1]; x++) {
                const int at[3] = {x + block->first[0], y + block->first[1], z + block->first[2]};
                const int64_t p = flow_place(block, x, y, z);
                double out[FLOW_PARTS];
                memcpy(out, block->forcing + FLOW_PARTS * p, sizeof out);
                for (int d = 0; d < 3; d++) {
                    along_axis(flow, block, p, d, out);
                    dissipate(block->u + FLOW_PARTS * p, FLOW_PARTS * block->stride[d], at[d], flow->n, out);
                }
                memcpy(block->rhs + FLOW_PARTS * p, out, sizeof out);
            }
}

void flow_set_forcing(const struct flow *flow, struct flow_block *block) {
    const size_t values = (size_t)block->places * FLOW_PARTS;
    memset(block->forcing, 0, values * sizeof(double));
    set_points(flow, block, exact_value);
    flow_derive(block);
    flow_residual(flow, block);
    for (size_t i = 0; i < values; i++)
        block->forcing[i] = -block->rhs[i];
}

/* ---- norms and faces --------------------------------------------------------------------------------------------- */

void flow_add_squares(const struct flow *flow, const struct flow_block *block, double residual[FLOW_PARTS],
                      double error[FLOW_PARTS]) {
    for (int z = block->inner[2][0]; z < block->inner[2][1]; z++)
        for (int y = block->inner[1][0]; y < block->inner[1][1]; y++)
            for (int x = block->inner[0][0]; x < block->inner[0][1]; x++) {
                const int64_t p = FLOW_PARTS * flow_place(block, x, y, z);
                double exact[FLOW_PARTS];
                flow_exact(flow, x + block->first[0], y + block->first[1], z + block->first[2], exact);
                for (int m = 0; m < FLOW_PARTS; m++) {
                    residual[m] += block->rhs[p + m] * block->rhs[p + m];
                    error[m] += (exact[m] - block->u[p + m]) * (exact[m] - block->u[p + m]);
                }
            }
}

void flow_norms(struct run *run, const struct flow *flow, const double sums[FLOW_PARTS], double norms[FLOW_PARTS]) {
    const double inner = flow->n - 2;
    RUN_MPI(run, MPI_Allreduce(sums, norms, FLOW_PARTS, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD));
    for (int m = 0; m < FLOW_PARTS; m++)
        norms[m] = sqrt(norms[m] / (inner * inner * inner));
}

/* The box of FLOW_GHOSTS layers from index `layer` of `axis`, without ghosts along the other axes. */
static void layers_box(const struct flow_block *block, int axis, int layer, int from[3], int to[3]) {
    for (int d = 0; d < 3; d++) {
        from[d] = 0;
        to[d] = block->n[d];
    }
    from[axis] = layer;
    to[axis] = layer + FLOW_GHOSTS;
}

int flow_pack(const struct flow_block *block, int axis, int side, double *buffer) {
    int from[3], to[3], count = 0;
    layers_box(block, axis, side == 0 ? 0 : block->n[axis] - FLOW_GHOSTS, from, to);
    for (int z = from[2]; z < to[2]; z++)
        for (int y = from[1]; y < to[1]; y++)
            for (int x = from[0]; x < to[0]; x++, count += FLOW_PARTS)
                memcpy(buffer + count, block->u + FLOW_PARTS * flow_place(block, x, y, z), FLOW_PARTS * sizeof(double));
    return count;
}

int flow_unpack(struct flow_block *block, int axis, int side, const double *buffer) {
    int from[3], to[3], count = 0;
    layers_box(block, axis, side == 0 ? -FLOW_GHOSTS : block->n[axis], from, to);
    for (int z = from[2]; z < to[2]; z++)
        for (int y = from[1]; y < to[1]; y++)
            for (int x = from[0]; x < to[0]; x++, count += FLOW_PARTS)
                memcpy(block->u + FLOW_PARTS * flow_place(block, x, y, z), buffer + count, FLOW_PARTS * sizeof(double));
    return count;
}
