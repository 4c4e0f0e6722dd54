"""Targets: what measures and runs. This process, a child of it, or a device behind a byte stream.

A room above `measure`, since a target measures and tunes, and below all that only asks for it.
"""
