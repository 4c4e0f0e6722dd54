// Keeps all multiprocessors but the first `left` busy, for `ns` nanoseconds or until it is told to
// end. Inline PTX, which NVIDIA's compiler takes.
kernel void occupy(const uint left, const ulong ns, global const volatile uint *ended) {
    uint own;
    ulong begin, now;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(own));
    if (own < left) return;
    // One work-item looks, the others of its group wait for it without doing anything.
    if (get_local_id(0) == 0) {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
        do {
            asm volatile("nanosleep.u32 20000;");
            asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
        } while (now - begin < ns && !*ended);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}
