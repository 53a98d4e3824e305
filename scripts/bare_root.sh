# Bare Debian roots, and commands run in them: sourced by test-fresh and test-other, which set $work, a folder of theirs.
#
# Mirror, proxy, pip configuration and certificates are this host's own, read at run time. Each run has its own mount
# and process namespace: whatever it leaves behind ends with it, and nothing is ever mounted in the host's view.
# VGPU_FRESH_CACHE (default /var/cache/vgpu-fresh) keeps what is made once; VGPU_FRESH_DIR (default /var/tmp) holds roots
# and logs, about 3 GiB each while one is made.
# shellcheck shell=bash

cache=${VGPU_FRESH_CACHE:-/var/cache/vgpu-fresh}
scratch=${VGPU_FRESH_DIR:-/var/tmp}
# What a person needs to clone and call make, beside what debootstrap gives.
packages=make,git,ca-certificates

fail() { echo "error: $1" >&2; exit 1; }

is_suite() { [[ $1 =~ ^[a-z][a-z0-9]*$ ]] || fail "'$1' is no name of a Debian suite"; }

# This host can make roots and enter them, or the script ends.
check_host() {
    [ "$(id -u)" = 0 ] || fail "a bare root is made and entered as root"
    if ! command -v debootstrap > /dev/null; then
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq debootstrap > /dev/null
    fi
    unshare --mount --pid --fork true || fail "this host does not allow namespaces of its own (CAP_SYS_ADMIN is needed)"
    mkdir -p "$cache" "$scratch"
}

# Nothing of a run is mounted in this namespace; should that ever be wrong, deleting would reach into the host.
is_mounted_below() {
    if grep -q " $1/" /proc/self/mountinfo; then
        echo "error: something is mounted below $1, which stays as it is" >&2
        return 0
    fi
    return 1
}

# The host's own Debian mirror, as apt knows it.
mirror() {
    local line attempt
    for attempt in 1 2; do
        line=$(apt-get indextargets --format '$(ORIGIN) $(CODENAME) $(REPO_URI)' 'Created-By: Packages' |
            awk '$1 == "Debian" && $2 !~ /-/ { print $3; exit }')
        if [ -n "$line" ]; then
            echo "$line"
            return
        fi
        if [ $attempt = 1 ]; then apt-get update -qq >&2; fi # an image may come without apt's lists
    done
    fail "apt knows no Debian mirror here"
}

# $1 suite, $2 folder: a root like every other of this suite, its packages from the cache when they are there.
make_base() {
    local tarball=$cache/$1.tgz url
    url=$(mirror) || return 1
    if [ ! -s "$tarball" ]; then
        debootstrap --variant=minbase --include="$packages" --make-tarball="$tarball.new" "$1" "$work/fetch-$1" "$url" ||
            return 1
        mv "$tarball.new" "$tarball"
    fi
    # The mirror may have newer packages than the tarball: then it is fetched again, once.
    if ! debootstrap --variant=minbase --include="$packages" --unpack-tarball="$tarball" "$1" "$2" "$url"; then
        rm -rf --one-file-system "$2" "$tarball"
        debootstrap --variant=minbase --include="$packages" "$1" "$2" "$url" || return 1
    fi
    configure "$2"
}

# $1 root: how this host reaches its mirrors, proxies and registries.
configure() {
    local root=$1 file
    cp /etc/resolv.conf /etc/hosts "$root/etc/"
    hostname > "$root/etc/hostname"
    echo force-unsafe-io > "$root/etc/dpkg/dpkg.cfg.d/no-sync" # a root that a crash breaks is made again
    for file in /etc/apt/apt.conf /etc/apt/apt.conf.d/*; do
        if [ -f "$file" ] && grep -q 'Acquire' "$file"; then cp "$file" "$root/etc/apt/apt.conf.d/"; fi
    done
    if [ -f /etc/pip.conf ]; then cp /etc/pip.conf "$root/etc/"; fi
    if [ -n "$(find /usr/local/share/ca-certificates -name '*.crt' 2> /dev/null)" ]; then
        cp /usr/local/share/ca-certificates/*.crt "$root/usr/local/share/ca-certificates/"
        chroot "$root" update-ca-certificates > /dev/null 2>&1
    fi
}

# The environment of a run: empty, but for CI and the words about proxies and registries, which hold in the root too.
environment() {
    local name
    printf '%s\n' HOME=/root TERM=dumb LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    for name in CI PIP_INDEX_URL PIP_TRUSTED_HOST PIP_DEFAULT_TIMEOUT http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
        if [ -n "${!name:-}" ]; then echo "$name=${!name}"; fi
    done
    for name in PIP_CERT SSL_CERT_FILE REQUESTS_CA_BUNDLE; do
        if [ "${!name:-}" = /etc/ssl/certs/ca-certificates.crt ]; then echo "$name=${!name}"; fi
    done
}

# Runs inside the namespaces, as their first process. $1 root, $2 command, run in /root/clone; with $3, a root that only
# lies below: $1 is then an empty folder, and what is written there is in memory and gone with the run.
inside() {
    local root=$1 command=$2 lower=${3:-} device
    mount --make-rprivate /
    if [ -n "$lower" ]; then
        mount -t tmpfs -o mode=755,size=4g tmpfs "$root"
        mkdir "$root/upper" "$root/work" "$root/merged"
        mount -t overlay -o "lowerdir=$lower,upperdir=$root/upper,workdir=$root/work" overlay "$root/merged"
        root=$root/merged
    else
        mount --bind "$root" "$root" # its / is a mount point as on any machine, so that a root can be made inside it too
    fi
    mount -t proc proc "$root/proc"
    mount -t sysfs -o ro sysfs "$root/sys"
    mount --rbind /sys/fs/cgroup "$root/sys/fs/cgroup"
    mount -t tmpfs -o mode=755,size=64m tmpfs "$root/dev"
    for device in 'null 1 3' 'zero 1 5' 'full 1 7' 'random 1 8' 'urandom 1 9' 'tty 5 0'; do
        # shellcheck disable=SC2086
        set -- $device
        mknod -m 666 "$root/dev/$1" c "$2" "$3"
    done
    mkdir "$root/dev/pts" "$root/dev/shm"
    mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
    mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
    mount -t tmpfs -o mode=755 tmpfs "$root/run"
    ln -s pts/ptmx "$root/dev/ptmx"
    ln -s /proc/self/fd "$root/dev/fd"
    ln -s fd/0 "$root/dev/stdin"
    ln -s fd/1 "$root/dev/stdout"
    ln -s fd/2 "$root/dev/stderr"
    mapfile -t env < <(environment)
    # Not chroot: who is in one can make no user namespace.
    cd "$root"
    pivot_root . .
    umount -l .
    /usr/bin/env -i "${env[@]}" /bin/sh -c "cd /root/clone && $command"
}

# $1 root, $2 command, $3 root below (may be left out): the status is the command's. Standard input may be data for it.
run_inside() {
    export -f inside environment
    unshare --mount --pid --fork --kill-child=KILL bash -euo pipefail -c 'inside "$@"' inside "$@"
}
