#!/bin/sh
# Runs a command where varek-cgroup may make groups. See --help.
set -u

usage() {
    cat <<'EOF'
usage: with-cgroup.sh COMMAND [ARGUMENT...]
       with-cgroup.sh --help

Runs COMMAND in a control group below or beside which VAREK may make groups with limits.

root, unified host   Enables the memory, pids and cpu controllers for the cgroup2 group /varek and
                     below it, and runs COMMAND in /varek/run-PID. Both stay; empty run-* groups of earlier
                     commands are removed. (Delegate= of systemd does not apply to such groups.)
root, hybrid host    Checks that the hierarchies are there and writable, and runs COMMAND as it is.
root of a container  Runs COMMAND as it is, if the container's own cgroup2 tree is writable.
user                 Runs COMMAND as it is in a group that belongs to the user, otherwise in a scope of the
                     user's service manager: systemd-run --user --scope -p Delegate=yes.

It may be used again inside of itself. The exit status is that of COMMAND; 64 for wrong usage, 69 where
there is no way to such a group, with a message that says what to do.
EOF
}

refuse() {
    printf 'with-cgroup.sh: %s\n' "$@" >&2
    exit 69
}

# The mount point of the first cgroup2 file system that shows the whole tree, its octal escapes undone.
mount_point() {
    escaped=$(sed -n 's/^[0-9]* [0-9]* [0-9:]* \/ \([^ ]*\) .* - cgroup2 .*/\1/p' /proc/self/mountinfo |
        head -n 1 | sed 's/\\\([0-7][0-7][0-7]\)/\\0\1/g')
    printf '%b' "$escaped"
}

# Whether the file $1 lists all three controllers.
has_controllers() {
    words=" $(cat "$1" 2>/dev/null) "
    for word in memory pids cpu; do
        case $words in
        *" $word "*) ;;
        *) return 1 ;;
        esac
    done
}

# Enables the controllers for the children of the group $1.
enable_controllers() {
    has_controllers "$1/cgroup.subtree_control" && return 0
    { echo '+memory +pids +cpu' >"$1/cgroup.subtree_control"; } 2>/dev/null
    has_controllers "$1/cgroup.subtree_control"
}

# Moves this shell into a group of its own below /varek.
enter() {
    for left in "$1"/run-*; do
        # Fails where a process is in it.
        [ -d "$left" ] && rmdir "$left" 2>/dev/null
    done
    for _ in 1 2 3 4 5 6 7 8; do
        mkdir "$1/run-$$" 2>/dev/null
        # Fails where another with-cgroup.sh removed the group while it was empty.
        if { echo "$$" >"$1/run-$$/cgroup.procs"; } 2>/dev/null; then
            return 0
        fi
    done
    refuse "cannot move into $1/run-$$"
}

as_root_hybrid() {
    for controller in memory pids cpu; do
        point=$(sed -n "s/^[0-9]* [0-9]* [0-9:]* [^ ]* \([^ ]*\) .* - cgroup [^ ]* \([^ ]*,\)*$controller\(,.*\)*\$/\1/p" \
            /proc/self/mountinfo | head -n 1)
        if [ -z "$point" ]; then
            has_controller_in_cgroup2 "$controller" ||
                refuse "no hierarchy with the $controller controller is mounted" \
                    "mount it (mount -t cgroup -o $controller none /sys/fs/cgroup/$controller), or use no such limit"
        elif ! [ -w "$point/cgroup.procs" ]; then
            refuse "$point is not writable here; mount it read-write, or run outside of the container"
        fi
    done
}

has_controller_in_cgroup2() {
    case " $(cat "$root/cgroup.controllers" 2>/dev/null) " in
    *" $1 "*) return 0 ;;
    *) return 1 ;;
    esac
}

as_root_unified() {
    # The root of a cgroup namespace has a type, that of the whole tree has none. The library itself
    # moves the container's processes into a leaf.
    [ -e "$root/cgroup.type" ] && return 0
    home=$root/varek
    has_controllers "$root/cgroup.controllers" ||
        refuse "the cgroup2 tree has only these controllers: $(cat "$root/cgroup.controllers")" \
            'boot without cgroup_disable=, and with systemd.unified_cgroup_hierarchy=1'
    enable_controllers "$root" || refuse "cannot enable memory, pids and cpu in $root/cgroup.subtree_control"
    [ -d "$home" ] || mkdir "$home" 2>/dev/null || [ -d "$home" ] || refuse "cannot create $home"
    enable_controllers "$home" || refuse "cannot enable memory, pids and cpu in $home/cgroup.subtree_control" \
        "no process may be in $home itself"
    case $own in
    /varek/run-*) ;;
    *) enter "$home" ;;
    esac
}

# Whether the own group was given to this user: it is writable, and not below a service manager of users
# in a unit that was not made for this, since to such a manager all of its groups belong.
given() {
    [ -w "$root$own" ] && [ -w "$root$own/cgroup.procs" ] && [ -w "$root$own/cgroup.subtree_control" ] || return 1
    case $own in
    */user@*.service/*) ;;
    *) return 0 ;;
    esac
    case $own in
    */run-*.scope | */run-*.scope/* | */run-*.service | */run-*.service/*) return 0 ;;
    *.scope | *.scope/* | *.service | *.service/*) return 1 ;;
    esac
}

[ "${1-}" = -- ] && shift
case ${1-} in
-h | --help)
    usage
    exit 0
    ;;
'')
    usage >&2
    exit 64
    ;;
esac

root=$(mount_point)
[ -n "$root" ] ||
    refuse 'no cgroup2 file system is mounted' \
        'mount one: mount -t cgroup2 none /sys/fs/cgroup (or /sys/fs/cgroup/unified beside version 1)'
own=$(sed -n 's/^0:://p' /proc/self/cgroup)

if [ "$(id -u)" -eq 0 ]; then
    [ -w "$root/cgroup.procs" ] ||
        refuse "$root is not writable here, as in most containers" \
            'mount it read-write with a private cgroup namespace, or run outside of the container'
    if grep -Eq '^[0-9]+:([^:]*,)?(memory|pids|cpu)(,[^:]*)?:' /proc/self/cgroup; then
        as_root_hybrid
    else
        as_root_unified
    fi
    exec "$@"
fi

if given; then
    exec "$@"
fi
if command -v systemd-run >/dev/null 2>&1; then
    XDG_RUNTIME_DIR=${XDG_RUNTIME_DIR:-/run/user/$(id -u)}
    export XDG_RUNTIME_DIR
    if [ -S "$XDG_RUNTIME_DIR/systemd/private" ]; then
        exec systemd-run --user --scope -p Delegate=yes --quiet -- "$@"
    fi
    refuse "no service manager runs for $(id -un 2>/dev/null || id -u)" \
        "start it as root: loginctl enable-linger $(id -un 2>/dev/null || id -u)" \
        'or run the command from a service unit with Delegate=yes, or run this script as root'
fi
refuse 'this user has no control group of its own, and there is no systemd-run to make one' \
    'run this script as root, or let root give a cgroup2 group with memory, pids and cpu to this user'
