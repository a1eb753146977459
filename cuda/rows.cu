#include "rows.cuh"

KERNEL(rows_by_length, const Int64* indptr, Int64 num_rows, Int64 low, Int64 high, Int64* rows) {
    bin_rows(indptr, num_rows, low, high, rows);
}
