"""What the system tells of a file."""

from __future__ import annotations

from typing import NamedTuple


class Status(NamedTuple):
    """The status of a file: size in bytes, identity, time of change, number of names."""

    size: int
    device: int
    inode: int
    mtime_ns: int
    links: int
    is_dir: bool

    @property
    def identity(self) -> tuple[int, int]:
        """(device, inode): two paths with the same one are the same file."""
        return self.device, self.inode
