"""The sources of the kernels for attention, in CUDA.

A warp multiplies tiles of 16 x 8 and 8 x 8 numbers. Its 32 threads are eight groups of four: a thread holds the numbers
of rows g and g + 8 for its group g, in columns that its number t in the group tells. In the memory that the threads of
a block share, rows lie PITCH numbers apart, so that no two threads read the same bank at once.
"""

from __future__ import annotations

TOOLS = """
#define WIDTH @WIDTH@
#define PITCH ((WIDTH + 31) / 32 * 32 + 4)
#define COLUMNS (WIDTH / 8)
#define TILE 64
#define THREADS 128
#define NEVER (-__int_as_float(0x7f800000))

typedef unsigned int Word;

// How far apart the sequences, the heads of a sequence and the tokens of a head lie in a tensor.
struct Places { int sequence, head, token; };
#define STRIDES(of) int of##_sequence, int of##_head, int of##_token
#define PLACES(of) {of##_sequence, of##_head, of##_token}

__device__ __forceinline__ Word rounded(float number)
{
    Word found;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(found) : "f"(number));
    return found;
}

__device__ __forceinline__ float power_of_two(float exponent)
{
    float found;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(exponent));
    return found;
}

// Add the product of 16 x 8 and 8 x 8 numbers to 16 x 8 sums.
__device__ __forceinline__ void multiply(float (&sum)[4], const Word (&left)[4], Word upper, Word lower)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(upper), "r"(lower));
}

// Sums lie in a thread as columns 2t and 2t + 1; a left factor needs columns t and t + 4. Which columns these are does
// not matter, as long as the rows of the right factor are taken in the same order.
__device__ __forceinline__ void as_left(Word (&left)[4], const float (&sum)[4])
{
    left[0] = rounded(sum[0]);
    left[1] = rounded(sum[2]);
    left[2] = rounded(sum[1]);
    left[3] = rounded(sum[3]);
}

__device__ __forceinline__ const float* head_of(const float* from, const Places& of, int heads)
{
    return from + (long long)(blockIdx.x / heads) * of.sequence + (long long)(blockIdx.x % heads) * of.head;
}

__device__ __forceinline__ float4 quarter(const float* from, int apart, int row, int rows, int at)
{
    return row < rows ? ((const float4*)(from + (long long)row * apart))[at] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

__device__ __forceinline__ void put(Word* to, const float4& some)
{
    *(uint4*)to = make_uint4(rounded(some.x), rounded(some.y), rounded(some.z), rounded(some.w));
}

// Begin to load the rows of a tile from ``first`` on, all at once; rows that are not there are zeros.
__device__ __forceinline__ void fetch(float4 (&to)[COLUMNS], const float* from, int apart, int first, int rows)
{
    #pragma unroll
    for (int number = 0; number < COLUMNS; ++number) {
        const int at = threadIdx.x + THREADS * number;
        to[number] = quarter(from, apart, first + at / (WIDTH / 4), rows, at % (WIDTH / 4));
    }
}

__device__ __forceinline__ void fill(Word (*to)[PITCH], const float4 (&from)[COLUMNS])
{
    #pragma unroll
    for (int number = 0; number < COLUMNS; ++number) {
        const int at = threadIdx.x + THREADS * number;
        put(to[at / (WIDTH / 4)] + 4 * (at % (WIDTH / 4)), from[number]);
    }
}

// Load 16 rows as the left factors of products.
__device__ __forceinline__ void load(Word (&to)[COLUMNS][4], const float* from, int apart, int first, int rows)
{
    const int group = threadIdx.x % 32 / 4, thread = threadIdx.x % 4;
    #pragma unroll
    for (int part = 0; part < 4; ++part) {
        const int row = first + group + 8 * (part % 2);
        const float* numbers = from + (long long)row * apart + thread + 4 * (part / 2);
        #pragma unroll
        for (int column = 0; column < COLUMNS; ++column)
            to[column][part] = row < rows ? rounded(numbers[8 * column]) : 0u;
    }
}

"""

FORWARD = """
extern "C" __global__ void __launch_bounds__(THREADS) attend(
    const float* query, const float* key, const float* value, float* out, float* logs, int heads, int queries, int keys,
    STRIDES(query), STRIDES(key), STRIDES(value), int causal, int factor_bits)
{
    const Places of_query = PLACES(query), of_key = PLACES(key), of_value = PLACES(value);
    __shared__ __align__(16) Word key_tile[TILE][PITCH], value_tile[TILE][PITCH];
    const int group = threadIdx.x % 32 / 4, thread = threadIdx.x % 4, first = blockIdx.y * TILE;
    const int mine = first + 16 * (threadIdx.x / 32);
    const float factor = __int_as_float(factor_bits);
    query = head_of(query, of_query, heads);
    key = head_of(key, of_key, heads);
    value = head_of(value, of_value, heads);
    Word left[COLUMNS][4];
    load(left, query, of_query.token, mine, queries);
    float total[COLUMNS][4] = {}, most[2] = {NEVER, NEVER}, sum[2] = {};
    // The number of keys that each row attends to, and that all rows do.
    const int ends[2] = {
        causal ? min(mine + group + 1, keys) : keys, causal ? min(mine + group + 9, keys) : keys};
    const int last = causal ? min(first + TILE, keys) : keys;
    for (int start = 0; start < last; start += TILE) {
        float4 some_keys[COLUMNS], some_values[COLUMNS];
        fetch(some_keys, key, of_key.token, start, keys);
        fetch(some_values, value, of_value.token, start, keys);
        __syncthreads();
        fill(key_tile, some_keys);
        fill(value_tile, some_values);
        __syncthreads();
        // Groups of eight keys that some query of this warp attends to.
        const int needed = causal ? (mine + 16 - start) / 8 : 8;
        float score[8][4] = {};
        #pragma unroll
        for (int column = 0; column < COLUMNS; ++column)
            #pragma unroll
            for (int eight = 0; eight < 8; ++eight) {
                const Word* row = key_tile[8 * eight + group] + 8 * column + thread;
                if (eight < needed) multiply(score[eight], left[column], row[0], row[4]);
            }
        #pragma unroll
        for (int eight = 0; eight < 8; ++eight)
            #pragma unroll
            for (int part = 0; part < 4; ++part) {
                const bool there = start + 8 * eight + 2 * thread + part % 2 < ends[part / 2];
                score[eight][part] = there ? score[eight][part] * factor : NEVER;
            }
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            float now = most[half];
            #pragma unroll
            for (int eight = 0; eight < 8; ++eight)
                now = fmaxf(now, fmaxf(score[eight][2 * half], score[eight][2 * half + 1]));
            now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 1));
            now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 2));
            const float shrink = power_of_two(most[half] - now);
            most[half] = now;
            sum[half] *= shrink;
            #pragma unroll
            for (int eight = 0; eight < 8; ++eight)
                #pragma unroll
                for (int part = 2 * half; part < 2 * half + 2; ++part) {
                    score[eight][part] = power_of_two(score[eight][part] - now);
                    sum[half] += score[eight][part];
                }
            #pragma unroll
            for (int column = 0; column < COLUMNS; ++column) {
                total[column][2 * half] *= shrink;
                total[column][2 * half + 1] *= shrink;
            }
        }
        #pragma unroll
        for (int eight = 0; eight < 8; ++eight) {
            if (eight >= needed) continue;
            Word weights[4];
            as_left(weights, score[eight]);
            const Word *upper = value_tile[8 * eight + 2 * thread] + group, *lower = upper + PITCH;
            #pragma unroll
            for (int column = 0; column < COLUMNS; ++column)
                multiply(total[column], weights, upper[8 * column], lower[8 * column]);
        }
    }
    #pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = mine + group + 8 * half;
        sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 1);
        sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 2);
        if (row >= queries) continue;
        const long long place = ((long long)(blockIdx.x / heads) * queries + row) * heads + blockIdx.x % heads;
        const float scale = 1.0f / sum[half];
        #pragma unroll
        for (int column = 0; column < COLUMNS; ++column)
            *(float2*)(out + place * WIDTH + 8 * column + 2 * thread) =
                make_float2(total[column][2 * half] * scale, total[column][2 * half + 1] * scale);
        if (thread == 0) logs[(long long)blockIdx.x * queries + row] = most[half] + log2f(sum[half]);
    }
}

"""

BACKWARD = """
#define FEW 32
#define FEW_PITCH 36

#define STEPS ((WIDTH / 4 + 3) / 4)

// Begin to load 32 queries, four threads for each.
__device__ __forceinline__ void fetch_few(float4 (&to)[STEPS], const float* from, int apart, int first, int rows)
{
    #pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        const int at = 4 * step + threadIdx.x % 4;
        to[step] = quarter(from, apart, first + threadIdx.x / 4, at < WIDTH / 4 ? rows : 0, at);
    }
}

__device__ __forceinline__ void fill_few(Word (*to)[PITCH], const float4 (&from)[STEPS])
{
    #pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        const int at = 4 * step + threadIdx.x % 4;
        if (at < WIDTH / 4) put(to[threadIdx.x / 4] + 4 * at, from[step]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 3) attend_back(
    const float* grad, const float* query, const float* key, const float* value, const float* out, const float* logs,
    float* products, float* query_grad, float* key_grad, float* value_grad, int heads, int queries, int keys,
    STRIDES(grad), STRIDES(query), STRIDES(key), STRIDES(value), STRIDES(query_grad), STRIDES(key_grad),
    int causal, int scale_bits, int factor_bits)
{
    const Places of_grad = PLACES(grad), of_query = PLACES(query), of_key = PLACES(key), of_value = PLACES(value);
    const Places of_query_grad = PLACES(query_grad), of_key_grad = PLACES(key_grad);
    __shared__ __align__(16) Word key_tile[TILE][PITCH], query_tile[FEW][PITCH], grad_tile[FEW][PITCH];
    __shared__ __align__(16) Word score_tile[TILE][FEW_PITCH];
    __shared__ float log_tile[FEW], product_tile[FEW];
    const int group = threadIdx.x % 32 / 4, thread = threadIdx.x % 4, warp = threadIdx.x / 32;
    const float scale = __int_as_float(scale_bits), factor = __int_as_float(factor_bits);
    const Places of_out = {queries * heads * WIDTH, WIDTH, heads * WIDTH};
    grad = head_of(grad, of_grad, heads);
    query = head_of(query, of_query, heads);
    key = head_of(key, of_key, heads);
    value = head_of(value, of_value, heads);
    out = head_of(out, of_out, heads);
    query_grad = (float*)head_of(query_grad, of_query_grad, heads);
    key_grad = (float*)head_of(key_grad, of_key_grad, heads);
    value_grad = (float*)head_of(value_grad, of_key_grad, heads);
    logs += (long long)blockIdx.x * queries;
    products += (long long)blockIdx.x * queries;
    for (int first = 0; first < keys; first += TILE) {
        const int mine = first + 16 * warp;
        float4 some_keys[COLUMNS];
        fetch(some_keys, key, of_key.token, first, keys);
        Word values[COLUMNS][4];
        load(values, value, of_value.token, mine, keys);
        __syncthreads();
        fill(key_tile, some_keys);
        float of_keys[COLUMNS][4] = {}, of_values[COLUMNS][4] = {};
        // The first query that attends to each key of this thread.
        const int begins[2] = {
            mine + group >= keys ? queries : causal ? mine + group : 0,
            mine + group + 8 >= keys ? queries : causal ? mine + group + 8 : 0};
        for (int start = causal ? first : 0; start < queries; start += FEW) {
            float4 some_queries[STEPS], some_grads[STEPS];
            fetch_few(some_queries, query, of_query.token, start, queries);
            fetch_few(some_grads, grad, of_grad.token, start, queries);
            float product = 0.0f;
            if (!first) {
                float4 some[STEPS];
                fetch_few(some, out, of_out.token, start, queries);
                #pragma unroll
                for (int step = 0; step < STEPS; ++step) {
                    const float4 one = some[step], by = some_grads[step];
                    product += one.x * by.x + one.y * by.y + one.z * by.z + one.w * by.w;
                }
                product += __shfl_xor_sync(0xffffffffu, product, 1);
                product += __shfl_xor_sync(0xffffffffu, product, 2);
            }
            __syncthreads();
            fill_few(query_tile, some_queries);
            fill_few(grad_tile, some_grads);
            const int row = start + threadIdx.x / 4;
            if (thread == 0) {
                const bool there = row < queries;
                if (first) product = there ? products[row] : 0.0f;
                else if (there) products[row] = product;
                product_tile[row - start] = product;
                log_tile[row - start] = there ? logs[row] : 0.0f;
            }
            __syncthreads();
            // Whether some query attends to a key of this warp.
            const bool busy = !causal || start + FEW > mine;
            float score[4][4] = {}, slope[4][4] = {};
            if (busy) {
                #pragma unroll
                for (int column = 0; column < COLUMNS; ++column) {
                    const Word *upper = key_tile[16 * warp + group] + 8 * column + thread, *lower = upper + 8 * PITCH;
                    const Word left[4] = {upper[0], lower[0], upper[4], lower[4]};
                    #pragma unroll
                    for (int eight = 0; eight < 4; ++eight) {
                        const int at = 8 * column + thread;
                        const Word *right = query_tile[8 * eight + group] + at;
                        const Word *other = grad_tile[8 * eight + group] + at;
                        multiply(score[eight], left, right[0], right[4]);
                        multiply(slope[eight], values[column], other[0], other[4]);
                    }
                }
                #pragma unroll
                for (int eight = 0; eight < 4; ++eight)
                    #pragma unroll
                    for (int part = 0; part < 4; ++part) {
                        const int row = 8 * eight + 2 * thread + part % 2;
                        const bool there = start + row >= begins[part / 2] && start + row < queries;
                        const float weight = there ? power_of_two(score[eight][part] * factor - log_tile[row]) : 0.0f;
                        score[eight][part] = weight;
                        slope[eight][part] = weight * (slope[eight][part] - product_tile[row]) * scale;
                    }
                #pragma unroll
                for (int eight = 0; eight < 4; ++eight) {
                    Word weights[4], slopes[4];
                    as_left(weights, score[eight]);
                    as_left(slopes, slope[eight]);
                    const int at = 8 * eight + 2 * thread;
                    #pragma unroll
                    for (int column = 0; column < COLUMNS; ++column) {
                        const Word *right = grad_tile[at] + 8 * column + group;
                        const Word *other = query_tile[at] + 8 * column + group;
                        multiply(of_values[column], weights, right[0], right[PITCH]);
                        multiply(of_keys[column], slopes, other[0], other[PITCH]);
                    }
                }
            }
            #pragma unroll
            for (int eight = 0; eight < 4; ++eight)
                #pragma unroll
                for (int half = 0; half < 2; ++half)
                    *(uint2*)(score_tile[16 * warp + group + 8 * half] + 8 * eight + 2 * thread) =
                        make_uint2(rounded(slope[eight][2 * half]), rounded(slope[eight][2 * half + 1]));
            __syncthreads();
            const int rows = 16 * (warp % 2);
            const int needed = causal ? min((start + FEW - first) / 8, 8) : 8;
            float sums[(COLUMNS + 1) / 2][4] = {};
            #pragma unroll
            for (int eight = 0; eight < 8; ++eight) {
                if (eight >= needed) continue;
                const Word *upper = score_tile[8 * eight + 2 * thread] + rows + group, *lower = upper + FEW_PITCH;
                const Word left[4] = {upper[0], upper[8], lower[0], lower[8]};
                #pragma unroll
                for (int pair = 0; pair < (COLUMNS + 1) / 2; ++pair) {
                    const int column = 2 * pair + warp / 2;
                    const Word* right = key_tile[8 * eight + 2 * thread] + 8 * column + group;
                    if (column < COLUMNS) multiply(sums[pair], left, right[0], right[PITCH]);
                }
            }
            #pragma unroll
            for (int pair = 0; pair < (COLUMNS + 1) / 2; ++pair)
                #pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int column = 2 * pair + warp / 2, row = start + rows + group + 8 * half;
                    if (column >= COLUMNS || row >= queries) continue;
                    float2* to = (float2*)(
                        query_grad + (long long)row * of_query_grad.token + 8 * column + 2 * thread);
                    float2 found = make_float2(sums[pair][2 * half], sums[pair][2 * half + 1]);
                    if (first) {
                        found.x += to->x;
                        found.y += to->y;
                    }
                    *to = found;
                }
        }
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = mine + group + 8 * half;
            if (row >= keys) continue;
            const long long place = (long long)row * of_key_grad.token + 2 * thread;
            #pragma unroll
            for (int column = 0; column < COLUMNS; ++column) {
                *(float2*)(key_grad + place + 8 * column) =
                    make_float2(of_keys[column][2 * half], of_keys[column][2 * half + 1]);
                *(float2*)(value_grad + place + 8 * column) =
                    make_float2(of_values[column][2 * half], of_values[column][2 * half + 1]);
            }
        }
    }
}
"""


def sources_for(width: int) -> list[tuple[str, str]]:
    """Return the sources and the names of the two kernels for heads of one width."""
    tools = TOOLS.replace("@WIDTH@", str(width))
    return [(tools + FORWARD, "attend"), (tools + BACKWARD, "attend_back")]
