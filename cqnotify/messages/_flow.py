# SPDX-License-Identifier: MIT
"""Credits: who may send how much, and when the peer has to be told.

A message takes one of the credits that the receiver has granted, and the receiver grants it again
when the program has taken the message. The counters of both directions travel in the header of each
frame, so a connection that is used both ways needs few frames of their own for them.

Such a frame, an ACK, takes no credit, and there is a receive for it all the same, because few of
them can be in flight: one for each offer of the receiver's that it reports as read; two that grant
credits, since each grants at least half of them; and two that answer a frame with LAST, since the
next such frame takes credits which came with, or behind, the one before. One that is CLOSING comes
once; so does a farewell or an error, behind which nothing is sent; and so does the first ACK of the
end that has accepted. These are the SPARE receives of _options.py.
"""

from __future__ import annotations

from ._errors import ProtocolError
from ._wire import LAST, MASK, MESSAGES, OFFER, Header, Kind


def _ahead(name: str, value: int, known: int, most: int) -> int:
    """The whole value of a counter, of which a header has 32 bits."""
    whole = known + ((value - known) & MASK)
    if whole > most:
        raise ProtocolError(f"{name} is {whole}, and cannot be more than {most}")
    return whole


class Flow:
    """The counters of one end; all of them only grow.

    sent, offered: our messages, and how many of them are offers.
    freed, done: which of them the peer has taken, and which offers it has read.
    received, freed_here, done_here: the same of the peer's messages.
    """

    def __init__(self, granted_here: int, granted: int) -> None:
        self._granted_here, self._granted = granted_here, granted
        self.sent: int = 0
        self.offered: int = 0
        self.freed: int = 0
        self.done: int = 0
        self.received: int = 0
        self.offers_received: int = 0
        self.freed_here: int = 0
        self.done_here: int = 0
        self._told = 0  # which of freed_here the peer was told
        self._out_of_order: set[int] = set()  # offers that were read before an earlier one
        self._peer_waits = False
        self.is_ack_due: bool = False
        self.is_urgent: bool = False  # the peer waits for that ACK

    @property
    def room(self) -> int:
        """How many messages can be sent."""
        return self._granted + self.freed - self.sent

    @property
    def is_low(self) -> bool:
        """Whether half of the credits are used up, and more may have come."""
        return 2 * self.room <= self._granted

    @property
    def pending(self) -> int:
        """How many of our messages the peer's program has not taken."""
        return self.sent - self.freed

    @property
    def unread(self) -> int:
        """How many of our offers were not read yet."""
        return self.offered - self.done

    # ---- sending ----

    def header(self, kind: Kind) -> Header:
        """That of a frame which is sent now."""
        flags = 0
        if kind in MESSAGES:
            self.sent += 1
            self.offered += kind is OFFER
            flags = 0 if self.room else LAST
        if self.freed_here > self._told:
            self._peer_waits = False
        self._told = self.freed_here
        self.is_ack_due = self.is_urgent = False
        return Header(kind, flags, self.freed_here, self.done_here)

    # ---- receiving ----

    def take_in(self, header: Header) -> int:
        """Read the counters of a frame that has arrived. Return how many of our offers are done."""
        self.freed = _ahead("the number of messages taken", header.freed, self.freed, self.sent)
        done = _ahead("the number of offers read", header.done, self.done, self.offered)
        newly, self.done = done - self.done, done
        if header.kind in MESSAGES:
            self._message(header)
        return newly

    def _message(self, header: Header) -> None:
        self.received += 1
        self.offers_received += header.kind is OFFER
        left = self._granted_here + self._told - self.received
        if left < 0:
            raise ProtocolError(f"message {self.received} was sent without a credit")
        if header.flags & LAST and left:  # the peer has not seen, or not noticed, its credits
            self.is_ack_due = self.is_urgent = True
        elif header.flags & LAST:
            self._peer_waits = True

    def free(self) -> None:
        """The program has taken a message, whose memory awaits another one."""
        self.freed_here += 1
        if 2 * (self.freed_here - self._told) >= self._granted_here:
            self.is_ack_due = True
            self.is_urgent = self.is_urgent or self._peer_waits

    def read(self, number: int) -> None:
        """The peer's offer of this number, from 0, was read."""
        self._out_of_order.add(number)
        while self.done_here in self._out_of_order:
            self._out_of_order.remove(self.done_here)
            self.done_here += 1
            self.is_ack_due = self.is_urgent = True
