// Attention, forward and backward, without ever storing the n x m matrix of scores.
//
//     out = softmax(Q K^T / sqrt(d_k) + mask) V      Q (n, d_k), K (m, d_k), V (m, d_v), for every batch and head
//
// The file begins with attention_naive, which computes the formula as it reads. The kernels that are used follow:
//
//     kernel       a block owns   and streams   and writes
//     forward      queries        K, V          out, log-sum-exp of each row; the weights (n, m) only on request
//     backward_q   queries        K, V          dQ, and delta = sum(dOut * out) of each row
//     backward_kv  keys           Q, dOut       dK, dV                             (after backward_q: it reads delta)
//     backward     all keys       Q, dOut       dQ, dK, dV, where one block has room for all keys (m <= 128)
//
// A block keeps the rows that it owns in registers and streams the others past them through shared memory, a tile at
// a time. Every sum has one owner and a fixed order, without atomics: the same input gives the same bits.
//
// Softmax needs the largest score and the sum of a whole row. The forward kernel keeps both as they grow and rescales
// what it has summed so far when the largest score changes (Milakov and Gimelshein 2018, "Online normalizer
// calculation for softmax"; Dao et al. 2022, "FlashAttention"). The backward kernels compute each weight again from
// its score and the log-sum-exp of its row.
//
// Memory traffic: forward reads Q once, K and V once for each block of the head, and writes out. The blocks of a head
// run side by side, so K and V come from device memory once and from L2 after that. backward reads what forward
// read, out and dOut, and writes the three gradients. O(n + m) numbers, never O(n m).
//
// Launch: a block of up to MAX_THREADS threads (backward: ALL_KEYS_THREADS) owns threads / LANES * ROWS rows. The grid
// has one dimension: a block for each such run of rows in each head. Shared memory is static, 48 kB at most.
//
// The launcher compiles this file for a TYPE (float, double, float16, bfloat16), D_K, D_V (8, 16, 32, 64, 128) and
// ROWS, the rows that a thread owns (1 or 2).

#ifndef PTX  // one PTX instruction; the emulator has a PTX that executes the same text on the CPU
#define PTX(instruction, to_kind, to, from_kind, from) asm(instruction " %0, %1;" : to_kind(to) : from_kind(from))
#endif

// 2^x in one instruction, to two units in the last place; what is below 2^-126 becomes 0.
__device__ inline float power_of_2(float x) { float y; PTX("ex2.approx.ftz.f32", "=f", y, "f", x); return y; }
__device__ inline double power_of_2(double x) { return exp2(x); }

struct float16 { unsigned short bits; };
__device__ inline float widen(float16 x) { float y; PTX("cvt.f32.f16", "=f", y, "h", x.bits); return y; }
__device__ inline void narrow(float16& y, float x) { PTX("cvt.rn.f16.f32", "=h", y.bits, "f", x); }

struct bfloat16 { unsigned short bits; };  // the upper half of a float
__device__ inline float widen(bfloat16 x) { return __uint_as_float((unsigned)x.bits << 16); }
__device__ inline void narrow(bfloat16& y, float x) {  // to nearest, ties to even
    unsigned bits = __float_as_uint(x);
    y.bits = x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

__device__ inline float widen(float x) { return x; }
__device__ inline double widen(double x) { return x; }
__device__ inline void narrow(float& y, float x) { y = x; }
__device__ inline void narrow(double& y, double x) { y = x; }

using T = TYPE;                  // what is stored
using A = decltype(widen(T()));  // what is computed with: double for double, float for all others
#define INF A(__int_as_float(0x7f800000))
constexpr A LOWEST = sizeof(A) == 8 ? -1.7e308 : -3.4e38;  // no score that may be read is smaller
constexpr A LOG2_E = 1.4426950408889634;                   // e^x = 2^(x log2 e)

__device__ constexpr int smaller(int a, int b) { return a < b ? a : b; }
__device__ constexpr int larger(int a, int b) { return a > b ? a : b; }

// Of one row: log-sum-exp = (top + log2(total)) / log2(e), kept as top and 1 / total. Added up they would be a number
// near 10, whose rounding exp turns into an error of the whole row. Both are 0 for a row that may read nothing, and so
// its weights.
struct alignas(2 * sizeof(A)) LogSumExp { A top, inverse; };

struct Rows {  // (batch, heads, length, d), the last dimension contiguous; strides in numbers
    T* data;
    long long batch, head, row;
    __device__ T* at(int b, int h, int i) const { return data + b * batch + h * head + i * row; }
};

struct Params {
    Rows q, k, v, out, out_grad, q_grad, k_grad, v_grad;
    const A* mask;                                          // added to the scores, or null
    long long mask_batch, mask_head, mask_query, mask_key;  // its strides, 0 where it is broadcast
    const int* key_lengths;                                 // (batch,), or null
    LogSumExp* log_sum_exp;                                 // (batch, heads, n)
    A* delta;                                               // (batch, heads, n)
    T *weights, *weights_grad;                              // (batch, heads, n, m), or null
    A* scores;                                              // (batch, heads, n, m), for attention_naive alone
    double scale;                                           // 1 / sqrt(d_k)
    int heads, n, m, causal;
};

__device__ int readable_keys(const Params& p, int batch) {
    return p.key_lengths ? larger(0, smaller(p.key_lengths[batch], p.m)) : p.m;
}

// The score that softmax sees, times log2(e) so that softmax is 2^x: `dot` is q . k log2(e) / sqrt(d_k). -inf where
// query i may not read key j. A mask of the largest negative number stays one, and does not overflow to -inf.
__device__ A masked(const Params& p, int batch, int head, A dot, int i, int j, int key_count) {
    if (i >= p.n || j >= key_count || (p.causal && j > i)) return -INF;
    if (!p.mask) return dot;
    A mask = p.mask[batch * p.mask_batch + head * p.mask_head + i * p.mask_query + j * p.mask_key];
    A scaled = mask * LOG2_E;
    return dot + (scaled < LOWEST && mask != -INF ? LOWEST : scaled);
}

// ---- step 0: the formula as it reads. One thread computes one row of out, with the whole row of scores in memory.

extern "C" __global__ void attention_naive(const Params p) {
    const int blocks_per_head = (p.n + blockDim.x - 1) / blockDim.x;
    const int batch = blockIdx.x / blocks_per_head / p.heads, head = blockIdx.x / blocks_per_head % p.heads;
    const int i = blockIdx.x % blocks_per_head * blockDim.x + threadIdx.x;
    if (i >= p.n) return;
    const int key_count = readable_keys(p, batch);
    const T* q = p.q.at(batch, head, i);
    A* scores = p.scores + (((long long)batch * p.heads + head) * p.n + i) * p.m;

    A top = LOWEST, total = 0;
    for (int j = 0; j < key_count; j++) {  // scores = q K^T / sqrt(d_k) + mask
        const T* k = p.k.at(batch, head, j);
        A dot = 0;
        for (int e = 0; e < D_K; e++) dot += widen(q[e]) * widen(k[e]);
        scores[j] = masked(p, batch, head, dot * A(p.scale * LOG2_E), i, j, key_count);
        top = fmax(top, scores[j]);
    }
    for (int j = 0; j < key_count; j++) {  // weights = softmax(scores), but for 1 / total
        scores[j] = power_of_2(scores[j] - top);
        total += scores[j];
    }
    for (int e = 0; e < D_V; e++) {        // out = weights V
        A sum = 0;
        for (int j = 0; j < key_count; j++) sum += scores[j] * widen(p.v.at(batch, head, j)[e]);
        narrow(p.out.at(batch, head, i)[e], total != 0 ? sum / total : 0);
    }
}

// From there to the kernels below, and what each step buys:
//
// 1. Online softmax (forward): no row of scores in memory. attention_naive writes each score once, rewrites it and
//    reads it back d_v + 1 times; for n = m = 1,024 that is 4 MB a head, and it is all gone.
// 2. Tiles (load_tile): a block reads K and V once for all its rows, instead of once for each row.
// 3. Several rows a thread and several keys at a time (dot, accumulate): a number read from shared memory feeds ROWS
//    multiply-adds, and those of different keys do not depend on each other.
// 4. Lanes: a long row is shared by several threads, so that each thread needs registers for its part only and a
//    multiprocessor holds 12 to 16 warps. While some wait, others compute.
// 5. 2^x instead of e^x, with log2(e) in the scale of Q, and no test of the mask where all keys may be read: what is
//    left beside the multiply-adds is a third of the instructions (`python -m kernels.bench --static` counts them).
// 6. One backward kernel where a block holds all keys: scores and their gradients are computed once for dQ, dK and
//    dV, five matrix products instead of seven.

constexpr int MAX_THREADS = 128, WARP = 32;
constexpr int D = larger(D_K, D_V);
// LANES: threads that share a row. A thread keeps 2 rows of 16 numbers for each of two matrices (forward), or of 8 for
// each of four (backward): 64 of its registers.
constexpr int FORWARD_LANES = larger(1, D / 16), FORWARD_ROWS = ROWS;
constexpr int BACKWARD_LANES = smaller(larger(1, D / 8), 8), BACKWARD_ROWS = D > 64 ? 1 : ROWS;
// Streamed rows that a thread works on at once.
constexpr int FORWARD_CHUNK = larger(4, FORWARD_LANES), BACKWARD_CHUNK = larger(4, BACKWARD_LANES);
// Blocks of MAX_THREADS that a multiprocessor must have registers for: 16 warps forward where a row is one thread's, 12
// where lanes share it and backward, 8 for float64. With one more, some variants spill.
constexpr int FORWARD_BLOCKS = sizeof(A) == 8 ? 2 : FORWARD_LANES == 1 ? 4 : 3;
constexpr int BACKWARD_BLOCKS = sizeof(A) == 8 ? 2 : 3;
constexpr int ROW_BYTES = (D_K + D_V) * sizeof(A);               // of one streamed row of both matrices
constexpr int TILE = ROW_BYTES <= 256 ? 64 : ROW_BYTES <= 1024 ? 32 : 16;  // streamed rows in shared memory

// Lanes and vectors. A warp holds WARP / LANES rows at once. Neighbouring threads work on different rows and the same
// part of them, so that they read the same numbers of a streamed row, which shared memory serves two at a time. With
// LANES = 4, thread t of the warp is lane t / 8 of row t % 8:
//
//     thread   0  1 ..  7 |  8  9 .. 15 | 16 17 .. 23 | 24 25 .. 31
//     row      0  1 ..  7 |  0  1 ..  7 |  0  1 ..  7 |  0  1 ..  7
//     lane        0       |      1      |      2      |      3
//
// A lane holds PART numbers of a row of N, in VECTORS vectors of WIDTH: its vector i is vector i * LANES + lane of the
// row. With N = 64 and 4 lanes, each vector of 4 numbers (16 bytes) belongs to lane
//
//     vector   0 1 2 3 | 4 5 6 7 | 8 9 10 11 | 12 13 14 15
//     lane     0 1 2 3 | 0 1 2 3 | 0 1  2  3 |  0  1  2  3
template <int N, int LANES> constexpr int PART = N / LANES;
template <int N, int LANES> constexpr int WIDTH = smaller(PART<N, LANES>, 4);
template <int N, int LANES> constexpr int VECTORS = PART<N, LANES> / WIDTH<N, LANES>;

// Moves as one load or store, of 16 bytes at most: the launcher promises no more alignment than that, and from sm_100
// on the compiler would move 32 bytes at once.
template <typename E, int N> struct alignas(smaller(16, sizeof(E) * N)) Vector { E x[N]; };
template <typename E, int N> __device__ const Vector<E, N>& vector_at(const E* data) {
    return *reinterpret_cast<const Vector<E, N>*>(data);
}

// Where a thread works: rows first, first + step, ... of one head, and the run of rows that its block owns.
//
// The runs of a head are handed out from the last to the first, since under the causal rule the last run of queries
// reads most keys, and the longest work should start first. A thread's rows lie a stride apart, so that the rows of
// neighbouring threads are neighbours in memory. With 300 rows a head, 128 threads, 1 lane and 2 rows a thread:
//
//     block     head 0: 0           1          head 1: 2           3         thread 5 of block 1:
//     rows      256 .. 299     0 .. 255        256 .. 299     0 .. 255       rows 5 and 5 + 128
struct Place {
    int batch, head, lane, first, step, block_first, block_end;
    __device__ Place(const Params& p, int length, int rows_per_thread, int lanes) {
        int rows_per_block = blockDim.x / lanes * rows_per_thread, rows_per_warp = WARP / lanes;
        int blocks_per_head = (length + rows_per_block - 1) / rows_per_block;
        int run = blocks_per_head - 1 - blockIdx.x % blocks_per_head;
        batch = blockIdx.x / blocks_per_head / p.heads;
        head = blockIdx.x / blocks_per_head % p.heads;
        block_first = run * rows_per_block;
        block_end = smaller(block_first + rows_per_block, length);
        lane = threadIdx.x % WARP / rows_per_warp;
        step = blockDim.x / lanes;
        first = block_first + threadIdx.x / WARP * rows_per_warp + threadIdx.x % rows_per_warp;
    }
    __device__ int row(int r) const { return first + r * step; }
    __device__ long long query(const Params& p, int i) const {  // its place in (batch, heads, n)
        return ((long long)batch * p.heads + head) * p.n + i;
    }
};

// The weight of a key, from its score and the log-sum-exp of its row.
__device__ A softmax(A score, const LogSumExp& row) { return power_of_2(score - row.top) * row.inverse; }

// The gradient that a weight gets from outside, where the weights were asked for and used.
__device__ A own_grad(const Params& p, const Place& at, int i, int j) {
    return i < p.n && j < p.m ? widen(p.weights_grad[at.query(p, i) * p.m + j]) : A(0);
}

// This thread's part of a row, from device memory and, times `factor`, to it.
template <int N, int LANES> __device__ void load_part(A (&part)[PART<N, LANES>], const T* row, int lane, A factor = 1) {
    constexpr int W = WIDTH<N, LANES>;
    for (int i = 0; i < VECTORS<N, LANES>; i++) {
        Vector<T, W> vector = vector_at<T, W>(row + (i * LANES + lane) * W);
        for (int e = 0; e < W; e++) part[i * W + e] = widen(vector.x[e]) * factor;
    }
}
template <int N, int LANES> __device__ void store_part(T* row, const A (&part)[PART<N, LANES>], A factor, int lane) {
    constexpr int W = WIDTH<N, LANES>;
    for (int i = 0; i < VECTORS<N, LANES>; i++) {
        Vector<T, W> vector;
        for (int e = 0; e < W; e++) narrow(vector.x[e], part[i * W + e] * factor);
        *reinterpret_cast<Vector<T, W>*>(row + (i * LANES + lane) * W) = vector;
    }
}

// The block copies rows first, first + 1, ... to shared memory, 16 bytes a thread; zeros from row `end` on.
template <int N, int COUNT>
__device__ void load_tile(A (&tile)[COUNT][N], const Rows& rows, const Place& at, int first, int end) {
    constexpr int PACK = 16 / sizeof(T);
    for (int i = threadIdx.x; i < COUNT * N / PACK; i += blockDim.x) {
        int row = i / (N / PACK), column = i % (N / PACK) * PACK;
        Vector<T, PACK> pack = {};
        if (first + row < end) pack = vector_at<T, PACK>(rows.at(at.batch, at.head, first + row) + column);
        for (int e = 0; e < PACK; e++) tile[row][column + e] = widen(pack.x[e]);
    }
}

// x of the thread that holds lane `lane ^ step` of the same row.
template <int LANES> __device__ A of_lane(A x, int step) {
    return __shfl_xor_sync(0xffffffff, x, step * (WARP / LANES));
}
template <int LANES> __device__ A sum_over_lanes(A x) {
    for (int step = LANES / 2; step > 0; step /= 2) x += of_lane<LANES>(x, step);
    return x;
}

// dots[r][g] = rows[r] . tile[first + g * LANES + lane]: of each group of LANES streamed rows, a lane gets one product.
//
// First each lane multiplies its part with that of all rows of the group, beginning with its own: parts[r][x] belongs
// to row x ^ lane. Then it gives away half of the sums, adds what it gets to the other half, and so on. With 4 lanes:
//
//     lane 0 has rows 0 1 2 3   gives 2 3 to lane 2   has 0 1   gives 1 to lane 1   has 0, summed over all lanes
//     lane 1 has rows 1 0 3 2   gives 3 2 to lane 3   has 1 0   gives 0 to lane 0   has 1
template <int N, int LANES, int R, int GROUPS, int COUNT>
__device__ void dot(A (&dots)[R][GROUPS], const A (&rows)[R][PART<N, LANES>], const A (&tile)[COUNT][N], int first,
                    int lane) {
    constexpr int W = WIDTH<N, LANES>;
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        A parts[R][LANES] = {};
        for (int x = 0; x < LANES; x++)
            for (int i = 0; i < VECTORS<N, LANES>; i++) {
                auto other = vector_at<A, W>(&tile[first + (x ^ lane) + g * LANES][(i * LANES + lane) * W]);
                for (int r = 0; r < R; r++)
                    for (int e = 0; e < W; e++) parts[r][x] += rows[r][i * W + e] * other.x[e];
            }
        for (int r = 0; r < R; r++) {
            for (int step = LANES / 2; step > 0; step /= 2)
                for (int x = 0; x < step; x++) parts[r][x] += of_lane<LANES>(parts[r][x + step], step);
            dots[r][g] = parts[r][0];
        }
    }
}

// The other way: from each lane's own number of each group to all of them, all[r][g * LANES + x] that of lane x ^ lane.
template <int LANES, int R, int GROUPS>
__device__ void gather(A (&all)[R][GROUPS * LANES], const A (&own)[R][GROUPS]) {
#pragma unroll
    for (int r = 0; r < R; r++)
        for (int g = 0; g < GROUPS; g++) {
            A* group = all[r] + g * LANES;
            group[0] = own[r][g];
            for (int step = 1; step < LANES; step *= 2)
                for (int x = 0; x < step; x++) group[x + step] = of_lane<LANES>(group[x], step);
        }
}

// sums[r] = sums[r] * keep[r] + the sum of weights[r][c] * tile[first + c] over the CHUNK rows c, the gathered weights.
//
// The chunk is summed on its own and then added. A sum of 1,024 terms, one after the other, is rounded 1,024 times,
// most of them at its full size. By chunks of 4 the large sum is rounded 256 times, and the other roundings are those
// of small sums:
//
//     (((s + a0) + a1) + a2) + a3        s + (((a0 + a1) + a2) + a3)
template <int N, int LANES, int R, int CHUNK, int COUNT>
__device__ void accumulate(A (&sums)[R][PART<N, LANES>], const A (&keep)[R], const A (&weights)[R][CHUNK],
                           const A (&tile)[COUNT][N], int first, int lane) {
    constexpr int W = WIDTH<N, LANES>;
#pragma unroll
    for (int i = 0; i < VECTORS<N, LANES>; i++) {
        A chunk[R][W] = {};
        for (int c = 0; c < CHUNK; c++) {
            int row = first + (c % LANES ^ lane) + c / LANES * LANES;
            auto other = vector_at<A, W>(&tile[row][(i * LANES + lane) * W]);
            for (int r = 0; r < R; r++)
                for (int e = 0; e < W; e++) chunk[r][e] += weights[r][c] * other.x[e];
        }
        for (int r = 0; r < R; r++)
            for (int e = 0; e < W; e++) {
                A& sum = sums[r][i * W + e];
                sum = sum * keep[r] + chunk[r][e];
            }
    }
}

extern "C" __global__ void __launch_bounds__(MAX_THREADS, FORWARD_BLOCKS) attention_forward(const Params p) {
    constexpr int LANES = FORWARD_LANES, R = FORWARD_ROWS, CHUNK = FORWARD_CHUNK, GROUPS = CHUNK / LANES;
    __shared__ __align__(32) A keys[TILE][D_K];
    __shared__ __align__(32) A values[TILE][D_V];
    const Place at(p, p.n, R, LANES);
    const int key_count = readable_keys(p, at.batch);
    const int end = p.causal ? smaller(key_count, at.block_end) : key_count;  // no row of the block reads on
    const int all_read = p.mask ? 0 : p.causal ? smaller(key_count, at.block_first + 1) : key_count;

    // Of each row, so far: the largest score; this lane's share of the sum of exp(score - top); and what rounding added
    // to that share, to be taken off again, for it would be an error of the whole row (Kahan 1965, "Further remarks on
    // reducing truncation errors").
    A top[R], total[R] = {}, excess[R] = {};
    A q[R][PART<D_K, LANES>] = {}, sums[R][PART<D_V, LANES>] = {}, scores[R][GROUPS], keep[R];
#pragma unroll
    for (int r = 0; r < R; r++) {
        top[r] = LOWEST;
        if (at.row(r) >= p.n) continue;
        load_part<D_K, LANES>(q[r], p.q.at(at.batch, at.head, at.row(r)), at.lane, A(p.scale * LOG2_E));
    }

    for (int start = 0; start < end; start += TILE) {
        __syncthreads();  // until all are done with the previous tile
        load_tile(keys, p.k, at, start, end);
        load_tile(values, p.v, at, start, end);
        __syncthreads();
#pragma unroll 1
        for (int c0 = 0; c0 < TILE && start + c0 < end; c0 += CHUNK) {
            dot<D_K, LANES>(scores, q, keys, c0, at.lane);
            if (start + c0 + CHUNK > all_read)
                for (int r = 0; r < R; r++)
                    for (int g = 0; g < GROUPS; g++) {
                        int i = at.row(r), j = start + c0 + g * LANES + at.lane;
                        scores[r][g] = masked(p, at.batch, at.head, scores[r][g], i, j, end);
                    }
            // Softmax as the scores come. With scores 1, 3 | 2, 5 in two chunks, in units of log 2:
            //
            //     chunk    top   keep             total                         sums
            //     1, 3     3     -                2^-2 + 2^0 = 1.25             2^-2 v0 + 2^0 v1
            //     2, 5     5     2^(3-5) = 1/4    1.25/4 + 2^-3 + 2^0 = 1.4375  sums/4 + 2^-3 v2 + 2^0 v3
            //
            // At the end out = sums / total. A row that has read nothing has top = LOWEST, and 2^(-inf - top) = 0.
#pragma unroll
            for (int r = 0; r < R; r++) {
                A old_top = top[r], sum = 0;
                for (int g = 0; g < GROUPS; g++) top[r] = fmax(top[r], scores[r][g]);
                for (int step = LANES / 2; step > 0; step /= 2) top[r] = fmax(top[r], of_lane<LANES>(top[r], step));
                keep[r] = power_of_2(old_top - top[r]);
                for (int g = 0; g < GROUPS; g++) sum += scores[r][g] = power_of_2(scores[r][g] - top[r]);
                A kept = total[r] * keep[r], added = sum - excess[r] * keep[r];
                total[r] = kept + added;
                excess[r] = (total[r] - kept) - added;  // 0 but for rounding
            }
            A weights[R][CHUNK];
            gather<LANES>(weights, scores);
            accumulate<D_V, LANES>(sums, keep, weights, values, c0, at.lane);
        }
    }

    LogSumExp log_sum_exp[R];
#pragma unroll
    for (int r = 0; r < R; r++) {
        log_sum_exp[r] = {};
        total[r] = sum_over_lanes<LANES>(total[r]);
        if (total[r] != 0) log_sum_exp[r] = {top[r], 1 / total[r]};  // else it read nothing; a NaN stays a NaN
        if (at.row(r) >= p.n) continue;
        store_part<D_V, LANES>(p.out.at(at.batch, at.head, at.row(r)), sums[r], log_sum_exp[r].inverse, at.lane);
        if (at.lane == 0) p.log_sum_exp[at.query(p, at.row(r))] = log_sum_exp[r];
    }

    // On request, once more over the keys, now that top and total are known: the softmax rows themselves.
    for (int start = 0; p.weights && start < p.m; start += TILE) {
        __syncthreads();
        load_tile(keys, p.k, at, start, end);
        __syncthreads();
#pragma unroll 1
        for (int c0 = 0; c0 < TILE && start + c0 < p.m; c0 += CHUNK) {
            dot<D_K, LANES>(scores, q, keys, c0, at.lane);
#pragma unroll
            for (int r = 0; r < R; r++)
#pragma unroll
                for (int g = 0; g < GROUPS; g++) {
                    int i = at.row(r), j = start + c0 + g * LANES + at.lane;
                    if (i >= p.n || j >= p.m) continue;
                    A weight = softmax(masked(p, at.batch, at.head, scores[r][g], i, j, end), log_sum_exp[r]);
                    narrow(p.weights[at.query(p, i) * p.m + j], weight);
                }
        }
    }
}

// With P the weights and dP = dOut V^T (+ dP from outside, where the weights were used too):
//     delta = sum_j P dP,   dS = P (dP - delta),   dQ = dS K / sqrt(d_k),   dK = dS^T Q / sqrt(d_k),   dV = P^T dOut

// This lane's share of delta of row i. sum_j P dOut V^T = dOut out.
template <int LANES>
__device__ A delta_share(const Params& p, const Place& at, const A (&out_grad)[PART<D_V, LANES>], int i) {
    A out[PART<D_V, LANES>], product = 0;
    load_part<D_V, LANES>(out, p.out.at(at.batch, at.head, i), at.lane);
    for (int e = 0; e < PART<D_V, LANES>; e++) product += out[e] * out_grad[e];
    for (int j = at.lane; p.weights_grad && j < p.m; j += LANES)
        product += widen(p.weights[at.query(p, i) * p.m + j]) * own_grad(p, at, i, j);
    return product;
}

extern "C" __global__ void __launch_bounds__(MAX_THREADS, BACKWARD_BLOCKS) attention_backward_q(const Params p) {
    constexpr int LANES = BACKWARD_LANES, R = BACKWARD_ROWS, CHUNK = BACKWARD_CHUNK, GROUPS = CHUNK / LANES;
    __shared__ __align__(32) A keys[TILE][D_K];
    __shared__ __align__(32) A values[TILE][D_V];
    const Place at(p, p.n, R, LANES);
    const int key_count = readable_keys(p, at.batch);
    const int end = p.causal ? smaller(key_count, at.block_end) : key_count;
    const int all_read = p.mask ? 0 : p.causal ? smaller(key_count, at.block_first + 1) : key_count;

    A q[R][PART<D_K, LANES>] = {}, out_grad[R][PART<D_V, LANES>] = {}, q_grad[R][PART<D_K, LANES>] = {};
    A scores[R][GROUPS], weight_grads[R][GROUPS], delta[R], keep[R];  // keep: nothing to rescale here, 1
    LogSumExp log_sum_exp[R];
#pragma unroll
    for (int r = 0; r < R; r++) {
        const int i = at.row(r);
        delta[r] = 0;
        keep[r] = 1;
        log_sum_exp[r] = {};
        if (i < p.n) {
            load_part<D_K, LANES>(q[r], p.q.at(at.batch, at.head, i), at.lane, A(p.scale * LOG2_E));
            load_part<D_V, LANES>(out_grad[r], p.out_grad.at(at.batch, at.head, i), at.lane);
            delta[r] = delta_share<LANES>(p, at, out_grad[r], i);
            log_sum_exp[r] = p.log_sum_exp[at.query(p, i)];
        }
        delta[r] = sum_over_lanes<LANES>(delta[r]);
        if (i < p.n && at.lane == 0) p.delta[at.query(p, i)] = delta[r];
    }

    for (int start = 0; start < end; start += TILE) {
        __syncthreads();
        load_tile(keys, p.k, at, start, end);
        load_tile(values, p.v, at, start, end);
        __syncthreads();
#pragma unroll 1
        for (int c0 = 0; c0 < TILE && start + c0 < end; c0 += CHUNK) {
            dot<D_K, LANES>(scores, q, keys, c0, at.lane);
            dot<D_V, LANES>(weight_grads, out_grad, values, c0, at.lane);
            if (start + c0 + CHUNK > all_read || p.weights_grad)
                for (int r = 0; r < R; r++)
                    for (int g = 0; g < GROUPS; g++) {
                        int i = at.row(r), j = start + c0 + g * LANES + at.lane;
                        scores[r][g] = masked(p, at.batch, at.head, scores[r][g], i, j, end);
                        if (p.weights_grad) weight_grads[r][g] += own_grad(p, at, i, j);
                    }
#pragma unroll
            for (int r = 0; r < R; r++)
                for (int g = 0; g < GROUPS; g++)
                    scores[r][g] = softmax(scores[r][g], log_sum_exp[r]) * (weight_grads[r][g] - delta[r]);
            __syncwarp();  // or the compiler keeps the tile in registers from one use to the next, and spills
            A score_grads[R][CHUNK];
            gather<LANES>(score_grads, scores);
            accumulate<D_K, LANES>(q_grad, keep, score_grads, keys, c0, at.lane);
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++)
        if (at.row(r) < p.n)
            store_part<D_K, LANES>(p.q_grad.at(at.batch, at.head, at.row(r)), q_grad[r], A(p.scale), at.lane);
}

// Where one block holds all keys of a head: its keys and the queries of its tile, as many as shared memory holds.
constexpr int ALL_KEYS_THREADS = 256;
constexpr int ALL_KEYS = smaller(smaller(512 / sizeof(A), ALL_KEYS_THREADS / BACKWARD_LANES * BACKWARD_ROWS),
                                 16384 / (D_K * sizeof(A)));
constexpr int ALL_KEYS_TILE = larger(8, smaller(32, 4096 / (D * sizeof(A))));

// dQ of the tile's queries, from dS of all keys: a thread computes 4 numbers of 4 queries.
template <int COUNT, int STRIDE>
__device__ void store_q_grad(const Params& p, const Place& at, const A (&score_grads)[ALL_KEYS][STRIDE],
                             const A (&keys)[ALL_KEYS][D_K], int start, int key_count) {
    for (int t = threadIdx.x; t < COUNT / 4 * (D_K / 4); t += blockDim.x) {
        const int query = t / (D_K / 4) * 4, column = t % (D_K / 4) * 4;
        const int end = p.causal ? smaller(key_count, start + query + 4) : key_count;  // none of the 4 reads on
        A sums[4][4] = {};
        for (int j = 0; j < end; j++) {
            auto score_grad = vector_at<A, 4>(&score_grads[j][query]), key = vector_at<A, 4>(&keys[j][column]);
            for (int r = 0; r < 4; r++)
                for (int e = 0; e < 4; e++) sums[r][e] += score_grad.x[r] * key.x[e];
        }
        for (int r = 0; r < 4; r++) {
            if (start + query + r >= p.n) continue;
            Vector<T, 4> vector;
            for (int e = 0; e < 4; e++) narrow(vector.x[e], sums[r][e] * A(p.scale));
            *reinterpret_cast<Vector<T, 4>*>(p.q_grad.at(at.batch, at.head, start + query + r) + column) = vector;
        }
    }
}

// dK and dV, and where the block holds ALL keys of its head also delta and dQ.
template <bool ALL> static __device__ void backward_keys(const Params& p) {
    constexpr int LANES = BACKWARD_LANES, R = BACKWARD_ROWS, CHUNK = BACKWARD_CHUNK, GROUPS = CHUNK / LANES;
    constexpr int COUNT = ALL ? ALL_KEYS_TILE : TILE, STRIDE = COUNT + 4;  // 4: or the keys' writes meet in one bank
    __shared__ __align__(32) A queries[COUNT][D_K];
    __shared__ __align__(32) A out_grads[COUNT][D_V];
    __shared__ __align__(32) A keys[ALL ? ALL_KEYS : 1][D_K];
    __shared__ __align__(32) A score_grads[ALL ? ALL_KEYS : 1][STRIDE];
    __shared__ LogSumExp log_sum_exp[COUNT];
    __shared__ A delta[COUNT];
    const Place at(p, p.m, R, LANES);
    const int key_count = readable_keys(p, at.batch);
    const int begin = p.causal ? at.block_first / COUNT * COUNT : 0;  // earlier queries do not see these keys
    const int end = ALL || at.block_first < key_count ? p.n : 0;      // padding only: nobody reads it

    A k[R][PART<D_K, LANES>] = {}, v[R][PART<D_V, LANES>] = {};
    A k_grad[R][PART<D_K, LANES>] = {}, v_grad[R][PART<D_V, LANES>] = {};
    A scores[R][GROUPS], weight_grads[R][GROUPS], keep[R];
#pragma unroll
    for (int r = 0; r < R; r++) {
        keep[r] = 1;
        if (at.row(r) >= key_count) continue;
        load_part<D_K, LANES>(k[r], p.k.at(at.batch, at.head, at.row(r)), at.lane, A(p.scale * LOG2_E));
        load_part<D_V, LANES>(v[r], p.v.at(at.batch, at.head, at.row(r)), at.lane);
    }
    if constexpr (ALL) load_tile(keys, p.k, at, 0, key_count);

    // From the last tile to the first. Under the causal rule query i spreads a weight of 1 over i + 1 keys, so early
    // queries weigh most; a sum that is small for long rounds less than one that is large from the start. What key 0
    // gets, on average, from queries 0, 1, ... 7:
    //
    //     1   1/2   1/3   1/4   1/5   1/6   1/7   1/8      summed from the right: 1/8, .27, .43, .63 ... 2.7
    for (int start = (end - 1) / COUNT * COUNT; start >= begin; start -= COUNT) {
        __syncthreads();
        load_tile(queries, p.q, at, start, end);
        load_tile(out_grads, p.out_grad, at, start, end);
        if constexpr (ALL) {
            for (int t = at.first; t < COUNT; t += at.step) {
                A out_grad[PART<D_V, LANES>], share = 0;
                if (start + t < end) {
                    load_part<D_V, LANES>(out_grad, p.out_grad.at(at.batch, at.head, start + t), at.lane);
                    share = delta_share<LANES>(p, at, out_grad, start + t);
                }
                share = sum_over_lanes<LANES>(share);
                if (at.lane == 0) delta[t] = share;
            }
        }
        for (int t = threadIdx.x; t < COUNT; t += blockDim.x) {
            const bool inside = start + t < end;
            log_sum_exp[t] = inside ? p.log_sum_exp[at.query(p, start + t)] : LogSumExp{};
            if (!ALL) delta[t] = inside ? p.delta[at.query(p, start + t)] : 0;
        }
        __syncthreads();
#pragma unroll 1
        for (int c0 = 0; c0 < COUNT && start + c0 < end; c0 += CHUNK) {
            dot<D_K, LANES>(scores, k, queries, c0, at.lane);
            dot<D_V, LANES>(weight_grads, v, out_grads, c0, at.lane);
            // Rows of padding need no mask: what they sum up is not stored.
            if (p.mask || p.weights_grad || (p.causal && at.block_end > start + c0 + 1))
                for (int r = 0; r < R; r++)
                    for (int g = 0; g < GROUPS; g++) {
                        int i = start + c0 + g * LANES + at.lane, j = at.row(r);
                        scores[r][g] = masked(p, at.batch, at.head, scores[r][g], i, j, key_count);
                        if (p.weights_grad) weight_grads[r][g] += own_grad(p, at, i, j);
                    }
#pragma unroll
            for (int r = 0; r < R; r++)
                for (int g = 0; g < GROUPS; g++) {
                    const int t = c0 + g * LANES + at.lane;
                    scores[r][g] = softmax(scores[r][g], log_sum_exp[t]);
                    weight_grads[r][g] = scores[r][g] * (weight_grads[r][g] - delta[t]);
                    if (ALL && at.row(r) < p.m) score_grads[at.row(r)][t] = weight_grads[r][g];
                }
            __syncwarp();
            A all[R][CHUNK];
            gather<LANES>(all, scores);
            accumulate<D_V, LANES>(v_grad, keep, all, out_grads, c0, at.lane);
            gather<LANES>(all, weight_grads);
            accumulate<D_K, LANES>(k_grad, keep, all, queries, c0, at.lane);
        }
        if constexpr (ALL) {
            __syncthreads();  // until dS of the tile is there
            store_q_grad<COUNT>(p, at, score_grads, keys, start, key_count);
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
        const int j = at.row(r);
        if (j >= p.m) continue;
        if (j >= key_count)  // padding: zero, whatever was summed up
            for (int e = 0; e < larger(PART<D_K, LANES>, PART<D_V, LANES>); e++) {
                if (e < PART<D_K, LANES>) k_grad[r][e] = 0;
                if (e < PART<D_V, LANES>) v_grad[r][e] = 0;
            }
        store_part<D_K, LANES>(p.k_grad.at(at.batch, at.head, j), k_grad[r], A(p.scale), at.lane);
        store_part<D_V, LANES>(p.v_grad.at(at.batch, at.head, j), v_grad[r], 1, at.lane);
    }
}

extern "C" __global__ void __launch_bounds__(MAX_THREADS, BACKWARD_BLOCKS) attention_backward_kv(const Params p) {
    backward_keys<false>(p);
}

extern "C" __global__ void __launch_bounds__(ALL_KEYS_THREADS, 1) attention_backward(const Params p) {
    backward_keys<true>(p);
}
