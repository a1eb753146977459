// Instances of gather.cuh for one width of packets.
#include "gather.cuh"

KERNEL(gather_rows, const Int64* ids, const int* slot, const void* cache, const void* host,
       void* out, Int64 num_rows, int packets) {
    gather_tiers<PACKET>(ids, slot, cache, host, out, num_rows, packets);
}
