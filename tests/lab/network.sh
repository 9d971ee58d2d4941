#!/bin/sh
# Two RDMA devices over a cable of their own: rxe0 on v0 and rxe1 on v1, a veth pair.
# Usage: network.sh up|down, as root. "up" returns when traffic can flow.
#
# From rxe0 to rxe1 by their link-local GIDs, packets go through the network stack, so
# "tc qdisc add dev v0 root netem ..." acts on them. rxe0 alone, by its IPv4 GID, needs no wire.
set -eu

within() { # within SECONDS CONDITION ARG...: waits until it holds
    tries=$(($1 * 20))
    shift
    until "$@"; do
        tries=$((tries - 1))
        if [ "$tries" -le 0 ]; then
            echo "network.sh: never came true: $*" >&2
            exit 1
        fi
        sleep 0.05
    done
}

active() { # active DEVICE
    read -r state <"/sys/class/infiniband/$1/ports/1/state" && [ "$state" = "4: ACTIVE" ]
}

has_gid() { # has_gid DEVICE PATTERN
    for file in "/sys/class/infiniband/$1/ports/1/gids/"[0-7]; do
        read -r gid <"$file" 2>/dev/null || continue
        # shellcheck disable=SC2254 # the pattern is meant as one
        case $gid in $2) return 0 ;; esac
    done
    return 1
}

up() {
    modprobe -qa veth rdma_rxe ib_uverbs rdma_ucm || [ -e /sys/module/rdma_rxe ] || {
        echo "network.sh: this kernel cannot load rdma_rxe" >&2
        exit 1
    }
    ip link add v0 type veth peer name v1
    for dev in v0 v1; do
        # Nobody else is on the cable: an address needs no second of duplicate detection.
        echo 0 >/proc/sys/net/ipv6/conf/$dev/accept_dad
        echo 0 >/proc/sys/net/ipv6/conf/$dev/dad_transmits
    done
    ip -batch - <<END
link set lo up
addr add 10.99.0.1/24 dev v0
link set v0 up
link set v1 up
END
    rdma link add rxe0 type rxe netdev v0
    rdma link add rxe1 type rxe netdev v1
    within 10 active rxe0
    within 10 active rxe1
    within 10 has_gid rxe0 'fe80:*'
    within 10 has_gid rxe1 'fe80:*'
    within 10 has_gid rxe0 '*:ffff:0a63:0001'
    within 10 test -e /dev/infiniband/uverbs1
    for node in /dev/infiniband/uverbs* /dev/infiniband/rdma_cm; do
        [ -r "$node" ] && [ -w "$node" ] && chmod 666 "$node"
    done
}

down() {
    for dev in rxe0 rxe1; do
        [ ! -e /sys/class/infiniband/$dev ] || rdma link delete $dev
    done
    [ ! -e /sys/class/net/v0 ] || ip link delete v0
}

"$1"
