//! Reaching anybody over a socket.

use varek_core::{Layer, Network, SyscallGroup};

use crate::attacks;
use crate::entry::{Family, Needs, OUTSIDE, Program, refused, under};
use crate::scene::{landlock, python, shell};

fn lacks_io_uring() -> Option<&'static str> {
    let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
    let disabled = disabled.is_ok_and(|text| text.trim() != "0");
    disabled.then_some("io_uring is disabled on this host, so there is no control")
}

fn lacks_ports() -> Option<&'static str> {
    let bounded = landlock() >= Some(4);
    (!bounded).then_some("this host's Landlock bounds no ports")
}

attacks! {
    Family::Network;

    families_beside_the_usual_ones_reach_nobody:
        program = Program::Python(r"
for name, family, kind, protocol in [
    ('netlink', 16, 3, 0), ('audit', 16, 3, 9), ('uevents', 16, 3, 15), ('connector', 16, 2, 11), ('packet', 17, 3, 0x300),
    ('key', 15, 3, 2), ('can', 29, 3, 1), ('tipc', 30, 5, 0), ('bluetooth', 31, 3, 1), ('alg', 38, 5, 0), ('nfc', 39, 5, 0),
    ('vsock', 40, 1, 0), ('kcm', 41, 5, 0), ('qipcrtr', 42, 2, 0), ('smc', 43, 1, 0), ('xdp', 44, 3, 0), ('mctp', 45, 2, 0),
    ('rds', 21, 5, 0), ('x25', 9, 5, 0), ('ppp', 24, 1, 0),
]:
    attempt(name, call, 'socket', family, kind, protocol)
"),
        refused = &[refused("socket", 20)],
        answers = &[("netlink", "EPERM"), ("alg", "EPERM"), ("vsock", "EPERM"), ("packet", "EPERM")],
        control = under(|scene| python(scene).network(Network::Host)).gains(&["netlink"]);

    a_local_pair_reaches_no_service_by_a_path_or_a_name:
        program = Program::Python(r"
for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
    for address in (SERVICE, '\0' + ABSTRACT):
        one, other = socket.socketpair(socket.AF_UNIX, kind)
        name = f'{int(kind)} ' + ('abstract' if address[0] == '\0' else 'path')
        attempt(name, one.connect, address)
        attempt(name + ' dissolved', lambda: (libc.connect(one.fileno(), struct.pack('H14x', 0), 16), one.connect(address)))
        other.close()
        attempt(name + ' orphaned', one.connect, address)
made = []
def fresh():
    made.append(socket.socket(socket.AF_UNIX)); made[-1].connect(SERVICE)
attempt('socket', fresh)
"),
        refused = &[refused("connect", 12), refused("socket", 1)],
        control = OUTSIDE.gains(&["socket"]);

    a_local_pair_reaches_no_service_where_tcp_may_be_connected:
        program = Program::Python(r"
# Allowed here: connect(2). What it would be pointed at are local sockets.
def dissolved(one):
    libc.connect(one.fileno(), struct.pack('H14x', 0), 16)
    return one
for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
    for name, address in (('path', SERVICE), ('abstract', '\0' + ABSTRACT)):
        one, other = socket.socketpair(socket.AF_UNIX, kind)
        attempt(f'{int(kind)} {name}', one.connect, address)
        attempt(f'{int(kind)} {name} dissolved', lambda: dissolved(one).connect(address))
attempt('socket', lambda: socket.socket(socket.AF_UNIX).connect(SERVICE))
attempt('port', lambda: socket.create_connection(('127.0.0.1', PORT)))
"),
        policy = |scene| python(scene).network(Network::tcp([1], [])),
        refused = &[refused("socket", 1)],
        lacks = lacks_ports,
        control = OUTSIDE.gains(&["socket", "port"]);

    other_words_for_the_same_address_open_no_other_port:
        program = Program::Python(r"
for host in ('127.0.0.1', '0.0.0.0', '127.1.2.3', 'localhost'):
    attempt(host, lambda: socket.create_connection((host, PORT)))
for host in ('::1', '::ffff:127.0.0.1', '::', '::ffff:0.0.0.0'):
    attempt(host, lambda: socket.socket(socket.AF_INET6).connect((host, PORT)))
def raw(family, tail=b''):
    s = socket.socket()
    if libc.connect(s.fileno(), struct.pack('!2sH4s8x', struct.pack('H', family), PORT, bytes([127, 0, 0, 1])), 16) < 0:
        raise OSError(ctypes.get_errno(), 'connect')
    s.getpeername()
attempt('unspecified family', raw, 0)
attempt('wrong family', raw, 10)
def bound(family, address):
    s = socket.socket()
    if libc.bind(s.fileno(), struct.pack('!2sH4s8x', struct.pack('H', family), 0, address), 16) < 0:
        raise OSError(ctypes.get_errno(), 'bind')
    s.listen()
attempt('bound to a family of none', bound, 0, bytes(4))
attempt('bound', bound, 2, bytes(4))
"),
        policy = |scene| python(scene).network(Network::tcp([1], [])).read("/etc/hosts"),
        // The look-up of a name tries a service and a socket for datagrams.
        refused = &[refused("socket", 0)],
        answers = &[("127.0.0.1", "EACCES"), ("0.0.0.0", "EACCES"), ("127.1.2.3", "EACCES"), ("bound", "EACCES")],
        lacks = lacks_ports,
        control = under(|scene| python(scene).network(Network::Host)).gains(&["127.0.0.1", "0.0.0.0", "bound", "bound to a family of none"]);

    a_ring_makes_no_call_that_the_filter_does_not_see:
        program = Program::Python(r"
parameters = ctypes.create_string_buffer(120)
attempt('setup', call, 'io_uring_setup', 8, parameters)
def of_one_thread():
    struct.pack_into('I', parameters, 8, 1 << 12 | 1 << 13)
    return call('io_uring_setup', 8, parameters)
attempt('of one thread', of_one_thread)
def enter(fd):
    try: call('io_uring_enter', fd, 0, 0, 0, 0, 0)
    except OSError as e:
        if e.errno == errno.ENOSYS: raise
attempt('enter', enter, 0)
attempt('register', lambda: call('io_uring_register', -1, 8, 0, 0) and False)
"),
        policy = |scene| python(scene).network(Network::Host),
        refused = &[refused("io_uring_setup", 2).probe(), refused("io_uring_enter", 1).probe(), refused("io_uring_register", 1).probe()],
        answers = &[("setup", "ENOSYS"), ("of one thread", "ENOSYS"), ("enter", "ENOSYS"), ("register", "ENOSYS")],
        lacks = lacks_io_uring,
        control = OUTSIDE.gains(&["setup", "enter"]);

    the_socket_that_libc_looks_for_a_name_service_with_is_had_by_nobody:
        program = Program::Python(r"
# Answered as a probe, and so no violation: what is asked for is a local socket all the same.
def service():
    s = socket.socket(fileno=call('socket', 1, 1 | 0o2000000 | 0o4000, 0))
    s.connect(SERVICE)
attempt('service', service)
"),
        refused = &[refused("socket", 1).probe()],
        answers = &[("service", "ENOSYS")],
        control = OUTSIDE;

    no_server_is_opened_at_any_address:
        program = Program::Python(r"
def serving(family, kind, address):
    s = socket.socket(family, kind); s.bind(address)
    if kind == socket.SOCK_STREAM: s.listen()
attempt('tcp', serving, socket.AF_INET, socket.SOCK_STREAM, ('127.0.0.1', 0))
attempt('udp', serving, socket.AF_INET, socket.SOCK_DGRAM, ('127.0.0.1', 0))
attempt('tcp6', serving, socket.AF_INET6, socket.SOCK_STREAM, ('::1', 0))
attempt('path', serving, socket.AF_UNIX, socket.SOCK_STREAM, 'here')
attempt('abstract', serving, socket.AF_UNIX, socket.SOCK_DGRAM, '\0varek-' + str(os.getpid()))
one, other = socket.socketpair()
attempt('pair', one.bind, '\0varek-pair-' + str(os.getpid()))
attempt('pair listening', one.listen)
attempt('pair accepting', one.accept)
"),
        refused = &[refused("socket", 5), refused("bind", 1), refused("listen", 1), refused("accept4", 1)],
        control = OUTSIDE.gains(&["tcp", "udp", "path", "abstract"]);

    programs_that_a_shell_starts_reach_no_network:
        program = Program::Shell(r#"
if (exec 3<>/dev/tcp/127.0.0.1/$PORT) 2>/dev/null; then echo 'tcp: won'; else echo 'tcp: refused'; fi
if (echo x >/dev/udp/127.0.0.1/9) 2>/dev/null; then echo 'udp: won'; else echo 'udp: refused'; fi
python3 -c "import os, socket; socket.create_connection(('127.0.0.1', $PORT))" 2>/dev/null && echo 'python: won' || echo 'python: refused'
perl -MSocket -e 'socket(S, PF_INET, SOCK_STREAM, 0) or exit 1' 2>/dev/null && echo 'perl: won' || echo 'perl: refused'
"#),
        policy = shell,
        refused = &[refused("socket", 3)],
        control = under(|scene| shell(scene).network(Network::Host)).gains(&["tcp", "udp", "python"]);

    nothing_is_sent_by_calls_that_take_an_address:
        program = Program::Python(r"
address = struct.pack('!2sH4s8x', struct.pack('H', 2), PORT, bytes([127, 0, 0, 1]))
one, other = socket.socketpair()
def sendto(fd, flags): return call('sendto', fd, b'x', 1, flags, address, 16)
attempt('sendto', sendto, one.fileno(), 0)
attempt('fast open', sendto, one.fileno(), 0x20000000)
message = struct.pack('PIxxxxPQPQi4xI4x', 0, 0, 0, 0, 0, 0, 0, 0)
attempt('sendmmsg', call, 'sendmmsg', one.fileno(), message, 1, 0)
attempt('option', call, 'setsockopt', one.fileno(), 1, 26, message, 16)
attempt('filter', call, 'setsockopt', one.fileno(), 1, 50, message, 4)
def fresh():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b'x', ('127.0.0.1', 9))
attempt('datagram', fresh)
"),
        refused = &[refused("sendto", 2), refused("sendmmsg", 1), refused("setsockopt", 2), refused("socket", 1)],
        control = under(|scene| python(scene).network(Network::Host)).gains(&["sendmmsg", "datagram"]);

    no_socket_is_had_where_only_the_layer_of_ports_is_missing:
        program = Program::Python(r"
for name, arguments in [('udp', (2, 2, 0)), ('raw', (2, 3, 1)), ('netlink', (16, 3, 0)), ('unix', (1, 1, 0)), ('mptcp', (2, 1, 262)),
                        ('sctp', (2, 1, 132)), ('smc', (2, 1, 256)), ('nonblocking udp', (2, 0o4002, 0)), ('udp of high bits', (2 | 1 << 32, 2, 0))]:
    attempt(name, call, 'socket', *arguments)
"),
        policy = |scene| python(scene).network(Network::tcp([1], [0])).best_effort(Layer::Network),
        refused = &[refused("socket", 9)],
        answers = &[("udp", "EPERM"), ("udp of high bits", "EPERM"), ("unix", "EPERM")],
        control = under(|scene| python(scene).network(Network::Host)).gains(&["udp", "netlink", "nonblocking udp", "udp of high bits"]);

    signals_of_a_sockets_owner_reach_nobody:
        program = Program::Python(r"
import fcntl
one, other = socket.socketpair()
for name, command, value in [('embedder', 8, EMBEDDER), ('owner', 8, VICTIM), ('group', 8, -VICTIM), ('signal', 10, 9)]:
    attempt(name, fcntl.fcntl, one, command, value)
attempt('owner of a pipe', fcntl.fcntl, os.pipe()[0], 15, struct.pack('ii', 0, VICTIM))
fcntl.fcntl(one, fcntl.F_SETFL, os.O_ASYNC)
other.send(b'x')
"),
        policy = |scene| python(scene).network(Network::Host).syscalls(|calls| calls.deny(["fanotify_init"])),
        refused = &[refused("fcntl", 5)],
        answers = &[("owner", "EPERM"), ("signal", "EPERM")],
        control = OUTSIDE.gains(&["owner", "group", "signal"]);

    watching_of_files_and_of_the_network_is_refused:
        program = Program::Python(r"
attempt('inotify', lambda: call('inotify_add_watch', call('inotify_init1', 0), GRANTED.encode(), 0xfff))
attempt('fanotify', call, 'fanotify_init', 0x200, 0)
attempt('netlink', call, 'socket', 16, 3, 0)
"),
        policy = |scene| scene.reading(python(scene)),
        refused = &[refused("inotify_init1", 1), refused("fanotify_init", 1), refused("socket", 1)],
        control = under(|scene| scene.reading(python(scene)).network(Network::Host)
            .syscalls(|calls| calls.allow_group(SyscallGroup::FileWatch).allow(["fanotify_init"]))).gains(&["inotify", "netlink"]).needs(Needs::Root);
}
