// Keeps all multiprocessors but the first `left` busy, for `ns` nanoseconds or until it is told to
// end. `held` work-groups do; `placed` counts those of all launches, and was `before` when those of
// earlier ones were there. Inline PTX, which NVIDIA's compiler takes.
kernel void occupy(const uint left, const uint held, const ulong ns,
                   global const volatile uint *ended, global volatile uint *placed,
                   const uint before) {
    uint own;
    ulong begin, now;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(own));
    // One work-item looks, the others of its group wait for it without doing anything.
    if (get_local_id(0) == 0) {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
        if (own < left) {
            // It leaves only when the others are placed: they may have to wait for what runs there,
            // and this place, free again, would let one after the other of them through.
            while (*placed - before < held && !*ended) asm volatile("nanosleep.u32 1000;");
        } else {
            atomic_inc(placed);
            do {
                asm volatile("nanosleep.u32 20000;");
                asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
            } while (now - begin < ns && !*ended);
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}
