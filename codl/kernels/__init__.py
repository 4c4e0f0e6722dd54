"""Kernel variants: what each implementation of an op is, compiled and run by `codl.runtime`."""
