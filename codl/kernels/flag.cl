// Tells the host that all before on the queue is done: the host looks at the count while kernels
// run. Only this kernel writes it, and in a queue's order.
kernel void raise_flag(global atomic_uint *flag) {
    uint count = atomic_load_explicit(flag, memory_order_relaxed, memory_scope_all_svm_devices);
    atomic_store_explicit(flag, count + 1, memory_order_release, memory_scope_all_svm_devices);
}
