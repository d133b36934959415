// Attention, forward and backward, without ever storing the n x m matrix of scores.
//
//     out = softmax(Q K^T / sqrt(d_k) + mask) V      Q (n, d_k), K (m, d_k), V (m, d_v), for every batch and head
//
// Three kernels. In each, a block owns a run of rows, keeps them in registers, and streams all the other rows past
// them through shared memory, a tile at a time:
//
//     kernel       owns       streams     writes
//     forward      queries    K, V        out, log-sum-exp of each row; the weights (n, m) only on request
//     backward_q   queries    K, V        dQ, and delta = sum(dOut * out) of each row
//     backward_kv  keys       Q, dOut     dK, dV                                  (after backward_q: it reads delta)
//
// Softmax needs the largest score and the sum of a whole row; forward keeps both as they grow and rescales what it
// has summed so far whenever the largest score changes (Milakov and Gimelshein 2018, "Online normalizer calculation
// for softmax"; Dao et al. 2022, "FlashAttention"). The backward kernels get each weight back from its score and the
// log-sum-exp of its row. Every sum has one owner and a fixed order, no atomics: same input, same bits.
//
// Up to 16 numbers of a row live in one thread; longer rows are shared by LANES neighbours in a warp, who add up
// their parts of a dot product by shuffles. A thread works on R rows at once, so that each number it reads from
// shared memory feeds R multiply-adds, and on C streamed rows at a time, which keeps the running sums short and
// their rounding small.
//
// Memory traffic: forward reads Q once, K and V once for each block of the head, and writes out. Blocks of a head
// run side by side, so K and V come from device memory once and from L2 after that. backward reads what forward
// read, out and dOut, and writes the three gradients. O(n + m) numbers, never O(n m).
//
// Launch: a block of up to MAX_THREADS threads owns (threads / LANES) * R rows; the grid has a block for each such
// run of rows in each head, in one dimension. Shared memory is static: two tiles, 33 kB at most.
//
// The launcher compiles this file for a TYPE (float, double, float16, bfloat16), D_K, D_V (8, 16, 32, 64, 128) and
// ROWS (1 where there are few rows, else 2 or 4).

#ifndef CONVERT  // one PTX instruction; the emulator has a CONVERT that executes the same text on the CPU
#define CONVERT(instruction, to_kind, to, from_kind, from) asm(instruction " %0, %1;" : to_kind(to) : from_kind(from))
#endif

struct float16 { unsigned short bits; };
__device__ inline float widen(float16 x) { float y; CONVERT("cvt.f32.f16", "=f", y, "h", x.bits); return y; }
__device__ inline void narrow(float16& y, float x) { CONVERT("cvt.rn.f16.f32", "=h", y.bits, "f", x); }

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

__device__ constexpr int smaller(int a, int b) { return a < b ? a : b; }
__device__ constexpr int larger(int a, int b) { return a > b ? a : b; }

constexpr int MAX_THREADS = 128;
constexpr int LANES = larger(1, larger(D_K, D_V) / 16);          // threads that share a row
// R and C: the rows that a thread owns and the streamed rows it works on at once, as many as fit its registers.
constexpr int FORWARD_ROWS = ROWS, FORWARD_CHUNK = ROWS == 4 ? 4 : 8;
constexpr int BACKWARD_ROWS = smaller(ROWS, 2), BACKWARD_CHUNK = 4;
constexpr int ROW_BYTES = (D_K + D_V) * sizeof(A);               // of one streamed row of both matrices
constexpr int TILE = ROW_BYTES <= 256 ? 64 : ROW_BYTES <= 1024 ? 32 : 16;  // streamed rows in shared memory

// A thread holds PART numbers of a row of D, in VECTORS vectors of WIDTH: vector i of a lane is number
// i * LANES + lane of the row, so that neighbours read neighbouring vectors.
template <int D> constexpr int PART = D / LANES;
template <int D> constexpr int WIDTH = smaller(PART<D>, 4);
template <int D> constexpr int VECTORS = PART<D> / WIDTH<D>;

// Moves as one load or store, of 16 bytes at most: the launcher promises no more alignment than that, and from sm_100 on
// the compiler would move 32 bytes at once.
template <typename E, int N> struct alignas(smaller(16, sizeof(E) * N)) Vector { E x[N]; };
template <typename E, int N> __device__ const Vector<E, N>& vector_at(const E* data) {
    return *reinterpret_cast<const Vector<E, N>*>(data);
}

// Of one row: log-sum-exp = top + log(total), kept as top and 1 / total. Added up they would be a number near 10, whose
// rounding exp turns into an error of the whole row. Both are 0 for a row that may read nothing, and so its weights.
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
    double scale;
    int heads, n, m, causal;
};

// Where a thread works: rows first, first + step, ... of one head, and the run of rows that its block owns.
struct Place {
    int batch, head, lane, first, step, block_first, block_end;
    __device__ Place(const Params& p, int length, int rows_per_thread) {
        int rows_per_block = blockDim.x / LANES * rows_per_thread;
        int blocks_per_head = (length + rows_per_block - 1) / rows_per_block;
        int run = blocks_per_head - 1 - blockIdx.x % blocks_per_head;  // causal: the longest work starts first
        batch = blockIdx.x / blocks_per_head / p.heads;
        head = blockIdx.x / blocks_per_head % p.heads;
        block_first = run * rows_per_block;
        block_end = smaller(block_first + rows_per_block, length);
        lane = threadIdx.x % LANES;
        step = blockDim.x / LANES;
        first = block_first + threadIdx.x / LANES;
    }
    __device__ int row(int r) const { return first + r * step; }
    __device__ long long query(const Params& p, int i) const {  // its place in (batch, heads, n)
        return ((long long)batch * p.heads + head) * p.n + i;
    }
};

__device__ int readable_keys(const Params& p, int batch) {
    return p.key_lengths ? larger(0, smaller(p.key_lengths[batch], p.m)) : p.m;
}

// The score that softmax sees: scaled, masked, -inf where query i may not read key j.
__device__ A masked(const Params& p, const Place& at, A dot, int i, int j, int key_count) {
    if (i >= p.n || j >= key_count || (p.causal && j > i)) return -INF;
    A score = dot * A(p.scale);
    if (p.mask) score += p.mask[at.batch * p.mask_batch + at.head * p.mask_head + i * p.mask_query + j * p.mask_key];
    return score;
}

// The weight of a key, from its score and the log-sum-exp of its row.
__device__ A softmax(A score, const LogSumExp& row) { return exp(score - row.top) * row.inverse; }

// The gradient that a weight gets from outside, where the weights were asked for and used.
__device__ A own_grad(const Params& p, const Place& at, int i, int j) {
    return p.weights_grad && i < p.n && j < p.m ? widen(p.weights_grad[at.query(p, i) * p.m + j]) : A(0);
}

// This thread's part of a row, from device memory and, times `factor`, to it.
template <int D> __device__ void load_part(A (&part)[PART<D>], const T* row, int lane) {
    for (int i = 0; i < VECTORS<D>; i++) {
        Vector<T, WIDTH<D>> vector = vector_at<T, WIDTH<D>>(row + (i * LANES + lane) * WIDTH<D>);
        for (int e = 0; e < WIDTH<D>; e++) part[i * WIDTH<D> + e] = widen(vector.x[e]);
    }
}
template <int D> __device__ void store_part(T* row, const A (&part)[PART<D>], A factor, int lane) {
    for (int i = 0; i < VECTORS<D>; i++) {
        Vector<T, WIDTH<D>> vector;
        for (int e = 0; e < WIDTH<D>; e++) narrow(vector.x[e], part[i * WIDTH<D> + e] * factor);
        *reinterpret_cast<Vector<T, WIDTH<D>>*>(row + (i * LANES + lane) * WIDTH<D>) = vector;
    }
}

// The block copies rows first, first + 1, ... to shared memory, 16 bytes a thread; zeros from row `end` on.
template <int D>
__device__ void load_tile(A (&tile)[TILE][D], const Rows& rows, const Place& at, int first, int end) {
    constexpr int PACK = 16 / sizeof(T);
    for (int i = threadIdx.x; i < TILE * D / PACK; i += blockDim.x) {
        int row = i / (D / PACK), column = i % (D / PACK) * PACK;
        Vector<T, PACK> pack = {};
        if (first + row < end) pack = vector_at<T, PACK>(rows.at(at.batch, at.head, first + row) + column);
        for (int e = 0; e < PACK; e++) tile[row][column + e] = widen(pack.x[e]);
    }
}

__device__ A sum_over_lanes(A x) {
    for (int step = LANES / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffff, x, step);
    return x;
}

// dots[r][c] = rows[r] . tile[first + c]
template <int D, int R, int C>
__device__ void dot(A (&dots)[R][C], const A (&rows)[R][PART<D>], const A (&tile)[TILE][D], int first, int lane) {
#pragma unroll
    for (int c = 0; c < C; c++) {
        for (int r = 0; r < R; r++) dots[r][c] = 0;
        for (int i = 0; i < VECTORS<D>; i++) {
            auto other = vector_at<A, WIDTH<D>>(&tile[first + c][(i * LANES + lane) * WIDTH<D>]);
            for (int r = 0; r < R; r++)
                for (int e = 0; e < WIDTH<D>; e++) dots[r][c] += rows[r][i * WIDTH<D> + e] * other.x[e];
        }
        for (int r = 0; r < R; r++) dots[r][c] = sum_over_lanes(dots[r][c]);
    }
}

// sums[r] = sums[r] * keep[r] + weights[r][0] tile[first] + ... + weights[r][C - 1] tile[first + C - 1]
template <int D, int R, int C>
__device__ void accumulate(A (&sums)[R][PART<D>], const A (&keep)[R], const A (&weights)[R][C],
                           const A (&tile)[TILE][D], int first, int lane) {
#pragma unroll
    for (int i = 0; i < VECTORS<D>; i++) {
        A chunk[R][WIDTH<D>] = {};
        for (int c = 0; c < C; c++) {
            auto other = vector_at<A, WIDTH<D>>(&tile[first + c][(i * LANES + lane) * WIDTH<D>]);
            for (int r = 0; r < R; r++)
                for (int e = 0; e < WIDTH<D>; e++) chunk[r][e] += weights[r][c] * other.x[e];
        }
        for (int r = 0; r < R; r++)
            for (int e = 0; e < WIDTH<D>; e++) {
                A& sum = sums[r][i * WIDTH<D> + e];
                sum = sum * keep[r] + chunk[r][e];
            }
    }
}

extern "C" __global__ void __launch_bounds__(MAX_THREADS, 2) attention_forward(const Params p) {
    constexpr int R = FORWARD_ROWS, C = FORWARD_CHUNK;
    __shared__ __align__(32) A keys[TILE][D_K];
    __shared__ __align__(32) A values[TILE][D_V];
    const Place at(p, p.n, R);
    const int key_count = readable_keys(p, at.batch);
    const int end = p.causal ? smaller(key_count, at.block_end) : key_count;  // no row of the block reads on

    A q[R][PART<D_K>] = {}, sums[R][PART<D_V>] = {}, dots[R][C], keep[R];
    // Of each row, so far: the largest score; the sum of exp(score - top); and what rounding added to that sum, to be
    // taken off again, for it would be an error of the whole row (Kahan 1965, "Further remarks on reducing truncation
    // errors").
    A top[R], total[R] = {}, excess[R] = {};
#pragma unroll
    for (int r = 0; r < R; r++) {
        top[r] = -INF;
        if (at.row(r) < p.n) load_part<D_K>(q[r], p.q.at(at.batch, at.head, at.row(r)), at.lane);
    }

    for (int start = 0; start < end; start += TILE) {
        __syncthreads();  // until all are done with the previous tile
        load_tile<D_K>(keys, p.k, at, start, end);
        load_tile<D_V>(values, p.v, at, start, end);
        __syncthreads();
#pragma unroll 1
        for (int c0 = 0; c0 < TILE && start + c0 < end; c0 += C) {
            dot<D_K>(dots, q, keys, c0, at.lane);
#pragma unroll
            for (int r = 0; r < R; r++) {
                A old_top = top[r], sum = 0;
                for (int c = 0; c < C; c++) {
                    dots[r][c] = masked(p, at, dots[r][c], at.row(r), start + c0 + c, end);
                    top[r] = dots[r][c] > top[r] ? dots[r][c] : top[r];
                }
                A base = top[r] == -INF ? 0 : top[r];  // nothing readable yet: each exp below is exp(-inf) = 0
                keep[r] = exp(old_top - base);
                for (int c = 0; c < C; c++) sum += dots[r][c] = exp(dots[r][c] - base);
                A kept = total[r] * keep[r], added = sum - excess[r] * keep[r];
                total[r] = kept + added;
                excess[r] = (total[r] - kept) - added;
            }
            accumulate<D_V>(sums, keep, dots, values, c0, at.lane);
        }
    }

    LogSumExp log_sum_exp[R];
#pragma unroll
    for (int r = 0; r < R; r++) {
        log_sum_exp[r] = {};
        if (total[r] != 0) log_sum_exp[r] = {top[r], 1 / total[r]};  // else it read nothing; a NaN stays a NaN
        if (at.row(r) >= p.n) continue;
        store_part<D_V>(p.out.at(at.batch, at.head, at.row(r)), sums[r], log_sum_exp[r].inverse, at.lane);
        if (at.lane == 0) p.log_sum_exp[at.query(p, at.row(r))] = log_sum_exp[r];
    }

    // On request, once more over the keys, now that top and total are known: the softmax rows themselves.
    for (int start = 0; p.weights && start < p.m; start += TILE) {
        __syncthreads();
        load_tile<D_K>(keys, p.k, at, start, end);
        __syncthreads();
#pragma unroll 1
        for (int c0 = 0; c0 < TILE && start + c0 < p.m; c0 += C) {
            dot<D_K>(dots, q, keys, c0, at.lane);
#pragma unroll
            for (int r = 0; r < R; r++)
#pragma unroll
                for (int c = 0; c < C; c++) {
                    int i = at.row(r), j = start + c0 + c;
                    if (c % LANES != at.lane || i >= p.n || j >= p.m) continue;
                    A weight = softmax(masked(p, at, dots[r][c], i, j, end), log_sum_exp[r]);
                    narrow(p.weights[at.query(p, i) * p.m + j], weight);
                }
        }
    }
}

// With P the weights and dP = dOut V^T (+ dP from outside, where the weights were used too):
//     delta = sum_j P dP,   dS = P (dP - delta),   dQ = dS K / sqrt(d_k),   dK = dS^T Q / sqrt(d_k),   dV = P^T dOut

extern "C" __global__ void __launch_bounds__(MAX_THREADS, 2) attention_backward_q(const Params p) {
    constexpr int R = BACKWARD_ROWS, C = BACKWARD_CHUNK;
    __shared__ __align__(32) A keys[TILE][D_K];
    __shared__ __align__(32) A values[TILE][D_V];
    const Place at(p, p.n, R);
    const int key_count = readable_keys(p, at.batch);
    const int end = p.causal ? smaller(key_count, at.block_end) : key_count;

    A q[R][PART<D_K>] = {}, out_grad[R][PART<D_V>] = {}, q_grad[R][PART<D_K>] = {};
    A dots[R][C], out_grad_dots[R][C], delta[R], keep[R];  // keep: nothing to rescale here, 1
    LogSumExp log_sum_exp[R];
#pragma unroll
    for (int r = 0; r < R; r++) {
        const int i = at.row(r);
        A product = 0;
        log_sum_exp[r] = {};
        keep[r] = 1;
        if (i < p.n) {
            A out[PART<D_V>];
            load_part<D_K>(q[r], p.q.at(at.batch, at.head, i), at.lane);
            load_part<D_V>(out_grad[r], p.out_grad.at(at.batch, at.head, i), at.lane);
            load_part<D_V>(out, p.out.at(at.batch, at.head, i), at.lane);
            for (int e = 0; e < PART<D_V>; e++) product += out[e] * out_grad[r][e];
            for (int j = at.lane; p.weights_grad && j < p.m; j += LANES)
                product += widen(p.weights[at.query(p, i) * p.m + j]) * own_grad(p, at, i, j);
            log_sum_exp[r] = p.log_sum_exp[at.query(p, i)];
        }
        delta[r] = sum_over_lanes(product);
        if (i < p.n && at.lane == 0) p.delta[at.query(p, i)] = delta[r];
    }

    for (int start = 0; start < end; start += TILE) {
        __syncthreads();
        load_tile<D_K>(keys, p.k, at, start, end);
        load_tile<D_V>(values, p.v, at, start, end);
        __syncthreads();
#pragma unroll 1
        for (int c0 = 0; c0 < TILE && start + c0 < end; c0 += C) {
            dot<D_K>(dots, q, keys, c0, at.lane);
            dot<D_V>(out_grad_dots, out_grad, values, c0, at.lane);
#pragma unroll
            for (int r = 0; r < R; r++)
                for (int c = 0; c < C; c++) {
                    int i = at.row(r), j = start + c0 + c;
                    A weight = softmax(masked(p, at, dots[r][c], i, j, end), log_sum_exp[r]);
                    A weight_grad = out_grad_dots[r][c] + own_grad(p, at, i, j);
                    dots[r][c] = weight * (weight_grad - delta[r]);
                }
            __syncwarp();  // or the compiler keeps the tile in registers from one use to the next, and spills
            accumulate<D_K>(q_grad, keep, dots, keys, c0, at.lane);
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++)
        if (at.row(r) < p.n)
            store_part<D_K>(p.q_grad.at(at.batch, at.head, at.row(r)), q_grad[r], A(p.scale), at.lane);
}

extern "C" __global__ void __launch_bounds__(MAX_THREADS, 2) attention_backward_kv(const Params p) {
    constexpr int R = BACKWARD_ROWS, C = BACKWARD_CHUNK;
    __shared__ __align__(32) A queries[TILE][D_K];
    __shared__ __align__(32) A out_grads[TILE][D_V];
    __shared__ LogSumExp log_sum_exp[TILE];
    __shared__ A delta[TILE];
    const Place at(p, p.m, R);
    const int key_count = readable_keys(p, at.batch);
    const int begin = p.causal ? at.block_first / TILE * TILE : 0;  // earlier queries do not see these keys
    const int end = at.block_first < key_count ? p.n : 0;           // padding only: nobody reads it

    A k[R][PART<D_K>] = {}, v[R][PART<D_V>] = {};
    A k_grad[R][PART<D_K>] = {}, v_grad[R][PART<D_V>] = {};
    A dots[R][C], out_grad_dots[R][C], keep[R];
#pragma unroll
    for (int r = 0; r < R; r++) {
        keep[r] = 1;
        if (at.row(r) >= key_count) continue;  // padding stays zero, whatever lies there
        load_part<D_K>(k[r], p.k.at(at.batch, at.head, at.row(r)), at.lane);
        load_part<D_V>(v[r], p.v.at(at.batch, at.head, at.row(r)), at.lane);
    }

    // From the last tile to the first: under the causal rule early queries weigh most, and a sum that is small for
    // long rounds less than one that is large from the start.
    for (int start = (end - 1) / TILE * TILE; start >= begin; start -= TILE) {
        __syncthreads();
        load_tile<D_K>(queries, p.q, at, start, end);
        load_tile<D_V>(out_grads, p.out_grad, at, start, end);
        for (int i = threadIdx.x; i < TILE; i += blockDim.x) {
            const bool inside = start + i < end;
            log_sum_exp[i] = inside ? p.log_sum_exp[at.query(p, start + i)] : LogSumExp{};
            delta[i] = inside ? p.delta[at.query(p, start + i)] : 0;
        }
        __syncthreads();
#pragma unroll 1
        for (int c0 = 0; c0 < TILE && start + c0 < end; c0 += C) {
            dot<D_K>(dots, k, queries, c0, at.lane);
            dot<D_V>(out_grad_dots, v, out_grads, c0, at.lane);
#pragma unroll
            for (int r = 0; r < R; r++)
                for (int c = 0; c < C; c++) {
                    int i = start + c0 + c, j = at.row(r);
                    A weight = softmax(masked(p, at, dots[r][c], i, j, key_count), log_sum_exp[c0 + c]);
                    A weight_grad = out_grad_dots[r][c] + own_grad(p, at, i, j);
                    dots[r][c] = weight;
                    out_grad_dots[r][c] = weight * (weight_grad - delta[c0 + c]);
                }
            __syncwarp();
            accumulate<D_V>(v_grad, keep, dots, out_grads, c0, at.lane);
            accumulate<D_K>(k_grad, keep, out_grad_dots, queries, c0, at.lane);
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
        if (at.row(r) >= p.m) continue;
        store_part<D_K>(p.k_grad.at(at.batch, at.head, at.row(r)), k_grad[r], A(p.scale), at.lane);
        store_part<D_V>(p.v_grad.at(at.batch, at.head, at.row(r)), v_grad[r], 1, at.lane);
    }
}
