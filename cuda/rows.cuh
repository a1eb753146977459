// Rows by length: which rows of a CSR are too long for a group of lanes (K0).
#pragma once
#include "values.cuh"

// rows[0] = how many of the rows have a degree in [low, high), rows[1...] = those rows, ascending.
//
// One block of 1024 threads, which sees 1024 rows at a time: a count by ballot, a sum over the
// warps' counts. The list needs no atomics and no copy to the host: whoever walks it starts as many
// blocks as edges / low allows and reads the count on the device. 8 bytes are read a row, so a
// million rows take some 0.1 ms on one multiprocessor, once a graph.
__device__ __forceinline__ void bin_rows(const Int64* indptr, Int64 num_rows, Int64 low, Int64 high,
                                         Int64* rows) {
    DYNAMIC_SHARED(Int64, found);  // a warp's
    const int thread = threadIdx.y * 32 + threadIdx.x, num_warps = blockDim.y;
    Int64 total = 0;
    for (Int64 first = 0; first < num_rows; first += 32 * num_warps) {
        const Int64 row = first + thread;
        bool chosen = false;
        if (row < num_rows) {
            const Int64 degree = indptr[row + 1] - indptr[row];
            chosen = degree >= low && degree < high;
        }
        const unsigned votes = __ballot_sync(0xffffffffu, chosen);
        if (threadIdx.x == 0) found[threadIdx.y] = __popc(votes);
        __syncthreads();
        Int64 at = total + __popc(votes & ((1u << threadIdx.x) - 1u));
        for (int w = 0; w < num_warps; ++w) {
            if (w < int(threadIdx.y)) at += found[w];
            total += found[w];
        }
        if (chosen) rows[1 + at] = row;
        __syncthreads();
    }
    if (thread == 0) rows[0] = total;
}
