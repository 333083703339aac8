/*
 * cg.c - smallest eigenvalue of a large sparse matrix by inverse iteration with conjugate gradients
 * (report NAS-95-020, 2.4). Sparse matrix products, and two kinds of message: long vectors and single numbers.
 *
 * Ranks form a rows x columns grid, columns = rows or 2 rows. Rank (i, j) holds the matrix block of row part i and
 * column part j. Vectors are divided among the columns and repeated in every row of the grid. A product is summed along
 * the grid row by pairwise exchanges, and then transposed between ranks back to the column division.
 */
#include "common/app.h"
#include "common/grid.h"
#include "common/random.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CG_STEPS = 25, TAG_SUM = 1, TAG_TRANSPOSE = 2 };

static const double condition = 0.1; /* the rcond of the specification */

static const struct {
    int order, nonzeros, iterations;
    double shift, zeta;
} classes[] = {
    {1400, 7, 15, 10.0, 8.5971775078648},     {7000, 8, 15, 12.0, 10.362595087124},
    {14000, 11, 15, 20.0, 17.130235054029},   {75000, 13, 75, 60.0, 22.712745482631},
    {150000, 15, 75, 110.0, 28.973605592845},
};

/* Compressed sparse rows of this rank's block; columns count from the block's first. */
struct matrix {
    int rows;
    int *row_start;
    int *column;
    double *value;
};

struct cg {
    struct run *run;
    int grid_rows, grid_columns, grid_row, grid_column;
    int row_first, row_count;       /* rows of this rank's block */
    int column_first, column_count; /* columns of this rank's block: its share of every vector */
    int partner;                    /* the rank to transpose with */
    int send_offset, send_count;    /* the part of a product that the partner needs */
    struct matrix matrix;
    double *x, *z, *p, *q, *r;  /* [column_count] */
    double *product, *incoming; /* [row_count] */
};

/* ---- the matrix ------------------------------------------------------------------------------------------------- */

/* One random sparse vector of the outer-product sum. */
struct sparse {
    int count;
    int index[16];
    double value[16];
};

/* `nonzeros` values at different random places, then 0.5 at place `diagonal`. */
static void draw_vector(uint64_t *state, int order, int nonzeros, int diagonal, struct sparse *vector) {
    int places = 1;
    while (places < order)
        places *= 2;
    vector->count = 0;
    while (vector->count < nonzeros) {
        const double value = random_next(state);
        const int index = (int)(places * random_next(state));
        int seen = index >= order;
        for (int k = 0; k < vector->count && !seen; k++)
            seen = vector->index[k] == index;
        if (!seen) {
            vector->index[vector->count] = index;
            vector->value[vector->count++] = value;
        }
    }
    for (int k = 0; k < vector->count; k++) {
        if (vector->index[k] == diagonal) {
            vector->value[k] = 0.5;
            return;
        }
    }
    vector->index[vector->count] = diagonal;
    vector->value[vector->count++] = 0.5;
}

struct entry {
    int column;
    double value;
};

static int by_column(const void *left, const void *right) {
    const int a = ((const struct entry *)left)->column, b = ((const struct entry *)right)->column;
    return (a > b) - (a < b);
}

static int inside(int index, int first, int count) { return index >= first && index < first + count; }

/* Add the outer product of `vector` with itself, times `weight`, to the rows that this rank holds. */
static void add_outer_product(const struct cg *cg, const struct sparse *vector, double weight, struct entry *entries,
                              int *fill) {
    for (int a = 0; a < vector->count; a++) {
        if (!inside(vector->index[a], cg->row_first, cg->row_count))
            continue;
        for (int b = 0; b < vector->count; b++)
            if (inside(vector->index[b], cg->column_first, cg->column_count))
                entries[fill[vector->index[a] - cg->row_first]++] =
                    (struct entry){vector->index[b] - cg->column_first, weight * vector->value[a] * vector->value[b]};
    }
}

/* Sum entries that share a place; the entries of row i are [start[i], start[i + 1]). */
static void compress(struct cg *cg, struct entry *entries, const int *start) {
    struct matrix *matrix = &cg->matrix;
    int used = 0;
    for (int row = 0; row < matrix->rows; row++) {
        matrix->row_start[row] = used;
        qsort(entries + start[row], (size_t)(start[row + 1] - start[row]), sizeof *entries, by_column);
        for (int k = start[row]; k < start[row + 1]; k++) {
            if (used > matrix->row_start[row] && entries[used - 1].column == entries[k].column)
                entries[used - 1].value += entries[k].value;
            else
                entries[used++] = entries[k];
        }
    }
    matrix->row_start[matrix->rows] = used;
    matrix->column = run_allocate(cg->run, (size_t)used, sizeof *matrix->column);
    matrix->value = run_allocate(cg->run, (size_t)used, sizeof *matrix->value);
    for (int k = 0; k < used; k++) {
        matrix->column[k] = entries[k].column;
        matrix->value[k] = entries[k].value;
    }
}

/* Entries per row of this rank's block before compression, as running sums in start[1 ...]. */
static void count_entries(const struct cg *cg, const struct sparse *vectors, int order, int *start) {
    for (int i = 0; i < order; i++) {
        int columns = 0;
        for (int b = 0; b < vectors[i].count; b++)
            columns += inside(vectors[i].index[b], cg->column_first, cg->column_count);
        for (int a = 0; a < vectors[i].count; a++)
            if (inside(vectors[i].index[a], cg->row_first, cg->row_count))
                start[vectors[i].index[a] - cg->row_first + 1] += columns;
        if (inside(i, cg->row_first, cg->row_count) && inside(i, cg->column_first, cg->column_count))
            start[i - cg->row_first + 1]++; /* the diagonal shift */
    }
    for (int row = 0; row < cg->row_count; row++)
        start[row + 1] += start[row];
}

/* A = sum over i of w^i v_i v_i' + (condition - shift) I, with w = condition^(1/order). */
static void make_matrix(struct cg *cg, int order, int nonzeros, double shift) {
    struct run *run = cg->run;
    uint64_t state = RANDOM_SEED + (run->spoil ? 2 : 0);
    struct sparse *vectors = run_allocate(run, (size_t)order, sizeof *vectors);
    random_next(&state); /* the specification discards the first number */
    for (int i = 0; i < order; i++)
        draw_vector(&state, order, nonzeros, i, &vectors[i]);

    cg->matrix.rows = cg->row_count;
    cg->matrix.row_start = run_allocate(run, (size_t)cg->row_count + 1, sizeof(int));
    int *start = run_allocate(run, (size_t)cg->row_count + 1, sizeof *start);
    int *fill = run_allocate(run, (size_t)cg->row_count + 1, sizeof *fill);
    count_entries(cg, vectors, order, start);
    memcpy(fill, start, ((size_t)cg->row_count + 1) * sizeof *fill);
    struct entry *entries = run_allocate(run, (size_t)start[cg->row_count], sizeof *entries);

    const double ratio = pow(condition, 1.0 / order);
    double weight = 1.0;
    for (int i = 0; i < order; i++, weight *= ratio) {
        add_outer_product(cg, &vectors[i], weight, entries, fill);
        if (inside(i, cg->row_first, cg->row_count) && inside(i, cg->column_first, cg->column_count))
            entries[fill[i - cg->row_first]++] = (struct entry){i - cg->column_first, condition - shift};
    }
    compress(cg, entries, start);
    free(entries);
    free(fill);
    free(start);
    free(vectors);
}

/* ---- communication ---------------------------------------------------------------------------------------------- */

/* Sum `values` over the ranks of this grid row by recursive doubling; every rank gets the sum. */
static void sum_along_row(struct cg *cg, double *values, double *scratch, int count) {
    for (int distance = 1; distance < cg->grid_columns; distance *= 2) {
        const int partner = cg->grid_row * cg->grid_columns + (cg->grid_column ^ distance);
        MPI_Request request;
        RUN_MPI(cg->run, MPI_Irecv(scratch, count, MPI_DOUBLE, partner, TAG_SUM, MPI_COMM_WORLD, &request),
                MPI_Send(values, count, MPI_DOUBLE, partner, TAG_SUM, MPI_COMM_WORLD),
                MPI_Wait(&request, MPI_STATUS_IGNORE));
        for (int i = 0; i < count; i++)
            values[i] += scratch[i];
    }
}

/* From the row division of a product to the column division of the vectors. */
static void transpose(struct cg *cg, double *vector) {
    MPI_Request request;
    RUN_MPI(
        cg->run, MPI_Irecv(vector, cg->column_count, MPI_DOUBLE, cg->partner, TAG_TRANSPOSE, MPI_COMM_WORLD, &request),
        MPI_Send(cg->product + cg->send_offset, cg->send_count, MPI_DOUBLE, cg->partner, TAG_TRANSPOSE, MPI_COMM_WORLD),
        MPI_Wait(&request, MPI_STATUS_IGNORE));
}

static double dot(struct cg *cg, const double *a, const double *b) {
    double sum = 0.0, scratch;
    for (int i = 0; i < cg->column_count; i++)
        sum += a[i] * b[i];
    sum_along_row(cg, &sum, &scratch, 1);
    return sum;
}

/* out = A in, both divided among the columns. */
static void multiply(struct cg *cg, const double *in, double *out) {
    const struct matrix *matrix = &cg->matrix;
    const int *restrict column = matrix->column;
    const double *restrict value = matrix->value;
    for (int row = 0; row < matrix->rows; row++) {
        double even = 0.0, odd = 0.0;
        int k = matrix->row_start[row];
        for (; k + 1 < matrix->row_start[row + 1]; k += 2) {
            even += value[k] * in[column[k]];
            odd += value[k + 1] * in[column[k + 1]];
        }
        if (k < matrix->row_start[row + 1])
            even += value[k] * in[column[k]];
        cg->product[row] = even + odd;
    }
    sum_along_row(cg, cg->product, cg->incoming, cg->row_count);
    transpose(cg, out);
}

/* ---- the iteration ---------------------------------------------------------------------------------------------- */

/* z = approximate solution of A z = x after 25 steps; returns ||x - A z||. */
static double solve(struct cg *cg) {
    const int n = cg->column_count;
    memcpy(cg->r, cg->x, (size_t)n * sizeof(double));
    memcpy(cg->p, cg->x, (size_t)n * sizeof(double));
    memset(cg->z, 0, (size_t)n * sizeof(double));
    double rho = dot(cg, cg->r, cg->r);
    for (int step = 0; step < CG_STEPS; step++) {
        multiply(cg, cg->p, cg->q);
        const double alpha = rho / dot(cg, cg->p, cg->q);
        for (int i = 0; i < n; i++) {
            cg->z[i] += alpha * cg->p[i];
            cg->r[i] -= alpha * cg->q[i];
        }
        const double rho_before = rho;
        rho = dot(cg, cg->r, cg->r);
        const double beta = rho / rho_before;
        for (int i = 0; i < n; i++)
            cg->p[i] = cg->r[i] + beta * cg->p[i];
    }
    multiply(cg, cg->z, cg->q);
    for (int i = 0; i < n; i++)
        cg->r[i] = cg->x[i] - cg->q[i];
    return sqrt(dot(cg, cg->r, cg->r));
}

/* One inverse iteration; returns the new estimate of the eigenvalue. */
static double iterate(struct cg *cg, double shift, double *residual) {
    double sums[2] = {0.0, 0.0}, scratch[2];
    *residual = solve(cg);
    for (int i = 0; i < cg->column_count; i++) {
        sums[0] += cg->x[i] * cg->z[i];
        sums[1] += cg->z[i] * cg->z[i];
    }
    sum_along_row(cg, sums, scratch, 2);
    const double scale = 1.0 / sqrt(sums[1]);
    for (int i = 0; i < cg->column_count; i++)
        cg->x[i] = scale * cg->z[i];
    return shift + 1.0 / sums[0];
}

static int64_t count_nonzeros(struct cg *cg) {
    const int64_t here = cg->matrix.row_start[cg->matrix.rows];
    int64_t everywhere;
    MPI_Allreduce(&here, &everywhere, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    return everywhere;
}

static void ones(struct cg *cg) {
    for (int i = 0; i < cg->column_count; i++)
        cg->x[i] = 1.0;
}

static void divide(struct cg *cg, int order) {
    const int ranks = cg->run->ranks, rank = cg->run->rank;
    cg->grid_rows = 1;
    while (cg->grid_rows * cg->grid_rows * 4 <= ranks)
        cg->grid_rows *= 2;
    cg->grid_columns = ranks / cg->grid_rows;
    cg->grid_row = rank / cg->grid_columns;
    cg->grid_column = rank % cg->grid_columns;
    cg->row_first = (int)grid_first(order, cg->grid_rows, cg->grid_row);
    cg->row_count = (int)grid_first(order, cg->grid_rows, cg->grid_row + 1) - cg->row_first;
    cg->column_first = (int)grid_first(order, cg->grid_columns, cg->grid_column);
    cg->column_count = (int)grid_first(order, cg->grid_columns, cg->grid_column + 1) - cg->column_first;

    /* Grid row r holds, of a product, the parts of columns r f ... r f + f - 1 (f = columns / rows). Its rank (r, c)
     * serves rank (c / f, r f + c mod f), which serves it in turn: every rank has one partner. */
    const int f = cg->grid_columns / cg->grid_rows;
    const int part = cg->grid_row * f + cg->grid_column % f;
    cg->partner = cg->grid_column / f * cg->grid_columns + part;
    cg->send_offset = (int)grid_first(order, cg->grid_columns, part) - cg->row_first;
    cg->send_count = (int)(grid_first(order, cg->grid_columns, part + 1) - grid_first(order, cg->grid_columns, part));
}

static void allocate_vectors(struct cg *cg) {
    double **const vectors[] = {&cg->x, &cg->z, &cg->p, &cg->q, &cg->r};
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++)
        *vectors[i] = run_allocate(cg->run, (size_t)cg->column_count, sizeof(double));
    cg->product = run_allocate(cg->run, (size_t)cg->row_count, sizeof(double));
    cg->incoming = run_allocate(cg->run, (size_t)cg->row_count, sizeof(double));
}

static void release(struct cg *cg) {
    void *const blocks[] = {
        cg->x,           cg->z, cg->p, cg->q, cg->r, cg->product, cg->incoming, cg->matrix.row_start, cg->matrix.column,
        cg->matrix.value};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        free(blocks[i]);
}

static void run_cg(struct run *run) {
    const int class_index = run_class_index(run);
    const int order = classes[class_index].order, iterations = classes[class_index].iterations;
    const double shift = classes[class_index].shift;
    const double nonzeros = classes[class_index].nonzeros, row = nonzeros * (nonzeros + 1.0);
    struct cg cg = {.run = run};
    double zeta = 0.0, residual;

    run->size[0] = order;
    run->operations = 2.0 * iterations * order * (3.0 + row + CG_STEPS * (5.0 + row) + 3.0);
    run_plan(run, iterations);
    divide(&cg, order);
    make_matrix(&cg, order, classes[class_index].nonzeros, shift);
    allocate_vectors(&cg);

    ones(&cg);
    iterate(&cg, shift, &residual); /* untimed, as specified: touches pages and connects ranks */
    ones(&cg);
    run_start(run);
    for (int i = 0; i < iterations; i++) {
        run_iteration_begin(run);
        zeta = iterate(&cg, shift, &residual);
        run_iteration_end(run);
    }
    run_stop(run);

    const int64_t nonzeros_total = count_nonzeros(&cg);
    if (run->rank == 0)
        printf(" nonzeros %lld\n residual %e\n", (long long)nonzeros_total, residual);
    run_check(run, "zeta", zeta, classes[class_index].zeta, 1e-10);
    release(&cg);
}

static int accepts_cg(const struct run *run) { return grid_is_power_of_two(run->ranks); }

const struct app app_cg = {"cg", "CG", "floating point", "a power of two", accepts_cg, run_cg};
