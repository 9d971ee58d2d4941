# SPDX-License-Identifier: MIT
"""What `cqnotify latency` and `cqnotify bandwidth` are made of.

From below: _plan.py has what to run; _control.py messages between the ends; _end.py the queue pairs
and the memory of an end; _tcp.py, _rdma_cm.py and _perftest.py how two ends meet, by what cli/_peer
has for that, and _description.py what they tell each other then. _waits.py has how an end waits,
_run.py what each run begins with, _statistics.py the figures that are made of the times,
_latency.py and _bandwidth.py what is measured, the two _report.py how the figures look; _command.py
the course of a command, and _options.py the options that both have.
"""
