# shellcheck shell=bash
# Bare Debians and Ubuntus in folders, for the scripts that install there; needs root and mmdebstrap.
# shellcheck disable=SC2154 # set by those
# Whoever sources it has set `suite`, and `work`, a folder of its own.

make_root() { # make_root FOLDER: with apt, and no more than every Debian has
    if [ "$suite" != jammy ]; then
        mmdebstrap --quiet --variant=minbase --include=ca-certificates "$suite" "$1" \
            "${CQNOTIFY_LAB_MIRROR:-http://deb.debian.org/debian}"
        return
    fi
    # Debian has none of Ubuntu's keys.
    local archive=http://archive.ubuntu.com/ubuntu
    /usr/lib/apt/apt-helper -q -o APT::Sandbox::User=root download-file $archive/pool/main/u/ubuntu-keyring/ubuntu-keyring_2021.03.26_all.deb \
        "$work/keys.deb" SHA256:0d0e7ed6b112f5d03eabf3c7eb01ebdacf9c57714b279e90495cfc58c8c4520f
    dpkg-deb -x "$work/keys.deb" "$work/keys"
    mmdebstrap --quiet --variant=minbase --include=apt,ca-certificates --components=main,universe \
        --keyring="$work/keys/usr/share/keyrings/ubuntu-archive-keyring.gpg" "$suite" "$1" $archive
}

inside() { # inside ROOT SCRIPT: a shell there, with this machine's devices, network and certificates
    touch "$1/etc/resolv.conf"
    # shellcheck disable=SC2016 # expanded there
    env -i HOME=/root LANG=C.UTF-8 TERM=dumb PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        DEBIAN_FRONTEND=noninteractive ${PIP_CERT:+"PIP_CERT=$PIP_CERT"} unshare --mount sh -euc '
        root=$1
        shift
        mount -t proc proc "$root/proc"
        for path in /dev /etc/resolv.conf /etc/ssl/certs; do mount --rbind "$path" "$root$path"; done
        exec chroot "$root" bash -euc "$@"' inside "$1" "$2"
}

quietly() { # quietly COMMAND...: what it prints is shown if it fails
    "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2 && return 1; }
}

install() { # install ROOT PACKAGE...
    quietly inside "$1" "apt-get -q update; apt-get -q -y install --no-install-recommends ${*:2}"
}

says() { # says ROOT WORDS SCRIPT: what it prints has these words in it
    local said
    said=$(inside "$1" "cd /; $3" 2>&1) || true
    grep -qF -- "$2" <<<"$said" || { printf '%s: not "%s", but:\n%s\n' "$suite" "$2" "$said" >&2 && return 1; }
    echo "$suite: $2" >&2
}
