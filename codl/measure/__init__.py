"""Measuring: what to measure, timing, drift, the collector, datasets and their importers."""
