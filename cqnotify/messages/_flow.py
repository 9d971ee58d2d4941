# SPDX-License-Identifier: MIT
"""Credits: who may send how much, and when an acknowledgement is due.

A message takes one of the credits that the receiver has granted. The credit is returned when the
receiver's program has received the message. The counters of both directions travel in the header of
each frame, so a connection that is used both ways needs few frames of their own for them.

Such a frame, an ACK, takes no credit. Yet there is a receive for each, because few of them can be
in flight: one for each offer of the receiver's that it reports as read; two that return credits,
since each returns at least half of them; and two that answer a frame with LAST, since the next such
frame takes credits which came with, or behind, the one before. A CLOSING comes once; so does a
CLOSE or an ERROR, behind which nothing is sent; and so does the first ACK of the end that has
accepted. These are the SPARE receives of _options.py.
"""

from __future__ import annotations

from ._errors import ProtocolError
from ._wire import LAST, MASK, MESSAGES, OFFER, Header, Kind


def _unwrap(name: str, value: int, known: int, most: int) -> int:
    """The whole value of a counter, of which a header has 32 bits."""
    whole = known + ((value - known) & MASK)
    if whole > most:
        raise ProtocolError(f"{name} is {whole}, and cannot be more than {most}")
    return whole


class Flow:
    """The counters of one end; all of them only grow.

    sent, offers_sent: our messages, and how many of them are offers.
    peer_credits_returned, peer_offers_read: how many of them the peer's program has received, and
        how many offers it has read, by the latest header.
    received, offers_received, credits_returned, offers_read: the same of the peer's messages.
    last_advertised: credits_returned, in the latest header that was sent.
    is_ack_due, is_ack_urgent: whether counters are to be sent, and whether the peer waits for them.
    """

    def __init__(self, granted_to_peer: int, granted_by_peer: int) -> None:
        self._granted_to_peer, self._granted_by_peer = granted_to_peer, granted_by_peer
        self.sent: int = 0
        self.offers_sent: int = 0
        self.peer_credits_returned: int = 0
        self.peer_offers_read: int = 0
        self.received: int = 0
        self.offers_received: int = 0
        self.credits_returned: int = 0
        self.offers_read: int = 0
        self.last_advertised: int = 0
        self._read_early: set[int] = set()  # offers that were read before an earlier one
        self._peer_needs_credits = False
        self.is_ack_due: bool = False
        self.is_ack_urgent: bool = False

    @property
    def credits(self) -> int:
        """How many messages can be sent."""
        return self._granted_by_peer + self.peer_credits_returned - self.sent

    @property
    def is_low(self) -> bool:
        """Whether half of the credits are used up, and more may have come."""
        return 2 * self.credits <= self._granted_by_peer

    @property
    def unreceived(self) -> int:
        """How many of our messages the peer's program has not received."""
        return self.sent - self.peer_credits_returned

    @property
    def unread_offers(self) -> int:
        """How many of our offers were not read yet."""
        return self.offers_sent - self.peer_offers_read

    # ---- sending ----

    def header(self, kind: Kind) -> Header:
        """Return the header of a frame, which must be sent at once."""
        flags = 0
        if kind in MESSAGES:
            self.sent += 1
            self.offers_sent += kind is OFFER
            flags = 0 if self.credits else LAST
        if self.credits_returned > self.last_advertised:
            self._peer_needs_credits = False
        self.last_advertised = self.credits_returned
        self.is_ack_due = self.is_ack_urgent = False
        return Header(kind, flags, self.credits_returned, self.offers_read)

    # ---- receiving ----

    def on_header(self, header: Header) -> int:
        """Take the counters of a frame that has arrived. Return how many of our offers it reports
        as read."""
        known, name = self.peer_credits_returned, "the number of messages received"
        self.peer_credits_returned = _unwrap(name, header.credits_returned, known, self.sent)
        known, name = self.peer_offers_read, "the number of offers read"
        self.peer_offers_read = _unwrap(name, header.offers_read, known, self.offers_sent)
        newly = self.peer_offers_read - known
        if header.kind in MESSAGES:
            self._on_message(header)
        return newly

    def _on_message(self, header: Header) -> None:
        self.received += 1
        self.offers_received += header.kind is OFFER
        left = self._granted_to_peer + self.last_advertised - self.received
        if left < 0:
            raise ProtocolError(f"message {self.received} was sent without a credit")
        if header.flags & LAST and left:  # the peer had not seen its credits when it sent this
            self.is_ack_due = self.is_ack_urgent = True
        elif header.flags & LAST:
            self._peer_needs_credits = True

    def return_credit(self) -> None:
        """The program has received a message, whose memory is posted again."""
        self.credits_returned += 1
        if 2 * (self.credits_returned - self.last_advertised) >= self._granted_to_peer:
            self.is_ack_due = True
            self.is_ack_urgent = self.is_ack_urgent or self._peer_needs_credits

    def mark_read(self, number: int) -> None:
        """The peer's offer of this number, from 0, was read; offers can be read out of order."""
        self._read_early.add(number)
        while self.offers_read in self._read_early:
            self._read_early.remove(self.offers_read)
            self.offers_read += 1
            self.is_ack_due = self.is_ack_urgent = True
