"""Tables, plots and HTML, made from result files alone.

Importing a module of this package does not import matplotlib: `codl eval` prints its table without
waiting for it.
"""
