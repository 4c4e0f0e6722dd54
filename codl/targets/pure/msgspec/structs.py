"""Copies of records with other values."""

from . import replace as replace
