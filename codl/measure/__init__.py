"""Measurement: tasks, timing, drift, collector, tuner; here, defaults of the command line.

The command line imports this module alone to show its options.
"""

from codl.files import HOME

#: Root folder of datasets, with one subfolder for each SoC.
FOLDER = HOME / "lat_datasets"
#: Temperature (°C) of a hot processor, and the longest wait (s) for it to cool.
HOT_C, LONGEST_S = 80.0, 120.0
#: Seed of random inputs.
SEED = 7
#: Measured shares of an op's output; 1 is the whole op.
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
