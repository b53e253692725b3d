// A number as it is stored, and float32. NUMBER: 0 float32, 1 bfloat16, 2 float16, 3 int8. No header is needed.

#if NUMBER == 0
typedef float number;
__device__ inline float to_float(number x) { return x; }
__device__ inline number from_float(float x) { return x; }
#elif NUMBER == 1
typedef unsigned short number;
__device__ inline float to_float(number x) { return __uint_as_float((unsigned)x << 16); }
__device__ inline number from_float(float x) {  // to the nearest, ties to even; NaN stays NaN
    unsigned bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return (number)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
#elif NUMBER == 2
typedef unsigned short number;
__device__ inline float to_float(number x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}
__device__ inline number from_float(float x) {
    number y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}
#else
typedef signed char number;
__device__ inline float to_float(number x) { return (float)x; }
#endif

template <int COUNT> struct __align__(sizeof(number) * COUNT) numbers { number at[COUNT]; };
