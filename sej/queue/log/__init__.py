"""The state log of a queue on a journal: its bytes, and the state that its records add up to. No I/O.

The modules, in the order in which they are best read::

    format, kinds                      the layout; the kinds of records: their fields, and what they mean
    records, headers                   records as bytes and back
    state                              who holds what, what waits, what is done
    schedule, key_order, dedupe_keys   parts of the state: times, the order of keys, the keys that are remembered
    replay                             applies records to a state, compiled if possible
    snapshot                           a state as records, without its history
"""
