/* PAD makes the libraries differ in size. */
#include <time.h>
#ifndef PAD
#define PAD 1
#endif
volatile char room[PAD];
void spin(void) {
    for (volatile long i = 0; i < 3000000; i++) room[0] = 0;
}
