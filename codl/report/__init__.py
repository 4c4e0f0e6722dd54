"""Tables, pictures, pages and traces, made from result files alone.

Tables load without the modules of pages; `codl eval` and `codl explain` print tables.
"""
