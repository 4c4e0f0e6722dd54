"""This machine: cores, threads, sensors, clocks, drivers, and a SoC's placement on it."""
