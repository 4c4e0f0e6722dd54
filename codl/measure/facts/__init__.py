"""Facts of an OpenCL device that no API tells truly, measured: one file each."""
