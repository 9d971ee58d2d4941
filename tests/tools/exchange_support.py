# SPDX-License-Identifier: MIT
"""Peers of the address exchange."""

from __future__ import annotations

from ipaddress import IPv6Address

from hypothesis import strategies as st

from cqnotify import QPAddress

OURS = QPAddress(0x12, 0x345, 0xABCDEF, IPv6Address("fe80::1"))
THEIRS = QPAddress(0, 0xFFFFFF, 0, IPv6Address("::ffff:10.1.2.3"))
WIRE = b"0012:000345:abcdef:fe800000000000000000000000000001\0"
DONE = b"done\0"
MANY = 256  # records, as ibv_srq_pingpong exchanges


def many(address):
    return [address._replace(qp_num=i) for i in range(MANY)]


def read_all(sock, size):
    data = b""
    while len(data) < size and (chunk := sock.recv(size - len(data))):
        data += chunk
    return data


addresses = st.builds(
    QPAddress,
    st.integers(0, 0xFFFF),
    st.integers(0, 0xFFFFFF),
    st.integers(0, 0xFFFFFF),
    st.builds(IPv6Address, st.integers(0, 2**128 - 1)),
)
