// weight + strength * up @ down, the weight read once and written once. With the few ranks of a LoRA reading it takes
// longer than multiplying in float32. 256 threads take a tile of 32 x 128, each four rows of four columns.

constexpr int THREADS = 256, ROWS = 32, COLUMNS = 128, DEPTH = 16;

// ALIGNED: `columns` is a multiple of 4, and so is the weight's address. `strength`: the bits of a float32.
extern "C" __global__ void __launch_bounds__(THREADS)
apply(const number *weight, const float *up, const float *down, number *result, int strength, int rows, int columns,
      int rank) {
    __shared__ float left[ROWS][DEPTH];
    __shared__ __align__(16) float right[DEPTH][COLUMNS];
    int across = (columns + COLUMNS - 1) / COLUMNS;
    int row = blockIdx.x / across * ROWS, column = blockIdx.x % across * COLUMNS;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    constexpr int STEP = ALIGNED ? 1 : 32;
    int offset = ALIGNED ? 4 * lane : lane;
    float total[4][4] = {};
    for (int first = 0; first < rank; first += DEPTH) {
        for (int i = threadIdx.x; i < ROWS * DEPTH; i += THREADS) {
            int r = row + i / DEPTH, d = first + i % DEPTH;
            left[i / DEPTH][i % DEPTH] = r < rows && d < rank ? up[(long long)r * rank + d] : 0.0f;
        }
        for (int i = threadIdx.x; i < DEPTH * COLUMNS; i += THREADS) {
            int d = first + i / COLUMNS, c = column + i % COLUMNS;
            right[i / COLUMNS][i % COLUMNS] = d < rank && c < columns ? down[(long long)d * columns + c] : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int d = 0; d < DEPTH; ++d)
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) total[i][j] += left[4 * warp + i][d] * right[d][offset + j * STEP];
        __syncthreads();
    }
    float factor = __int_as_float(strength);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (row + 4 * warp + i >= rows) break;
        long long place = (long long)(row + 4 * warp + i) * columns + column + offset;
        if (ALIGNED) {
            if (column + offset >= columns) break;
            numbers<4> before = *(const numbers<4> *)(weight + place);
#pragma unroll
            for (int j = 0; j < 4; ++j) before.at[j] = from_float(to_float(before.at[j]) + factor * total[i][j]);
            *(numbers<4> *)(result + place) = before;
        } else {
            for (int j = 0; j < 4; ++j)
                if (column + offset + j * STEP < columns)
                    result[place + j * STEP] = from_float(to_float(weight[place + j * STEP]) + factor * total[i][j]);
        }
    }
}
