# shellcheck shell=sh
# Two RDMA devices over a cable of their own: rxe0 on v0 and rxe1 on v1, a veth pair.
# Usage: network.sh up|down, as root. "up" returns when traffic can flow.
# One of several hosts (LAB_HOST="NUMBER COUNT") has rxe0 on v0 alone, whose cable goes to the lab's switch.
# LAB_DEVICE=siw makes siw0 and siw1 instead, in software, too, but iWARP.
#
# From rxe0 to rxe1 by their link-local GIDs, packets go through the network stack, so
# "tc qdisc add dev v0 root netem ..." acts on them. rxe0 alone, by its IPv4 GID, needs no wire.
set -eu
kind=${LAB_DEVICE:-rxe}

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

# The NIC has the host's whole cable to the switch. v0 stands before it, because a cable between
# two network interfaces of this kernel can lose its carrier: "ip link set plug down".
plug_in() { # plug_in NUMBER COUNT
    modprobe -qa virtio_net act_mirred cls_u32 sch_ingress || true
    for nic in vec0 eth0; do # of User Mode Linux, or of QEMU
        [ ! -e "/sys/class/net/$nic" ] || break
    done
    ip link add v0 address "52:54:00:99:00:0$1" type veth peer name plug
    for dev in "$nic" plug; do
        echo 1 >"/proc/sys/net/ipv6/conf/$dev/disable_ipv6"
        ip link set "$dev" promisc on up
        tc qdisc add dev "$dev" ingress
    done
    redirect plug "$nic"
    redirect "$nic" plug
    for i in $(seq "$2"); do echo "10.99.0.$i host$i"; done >>/etc/hosts
}

redirect() { # redirect FROM TO
    tc filter add dev "$1" parent ffff: protocol all prio 1 u32 match u32 0 0 \
        action mirred egress redirect dev "$2"
}

has_address() { # has_address NETDEV: its link-local one
    grep -q "^fe80.* $1\$" /proc/net/if_inet6
}

add() { # add NUMBER: a device, and awaits all of its addresses
    rdma link add "$kind$1" type "$kind" netdev "v$1" || {
        echo "network.sh: this kernel makes no device of type $kind" >&2
        exit 1
    }
    within 10 active "$kind$1"
    within 10 has_address "v$1"
    # An iWARP device has one GID, its MAC, at once; RoCE has one for each address.
    [ "$kind" != rxe ] || within 10 has_gid "rxe$1" 'fe80:*'
}

up() {
    driver=rdma_rxe
    [ "$kind" = rxe ] || driver=$kind
    # Drivers that are built in show nothing but that they are there.
    modprobe -qa veth "$driver" ib_uverbs rdma_ucm || [ -e /sys/class/infiniband ] || {
        echo "network.sh: this kernel cannot load $driver" >&2
        exit 1
    }
    if [ -n "${LAB_HOST-}" ]; then
        devices=0
        number=${LAB_HOST% *}
        plug_in "$number" "${LAB_HOST#* }"
    else
        devices='0 1'
        number=1
        ip link add v0 type veth peer name v1
    fi
    ip link set lo up
    for i in $devices; do
        # Nobody else has its address: it needs no second of duplicate detection.
        echo 0 >"/proc/sys/net/ipv6/conf/v$i/accept_dad"
        echo 0 >"/proc/sys/net/ipv6/conf/v$i/dad_transmits"
    done
    ip addr add "10.99.0.$number/24" dev v0
    for i in $devices; do ip link set "v$i" up; done
    for i in $devices; do add "$i"; done
    [ "$kind" != rxe ] || within 10 has_gid rxe0 "*:ffff:0a63:000$number"
    within 10 test -e "/dev/infiniband/uverbs${devices#0 }"
    for node in /dev/infiniband/uverbs* /dev/infiniband/rdma_cm; do
        [ -r "$node" ] && [ -w "$node" ] && chmod 666 "$node"
    done
}

down() {
    for dev in "${kind}0" "${kind}1"; do
        [ ! -e "/sys/class/infiniband/$dev" ] || rdma link delete "$dev"
    done
    [ ! -e /sys/class/net/v0 ] || ip link delete v0
}

"$1"
