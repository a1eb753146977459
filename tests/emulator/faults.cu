// Kernels with one fault each, which the emulator has to see.
#include "values.cuh"

// Each lane reads its neighbour's place in shared memory; the barrier between may be left out.
KERNEL(no_barrier, const int* in, int* out, int with_barrier) {
    DYNAMIC_SHARED(int, shared);
    const int thread = int(threadIdx.x), last = int(blockDim.x) - 1;
    shared[thread] = in[thread];
    if (with_barrier) __syncthreads();
    out[thread] = shared[last - thread];
}

// Half a warp waits at a barrier, the other half in a shuffle for it.
KERNEL(divergent_barrier, int* out) {
    if (threadIdx.x < 16) __syncthreads();
    out[threadIdx.x] = __shfl_sync(0xffffffffu, int(threadIdx.x), 0);
}

KERNEL(mask_without_caller, int* out) {
    out[threadIdx.x] = __shfl_sync(0xfffffffeu, int(threadIdx.x), 1);
}

KERNEL(different_masks, int* out) {
    const unsigned mask = threadIdx.x < 8 ? 0x0000ffffu : 0xffffffffu;
    out[threadIdx.x] = __shfl_sync(mask, int(threadIdx.x), 0, 8);
}

KERNEL(different_operations, int* out) {
    const int value = int(threadIdx.x);
    out[value] = value % 2 ? __shfl_sync(0xffffffffu, value, 0) : int(__ballot_sync(0xffffffffu, 1));
}

// Lanes from `stay` on leave before the others read lane 31.
KERNEL(departed_lane, int* out, int stay) {
    if (int(threadIdx.x) >= stay) return;
    out[threadIdx.x] = __shfl_sync(0xffffffffu, int(threadIdx.x), 31);
}

KERNEL(store_beyond, int* out, int offset) { out[int(threadIdx.x) + offset] = 1; }

KERNEL(shared_beyond, int* out) {
    DYNAMIC_SHARED(int, shared);
    shared[threadIdx.x + 1] = 1;
    out[threadIdx.x] = shared[threadIdx.x];
}
