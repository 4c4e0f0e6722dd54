"""What the commands do, as typed functions: `codl.collect`, `codl.train`, `codl.search`, ...

The command line parses, calls these, and prints what they return.
"""
