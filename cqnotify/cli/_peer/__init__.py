# SPDX-License-Identifier: MIT
"""What the commands share that have a peer: pingpong, latency and bandwidth.

plan.py has what they are told about the peer, options.py the options for that, device.py the device
and port over which it is reached. meeting.py has what is printed while two ends meet; tcp.py and
rdma_cm.py are the two ways to meet. percentiles.py has the rank of a percentile.
"""
