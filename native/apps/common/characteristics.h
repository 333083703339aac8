/*
 * characteristics.h - the changes of variables of SP (report NAS-95-020, 3.4): the matrices of eigenvectors that
 * diagonalise the convective Jacobians along x, y and z, and their inverses, applied in place to the values of one
 * point.
 *
 * Of the five characteristic quantities the first three travel with the flow, the fourth and fifth with sound to either
 * side. `u` and `derived` are the point's values in a flow_block; FLOW_SOUND must be set.
 */
#ifndef NEARMETAL_APPS_CHARACTERISTICS_H
#define NEARMETAL_APPS_CHARACTERISTICS_H

#include "flow.h"

typedef void characteristics_change(const double *u, const double *derived, double r[FLOW_PARTS]);

/* From the conserved quantities to the characteristic ones of x. */
characteristics_change characteristics_of_x;

/* From those of x to those of y; from those of y to those of z. Both are constant rotations. */
characteristics_change characteristics_x_to_y, characteristics_y_to_z;

/* From those of z back to the conserved quantities. */
characteristics_change characteristics_undo;

#endif
