// C++ as it is written: containers of strings, sorting with lambdas, templates, and now and then an exception.
//
// g++ -O2 -o tower tower.cc
// tower SECONDS  ->  {"work": rounds done}
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

template <int N> struct Level {
    static __attribute__((noinline)) std::size_t climb(std::map<std::string, std::vector<int>> &all, int seed) {
        auto own = std::make_unique<std::vector<std::string>>();
        for (int i = 0; i < 8; i++)
            own->push_back("key " + std::to_string((seed * 31 + i * N) % 97));
        std::sort(own->begin(), own->end(), [](const auto &a, const auto &b) { return a > b; });
        for (const auto &name : *own)
            all[name].push_back(seed);
        return Level<N - 1>::climb(all, seed + N) + own->size();
    }
};

template <> struct Level<0> {
    static __attribute__((noinline)) std::size_t climb(std::map<std::string, std::vector<int>> &all, int seed) {
        if (seed % 64 == 0)
            throw std::runtime_error("every 64th");
        for (auto &[name, list] : all)
            std::sort(list.begin(), list.end());
        return all.size();
    }
};

int main(int argc, char **argv) {
    using clock = std::chrono::steady_clock;
    auto end = clock::now() + std::chrono::duration<double>(argc > 1 ? std::atof(argv[1]) : 5);
    unsigned long work = 0, caught = 0, sum = 0;
    for (int seed = 0; clock::now() < end; seed++) {
        std::map<std::string, std::vector<int>> all;
        try {
            sum += Level<20>::climb(all, seed);
        } catch (const std::runtime_error &) {
            caught++;
        }
        work++;
    }
    std::printf("{\"work\": %lu, \"caught\": %lu, \"sum\": %lu}\n", work, caught, sum);
}
