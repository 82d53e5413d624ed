"""An in-memory FUSE file system that simulates power cuts: only synced data surely survives.

Usage: python -m tests.machines.power_disk DIRECTORY

The program mounts on the directory and prints `mounted`. A line `cut MODE SEED` of its input
removes what a power cut may remove (the modes of `kbroker.storage.crash_files`), and the program
prints `cut`. All users of the disk must have ended before.
"""

from __future__ import annotations

import errno
import os
import random
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

import pyfuse3
import trio

from kbroker.storage.crash_files import Directory, Inode, Mode, after_power_failure

BLOCK_BYTES = 4096
SHOWN_BLOCKS = 1 << 20
Node = Inode | Directory


class Disk(pyfuse3.Operations):
    """The FUSE operations. The kernel caches nothing: every lookup comes here."""

    def __init__(self) -> None:
        super().__init__()
        self._last = pyfuse3.ROOT_INODE
        self._numbers: dict[Node, int] = {}
        self._nodes: dict[int, Node] = {}
        self._changed: dict[Node, int] = {}
        self._mount(Directory())

    def cut(self, mode: Mode, seed: int) -> None:
        """Drop what a power cut loses. Old inode numbers are not reused."""
        self._numbers.clear()
        self._nodes.clear()
        self._changed.clear()
        self._mount(after_power_failure(self._root, mode, random.Random(seed)))

    def _mount(self, root: Directory) -> None:
        self._root = root
        self._numbers[root] = pyfuse3.ROOT_INODE
        self._nodes[pyfuse3.ROOT_INODE] = root

    # -- nodes by inode number

    def _number(self, node: Node) -> int:
        if node not in self._numbers:
            self._last += 1
            self._numbers[node] = self._last
            self._nodes[self._last] = node
        return self._numbers[node]

    def _node(self, number: int) -> Node:
        try:
            return self._nodes[number]
        except KeyError:
            raise pyfuse3.FUSEError(errno.ESTALE) from None

    def _file(self, number: int) -> Inode:
        node = self._node(number)
        if isinstance(node, Directory):
            raise pyfuse3.FUSEError(errno.EISDIR)
        return node

    def _directory(self, number: int) -> Directory:
        node = self._node(number)
        if isinstance(node, Inode):
            raise pyfuse3.FUSEError(errno.ENOTDIR)
        return node

    def _child(self, parent: int, name: bytes) -> Node:
        try:
            return self._directory(parent).names[os.fsdecode(name)]
        except KeyError:
            raise pyfuse3.FUSEError(errno.ENOENT) from None

    def _attributes(self, node: Node) -> pyfuse3.EntryAttributes:
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = self._number(node)
        is_file = isinstance(node, Inode)
        entry.st_mode = stat.S_IFREG | 0o600 if is_file else stat.S_IFDIR | 0o700
        entry.st_size = len(node.data) if isinstance(node, Inode) else 0
        entry.st_blksize = BLOCK_BYTES
        entry.st_blocks = -(-entry.st_size // 512)
        changed = self._changed.setdefault(node, time.time_ns())
        entry.st_atime_ns = entry.st_mtime_ns = entry.st_ctime_ns = changed
        entry.entry_timeout = entry.attr_timeout = 0
        return entry

    # -- look-ups

    async def lookup(
        self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        if name == b".":
            return self._attributes(self._node(parent_inode))
        return self._attributes(self._child(parent_inode, name))

    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        return self._attributes(self._node(inode))

    async def setattr(
        self,
        inode: int,
        attr: pyfuse3.EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: int | None,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        node = self._node(inode)
        if fields.update_size:
            self._file(inode).truncate(attr.st_size)
            self._changed[node] = time.time_ns()
        if fields.update_mtime:
            self._changed[node] = attr.st_mtime_ns
        return self._attributes(node)

    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        found = pyfuse3.StatvfsData()
        found.f_bsize = found.f_frsize = BLOCK_BYTES
        found.f_blocks = SHOWN_BLOCKS
        found.f_bfree = found.f_bavail = SHOWN_BLOCKS // 2
        found.f_files = found.f_ffree = found.f_favail = SHOWN_BLOCKS
        found.f_namemax = 255
        return found

    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        self._directory(inode)
        return inode

    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        names = sorted(self._directory(fh).names.items())
        for number, (name, node) in enumerate(names[start_id:], start_id + 1):
            entry = self._attributes(node)
            if not pyfuse3.readdir_reply(token, os.fsencode(name), entry, number):
                break

    # -- names

    async def mkdir(
        self, parent_inode: int, name: bytes, mode: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        return self._attributes(self._make(parent_inode, name, Directory()))

    async def create(
        self, parent_inode: int, name: bytes, mode: int, flags: int, ctx: pyfuse3.RequestContext
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        entry = self._attributes(self._make(parent_inode, name, Inode()))
        return _file_info(entry.st_ino), entry

    def _make(self, parent: int, name: bytes, node: Node) -> Node:
        directory, text = self._directory(parent), os.fsdecode(name)
        if text in directory.names:
            raise pyfuse3.FUSEError(errno.EEXIST)
        directory.change(**{text: node})
        return node

    async def unlink(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        if isinstance(self._child(parent_inode, name), Directory):
            raise pyfuse3.FUSEError(errno.EISDIR)
        self._directory(parent_inode).change(**{os.fsdecode(name): None})

    async def rmdir(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        node = self._child(parent_inode, name)
        if isinstance(node, Inode):
            raise pyfuse3.FUSEError(errno.ENOTDIR)
        if node.names:
            raise pyfuse3.FUSEError(errno.ENOTEMPTY)
        self._directory(parent_inode).change(**{os.fsdecode(name): None})

    async def rename(
        self,
        parent_inode_old: int,
        name_old: bytes,
        parent_inode_new: int,
        name_new: bytes,
        flags: int,
        ctx: pyfuse3.RequestContext,
    ) -> None:
        node = self._child(parent_inode_old, name_old)
        if parent_inode_old != parent_inode_new:
            raise pyfuse3.FUSEError(errno.EXDEV)
        names = {os.fsdecode(name_old): None, os.fsdecode(name_new): node}
        self._directory(parent_inode_old).change(**names)

    # -- bytes

    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        if flags & os.O_TRUNC:
            self._file(inode).truncate(0)
        return _file_info(inode)

    async def read(self, fh: int, off: int, size: int) -> bytes:
        return bytes(self._file(fh).data[off : off + size])

    async def write(self, fh: int, off: int, buf: bytes) -> int:
        node = self._file(fh)
        node.write(off, buf)
        self._changed[node] = time.time_ns()
        return len(buf)

    async def fsync(self, fh: int, datasync: bool) -> None:
        self._file(fh).sync()

    async def fsyncdir(self, fh: int, datasync: bool) -> None:
        self._directory(fh).sync()

    async def flush(self, fh: int) -> None:
        """Do nothing: close does not sync a file."""

    async def release(self, fh: int) -> None:
        """Do nothing: open files have no state."""

    async def releasedir(self, fh: int) -> None:
        """Do nothing: open directories have no state."""


def _file_info(number: int) -> pyfuse3.FileInfo:
    return pyfuse3.FileInfo(fh=number, direct_io=True)


async def _serve(disk: Disk) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pyfuse3.main)
        print("mounted", flush=True)
        commands = trio.wrap_file(sys.stdin)
        while line := await commands.readline():
            verb, mode, seed = line.split()
            assert verb == "cut", line
            disk.cut(cast(Mode, mode), int(seed))
            print("cut", flush=True)
        pyfuse3.terminate()


def main(directory: str) -> None:
    disk = Disk()
    pyfuse3.init(disk, directory, {*pyfuse3.default_options, "fsname=power", "allow_other"})
    try:
        trio.run(_serve, disk)
    finally:
        pyfuse3.close(unmount=True)


class PowerDisk:
    """A power disk in its own process, mounted on a directory. Call `close` at the end."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self._directory = directory
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._expect("mounted")

    def cut(self, mode: Mode, seed: int) -> None:
        """Cut the power; all users of the disk must have ended."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"cut {mode} {seed}\n")
        self._process.stdin.flush()
        self._expect("cut")

    def _expect(self, word: str) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == word, "the power disk process failed"

    def close(self) -> None:
        subprocess.run(["umount", "-l", self._directory], check=False)
        self._process.kill()
        self._process.communicate()


if __name__ == "__main__":
    main(sys.argv[1])
