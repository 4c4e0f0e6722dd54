"""Copies of records with other values."""

from .records import replace as replace
