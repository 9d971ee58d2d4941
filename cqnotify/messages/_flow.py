# SPDX-License-Identifier: MIT
"""Credits: who may send how much, and when an acknowledgement is due: see csrc/messages/flow.c."""

from __future__ import annotations

from .. import _core
from ._wire import MASK, Header, Kind


class Flow(_core.MessageFlow):
    """The counters of one end; all of them only grow.

    sent, offers_sent: our messages, and how many of them are offers.
    peer_credits_returned, peer_offers_read: how many of them the peer's program has received, and
        how many offers it has read, by the latest header.
    received, offers_received, credits_returned, offers_read: the same of the peer's messages.
    last_advertised: credits_returned, in the latest header that was sent.
    is_ack_due, is_ack_urgent: whether counters are to be sent, and whether the peer waits for them.
    """

    __slots__ = ()

    @property
    def unreceived(self) -> int:
        """How many of our messages the peer's program has not received."""
        return self.sent - self.peer_credits_returned

    @property
    def unread_offers(self) -> int:
        """How many of our offers were not read yet."""
        return self.offers_sent - self.peer_offers_read

    def header(self, kind: Kind) -> Header:
        """Return the header of a frame, which must be sent at once."""
        return Header(kind, *self._header(kind))

    def on_header(self, header: Header) -> int:
        """Take the counters of a frame that has arrived. Return how many of our offers it reports
        as read."""
        kind, flags, credits_returned, offers_read = header
        return self._on_header(kind, flags, credits_returned & MASK, offers_read & MASK)
