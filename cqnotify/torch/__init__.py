# SPDX-License-Identifier: MIT
"""A transport for torch.distributed.transports, over cqnotify.memory.

torch finds it by itself, where both are installed (pip install cqnotify[torch]):

    new_transport("cqnotify", "cpu")

docs/torch.md tells how it is used, and with which versions of torch it was tested.
"""

from ._memory import Memory, MutableView, RemoteBuffer, View
from ._transport import CqnotifyTransport
from ._work import Work

__all__ = ["CqnotifyTransport", "Memory", "MutableView", "RemoteBuffer", "View", "Work"]
