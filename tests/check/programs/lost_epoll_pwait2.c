/* SPDX-License-Identifier: MIT */
/* The event loop of lost_epoll.c, with epoll_pwait2(). */
#define PRECISE
#include "lost_epoll.c"
