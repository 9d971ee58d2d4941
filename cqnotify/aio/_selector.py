# SPDX-License-Identifier: MIT
"""The selector of `new_event_loop`: what the standard library's does, with a select() in C."""

from __future__ import annotations

import selectors
from typing import TYPE_CHECKING, Any

from .. import _core

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike


class Selector(_core.Selector, selectors.EpollSelector):
    """An EpollSelector whose select(), in C, calls the callbacks of channels itself."""

    def __init__(self) -> None:
        super().__init__()
        self._epoll_fd = self.fileno()

    def register(
        self, fileobj: FileDescriptorLike, events: int, data: Any = None
    ) -> selectors.SelectorKey:
        key = super().register(fileobj, events, data)
        try:
            self._watch(key)
        except BaseException:
            super().unregister(fileobj)
            raise
        return key

    def modify(
        self, fileobj: FileDescriptorLike, events: int, data: Any = None
    ) -> selectors.SelectorKey:
        key = super().modify(fileobj, events, data)
        self._watch(key)
        return key

    def unregister(self, fileobj: FileDescriptorLike) -> selectors.SelectorKey:
        key = super().unregister(fileobj)
        self._unwatch(key.fd)
        return key

    def close(self) -> None:
        self._unwatch_all()
        super().close()
