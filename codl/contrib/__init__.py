"""Plugins that ship with codl: each uses the hooks that any other plugin has.

Nothing outside this package imports it; the entry points in pyproject.toml name what is loaded.
"""
