//! What a guest reaches over the network: nothing, TCP at the named ports, or the host's network. The listeners are the
//! test's own, on loopback addresses. Each attempt is made a second time where it is allowed, so that it is known to be
//! one.
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod support;

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as LocalAddr, UnixListener};
use std::thread;

use support::{assert_clean, assert_gone, denied, not_run, python, root, run, text, unconfined};
use varek_core::{Error, Host, LandlockSupport, Layer, Network, Outcome, Policy, Sandbox};

/// `attempt(f, ...)` prints `ok` or the name of the error; `connect` and `bind` take an address of IPv4 or IPv6.
const ATTEMPT: &str = r"
import ctypes, errno, os, socket, struct
def attempt(f, *arguments):
    try: f(*arguments); print('ok')
    except OSError as e: print(errno.errorcode[e.errno])
def tcp(host):
    return socket.socket(socket.AF_INET6 if ':' in host else socket.AF_INET)
def connect(host, port):
    with tcp(host) as s: s.connect((host, port))
def bind(host, port):
    with tcp(host) as s: s.bind((host, port)); s.listen()
";

fn attempts(lines: &str) -> String {
    format!("{ATTEMPT}{lines}")
}

#[track_caller]
fn answers(outcome: &Outcome) -> Vec<String> {
    let stderr = outcome.stderr.to_text();
    assert_eq!(outcome.exit_code(), Some(0), "{outcome}\n{stderr}");
    assert_gone(outcome);
    text(outcome).lines().map(str::to_owned).collect()
}

/// A listener that nobody is served at.
struct Service(TcpListener);

impl Service {
    fn at(address: &str) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        listener.set_nonblocking(true).unwrap();
        Self(listener)
    }

    fn port(&self) -> u16 {
        self.0.local_addr().unwrap().port()
    }

    /// How many connections there were since it was asked.
    fn connections(&self) -> usize {
        std::iter::from_fn(|| self.0.accept().ok()).count()
    }
}

/// The loopback addresses that there are; says which is missing.
fn loopbacks(test: &str) -> Vec<&'static str> {
    let there = |host: &&str| {
        let bound = TcpListener::bind((*host, 0));
        if let Err(error) = &bound {
            not_run(test, &format!("no listener on {host}: {error}"));
        }
        bound.is_ok()
    };
    ["127.0.0.1", "::1"].into_iter().filter(there).collect()
}

/// A port at which nothing listens, in the test's process at least.
fn free_port() -> u16 {
    Service::at("127.0.0.1:0").port()
}

fn tcp(connect: impl IntoIterator<Item = u16>, bind: impl IntoIterator<Item = u16>) -> Policy {
    python().network(Network::tcp(connect, bind))
}

/// Where Landlock bounds no ports the filter holds all the same.
fn filtered(connect: impl IntoIterator<Item = u16>, bind: impl IntoIterator<Item = u16>) -> Policy {
    tcp(connect, bind).best_effort(Layer::Network)
}

// ---- denied ----

/// Prints what can be made of every family and kind.
const EVERY_SOCKET: &str = r"
import socket
for family in range(51):
    for kind in (1, 2, 3, 4, 5, 6, 10):
        for name, make in ('socket', socket.socket), ('pair', socket.socketpair):
            try: made = make(family, kind)
            except OSError: continue
            print(name, family, kind)
";

#[test]
fn nothing_but_local_pairs_can_be_made_where_the_network_is_denied() {
    let outcome = run(&sandbox!(python()), EVERY_SOCKET);
    assert_eq!(answers(&outcome), ["pair 1 1", "pair 1 5"], "{outcome}");
    assert_eq!(denied(&outcome, "socket").count, 51 * 7);
    assert_eq!(denied(&outcome, "socketpair").count, 51 * 7 - 2);
    assert_eq!(
        outcome
            .violation()
            .and_then(|violation| violation.syscall()),
        Some("socket")
    );

    let free = unconfined(EVERY_SOCKET);
    for made in [
        "socket 1 1",
        "socket 1 2",
        "socket 2 1",
        "socket 2 2",
        "socket 16 3",
        "pair 1 2",
    ] {
        assert!(free.lines().any(|line| line == made), "{made}\n{free}");
    }
}

#[test]
fn a_pair_cannot_be_pointed_at_anything_else() {
    let service = Service::at("127.0.0.1:0");
    let source = attempts(&format!(
        "one, other = socket.socketpair()\nP = ('127.0.0.1', {})\n\
         attempt(socket.socket(fileno=one.detach(), family=2).connect, P)\n\
         attempt(other.sendmsg, [b'x'], [], 0x20000000, '\\0varek-test')",
        service.port()
    ));
    let outcome = run(&sandbox!(python()), &source);
    assert_eq!(answers(&outcome)[0], "EPERM", "{outcome}");
    assert_eq!(denied(&outcome, "connect").count, 1);
    assert_ne!(answers(&outcome)[1], "ok");
    assert_eq!(service.connections(), 0);
    unconfined(&attempts(&format!(
        "connect('127.0.0.1', {})",
        service.port()
    )));
    assert_eq!(service.connections(), 1);
}

// ---- TCP ----

#[test]
fn the_named_ports_can_be_connected_to_and_no_others() {
    let test = "the_named_ports_can_be_connected_to_and_no_others";
    for host in loopbacks(test) {
        let [open, closed] =
            [(); 2].map(|()| Service::at(&SocketAddr::new(host.parse().unwrap(), 0).to_string()));
        // The same service by its other name.
        let mapped = host == "127.0.0.1" && loopbacks(test).contains(&"::1");
        let names = [host, "::ffff:127.0.0.1"]
            .into_iter()
            .take(1 + usize::from(mapped));
        let tries = names.flat_map(|name| {
            [&open, &closed].map(|to| format!("attempt(connect, '{name}', {})\n", to.port()))
        });
        let source: String = tries.collect();
        let source = attempts(&source);
        let outcome = run(&sandbox!(tcp([open.port()], [])), &source);
        for (index, answer) in answers(&outcome).iter().enumerate() {
            let expected = if index % 2 == 0 { "ok" } else { "EACCES" };
            assert_eq!(answer, expected, "{host}: {outcome}");
        }
        assert!(open.connections() > 0);
        assert_eq!(closed.connections(), 0);
        // What Landlock refuses is in no outcome.
        assert_eq!(outcome.violation(), None, "{outcome}");

        let outcome = run(&sandbox!(python().network(Network::Host)), &source);
        assert!(answers(&outcome).iter().all(|answer| answer == "ok"));
        assert!(closed.connections() > 0);
    }
}

#[test]
fn a_socket_that_was_connected_is_not_connected_to_another_port() {
    let [open, closed] = [(); 2].map(|()| Service::at("127.0.0.1:0"));
    let source = attempts(&format!(
        "libc = ctypes.CDLL(None, use_errno=True)\n\
         s = tcp('127.0.0.1')\nattempt(s.connect, ('127.0.0.1', {}))\n\
         print(libc.connect(s.fileno(), struct.pack('H14x', socket.AF_UNSPEC), 16))\n\
         attempt(s.connect, ('127.0.0.1', {}))",
        open.port(),
        closed.port()
    ));
    let outcome = run(&sandbox!(tcp([open.port()], [])), &source);
    assert_eq!(answers(&outcome), ["ok", "0", "EACCES"]);
    assert_eq!(closed.connections(), 0);
    assert_eq!(unconfined(&source), "ok\n0\nok\n");
    assert_eq!(closed.connections(), 1);
}

#[test]
fn the_named_ports_can_be_listened_at_and_no_others() {
    for host in loopbacks("the_named_ports_can_be_listened_at_and_no_others") {
        let (open, closed) = (free_port(), free_port());
        let source = attempts(&format!(
            "attempt(bind, '{host}', {open})\nattempt(bind, '{host}', {closed})\nattempt(bind, '{host}', 0)\n"
        ));
        let outcome = run(&sandbox!(tcp([], [open])), &source);
        assert_eq!(answers(&outcome), ["ok", "EACCES", "EACCES"], "{host}");
        let outcome = run(&sandbox!(tcp([], [0])), &source);
        assert_eq!(answers(&outcome), ["EACCES", "EACCES", "ok"], "{host}");
        let outcome = run(&sandbox!(python().network(Network::Host)), &source);
        assert_eq!(answers(&outcome), ["ok"; 3], "{host}");
    }
}

#[test]
fn a_client_does_not_listen_and_a_server_does_not_connect() {
    let service = Service::at("127.0.0.1:0");
    let port = service.port();
    let source = attempts(&format!(
        "attempt(tcp('').listen)\nattempt(connect, '127.0.0.1', {port})\nattempt(bind, '127.0.0.1', 0)"
    ));
    let outcome = run(&sandbox!(filtered([port], [])), &source);
    let found = answers(&outcome);
    assert_eq!((&*found[0], &*found[1]), ("EPERM", "ok"), "{outcome}");
    assert_ne!(found[2], "ok");
    assert!(denied(&outcome, "listen").count >= 1);
    assert_eq!(service.connections(), 1);

    let outcome = run(&sandbox!(filtered([], [0])), &source);
    assert_eq!(answers(&outcome), ["ok", "EPERM", "ok"], "{outcome}");
    assert_eq!(denied(&outcome, "connect").count, 1);
    assert_eq!(service.connections(), 0);
}

/// Prints which of these sockets can be made.
const OTHER_KINDS: &str = r"
import socket
for name, family, kind, protocol in [
    ('udp', 2, 2, 0), ('udp6', 10, 2, 0), ('lite', 2, 2, 136), ('ping', 2, 2, 1), ('raw', 2, 3, 1),
    ('raw6', 10, 3, 58), ('mptcp', 2, 1, 262), ('mptcp6', 10, 1, 262), ('sctp', 2, 1, 132), ('dccp', 2, 6, 33),
    ('unix', 1, 1, 0), ('unix datagram', 1, 2, 0), ('netlink', 16, 3, 0), ('packet', 17, 3, 0),
    ('bluetooth', 31, 3, 1), ('alg', 38, 5, 0), ('vsock', 40, 1, 0), ('smc', 43, 1, 0), ('smc by protocol', 2, 1, 256),
    ('xdp', 44, 3, 0),
]:
    try: socket.socket(family, kind, protocol).close(); print(name)
    except OSError: pass
try: a, b = socket.socketpair(1, 2); print('datagram pair')
except OSError: pass
print('tried')
";

/// `CAP_NET_RAW` of this process, 13.
fn may_make_raw_sockets() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mut lines = status.lines();
    let effective = lines.find_map(|line| line.strip_prefix("CapEff:\t"));
    u64::from_str_radix(effective.unwrap(), 16).unwrap() & 1 << 13 != 0
}

#[test]
fn sockets_of_every_other_kind_are_refused_under_tcp() {
    let outcome = run(&sandbox!(filtered([443], [0])), OTHER_KINDS);
    assert_eq!(answers(&outcome), ["tried"], "{outcome}");
    assert_eq!(denied(&outcome, "socket").count, 20);
    assert_eq!(denied(&outcome, "socketpair").count, 1);

    let free = unconfined(OTHER_KINDS);
    let free: BTreeSet<&str> = free.lines().collect();
    for kind in [
        "udp",
        "udp6",
        "unix",
        "unix datagram",
        "netlink",
        "datagram pair",
    ] {
        assert!(free.contains(kind), "{kind}: {free:?}");
    }
    // Where the kernel has them and whoever runs the tests may make them.
    let mptcp = std::fs::read_to_string("/proc/sys/net/mptcp/enabled");
    let mptcp = mptcp.is_ok_and(|enabled| enabled.trim() == "1");
    for (kind, there) in [("mptcp", mptcp), ("raw", may_make_raw_sockets())] {
        assert!(free.contains(kind) || !there, "{kind}: {free:?}");
    }
    let outcome = run(&sandbox!(python().network(Network::Host)), OTHER_KINDS);
    let made = answers(&outcome);
    for kind in ["udp", "lite", "netlink"] {
        assert!(made.iter().any(|name| name == kind), "{kind}: {made:?}");
    }
    let local = made.iter().any(|name| name == "unix");
    assert_eq!(local, root(), "{made:?}");
}

#[test]
fn nothing_is_connected_by_the_first_message() {
    let service = Service::at("127.0.0.1:0");
    let source = attempts(&format!(
        "P = ('127.0.0.1', {})\nFAST = 0x20000000\n\
         attempt(lambda: tcp('').sendto(b'x', FAST, P))\n\
         attempt(lambda: tcp('').sendmsg([b'x'], [], FAST, P))\n\
         attempt(lambda: tcp('').setsockopt(6, 30, 1))\nattempt(lambda: tcp('').setsockopt(6, 23, 1))",
        service.port()
    ));
    // Neither to another port nor to a named one, where it would be no way round.
    for port in [1, service.port()] {
        let outcome = run(&sandbox!(filtered([port], [0])), &source);
        assert_eq!(answers(&outcome), ["EPERM"; 4], "{outcome}");
        for (call, count) in [("sendto", 1), ("sendmsg", 1), ("setsockopt", 2)] {
            assert_eq!(denied(&outcome, call).count, count, "{outcome}");
        }
        assert_eq!(service.connections(), 0);
    }
    let setting = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_fastopen").unwrap();
    if setting.trim().parse::<u32>().unwrap() & 1 == 0 {
        let test = "nothing_is_connected_by_the_first_message";
        not_run(
            test,
            "without its control: TCP fast open is off for clients here",
        );
        return;
    }
    let outcome = run(&sandbox!(python().network(Network::Host)), &source);
    assert_eq!(answers(&outcome), ["ok"; 4]);
    assert_eq!(service.connections(), 2);
}

#[test]
fn honest_options_can_be_changed_and_those_that_open_another_way_cannot() {
    let honest = attempts(
        "s = tcp('')\n\
         for level, name in [(1, 2), (1, 7), (1, 8), (1, 9), (6, 1), (6, 3), (6, 4), (6, 5), (6, 6), (6, 12), (6, 18)]:\n\
         \x20   attempt(s.setsockopt, level, name, 1); attempt(s.getsockopt, level, name)\n\
         attempt(s.setsockopt, 1, 13, struct.pack('ii', 1, 1)); attempt(s.setsockopt, 1, 20, struct.pack('ll', 1, 0))\n\
         attempt(tcp('::').setsockopt, 41, 26, 1); attempt(s.getsockopt, 1, 4); attempt(s.getsockopt, 6, 11, 104)",
    );
    let outcome = run(&sandbox!(filtered([1], [0])), &honest);
    assert_clean(&outcome);
    assert_eq!(answers(&outcome), ["ok"; 27]);

    // SO_REUSEPORT, SO_ATTACH_FILTER (one instruction: accept), TCP_CONGESTION, TCP_ULP, IPV6_ADDRFORM.
    let source = attempts(
        "code = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0xffff))\n\
         program = struct.pack('HxxxxxxP', 1, ctypes.addressof(code))\n\
         attempt(tcp('').setsockopt, 1, 15, 1)\nattempt(tcp('').setsockopt, 1, 26, program)\n\
         attempt(tcp('').setsockopt, 6, 13, b'reno')\nattempt(tcp('').setsockopt, 6, 31, b'smc')\n\
         attempt(tcp('::').setsockopt, 41, 1, 2)",
    );
    let outcome = run(&sandbox!(filtered([1], [0])), &source);
    assert_eq!(answers(&outcome), ["EPERM"; 5], "{outcome}");
    assert_eq!(denied(&outcome, "setsockopt").count, 5);
    let outcome = run(&sandbox!(python().network(Network::Host)), &source);
    // What the kernel then says of filters to an ordinary user and of modules that it lacks is its own.
    let wide = answers(&outcome);
    assert_eq!((&*wide[0], &*wide[2]), ("ok", "ok"), "{wide:?}");
    assert_eq!(outcome.violation(), None, "{outcome}");
}

#[test]
fn asyncio_serves_and_connects_over_tcp() {
    let port = free_port();
    let source = format!(
        "import asyncio\n\
         async def serve(reader, writer):\n\
         \x20   writer.write((await reader.readline()).upper()); await writer.drain(); writer.close()\n\
         async def main():\n\
         \x20   server = await asyncio.start_server(serve, '127.0.0.1', {port})\n\
         \x20   reader, writer = await asyncio.open_connection('127.0.0.1', {port})\n\
         \x20   writer.write(b'hello\\n'); print((await reader.readline()).decode(), end='')\n\
         \x20   writer.close(); server.close()\n\
         asyncio.run(main())"
    );
    let outcome = run(&sandbox!(filtered([port], [port])), &source);
    assert_clean(&outcome);
    assert_eq!(text(&outcome), "HELLO\n");

    let outcome = run(&sandbox!(python()), &source);
    assert_eq!(outcome.exit_code(), Some(1), "{outcome}");
    assert!(denied(&outcome, "socket").count > 0);
}

/// Answers one request of HTTP after the other.
fn pages() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let head = BufReader::new(&client).lines().map_while(Result::ok);
            head.take_while(|line| !line.is_empty()).for_each(drop);
            let page = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\npage\n";
            let _ = (&client).write_all(page.as_bytes());
        }
    });
    port
}

#[test]
fn urllib_fetches_over_tcp() {
    let port = pages();
    let source = format!(
        "import urllib.request\n\
         opener = urllib.request.build_opener(urllib.request.ProxyHandler({{}}))\n\
         try: print(opener.open('http://127.0.0.1:{port}/').read().decode(), end='')\n\
         except OSError as e: print(e.reason.errno)"
    );
    let outcome = run(&sandbox!(filtered([port], [])), &source);
    assert_clean(&outcome);
    assert_eq!(text(&outcome), "page\n");
    let outcome = run(&sandbox!(tcp([1], [])), &source);
    assert_eq!(text(&outcome), "13\n", "{outcome}");
}

#[test]
fn threads_and_children_have_the_ports_of_the_run_and_no_others() {
    let closed = Service::at("127.0.0.1:0");
    let source = attempts(&format!(
        "import threading\ndef reach(): attempt(connect, '127.0.0.1', {})\n\
         thread = threading.Thread(target=reach); thread.start(); thread.join()\n\
         import sys; sys.stdout.flush()\n\
         if os.fork() == 0: reach(); sys.stdout.flush(); os._exit(0)\n\
         os.wait()",
        closed.port()
    ));
    let outcome = run(&sandbox!(tcp([1], [])), &source);
    assert_eq!(answers(&outcome), ["EACCES"; 2]);
    assert_eq!(closed.connections(), 0);
    let outcome = run(&sandbox!(tcp([closed.port()], [])), &source);
    assert_eq!(answers(&outcome), ["ok"; 2]);
}

// ---- hosts without port rules ----

/// This host, as far as it goes with a Landlock of this version.
fn older(abi: u32) -> Option<Host> {
    let mut host = Host::probe();
    let LandlockSupport::Version(there) = host.landlock else {
        return None;
    };
    host.landlock = LandlockSupport::Version(there.min(abi));
    Some(host)
}

#[test]
fn without_port_rules_tcp_is_refused_and_best_effort_says_that_ports_are_open() {
    let test = "without_port_rules_tcp_is_refused_and_best_effort_says_that_ports_are_open";
    let Some(host) = older(3) else {
        not_run(test, "there is no Landlock here");
        return;
    };
    drop(sandbox!(python()));
    let service = Service::at("127.0.0.1:0");
    let error = Sandbox::builder(tcp([1], [])).host(host.clone()).build();
    let Err(Error::Unsupported { missing }) = error else {
        panic!("{error:?}");
    };
    let layers: Vec<_> = missing.iter().map(|missing| missing.layer).collect();
    assert_eq!(layers, [Layer::Network]);
    assert!(missing[0].asked.contains("connections to ports 1"));

    let lenient = filtered([1], []);
    let sandbox = Sandbox::builder(lenient).host(host).build().unwrap();
    let source = attempts(&format!(
        "attempt(connect, '127.0.0.1', {})\nattempt(socket.socket, 2, 2)\nattempt(tcp('').listen)",
        service.port()
    ));
    let outcome = run(&sandbox, &source);
    assert_eq!(answers(&outcome), ["ok", "EPERM", "EPERM"], "{outcome}");
    assert_eq!(service.connections(), 1);
    let mut missing = outcome.enforcement.missing();
    let (_, reason) = missing.find(|(layer, _)| *layer == Layer::Network).unwrap();
    assert!(reason.contains("TCP at every port"), "{reason}");
}

// ---- the host's network ----

#[test]
fn abstract_sockets_of_others_are_reached_only_with_the_hosts_network_and_before_their_scope() {
    let test =
        "abstract_sockets_of_others_are_reached_only_with_the_hosts_network_and_before_their_scope";
    let Some(old) = older(5) else {
        not_run(test, "there is no Landlock here");
        return;
    };
    let name = format!("varek-test-{}", std::process::id());
    let address = LocalAddr::from_abstract_name(&name).unwrap();
    let service = UnixListener::bind_addr(&address).unwrap();
    service.set_nonblocking(true).unwrap();
    let source = attempts(&format!(
        "attempt(lambda: socket.socket(socket.AF_UNIX).connect('\\0{name}'))"
    ));
    // A pair, also one whose other end is gone, is no way to get a local socket.
    let pairs = format!(
        "{source}\nfor kind in 1, 5:\n\
         \x20   one, other = socket.socketpair(socket.AF_UNIX, kind)\n\
         \x20   attempt(one.connect, '\\0{name}'); other.close(); attempt(one.connect, '\\0{name}')"
    );
    for network in [Network::Denied, Network::tcp([1], [0])] {
        let policy = python().network(network).best_effort(Layer::Network);
        let outcome = run(&sandbox!(policy), &pairs);
        let found = answers(&outcome);
        assert_eq!((found.len(), &*found[0]), (5, "EPERM"), "{outcome}");
        assert!(!found.contains(&"ok".to_owned()), "{found:?}");
        assert!(service.accept().is_err());
    }
    let wide = || python().network(Network::Host);
    let scoped = Host::probe().landlock.version() >= Some(6);
    for (host, scoped) in [(old, false), (Host::probe(), scoped)] {
        let sandbox = Sandbox::builder(wide()).host(host).build().unwrap();
        let outcome = run(&sandbox, &source);
        // Under the embedder's uid the filter refuses local sockets on every host.
        let reached = !scoped && root();
        let expected = if reached { "ok" } else { "EPERM" };
        assert_eq!(answers(&outcome), [expected], "{outcome}");
        assert_eq!(service.accept().is_ok(), reached);
    }
    assert_eq!(unconfined(&source), "ok\n");
}
