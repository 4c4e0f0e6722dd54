"""Copies of structs."""

from dataclasses import replace as replace
