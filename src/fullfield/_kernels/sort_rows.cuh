// Sorting by one warp of a row of keys that all differ. Built behind halves.cuh.
//
// Macros: KEY, the unsigned type of a key; ROOM, keys of a row that a warp keeps in shared memory, a power of two.

// Return how many of the warp's first n <= 32 keys come before the lane's.
static __device__ __forceinline__ int place_of(KEY key, int n) {
    int before = 0;
    for (int i = 0; i < n; i++) before += __shfl_sync(ALL, key, i) < key;
    return before;
}

// Keys in shared memory, for sort_row.
struct SharedKeys {
    KEY *keys;
    __device__ __forceinline__ KEY get(unsigned i) const { return keys[i]; }
    __device__ __forceinline__ void put(unsigned i, KEY key) const { keys[i] = key; }
};

// Sort n < 2^31 keys by a bitonic network; places beyond the end count as the largest.
template <class Keys> static __device__ void sort_row(const Keys &keys, unsigned n, int lane) {
    unsigned size = 1;
    while (size < n) size *= 2;
    for (unsigned wide = 2; wide <= size && wide != 0; wide *= 2) {
        for (unsigned step = wide / 2; step > 0; step /= 2) {
            for (unsigned t = lane; t < size / 2; t += 32) {
                const unsigned within = t & (step - 1), low = (t - within) * 2 + within;
                // The first step of a merge compares mirrored places, so that all others rise.
                const unsigned high = step == wide / 2 ? (t - within) * 2 + wide - 1 - within : low + step;
                if (high < n) {
                    const KEY a = keys.get(low), b = keys.get(high);
                    if (b < a) keys.put(low, b), keys.put(high, a);
                }
            }
            __syncwarp();
        }
    }
}

// Sort a row whose keys are in `kept`, or in the row itself if there are more than ROOM.
template <class Row> static __device__ __forceinline__ void sort_kept(KEY *kept, const Row &row, unsigned size, int lane) {
    __syncwarp();
    if (size <= 32) {
        const KEY key = lane < (int)size ? kept[lane] : ~(KEY)0;
        const int place = place_of(key, (int)size);
        if (lane < (int)size) row.put(place, key);
    } else if (size <= ROOM) {
        sort_row(SharedKeys{kept}, size, lane);
        for (unsigned i = lane; i < size; i += 32) row.put(i, kept[i]);
    } else {
        sort_row(row, size, lane);
    }
    __syncwarp();
}
