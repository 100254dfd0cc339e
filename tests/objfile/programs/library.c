#ifndef WAYS
#define WAYS 1
#endif
int in_library(int x) { return x + WAYS; }
int also_in_library(int x) { return in_library(x) * 3; }
