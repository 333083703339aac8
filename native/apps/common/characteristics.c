#include "characteristics.h"
#include <math.h>

void characteristics_of_x(const double *u, const double *derived, double r[FLOW_PARTS]) {
    const double inverse = derived[FLOW_INVERSE_DENSITY], *v = derived + FLOW_VELOCITY, sound = derived[FLOW_SOUND];
    const double root_half = sqrt(0.5);
    (void)u;
    const double pressure =
        FLOW_C2 / (sound * sound) * (derived[FLOW_KINETIC] * r[0] - v[0] * r[1] - v[1] * r[2] - v[2] * r[3] + r[4]);
    const double along = root_half * inverse * (v[0] * r[0] - r[1]);
    const double wave = root_half * inverse * sound * pressure;
    const double first = r[0];
    r[0] = first - pressure;
    r[1] = -inverse * (v[2] * first - r[3]);
    r[2] = inverse * (v[1] * first - r[2]);
    r[3] = wave - along;
    r[4] = wave + along;
}

void characteristics_x_to_y(const double *u, const double *derived, double r[FLOW_PARTS]) {
    const double root_half = sqrt(0.5), turn = root_half * r[2], mean = 0.5 * (r[3] + r[4]);
    const double second = r[0];
    (void)u;
    (void)derived;
    r[0] = -r[1];
    r[1] = second;
    r[2] = root_half * (r[3] - r[4]);
    r[3] = mean - turn;
    r[4] = mean + turn;
}

void characteristics_y_to_z(const double *u, const double *derived, double r[FLOW_PARTS]) {
    const double root_half = sqrt(0.5), turn = root_half * r[0], mean = 0.5 * (r[3] + r[4]);
    const double third = r[1];
    (void)u;
    (void)derived;
    r[0] = root_half * (r[3] - r[4]);
    r[1] = -r[2];
    r[2] = third;
    r[3] = mean - turn;
    r[4] = mean + turn;
}

void characteristics_undo(const double *u, const double *derived, double r[FLOW_PARTS]) {
    const double *v = derived + FLOW_VELOCITY, density = u[0], sound = derived[FLOW_SOUND],
                 scaled = sqrt(0.5) * density;
    const double wave = scaled / sound * (r[3] + r[4]), mass = r[2] + wave, along = scaled * (r[3] - r[4]);
    const double first = r[0], second = r[1];
    r[0] = mass;
    r[1] = v[0] * mass - density * second;
    r[2] = v[1] * mass + density * first;
    r[3] = v[2] * mass + along;
    r[4] = density * (v[1] * first - v[0] * second) + derived[FLOW_KINETIC] * mass + sound * sound / FLOW_C2 * wave +
           v[2] * along;
}
