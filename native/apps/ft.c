/*
 * ft.c - solution of a diffusion equation with three-dimensional fast Fourier transforms (report NAS-95-020, 2.7).
 * The collective-heavy kernel: one all-to-all of the whole grid an iteration, and a small reduction.
 *
 * The grid is divided into slabs. Physical space is divided along z and stored [z here][y][x]; the spectrum is
 * divided along y and stored [z][y here][x], so that the blocks that arrive from (or go to) one rank are contiguous.
 */
#include "common/app.h"
#include "common/grid.h"
#include "common/random.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FT_MAX_ITERATIONS = 20, CHECKSUM_POINTS = 1024, LINES = 16 };

static const double diffusivity = 1e-6; /* the alpha of the specification */

struct complex_number {
    double re, im;
};

static const struct {
    int64_t n[3];
    int iterations;
    struct complex_number checksum[FT_MAX_ITERATIONS];
} classes[] = {
    {{64, 64, 64},
     6,
     {{554.6087004964, 484.5363331978},
      {554.6385409189, 486.5304269511},
      {554.6148406171, 488.3910722336},
      {554.5423607415, 490.1273169046},
      {554.4255039624, 491.7475857993},
      {554.2683411902, 493.2597244941}}},
    {{128, 128, 32},
     6,
     {{567.3612178944, 529.3246849175},
      {563.1436885271, 528.2149986629},
      {559.4024089970, 527.0996558037},
      {556.0698047020, 526.0027904925},
      {553.0898991250, 524.9400845633},
      {550.4159734538, 523.9212247086}}},
    {{256, 256, 128},
     6,
     {{504.6735008193, 511.4047905510},
      {505.9412319734, 509.8809666433},
      {506.9376896287, 509.8144042213},
      {507.7892868474, 510.1336130759},
      {508.5233095391, 510.4914655194},
      {509.1487099959, 510.7917842803}}},
    {{512, 256, 256},
     20,
     {{517.7643571579, 507.7803458597}, {515.4521291263, 508.8249431599}, {514.6409228649, 509.6208912659},
      {514.2378756213, 510.1023387619}, {513.9626667737, 510.3976610617}, {513.7423460082, 510.5948019802},
      {513.5547056878, 510.7404165783}, {513.3910925466, 510.8576573661}, {513.2470705390, 510.9577278523},
      {513.1197729984, 511.0460304483}, {513.0070319283, 511.1252433800}, {512.9070537032, 511.1968077718},
      {512.8182883502, 511.2616233064}, {512.7393733383, 511.3203605551}, {512.6691062020, 511.3735928093},
      {512.6064276004, 511.4218460548}, {512.5504076570, 511.4656139760}, {512.5002331720, 511.5053595966},
      {512.4551951846, 511.5415130407}, {512.4146770029, 511.5744692211}}},
    {{512, 512, 512},
     20,
     {{519.5078707457, 514.9019699238}, {515.5422171134, 512.7578201997}, {514.4678022222, 512.2251847514},
      {514.0150594328, 512.1090289018}, {513.7550426810, 512.1143685824}, {513.5811056728, 512.1496764568},
      {513.4569343165, 512.1870921893}, {513.3651975661, 512.2193250322}, {513.2955192805, 512.2454735794},
      {513.2410471738, 512.2663649603}, {513.1971141679, 512.2830879827}, {513.1605205716, 512.2965869718},
      {513.1290734194, 512.3075927445}, {513.1012720314, 512.3166486553}, {513.0760908195, 512.3241541685},
      {513.0528295923, 512.3304037599}, {513.0310107773, 512.3356167976}, {513.0103090133, 512.3399592211},
      {512.9905029333, 512.3435588985}, {512.9714421109, 512.3465164008}}},
};

/* A transform of length n, of LINES lines at once, in split real and imaginary parts. */
struct transform {
    int n;
    double *cosine, *sine; /* [n / 2] of 2 pi k / n */
    double *re[2], *im[2]; /* [n][LINES] work space, ping and pong */
};

struct ft {
    struct run *run;
    int64_t n[3], total;
    int64_t z_count, y_count; /* planes here of physical space, of the spectrum */
    int64_t y_first;          /* of the spectrum */
    struct transform transform[3];
    double *decay[3];                /* [n[d]] exp(-4 alpha pi^2 k^2) along each axis */
    struct complex_number *spectrum; /* [n[2]][y_count][n[0]] */
    struct complex_number *field, *spare;
};

/* ---- one-dimensional transforms --------------------------------------------------------------------------------- */

/* One Stockham step: blocks of length `length`, `stride` interleaved; direction +1 forward (negative exponent). */
static void step(const struct transform *t, int length, int stride, double direction, int from) {
    const int half = length / 2, span = stride * LINES;
    for (int p = 0; p < half; p++) {
        const double cosine = t->cosine[p * stride], sine = -direction * t->sine[p * stride];
        const double *restrict a_re = t->re[from] + p * span, *restrict a_im = t->im[from] + p * span;
        const double *restrict b_re = a_re + half * span, *restrict b_im = a_im + half * span;
        double *restrict sum_re = t->re[!from] + 2 * p * span, *restrict sum_im = t->im[!from] + 2 * p * span;
        double *restrict turn_re = sum_re + span, *restrict turn_im = sum_im + span;
        for (int q = 0; q < span; q++) {
            const double re = a_re[q] - b_re[q], im = a_im[q] - b_im[q];
            sum_re[q] = a_re[q] + b_re[q];
            sum_im[q] = a_im[q] + b_im[q];
            turn_re[q] = re * cosine - im * sine;
            turn_im[q] = re * sine + im * cosine;
        }
    }
}

/* Transform `lines` (at most LINES) lines in place: line l has its points at data[l * line_stride + k * point_stride].
 */
static void transform_lines(const struct transform *t, double direction, struct complex_number *data, int lines,
                            int64_t line_stride, int64_t point_stride) {
    for (int k = 0; k < t->n; k++)
        for (int l = 0; l < lines; l++) {
            const struct complex_number value = data[l * line_stride + k * point_stride];
            t->re[0][k * LINES + l] = value.re;
            t->im[0][k * LINES + l] = value.im;
        }
    int now = 0;
    for (int length = t->n, stride = 1; length > 1; length /= 2, stride *= 2, now = !now)
        step(t, length, stride, direction, now);
    for (int k = 0; k < t->n; k++)
        for (int l = 0; l < lines; l++)
            data[l * line_stride + k * point_stride] =
                (struct complex_number){t->re[now][k * LINES + l], t->im[now][k * LINES + l]};
}

/* Transform along an axis whose points are `point_stride` apart, for `count` neighbouring lines. */
static void transform_all(const struct transform *t, double direction, struct complex_number *data, int64_t count,
                          int64_t line_stride, int64_t point_stride) {
    for (int64_t first = 0; first < count; first += LINES)
        transform_lines(t, direction, data + first * line_stride, (int)(count - first < LINES ? count - first : LINES),
                        line_stride, point_stride);
}

static void make_transform(struct ft *ft, struct transform *t, int n) {
    const double turn = 2.0 * acos(-1.0) / n;
    t->n = n;
    t->cosine = run_allocate(ft->run, (size_t)n / 2, sizeof(double));
    t->sine = run_allocate(ft->run, (size_t)n / 2, sizeof(double));
    for (int k = 0; k < n / 2; k++) {
        t->cosine[k] = cos(turn * k);
        t->sine[k] = sin(turn * k);
    }
    for (int k = 0; k < 2; k++) {
        t->re[k] = run_allocate(ft->run, (size_t)n * LINES, sizeof(double));
        t->im[k] = run_allocate(ft->run, (size_t)n * LINES, sizeof(double));
    }
}

/* ---- three-dimensional transforms -------------------------------------------------------------------------------- */

static void transform_planes(struct ft *ft, double direction, struct complex_number *data) {
    const int64_t plane = ft->n[0] * ft->n[1];
    for (int64_t z = 0; z < ft->z_count; z++) {
        transform_all(&ft->transform[0], direction, data + z * plane, ft->n[1], ft->n[0], 1);
        transform_all(&ft->transform[1], direction, data + z * plane, ft->n[0], 1, ft->n[0]);
    }
}

static void transform_z(struct ft *ft, double direction, struct complex_number *data) {
    const int64_t plane = ft->y_count * ft->n[0];
    transform_all(&ft->transform[2], direction, data, plane, 1, plane);
}

static void exchange_blocks(struct ft *ft, const struct complex_number *from, struct complex_number *to) {
    const int doubles = (int)(2 * ft->z_count * ft->y_count * ft->n[0]);
    RUN_MPI(ft->run, MPI_Alltoall(from, doubles, MPI_DOUBLE, to, doubles, MPI_DOUBLE, MPI_COMM_WORLD));
}

/* Copy the rows of each plane of `slab` that belong to each rank's block, in the given direction. */
static void rearrange(struct ft *ft, struct complex_number *slab, struct complex_number *blocks, int into_blocks) {
    const int64_t rows = ft->y_count * ft->n[0];
    for (int rank = 0; rank < ft->run->ranks; rank++)
        for (int64_t z = 0; z < ft->z_count; z++) {
            struct complex_number *in_block = blocks + (rank * ft->z_count + z) * rows;
            struct complex_number *in_slab = slab + z * ft->n[0] * ft->n[1] + rank * rows;
            memcpy(into_blocks ? in_block : in_slab, into_blocks ? in_slab : in_block, (size_t)rows * sizeof *slab);
        }
}

/* field (physical) -> spectrum. */
static void forward(struct ft *ft) {
    transform_planes(ft, 1.0, ft->field);
    rearrange(ft, ft->field, ft->spare, 1);
    exchange_blocks(ft, ft->spare, ft->spectrum);
    transform_z(ft, 1.0, ft->spectrum);
}

/* field (as spectrum) -> field (physical), without the division by the number of points. */
static void backward(struct ft *ft) {
    transform_z(ft, -1.0, ft->field);
    exchange_blocks(ft, ft->field, ft->spare);
    rearrange(ft, ft->field, ft->spare, 0);
    transform_planes(ft, -1.0, ft->field);
}

/* ---- the equation ------------------------------------------------------------------------------------------------ */

static void set_initial_field(struct ft *ft) {
    const int64_t plane = ft->n[0] * ft->n[1];
    const uint64_t skip = (uint64_t)(2 * plane * ft->z_count) * (uint64_t)ft->run->rank;
    uint64_t state = random_skip(RANDOM_SEED + (ft->run->spoil ? 2 : 0), skip);
    double pairs[512];
    for (int64_t done = 0; done < plane * ft->z_count; done += 256) {
        const int64_t some = plane * ft->z_count - done < 256 ? plane * ft->z_count - done : 256;
        random_fill(&state, pairs, 2 * some);
        for (int64_t k = 0; k < some; k++)
            ft->field[done + k] = (struct complex_number){pairs[2 * k], pairs[2 * k + 1]};
    }
}

static void set_decay(struct ft *ft) {
    const double pi = acos(-1.0);
    for (int d = 0; d < 3; d++)
        for (int64_t k = 0; k < ft->n[d]; k++) {
            const double wave = (double)(k < ft->n[d] / 2 ? k : k - ft->n[d]);
            ft->decay[d][k] = exp(-4.0 * diffusivity * pi * pi * wave * wave);
        }
}

/* One time step: the spectrum decays in place, and a copy goes to `field`. */
static void evolve(struct ft *ft) {
    struct complex_number *restrict spectrum = ft->spectrum, *restrict field = ft->field;
    const double *restrict along_x = ft->decay[0];
    for (int64_t z = 0; z < ft->n[2]; z++)
        for (int64_t y = 0; y < ft->y_count; y++) {
            const double row = ft->decay[2][z] * ft->decay[1][ft->y_first + y];
            const int64_t first = (z * ft->y_count + y) * ft->n[0];
            for (int64_t x = 0; x < ft->n[0]; x++) {
                spectrum[first + x].re *= row * along_x[x];
                spectrum[first + x].im *= row * along_x[x];
                field[first + x] = spectrum[first + x];
            }
        }
}

static struct complex_number checksum(struct ft *ft) {
    struct complex_number here = {0.0, 0.0}, sum;
    const int64_t z_first = ft->z_count * ft->run->rank;
    for (int64_t j = 1; j <= CHECKSUM_POINTS; j++) {
        const int64_t x = j % ft->n[0], y = 3 * j % ft->n[1], z = 5 * j % ft->n[2] - z_first;
        if (z >= 0 && z < ft->z_count) {
            const struct complex_number value = ft->field[(z * ft->n[1] + y) * ft->n[0] + x];
            here.re += value.re;
            here.im += value.im;
        }
    }
    RUN_MPI(ft->run, MPI_Allreduce(&here, &sum, 2, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD));
    return (struct complex_number){sum.re / (double)ft->total, sum.im / (double)ft->total};
}

static void solve(struct ft *ft, int iterations, struct complex_number *checksums) {
    set_decay(ft);
    set_initial_field(ft);
    forward(ft);
    for (int i = 0; i < iterations; i++) {
        run_iteration_begin(ft->run);
        evolve(ft);
        backward(ft);
        checksums[i] = checksum(ft);
        run_iteration_end(ft->run);
    }
}

static void allocate(struct ft *ft) {
    const size_t here = (size_t)(ft->total / ft->run->ranks);
    ft->spectrum = run_allocate(ft->run, here, sizeof *ft->spectrum);
    ft->field = run_allocate(ft->run, here, sizeof *ft->field);
    ft->spare = run_allocate(ft->run, here, sizeof *ft->spare);
    for (int d = 0; d < 3; d++) {
        ft->decay[d] = run_allocate(ft->run, (size_t)ft->n[d], sizeof(double));
        make_transform(ft, &ft->transform[d], (int)ft->n[d]);
    }
}

static void release(struct ft *ft) {
    for (int d = 0; d < 3; d++) {
        struct transform *t = &ft->transform[d];
        double *const blocks[] = {ft->decay[d], t->cosine, t->sine, t->re[0], t->re[1], t->im[0], t->im[1]};
        for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
            free(blocks[i]);
    }
    free(ft->spectrum);
    free(ft->field);
    free(ft->spare);
}

static void run_ft(struct run *run) {
    const int class_index = run_class_index(run), iterations = classes[class_index].iterations;
    struct ft ft = {.run = run};
    struct complex_number checksums[FT_MAX_ITERATIONS];
    for (int d = 0; d < 3; d++)
        run->size[d] = ft.n[d] = classes[class_index].n[d];
    ft.total = ft.n[0] * ft.n[1] * ft.n[2];
    ft.z_count = ft.n[2] / run->ranks;
    ft.y_count = ft.n[1] / run->ranks;
    ft.y_first = ft.y_count * run->rank;
    const double points = (double)ft.total;
    run->operations =
        points * (14.8157 + 7.19641 * log(points) + (5.23518 + 7.21113 * log(points)) * (double)iterations);
    run_plan(run, iterations);
    allocate(&ft);

    solve(&ft, 0, checksums); /* the set-up once untimed, as specified */
    run_start(run);
    solve(&ft, iterations, checksums); /* the specification times the set-up of the field too */
    run_stop(run);

    for (int i = 0; i < iterations; i++) {
        char what[32];
        snprintf(what, sizeof what, "real sum %d", i + 1);
        run_check(run, what, checksums[i].re, classes[class_index].checksum[i].re, 1e-12);
        snprintf(what, sizeof what, "imag. sum %d", i + 1);
        run_check(run, what, checksums[i].im, classes[class_index].checksum[i].im, 1e-12);
    }
    release(&ft);
}

static int accepts_ft(const struct run *run) {
    const int64_t *n = classes[run_class_index(run)].n;
    return grid_is_power_of_two(run->ranks) && run->ranks <= n[1] && run->ranks <= n[2];
}

const struct app app_ft = {
    "ft", "FT", "floating point", "a power of two, not more than the y and z sizes of the grid", accepts_ft, run_ft};
