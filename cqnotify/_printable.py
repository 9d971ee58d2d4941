# SPDX-License-Identifier: MIT
"""Text of a peer, which ends up in messages and logs."""


def printable(text: bytes) -> str:
    """Return it as ASCII, with a question mark in the place of anything else."""
    return "".join(chr(c) if 32 <= c < 127 else "?" for c in text)
