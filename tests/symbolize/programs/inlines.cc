// Deeply inlined templates, lambdas, a local class, an exception with its cold part.
#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

namespace ns {
template <class T> struct Box {
    T v;
    inline __attribute__((always_inline)) T twice() const { return v * 2; }
};

static inline int helper(int x)
{
    int s = 0;
    for (int i = 0; i < x; i++) {
        s += i * x;
        if (s & 1)
            s ^= 7;
    }
    return s;
}
} // namespace ns

static int local(const std::vector<int> &v)
{
    int s = 0;
    for (auto x : v) {
        struct L {
            int f(int a) { return a * 3; }
        } l;
        s += ns::Box<int>{x}.twice() + ns::helper(x) + l.f(x);
    }
    return s;
}

int main(int argc, char **argv)
{
    std::map<std::string, std::vector<int>> m;
    for (int i = 0; i < 100; i++)
        m[std::to_string(i % 7)].push_back(i);
    int t = 0;
    for (auto &kv : m) {
        std::sort(kv.second.begin(), kv.second.end(), [&](int a, int b) { return a * argc > b * argc; });
        t += local(kv.second);
    }
    printf("total %x\nmain %p\nready\n", t, (void *)main);
    fflush(stdout);
    try {
        if (argc > 100)
            throw std::string(argv[1]);
    } catch (std::string &s) {
        puts(s.c_str());
    }
    getchar();
    return 0;
}
