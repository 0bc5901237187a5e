"""A program that was written for `queue.Queue` stores its queue in files, and keeps its items if it dies."""

import threading

import sej

with sej.open_queue("thumbnails", serializer="json") as work:
    queue = sej.QueueAdapter(work)

    def resize() -> None:
        """Work as the documentation of the standard library shows. None ends a thread."""
        while (task := queue.get()) is not None:
            print("resizing", task["name"], "to", task["width"])
            queue.task_done()
        queue.task_done()

    threads = [threading.Thread(target=resize) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(5):
        queue.put({"name": f"photo {number}", "width": 640})
    for _ in threads:
        queue.put(None)
    queue.join()
    for thread in threads:
        thread.join()
    assert work.stats().done == 7
