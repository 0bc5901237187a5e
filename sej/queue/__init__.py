"""Work queues: the interface, its backends, and the queue on a journal with its log.

The modules, in the order in which they are best read::

    interface, item_interface, values      what every queue and every item can do
    backends                               open_queue: which backend a path has
    journal_queue                          the queue on a journal, composed of the parts below; item: its items
      put                                  an item is a message, and a record if it has options; serializers, headers
      take, keyed_take                     which items come next, in the order of readiness or of keys; flow: limits
      ack, remove, dead_letters            how an item ends
      look                                 lists items without a lock
    log                                    the log on disk, under its lock; liveness: dead processes
      log_format, kinds, records           its bytes
      state, schedule, key_order, parked   what it adds up to, without I/O; dedupe_keys: those that are remembered
      replay, snapshot                     apply records to a state, and write a state as records
      proof, reserve, convert              compare it with the journal, keep room on the disk, change the order
    reader                                 messages by offset
    work, adapter, held                    worker loops, other interfaces, what backends without leases share
"""

__all__: list[str] = []
