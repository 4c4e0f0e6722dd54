"""Targets that measure and run: this process, a child of it, or a device behind a byte stream.

The package is above `measure`, since targets measure and tune, and below its callers.
"""
