"""Decoding of files that somebody sent: in processes of their own, with limits of memory and time.

A decoder of PDFs, images or recordings meets whatever a file holds. One of a few kilobytes can make it take gigabytes
or minutes, or end its process. So ``kvmm.media`` leaves decoding to a process that ends with the file:

- :mod:`~kvmm.decoding.client` is what this process does. It starts the *parent*, ``python -m kvmm.decoding``, once.
- :mod:`~kvmm.decoding.worker` is the parent. It imports the decoders and nothing of torch (50 MB, a third of a second),
  and forks for each file, which takes about two milliseconds. The fork limits itself (:mod:`~kvmm.decoding.limits`),
  decodes, hands over raw pixels or samples in a file in memory, and ends.

A fork that dies is one ``KVMMError`` for that file. It is killed when the caller stops waiting, and all of them end
with this process. Nothing of one file is left for the next.

Linux has what this takes; elsewhere, and inside :func:`in_process`, files are decoded in the calling process, without
limits of time. A video is counted when it is given, and its frames are decoded when a model reads them
(:mod:`~kvmm.decoding.video`).
"""

from typing import TYPE_CHECKING

from kvmm.decoding.context import current_stop, in_process, is_in_process, owned_by, owner, stopped_by
from kvmm.lazy import lazy_names

if TYPE_CHECKING:
    from kvmm.decoding.client import start

__all__ = ["current_stop", "in_process", "is_in_process", "owned_by", "owner", "start", "stopped_by"]

# the process that decodes imports this package, too, and needs no client
__getattr__, __dir__ = lazy_names(__name__, {"start": "kvmm.decoding.client"})
