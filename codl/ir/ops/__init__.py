"""Operators: one file each, with shapes, FLOPs, needed ranges and a float64 reference."""
