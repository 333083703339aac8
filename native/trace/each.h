/* each.h - NMT_LIST(do, (a), (b), ...) is `do(a), do(b), ...` and NMT_STATEMENTS is `do(a); do(b); ...`; at most 14. */
#ifndef NMT_EACH_H
#define NMT_EACH_H

/* Of the hundreds of wrappers that this header makes each does little: more would take twice as long to compile. */
#ifdef __OPTIMIZE__
#pragma GCC optimize("Og")
#endif

#define NMT_COMMA() ,
#define NMT_SEMICOLON() ;
#define NMT_EACH_1(d, s, a) d a
#define NMT_EACH_2(d, s, a, ...) d a s() NMT_EACH_1(d, s, __VA_ARGS__)
#define NMT_EACH_3(d, s, a, ...) d a s() NMT_EACH_2(d, s, __VA_ARGS__)
#define NMT_EACH_4(d, s, a, ...) d a s() NMT_EACH_3(d, s, __VA_ARGS__)
#define NMT_EACH_5(d, s, a, ...) d a s() NMT_EACH_4(d, s, __VA_ARGS__)
#define NMT_EACH_6(d, s, a, ...) d a s() NMT_EACH_5(d, s, __VA_ARGS__)
#define NMT_EACH_7(d, s, a, ...) d a s() NMT_EACH_6(d, s, __VA_ARGS__)
#define NMT_EACH_8(d, s, a, ...) d a s() NMT_EACH_7(d, s, __VA_ARGS__)
#define NMT_EACH_9(d, s, a, ...) d a s() NMT_EACH_8(d, s, __VA_ARGS__)
#define NMT_EACH_10(d, s, a, ...) d a s() NMT_EACH_9(d, s, __VA_ARGS__)
#define NMT_EACH_11(d, s, a, ...) d a s() NMT_EACH_10(d, s, __VA_ARGS__)
#define NMT_EACH_12(d, s, a, ...) d a s() NMT_EACH_11(d, s, __VA_ARGS__)
#define NMT_EACH_13(d, s, a, ...) d a s() NMT_EACH_12(d, s, __VA_ARGS__)
#define NMT_EACH_14(d, s, a, ...) d a s() NMT_EACH_13(d, s, __VA_ARGS__)
#define NMT_PICK(a, b, c, d, e, f, g, h, i, j, k, l, m, n, name, ...) name
#define NMT_EACH(d, s, ...)                                                                                            \
    NMT_PICK(__VA_ARGS__, NMT_EACH_14, NMT_EACH_13, NMT_EACH_12, NMT_EACH_11, NMT_EACH_10, NMT_EACH_9, NMT_EACH_8,     \
             NMT_EACH_7, NMT_EACH_6, NMT_EACH_5, NMT_EACH_4, NMT_EACH_3, NMT_EACH_2, NMT_EACH_1,                       \
             none)(d, s, __VA_ARGS__)
#define NMT_LIST(d, ...) NMT_EACH(d, NMT_COMMA, __VA_ARGS__)
#define NMT_STATEMENTS(d, ...) NMT_EACH(d, NMT_SEMICOLON, __VA_ARGS__)

#endif
