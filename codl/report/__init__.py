"""Tables, pictures, pages and traces, made from result files alone.

Tables need nothing that pages do: `codl eval` and `codl explain` print theirs without.
"""
