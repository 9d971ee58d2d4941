# SPDX-License-Identifier: MIT
"""The parts that commands with a peer share: pingpong, latency and bandwidth.

plan.py         the options that all of them have
options.py      these options for the command line
device.py       the device and port over which the peer is reached
meeting.py      the messages for the user while two ends meet
tcp.py          meeting by an exchange of addresses over TCP
rdma_cm.py      meeting by rdma_cm
percentiles.py  percentiles
"""
