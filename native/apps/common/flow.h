/*
 * flow.h - what LU and SP share: the synthetic compressible flow problem of report NAS-95-020, section 3.
 *
 * Five conserved quantities u = (density, three momenta, energy) on n^3 points of the unit cube, fixed at the border to
 * a known polynomial. The forcing is chosen so that the polynomial is the steady solution of
 *
 *     du/dt = L(u) - L(polynomial),   L = - convection (central) + viscosity (central) - fourth-order dissipation.
 *
 * A block is the box of points of one rank (LU) or one cell of it (SP), inside FLOW_GHOSTS layers. Every array of a
 * block has the same layout, so one place (from flow_place) serves all; components of a point are adjacent.
 */
#ifndef NEARMETAL_APPS_FLOW_H
#define NEARMETAL_APPS_FLOW_H

#include "app.h"

enum { FLOW_PARTS = 5, FLOW_GHOSTS = 2 };

/* The derived quantities of a point. FLOW_SOUND is set only where it is needed. */
enum { FLOW_INVERSE_DENSITY, FLOW_VELOCITY, FLOW_KINETIC = 4, FLOW_ENERGY, FLOW_SOUND, FLOW_DERIVED = 8 };

/* Gas constants of the specification: ratio of heats, that less 1, and the viscosity and conduction products. */
#define FLOW_C1 1.4
#define FLOW_C2 0.4
#define FLOW_C34 0.1
#define FLOW_C15 (1.4 * 1.4)
#define FLOW_C1345 (FLOW_C15 * FLOW_C34)
#define FLOW_DISSIPATION 0.25

static const double flow_diffusion[3] = {0.75, 0.75, 1.0}; /* of every quantity, along x, y, z */

struct flow {
    int n;         /* points along each axis, border included */
    double dt;     /* time step */
    double t1, t2; /* 1 / h^2 and 1 / (2 h) for the spacing h = 1 / (n - 1) */
};

struct flow_block {
    int n[3], first[3]; /* points here, and the global index of the first */
    int inner[3][2];    /* [first, last) local indices that are not on the border of the cube */
    int64_t stride[3];  /* from one place to its neighbour along each axis */
    int64_t places;     /* of an array, ghosts included */
    double *u;          /* [places][FLOW_PARTS] */
    double *rhs;        /* [places][FLOW_PARTS], 0 outside the inner points */
    double *forcing;    /* [places][FLOW_PARTS] */
    double *derived;    /* [places][FLOW_DERIVED] */
};

struct flow flow_of(int n, double dt);

void flow_make_block(const struct run *run, const struct flow *flow, struct flow_block *block, const int n[3],
                     const int first[3]);
void flow_free_block(struct flow_block *block);

/* The place of local point (x, y, z); -FLOW_GHOSTS ... n + FLOW_GHOSTS - 1 are valid. */
static inline int64_t flow_place(const struct flow_block *block, int x, int y, int z) {
    return (x + FLOW_GHOSTS) + (y + FLOW_GHOSTS) * block->stride[1] + (z + FLOW_GHOSTS) * block->stride[2];
}

/* The polynomial at global point (x, y, z). */
void flow_exact(const struct flow *flow, int x, int y, int z, double value[FLOW_PARTS]);

/* forcing = - L(polynomial). Leaves u undefined. */
void flow_set_forcing(const struct flow *flow, struct flow_block *block);

/* u = the blend of border values that the specification starts from; the polynomial on the border. Fills ghosts too. */
void flow_set_initial(const struct flow *flow, struct flow_block *block);

/* Add a source of energy at one inner point, for good: a change of u alone would die away as the flow settles. */
void flow_spoil(struct flow_block *block);

/* derived = f(u), everywhere; call it whenever u or its ghosts changed. */
void flow_derive(struct flow_block *block);

/* rhs = L(u) + forcing at inner points. */
void flow_residual(const struct flow *flow, struct flow_block *block);

/* Add the squares of rhs, and of u - polynomial, over inner points. */
void flow_add_squares(const struct flow *flow, const struct flow_block *block, double residual[FLOW_PARTS],
                      double error[FLOW_PARTS]);

/* Copy `depth` layers of u at the low (side 0) or high (side 1) end of an axis, inner extent of the others, to a
 * buffer; or from a buffer into the ghosts beyond that end. Both return the number of values. */
int flow_pack(const struct flow_block *block, int axis, int side, double *buffer);
int flow_unpack(struct flow_block *block, int axis, int side, const double *buffer);

/* Reduce sums of squares to root mean squares over the inner points of the whole cube. Collective. */
void flow_norms(struct run *run, const struct flow *flow, const double sums[FLOW_PARTS], double norms[FLOW_PARTS]);

#endif
