# SPDX-License-Identifier: MIT
"""rping in virtual time, beside cm_ends.py: tells when it ended, and what it said then.

    cm_rping.py FROM STOP UNTIL ARGUMENT...     seconds of virtual time

It begins at FROM and is ended at UNTIL. At STOP, unless that is "-", it is stopped by SIGSTOP: so
it is connected, and says nothing.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time

EPOCH = 1_800_000_000


def sleep_until(second: str) -> None:
    time.sleep(max(0.0, float(second) + EPOCH - time.time()))


def main(start: str, stop: str, until: str, *arguments: str) -> None:
    sleep_until(start)
    process = subprocess.Popen(
        ["stdbuf", "-oL", "rping", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if stop != "-":
        sleep_until(stop)
        process.send_signal(signal.SIGSTOP)
    timer = threading.Timer(float(until) + EPOCH - time.time(), process.kill)
    timer.start()
    pings, last = 0, ""
    assert process.stdout
    for line in process.stdout:
        text = line.decode().strip()
        if "ping data" in text:
            pings += 1
        elif text and "DISCONNECT EVENT" not in text:
            last = last or text
    status = process.wait()
    timer.cancel()
    how = "goes on" if status == -signal.SIGKILL else "has ended"
    print(f"rping {how} pings {pings} said {last!r} at {time.time() - EPOCH:.3f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
