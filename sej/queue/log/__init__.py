"""The state log of a queue on a journal: its bytes, and the state that its records add up to. No I/O.

The modules, in the order in which they are best read::

    format                             the layout and the kinds of records, as bytes and back
    state                              who holds what, what waits, what is done
    schedule, key_order                parts of the state: times, the order of keys
    snapshot                           a state as records, without its history
"""
