// One variant of attention.cu as a library for the CPU: cuda.h, the kernels themselves, and the functions to call.

#include "cuda.h"

#include KERNEL_SOURCE

static Params emulated_params;

#define RUN(kernel) \
    if (!strcmp(name, #kernel)) \
        return emulator::run([] { kernel(emulated_params); }, blocks, run_blocks, threads, emulator::Order(order), seed)

extern "C" const char* emulate(const char* name, const Params* params, int blocks, int run_blocks, int threads,
                               int order, uint64_t seed, const emulator::Array* arrays, int array_count) {
    emulated_params = *params;
    emulator::arrays = arrays;
    emulator::array_count = array_count;
    RUN(attention_naive);
    RUN(attention_forward);
    RUN(attention_backward_q);
    RUN(attention_backward_kv);
    RUN(attention_backward);
    return "no such kernel";
}

extern "C" size_t emulator_params_bytes() { return sizeof(Params); }

// The kernel's own conversions between the stored type and the one computed with. Null, or what went wrong.

extern "C" const char* emulate_narrow(const A* from, T* to, long count) {
    if (setjmp(emulator::failure)) return emulator::message;
    for (long i = 0; i < count; i++) narrow(to[i], from[i]);
    return nullptr;
}

extern "C" const char* emulate_widen(const T* from, A* to, long count) {
    if (setjmp(emulator::failure)) return emulator::message;
    for (long i = 0; i < count; i++) to[i] = widen(from[i]);
    return nullptr;
}
