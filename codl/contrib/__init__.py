"""Plugins that ship with codl: each uses the hooks that any other plugin has.

Nothing outside this package imports it; `codl.plugins.SHIPPED` names what is loaded.
"""
