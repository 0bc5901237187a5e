"""Change the number of shards: copy a sharded journal into another one.

The modules, in the order in which they are best read::

    reshard          the steps of a reshard; a crashed one can be finished
    plans            what is copied, the progress, and where readers will continue
    copying          one fixed sequence of messages for each target
    source_locks     no writer of the source meanwhile
"""
