// Gather from two tiers (K9): row r of the output is a row of the device's cache or of the host.
//
// Rows are bytes here. A group of lanes copies a row, PACKET bytes a lane at a time. The host's
// table is pinned and read in place: where its rows are aligned to 128 bytes, a link moves no more
// than is asked for. Time at least max(k s (1 + c) / memory, (1 - c) k s / link) for k rows of s
// bytes, of which a share c is cached: the link is the bound until c passes about 0.98.
#pragma once
#include "values.cuh"

// block (lanes, groups); grid (rows / groups). slot[id] is the row of the cache, or below 0.
template <int BYTES>
__device__ __forceinline__ void gather_tiers(const Int64* ids, const int* slot, const void* cache,
                                             const void* host, void* out, Int64 num_rows,
                                             int packets) {
    typedef typename PacketOf<BYTES>::type Packet;
    const Int64 row = Int64(blockIdx.x) * blockDim.y + threadIdx.y;
    if (row >= num_rows) return;
    const Int64 id = __ldg(ids + row), place = __ldg(slot + id);
    const Packet* from = place >= 0 ? static_cast<const Packet*>(cache) + place * packets
                                    : static_cast<const Packet*>(host) + id * packets;
    Packet* to = static_cast<Packet*>(out) + row * packets;
    for (int p = int(threadIdx.x); p < packets; p += int(blockDim.x)) to[p] = __ldg(from + p);
}
