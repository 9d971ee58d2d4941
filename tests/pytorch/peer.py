# SPDX-License-Identifier: MIT
"""The peer of tests: `peer.py NBYTES TENSORS` registers tensors and prints what leads to them.

Commands, a line each: "sum" prints the sums of the tensors, "threads" the names of all threads, and
"unregister" revokes the first tensor. It ends with its input.
"""

import sys
import threading

import torch

from cqnotify.torch import CqnotifyTransport

nbytes, number = map(int, sys.argv[1:])
tensors = [torch.arange(nbytes, dtype=torch.int64).to(torch.uint8) for _ in range(number)]
with CqnotifyTransport("cpu") as transport:
    registered = [transport.register_memory(tensor) for tensor in tensors]
    print(transport.bind().hex())
    for one in registered:
        print(one.to_remote_buffer().serialize().hex())
    sys.stdout.flush()
    for line in sys.stdin:
        if line == "sum\n":
            print([int(tensor.sum(dtype=torch.int64)) for tensor in tensors], flush=True)
        elif line == "threads\n":
            print(", ".join(thread.name for thread in threading.enumerate()), flush=True)
        elif line == "unregister\n":
            transport.unregister_memory(registered[0])
            print(flush=True)
