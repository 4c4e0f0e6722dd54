"""Runtime of a device: drivers, memory, kernels, nets, and sessions that run an executable."""
