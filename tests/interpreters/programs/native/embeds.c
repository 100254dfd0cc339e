/* A program of its own that embeds libpython: C -> Python -> C -> Python, also in a thread that C made. No headers: the
 * four functions are found by name. usage: embeds LIBPYTHON SCRIPT; the script finds call_back(function) in ctypes. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define OWN __attribute__((noinline))

typedef int (*run_t)(const char *);
static run_t run;
static void *(*save_thread)(void);
static int (*ensure)(void);
static void (*release)(int);
static volatile int sink;

static void *named(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (found == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(2);
    }
    return found;
}

/* for the script: C that calls back */
OWN int embedder_calls_back(int (*function)(int))
{
    int got = function(1);
    sink += got;
    return got;
}

OWN static void *embedder_thread(void *code)
{
    int state = ensure();
    sink += run(code);
    release(state);
    return NULL;
}

OWN static void embedder_runs(const char *path)
{
    static char source[65536];
    FILE *file = fopen(path, "r");
    source[fread(source, 1, sizeof source - 1, file)] = 0;
    fclose(file);
    sink += run(source);
    pthread_t thread;
    pthread_create(&thread, NULL, embedder_thread, "in_thread()");
    save_thread();
    pthread_join(thread, NULL);
    sink++;
}

int main(int count, char **arguments)
{
    void *library = dlopen(arguments[1], RTLD_NOW | RTLD_GLOBAL);
    if (library == NULL || count < 3) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    run = (run_t)named(library, "PyRun_SimpleString");
    save_thread = (void *(*)(void))named(library, "PyEval_SaveThread");
    ensure = (int (*)(void))named(library, "PyGILState_Ensure");
    release = (void (*)(int))named(library, "PyGILState_Release");
    ((void (*)(void))named(library, "Py_Initialize"))();
    embedder_runs(arguments[2]);
    return 0;
}
