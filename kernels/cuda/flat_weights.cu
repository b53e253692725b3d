// Sums of the rows of a basis, each times its coefficient. A thread takes 16 bytes of every row: each byte is read once.

constexpr int THREADS = 128, COUNT = 16 / sizeof(number), BLOCK = THREADS * COUNT, UNROLL = 4;

// grid: blocks of columns, pieces of `length` rows. sums: (pieces, size). ALIGNED: rows start at multiples of 16 bytes.
extern "C" __global__ void __launch_bounds__(THREADS)
combine(const float *coefficients, const number *basis, const float *scale, float *sums, int rows, int size, int stride,
        int scale_stride, int length) {
    int first = blockIdx.x * BLOCK + (ALIGNED ? threadIdx.x * COUNT : threadIdx.x);
    constexpr int STEP = ALIGNED ? 1 : THREADS;
    float total[COUNT] = {};
    int last = min((int)(blockIdx.y + 1) * length, rows);
#pragma unroll UNROLL
    for (int row = blockIdx.y * length; row < last; ++row) {
        float factor = coefficients[row];
        if (factor == 0.0f) continue;
        const float *scales = scale + (long long)row * scale_stride;
        if (NUMBER == 3 && ALIGNED && first < size) factor *= scales[first / GROUP];  // 16 columns lie in one group
        const number *here = basis + (long long)row * stride + first;
        numbers<COUNT> block = {};
        if (ALIGNED && first < size)
            block = *(const numbers<COUNT> *)here;
        else if (!ALIGNED)
            for (int i = 0; i < COUNT; ++i)
                if (first + i * STEP < size) block.at[i] = here[i * STEP];
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            float group = 1.0f;
            if (NUMBER == 3 && !ALIGNED && first + i * STEP < size) group = scales[(first + i * STEP) / GROUP];
            total[i] += factor * group * to_float(block.at[i]);
        }
    }
    float *target = sums + (long long)blockIdx.y * size + first;
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
        if (first + i * STEP < size) target[i * STEP] = total[i];
}
