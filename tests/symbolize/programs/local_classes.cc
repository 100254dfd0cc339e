// GCC describes the code of a lambda and of a local class's member functions inside the class, inside the function.
static volatile int sink;

static inline __attribute__((always_inline)) int one(int x)
{
    sink = x;
    return x * 3;
}

static inline __attribute__((always_inline)) int two(int x)
{
    sink = x + 1;
    return one(x) + 1;
}

static inline __attribute__((always_inline)) int three(int x)
{
    sink = x + 2;
    return two(x) + 1;
}

template <class F> __attribute__((noipa)) int call(F f, int x)
{
    struct Twice {
        __attribute__((noipa)) int of(F g, int y) { return g(y) + three(y); }
    };
    return f(x) + Twice().of(f, x);
}

__attribute__((noipa)) int outer(int a)
{
    auto lambda = [&a](int x) __attribute__((noipa))
    {
        auto inner = [x](int y) __attribute__((noipa)) { return three(y ^ x); };
        return three(x + a) + inner(x);
    };
    struct Local {
        int factor;
        __attribute__((noipa)) int times(int z) { return three(z * factor); }
    };
    return lambda(3) + Local{a}.times(5) + call([&](int y) __attribute__((noipa)) { return three(y) ^ a; }, 7);
}

int main(int argc, char **)
{
    return outer(argc) & 1;
}
