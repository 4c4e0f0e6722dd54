"""Measuring: what to measure, timing, drift, the collector."""
