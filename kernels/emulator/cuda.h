// The part of CUDA that attention.cu uses, for the CPU: every CUDA thread is a fiber with its own stack, so barriers
// and shuffles mean what they mean on a GPU. Blocks run one after another; the threads of a block run in order, in
// reverse, or in an order drawn anew for each pass. Reported, with the thread and the line: a barrier that not all
// threads reach, threads that wait at different barriers, a shuffle whose mask is wrong, an index outside a shared or
// local array, a vector at an address that is no multiple of its alignment, and any access outside the arrays that the
// caller passed (each ends at a guard page: reading or writing it raises a signal).

#pragma once

#include <cmath>
#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define __global__
#define __device__
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ static __attribute__((section("shared_memory")))  // one block at a time: static is shared
#define __syncthreads() emulator::barrier(__LINE__)
#define __syncwarp() emulator::shuffle(0xffffffffu, 0, 0, __LINE__)
#define __shfl_xor_sync(mask, value, step) emulator::shuffle_xor(mask, value, step, __LINE__)
#define PTX(instruction, to_kind, to, from_kind, from) emulator::execute(instruction, to_kind, to, from_kind, from)

using std::exp2;
using std::fmax;

struct Index { unsigned x; };
static Index threadIdx, blockIdx, blockDim, gridDim;

template <typename To, typename From> static To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
static inline float __int_as_float(int bits) { return bits_as<float>(bits); }
static inline float __uint_as_float(unsigned bits) { return bits_as<float>(bits); }
static inline unsigned __float_as_uint(float x) { return bits_as<unsigned>(x); }

namespace emulator {

constexpr int MAX_THREADS = 1024, WARP = 32, STACK_BYTES = 64 * 1024;
enum Order { IN_ORDER, REVERSE, RANDOM };
enum State { READY, AT_BARRIER, AT_SHUFFLE, DONE };

struct Fiber {
    void* stack_pointer;
    State state;
    int line;                // where it waits
    unsigned mask;           // of the shuffle it waits at
    int generation;          // shuffles passed so far
};

struct Warp {
    unsigned arrived;
    int generation;
    uint64_t values[2][WARP];  // by parity of the generation: a fast lane may already post the next value
};

static Fiber fibers[MAX_THREADS];
static Warp warps[MAX_THREADS / WARP];
static char* stacks;
static void* main_stack_pointer;
static int thread_count, arrived_at_barrier, running;
static void (*body)();
static char message[512];
static jmp_buf failure;
static uint64_t random_state;

extern "C" char __start_shared_memory[], __stop_shared_memory[];

// ---- switching between fibers: save the callee's registers on the old stack, take those of the new one

#if defined(__x86_64__)
extern "C" void emulator_switch(void** save, void* to);
asm(R"(
    .text
    .type emulator_switch, @function
emulator_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size emulator_switch, .-emulator_switch
    .section .note.GNU-stack, "", @progbits
    .text
)");
static void* fresh_stack(char* top, void (*entry)()) {
    void** sp = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t(15));
    *--sp = nullptr;  // so that the stack is aligned as after a call
    *--sp = reinterpret_cast<void*>(entry);
    return sp - 6;
}
#elif defined(__aarch64__)
extern "C" void emulator_switch(void** save, void* to);
asm(R"(
    .text
    .type emulator_switch, %function
emulator_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
)");
static void* fresh_stack(char* top, void (*entry)()) {
    void** sp = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t(15)) - 20;
    sp[11] = reinterpret_cast<void*>(entry);  // x30
    return sp;
}
#else
#error "the emulator switches fibers on x86-64 and arm64 only"
#endif

// ---- failing: say what went wrong, and where, and leave all fibers behind

[[noreturn]] static void fail(const char* format, ...) {
    char text[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    snprintf(message, sizeof message, "block %u, thread %u: %s", blockIdx.x, threadIdx.x, text);
    longjmp(failure, 1);
}

// ---- PTX instructions: conversions between float and float16, and 2^x

static void execute(const char* instruction, const char* to_kind, float& to, const char* from_kind, unsigned short from) {
    if (strcmp(to_kind, "=f") || strcmp(from_kind, "h")) fail("%s takes \"=f\" and \"h\"", instruction);
    if (strcmp(instruction, "cvt.f32.f16")) fail("the emulator does not know the instruction %s", instruction);
    to = bits_as<_Float16>(from);
}

static void execute(const char* instruction, const char* to_kind, unsigned short& to, const char* from_kind, float from) {
    if (strcmp(to_kind, "=h") || strcmp(from_kind, "f")) fail("%s takes \"=h\" and \"f\"", instruction);
    to = bits_as<unsigned short>(_Float16(from));  // to nearest, ties to even
    if (!strcmp(instruction, "cvt.rn.f16.f32")) return;
    if (strcmp(instruction, "cvt.rz.f16.f32")) fail("the emulator does not know the instruction %s", instruction);
    if (fabsf(bits_as<_Float16>(to)) > fabsf(from)) to--;  // toward zero: one step back
}

// With an error of up to two units in the last place, as the instruction has on a GPU, and another one for each x.
static void execute(const char* instruction, const char* to_kind, float& to, const char* from_kind, float from) {
    if (strcmp(to_kind, "=f") || strcmp(from_kind, "f")) fail("%s takes \"=f\" and \"f\"", instruction);
    if (strcmp(instruction, "ex2.approx.ftz.f32")) fail("the emulator does not know the instruction %s", instruction);
    const unsigned scrambled = bits_as<unsigned>(from) * 2654435769u;
    const double error = from == 0 ? 0 : (scrambled / 4294967296.0 - 0.5) * 2 * 0x1p-22;  // PTX: at most 2^-22
    to = std::exp2(double(from)) * (1 + error);
    if (to < 0x1p-126f) to = 0;
}

// ---- waiting

static void give_way() {
    emulator_switch(&fibers[running].stack_pointer, main_stack_pointer);
}

static void wait_as(State state, int line) {
    Fiber& fiber = fibers[running];
    fiber.state = state;
    fiber.line = line;
    give_way();
}

static void barrier(int line) {
    for (int t = 0; t < thread_count; t++)
        if (fibers[t].state == AT_BARRIER && fibers[t].line != line)
            fail("waits at the barrier of line %d while thread %d waits at that of line %d", line, t, fibers[t].line);
    if (++arrived_at_barrier < thread_count) return wait_as(AT_BARRIER, line);
    arrived_at_barrier = 0;
    for (int t = 0; t < thread_count; t++)
        if (fibers[t].state == AT_BARRIER) fibers[t].state = READY;
}

// Post a value, wait for all lanes of the mask, take the value of `source`.
static uint64_t shuffle(unsigned mask, uint64_t value, int source_xor, int line) {
    const int self = running, lane = self % WARP, source = lane ^ source_xor;
    Fiber& fiber = fibers[self];
    Warp& warp = warps[self / WARP];
    if (!(mask >> lane & 1)) fail("line %d: a shuffle with mask %#x, which lacks its own lane %d", line, mask, lane);
    if (source < 0 || source >= WARP || !(mask >> source & 1))
        fail("line %d: a shuffle with mask %#x reads lane %d, which is not in it", line, mask, source);
    for (int other = 0; other < WARP; other++) {
        if (!(warp.arrived >> other & 1)) continue;
        const Fiber& waiting = fibers[self / WARP * WARP + other];
        if (waiting.mask != mask || waiting.line != line)
            fail("line %d: a shuffle with mask %#x meets one of line %d with mask %#x", line, mask, waiting.line, waiting.mask);
    }
    fiber.mask = mask;
    fiber.line = line;
    const int parity = fiber.generation++ & 1;
    warp.values[parity][lane] = value;
    warp.arrived |= 1u << lane;
    if ((warp.arrived & mask) == mask) {
        for (int other = 0; other < WARP; other++)
            if (other != lane && mask >> other & 1) fibers[self / WARP * WARP + other].state = READY;
        warp.arrived = 0;
    } else {
        wait_as(AT_SHUFFLE, line);
    }
    return warp.values[parity][source];
}

template <typename X> static X shuffle_xor(unsigned mask, X value, int step, int line) {
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = shuffle(mask, bits, step, line);
    memcpy(&value, &bits, sizeof value);
    return value;
}

// ---- running a block

static void enter() {
    body();
    fibers[running].state = DONE;
    give_way();
    abort();
}

static uint64_t draw() {  // xorshift64*
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * 0x2545f4914f6cdd1dull;
}

static void arrange(int* order, int count, Order kind) {
    for (int i = 0; i < count; i++) order[i] = kind == REVERSE ? count - 1 - i : i;
    if (kind != RANDOM) return;
    for (int i = count - 1; i > 0; i--) {
        int j = draw() % (i + 1), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}

[[noreturn]] static void report_stuck() {
    int counts[4] = {}, line = 0, stuck = 0;
    for (int t = 0; t < thread_count; t++) counts[fibers[t].state]++;
    for (int t = 0; t < thread_count; t++)
        if (fibers[t].state == AT_BARRIER || fibers[t].state == AT_SHUFFLE) line = fibers[stuck = t].line;
    threadIdx.x = stuck;
    fail("waits at line %d for threads that do not arrive: %d of %d at a barrier, %d at a shuffle, %d have left", line,
         counts[AT_BARRIER], thread_count, counts[AT_SHUFFLE], counts[DONE]);
}

static void run_block(Order kind) {
    static int order[MAX_THREADS];
    memset(__start_shared_memory, 0xff, __stop_shared_memory - __start_shared_memory);  // NaN until it is written
    memset(warps, 0, sizeof warps);
    arrived_at_barrier = 0;
    for (int t = 0; t < thread_count; t++)
        fibers[t] = Fiber{fresh_stack(stacks + (t + 1) * size_t(STACK_BYTES), enter), READY, 0, 0, 0};
    for (int left = thread_count; left > 0;) {
        arrange(order, thread_count, kind);
        bool progress = false;
        for (int i = 0; i < thread_count; i++) {
            Fiber& fiber = fibers[order[i]];
            if (fiber.state != READY) continue;
            progress = true;
            running = order[i];
            threadIdx.x = running;
            emulator_switch(&main_stack_pointer, fiber.stack_pointer);
            left -= fiber.state == DONE;
        }
        if (!progress) report_stuck();
    }
}

// ---- arrays between guard pages (laid out by the caller)

struct Array { const char *pages, *data; size_t page_bytes, bytes; const char* name; };
static const Array* arrays;
static int array_count;

static void outside(int signal, siginfo_t* info, void*) {
    const char* address = static_cast<const char*>(info->si_addr);
    for (int i = 0; i < array_count; i++) {
        const Array& array = arrays[i];
        if (address >= array.pages && address < array.pages + array.page_bytes)
            fail("touches byte %ld of `%s`, which has %zu bytes%s", long(address - array.data), array.name, array.bytes,
                 address >= array.data && address < array.data + array.bytes ? " and is read-only" : "");
    }
    fail("signal %d at address %p, in no array", signal, info->si_addr);
}

}  // namespace emulator

// -fsanitize=bounds calls this for an index outside an array of known size.
struct SourceLocation { const char* file; uint32_t line, column; };
extern "C" void __ubsan_handle_out_of_bounds(SourceLocation* location, uintptr_t index) {
    emulator::fail("line %u: index %ld is outside its array", location->line, long(index));
}

// -fsanitize=alignment calls this for an address that does not suit the type that is read or written there.
struct TypeDescriptor { uint16_t kind, info; char name[1]; };
struct TypeMismatch { SourceLocation location; const TypeDescriptor* type; unsigned char log_alignment, access; };
extern "C" void __ubsan_handle_type_mismatch_v1(TypeMismatch* mismatch, uintptr_t address) {
    emulator::fail("line %u: address %#lx is no multiple of the %d bytes that %s is aligned to", mismatch->location.line,
                   long(address), 1 << mismatch->log_alignment, mismatch->type->name);
}

namespace emulator {

// Run the last `run_blocks` of the grid's blocks. Returns null, or what went wrong.
static const char* run(void (*thread_body)(), int blocks, int run_blocks, int threads, Order kind, uint64_t seed) {
    if (threads % WARP || threads > MAX_THREADS) return "the emulator runs whole warps, up to 1024 threads a block";
    if (!stacks) stacks = static_cast<char*>(malloc(size_t(MAX_THREADS) * STACK_BYTES));
    static char signal_stack[64 * 1024];
    stack_t alternative = {}, old_alternative;
    alternative.ss_sp = signal_stack;
    alternative.ss_size = sizeof signal_stack;
    struct sigaction action = {}, old_segv, old_bus;
    action.sa_sigaction = outside;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaltstack(&alternative, &old_alternative);
    sigaction(SIGSEGV, &action, &old_segv);
    sigaction(SIGBUS, &action, &old_bus);

    const char* result = nullptr;
    int* block_order = static_cast<int*>(malloc(sizeof(int) * (run_blocks + 1)));
    body = thread_body;
    thread_count = threads;
    random_state = seed * 2 + 1;
    gridDim.x = blocks;
    blockDim.x = threads;
    arrange(block_order, run_blocks, kind);
    if (setjmp(failure)) {
        result = message;
    } else {
        for (int b = 0; b < run_blocks; b++) {
            blockIdx.x = blocks - run_blocks + block_order[b];
            run_block(kind);
        }
    }
    free(block_order);
    sigaction(SIGSEGV, &old_segv, nullptr);
    sigaction(SIGBUS, &old_bus, nullptr);
    sigaltstack(&old_alternative, nullptr);
    return result;
}

}  // namespace emulator
