"""What touches a device: drivers, memory, kernels, nets, and the engine that runs a plan."""
