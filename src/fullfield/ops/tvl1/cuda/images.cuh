// What the passes over frames and flow share. No system headers (NVRTC). Planes are row-major with a pitch, in elements.

typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;

[[maybe_unused]] static __device__ __forceinline__ float from_f16(u16 h) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
    return x;
}

[[maybe_unused]] static __device__ __forceinline__ u16 to_f16(float x) {
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}
