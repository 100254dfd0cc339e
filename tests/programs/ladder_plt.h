/* The functions of libladder_plt.so that ladder_plt.c calls through its PLT. */

#define FAR_FUNCTIONS(X) X(01) X(02) X(03) X(04) X(05) X(06) X(07) X(08)

#define FAR_DECLARE(n)                                                                                                 \
	unsigned long far_##n(unsigned long x, unsigned long (*back)(unsigned long));                                  \
	double far_double_##n(double a, double b, double c, double d, double e, double f, double g, double h);
FAR_FUNCTIONS(FAR_DECLARE)
unsigned long far_outer(unsigned long x);
