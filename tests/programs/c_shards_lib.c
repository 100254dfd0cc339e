/* Functions without a symbol once the library is stripped, each running at many addresses. */
#ifndef WHICH
#define WHICH 1
#endif

static volatile unsigned long sink;

__attribute__((noinline)) static void first(unsigned long turns) {
    for (unsigned long turn = 0; turn < turns; turn++) {
        sink += turn * WHICH;
        sink ^= turn << 3;
        sink -= turn >> 1;
        sink *= 3;
    }
}

__attribute__((noinline)) static void second(unsigned long turns) {
    for (unsigned long turn = 0; turn < turns; turn++) {
        sink ^= turn + WHICH;
        sink += turn << 5;
        sink *= 5;
    }
}

void enter(void) {
    first(400000);
    second(400000);
    first(100000);
}
