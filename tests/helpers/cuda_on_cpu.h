// CUDA C++ on a CPU, a block at a time: its threads are fibers that take turns at every barrier and shuffle.
// That is a barrier's meaning as long as all threads of a block meet the same ones, which CUDA demands as well.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <ucontext.h>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(threads)
#define __align__(bytes) __attribute__((aligned(bytes)))

struct place { int x, y; };
struct float4 { float x, y, z, w; };
static place blockIdx, threadIdx;
static ucontext_t scheduler;
static std::vector<ucontext_t> fibers;
static std::vector<float> exchanged;
static std::vector<bool> finished;

static void __syncthreads() {
    place here = threadIdx;
    swapcontext(&fibers[here.x], &scheduler);
    threadIdx = here;
}
static float __shfl_xor_sync(unsigned, float value, int mask) {
    exchanged[threadIdx.x] = value;
    __syncthreads();
    value = exchanged[threadIdx.x ^ mask];
    __syncthreads();
    return value;
}
template <class To, class From> To bits(From from) {
    To to;
    static_assert(sizeof to == sizeof from);
    memcpy(&to, &from, sizeof to);
    return to;
}
static float __uint_as_float(unsigned x) { return bits<float>(x); }
static float __int_as_float(int x) { return bits<float>(x); }
static unsigned __float_as_uint(float x) { return bits<unsigned>(x); }
static unsigned __umulhi(unsigned a, unsigned b) { return (uint64_t)a * b >> 32; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static void sincospif(float x, float *sine, float *cosine) {
    *sine = (float)std::sin(M_PI * x);
    *cosine = (float)std::cos(M_PI * x);
}
using std::min;

static void convert(unsigned short from, float &to) { to = (float)bits<_Float16>(from); }
static void convert(float from, unsigned short &to) { to = bits<unsigned short>((_Float16)from); }
#define asm(...) convert(x, y)  // the only instructions in assembly are the conversions of float16

static void (*kernel)(void **);
static void **arguments;
static void fiber() {
    kernel(arguments);
    finished[threadIdx.x] = true;
}

template <auto function, class... Types, size_t... I>
void call(void **from, void (*)(Types...), std::index_sequence<I...>) {
    function(*(Types *)from[I]...);
}
template <class... Types> constexpr int count(void (*)(Types...)) { return sizeof...(Types); }

// Runs a grid; false where the number of arguments is not the kernel's.
template <auto function> bool launch(int across, int down, int threads, int given, void **from) {
    constexpr int wanted = count(function);
    if (given != wanted) return false;
    kernel = [](void **from) { call<function>(from, function, std::make_index_sequence<wanted>()); };
    arguments = from;
    exchanged.resize(threads);
    fibers.resize(threads);
    std::vector<std::vector<char>> stacks(threads, std::vector<char>(1 << 16));
    for (blockIdx.y = 0; blockIdx.y < down; ++blockIdx.y)
        for (blockIdx.x = 0; blockIdx.x < across; ++blockIdx.x) {
            finished.assign(threads, false);
            for (int thread = 0; thread < threads; ++thread) {
                getcontext(&fibers[thread]);
                fibers[thread].uc_stack.ss_sp = stacks[thread].data();
                fibers[thread].uc_stack.ss_size = stacks[thread].size();
                fibers[thread].uc_link = &scheduler;
                makecontext(&fibers[thread], fiber, 0);
            }
            while (std::count(finished.begin(), finished.end(), false))
                for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x)
                    if (!finished[threadIdx.x]) {
                        place here = threadIdx;
                        swapcontext(&scheduler, &fibers[here.x]);
                        threadIdx = here;
                    }
        }
    return true;
}
