"""Fill a small file system with a queue, end the work, clean, and put again: ``python full_disk.py DIRECTORY``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import sej


def main(root: str) -> None:
    """Three rounds; each ends with a disk that can be written to again."""
    path, total = Path(root) / "jobs", 0
    for _ in range(3):
        q, put, text = sej.open_queue(path, "worker", segment_bytes=1 << 16), 0, ""
        try:
            while True:
                q.put(b"%08d" % (total + put) + bytes(1000))
                put += 1
        except (sej.WriterFailedError, sej.QueueFullError) as error:
            text = str(error)
        assert "is full" in text and str(path) in text and "bytes free" in text, text
        seen = []
        while (item := q.get(timeout=0)) is not None:
            seen.append(int(item.value[:8]))
            item.done()
        assert seen == list(range(total, total + len(seen)))
        assert len(seen) - put in (0, 1), (len(seen), put)  # one more: it was written, and the next segment was not
        total += len(seen)
        q.close()
        assert sej.Journal(path).clean(max_bytes=0)
    print("ok", total)


if __name__ == "__main__":
    main(sys.argv[1])
