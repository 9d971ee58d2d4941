# SPDX-License-Identifier: MIT
"""The sender of the demo's stream, which the demo starts: `python -m cqnotify.demo._sender`.

It sends messages at intervals; every 16th and the last are solicited.
"""

from __future__ import annotations

import argparse
import time

from ..exchange.blocking import exchange_as_client
from ._traffic import LOOPBACK, SOLICITED_EVERY, START_LIMIT, Stream, open_end, payload


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--interval", type=float, required=True)
    parser.add_argument("--link-local", action="store_true")
    args = parser.parse_args()
    with open_end(args.device, args.link_local, Stream.size) as end:
        remote = exchange_as_client(LOOPBACK, args.port, end.address, timeout=START_LIMIT)
        end.join(remote)
        for number in range(args.messages):
            # Do not catch up after a delay: two messages at once would save a wake-up.
            time.sleep(args.interval)
            last_of_group = number % SOLICITED_EVERY == SOLICITED_EVERY - 1
            solicited = last_of_group or number == args.messages - 1
            end.send(payload(number, Stream.size), number, solicited)
        end.finish()


if __name__ == "__main__":
    main()
