// Distances of k Gaussian candidates that exist in registers alone, and the winner drawn a second time.
// A block of 256 threads takes 1,024 numbers of a row; a thread draws the four that one Philox counter gives.

constexpr int THREADS = 256, BLOCK = 4 * THREADS;

__device__ inline float uniform(unsigned word) { return ((float)(word >> 8) + 0.5f) * 5.9604644775390625e-08f; }

__device__ inline void box_muller(unsigned a, unsigned b, float &first, float &second) {
    float length = sqrtf(-2.0f * logf(uniform(a)));
    sincospif(2.0f * uniform(b), &second, &first);
    first *= length;
    second *= length;
}

// Philox-4x32-7 of the counter (group, candidate, 0, 0).
__device__ inline void normals(long long seed, unsigned candidate, unsigned group, float z[4]) {
    unsigned c0 = group, c1 = candidate, c2 = 0, c3 = 0;
    unsigned k0 = (unsigned)seed, k1 = (unsigned)((unsigned long long)seed >> 32);
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
        unsigned high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
        unsigned high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    box_muller(c0, c1, z[0], z[1]);
    box_muller(c2, c3, z[2], z[3]);
}

// grid: rows * pieces, groups of candidates. distances: (rows, k, pieces), each |z|^2 - 2 <z, x> of a piece.
extern "C" __global__ void __launch_bounds__(THREADS)
distances(const number *data, const long long *seeds, float *result, int size, int pieces, int k, int each, int stride) {
    __shared__ float sums[THREADS / 32];
    long long row = blockIdx.x / pieces;
    int piece = blockIdx.x % pieces, first = piece * BLOCK + 4 * threadIdx.x;
    float x[4], z[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = first + i < size ? to_float(data[row * stride + first + i]) : 0.0f;
    int last = min((int)(blockIdx.y + 1) * each, k);
    for (int candidate = blockIdx.y * each; candidate < last; ++candidate) {
        normals(seeds[row], candidate, first / 4, z);
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (first + i < size) sum += z[i] * (z[i] - 2.0f * x[i]);
#pragma unroll
        for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
        if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
        __syncthreads();
        if (threadIdx.x == 0) {
            float total = 0.0f;
#pragma unroll
            for (int warp = 0; warp < THREADS / 32; ++warp) total += sums[warp];
            result[(row * k + candidate) * pieces + piece] = total;
        }
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
draw(const long long *seeds, const long long *index, float *result, int size, int pieces) {
    long long row = blockIdx.x / pieces;
    int first = blockIdx.x % pieces * BLOCK + 4 * threadIdx.x;
    float z[4];
    normals(seeds[row], (unsigned)index[row], first / 4, z);
    float *target = result + row * size + first;
    if (size % 4 == 0 && first < size)
        *(float4 *)target = make_float4(z[0], z[1], z[2], z[3]);
    else
        for (int i = 0; i < 4; ++i)
            if (first + i < size) target[i] = z[i];
}
