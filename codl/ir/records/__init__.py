"""Typed records of result files, SoC files and limits."""
