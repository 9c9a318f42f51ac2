//! What a guest needs of sockets that speaks TCP and nothing else.
//!
//! Every entry of the tables says who needs it. What is not there is refused, above all whatever makes a socket of
//! another kind or gives a TCP socket a peer or a port without connect(2) and bind(2), which is where Landlock looks.

use crate::Group;
use crate::policy::SyscallPolicy;
use crate::rule::{Condition, Rule, Width};

/// Which ends of TCP connections a guest may be; see [`SyscallPolicy::with_tcp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TcpRole {
    /// It connects.
    Client,
    /// It listens and accepts.
    Server,
    /// It does both.
    Both,
}

impl TcpRole {
    const fn connects(self) -> bool {
        matches!(self, Self::Client | Self::Both)
    }

    const fn listens(self) -> bool {
        matches!(self, Self::Server | Self::Both)
    }
}

/// Any arguments, for every role: addresses and ends of a socket that is there, what came in. `bind` is in it for
/// clients too: urllib3 (so `requests`) and Go's `net` bind a socket to ::1 when they start, to learn whether there
/// is IPv6, and go on when Landlock refuses that.
const EVERY: [&str; 6] = [
    "bind",
    "getpeername",
    "getsockname",
    "recvfrom",
    "recvmsg",
    "shutdown",
];
const CLIENT: &[&str] = &["connect"];
/// `accept` for libraries that do not know `accept4`, Linux 2.6.28.
const SERVER: &[&str] = &["accept", "accept4", "listen"];

const AF_INET: u32 = 2;
const AF_INET6: u32 = 10;
const SOCK_STREAM: u64 = 1;
/// `SOCK_CLOEXEC` and `SOCK_NONBLOCK`, which say nothing about the kind.
const SOCK_FLAGS: u64 = 0o2_004_000;
/// 0 is TCP for a stream socket of these families. Others that are streams (MPTCP, SCTP, SMC) are not: Landlock's
/// port rules hold for TCP alone.
const PROTOCOLS: [u32; 2] = [0, IPPROTO_TCP];
/// Connects to the address of the message, where no security module is asked.
const MSG_FASTOPEN: u64 = 0x2000_0000;

const SOL_SOCKET: u32 = 1;
const IPPROTO_TCP: u32 = 6;
const IPPROTO_IPV6: u32 = 41;

/// Levels and names of options that may be changed. Left out, among others: packet filters and their locks
/// (`SO_ATTACH_FILTER`, `SO_ATTACH_BPF`, `SO_ATTACH_REUSEPORT_*`); `SO_REUSEPORT`, by which processes of one user
/// take connections from each other; `SO_BINDTODEVICE`, `SO_MARK`, `IP_OPTIONS`; `TCP_FASTOPEN` and
/// `TCP_FASTOPEN_CONNECT`; `TCP_ULP`, which makes a TCP socket one of SMC (Linux 5.17) or gives it the kernel's TLS;
/// `TCP_REPAIR`, `IPV6_ADDRFORM`.
const OPTIONS: [(u32, u32); 16] = [
    (SOL_SOCKET, 2),    // SO_REUSEADDR: every server
    (SOL_SOCKET, 6),    // SO_BROADCAST: older Go on every IPv4 socket, without effect
    (SOL_SOCKET, 7),    // SO_SNDBUF: JVM, gRPC, database drivers
    (SOL_SOCKET, 8),    // SO_RCVBUF: as SO_SNDBUF
    (SOL_SOCKET, 9),    // SO_KEEPALIVE: curl, Go, database drivers
    (SOL_SOCKET, 13),   // SO_LINGER: JVM, Go's SetLinger
    (SOL_SOCKET, 20),   // SO_RCVTIMEO: Rust's and Ruby's time-outs
    (SOL_SOCKET, 21),   // SO_SNDTIMEO: as SO_RCVTIMEO
    (IPPROTO_TCP, 1),   // TCP_NODELAY: asyncio, urllib3, http.client, curl, Go, Node
    (IPPROTO_TCP, 3),   // TCP_CORK: servers before sendfile
    (IPPROTO_TCP, 4),   // TCP_KEEPIDLE: curl, Go, libpq
    (IPPROTO_TCP, 5),   // TCP_KEEPINTVL: as TCP_KEEPIDLE
    (IPPROTO_TCP, 6),   // TCP_KEEPCNT: as TCP_KEEPIDLE
    (IPPROTO_TCP, 12),  // TCP_QUICKACK: JVM, latency-bound clients
    (IPPROTO_TCP, 18),  // TCP_USER_TIMEOUT: gRPC, libpq
    (IPPROTO_IPV6, 26), // IPV6_V6ONLY: asyncio's and Go's servers, Go's clients
];

/// Options of TCP and IPv6 that may be read beside those that may be changed.
const READABLE: [(u32, u32); 1] = [
    (IPPROTO_TCP, 11), // TCP_INFO: gRPC, servers' statistics
];

/// The rules of every role.
fn rules() -> Vec<Rule> {
    let kind = Condition::masked_equal(1, Width::Bits32, 0xffff_ffff & !SOCK_FLAGS, SOCK_STREAM);
    let sockets = [AF_INET, AF_INET6].into_iter().flat_map(|family| {
        let kind = kind.clone();
        PROTOCOLS.map(move |protocol| {
            Rule::on("socket")
                .int(0, family)
                .and(kind.clone())
                .int(2, protocol)
        })
    });
    let unopened = |index| Condition::masked_equal(index, Width::Bits32, MSG_FASTOPEN, 0);
    // send(3) is sendto without an address; TCP has no use for one but to connect.
    let send = Rule::on("sendto")
        .and(unopened(3))
        .and(Condition::equal(4, Width::Bits64, 0));
    // The kernel takes the flags from the register, and none of this kind from the message.
    let message = Rule::on("sendmsg").and(unopened(2));
    let option = |call: &str, (level, name): (u32, u32)| Rule::on(call).int(1, level).int(2, name);
    let change = OPTIONS.map(|option_of| option("setsockopt", option_of));
    // Of SOL_SOCKET everything: SO_ERROR, SO_TYPE, SO_DOMAIN, SO_PROTOCOL.
    let socket_level = Rule::on("getsockopt").int(1, SOL_SOCKET);
    let read = OPTIONS
        .into_iter()
        .filter(|(level, _)| *level != SOL_SOCKET)
        .chain(READABLE)
        .map(|option_of| option("getsockopt", option_of));
    sockets
        .chain([send, message])
        .chain(change)
        .chain([socket_level])
        .chain(read)
        .collect()
}

impl SyscallPolicy {
    /// The policy for a guest that has TCP sockets of IPv4 and IPv6, in these roles, and no others but the pairs of
    /// [`Group::SocketPair`] where the policy has those. What the policy says of other calls stays.
    ///
    /// - `socket` only for `SOCK_STREAM` of `AF_INET` and `AF_INET6` with protocol 0 or `IPPROTO_TCP`: no UDP, no MPTCP
    ///   (ip(7), socket(2)).
    /// - `connect` for clients; `listen` and `accept` for servers; `bind` for all.
    /// - `sendto` without an address; `sendto` and `sendmsg` without `MSG_FASTOPEN`, which connects without connect(2);
    ///   no `sendmmsg` and `recvmmsg`, which datagrams are for.
    /// - `setsockopt` for options that honest programs change: reuse of addresses, buffer sizes, keep-alive,
    ///   time-outs, lingering, `TCP_NODELAY` and the like. No packet filters, no TCP fast open, no `TCP_ULP`.
    ///
    /// Whatever else the policy's groups, names and rules allow of the calls of [`Group::Network`] is taken back.
    ///
    /// Ports and addresses are behind pointers, where no filter can look: bound ports by Landlock (ABI 4, Linux 6.7).
    /// What that does not see either is a listen(2) without a bind(2), which takes a free port.
    #[must_use]
    pub fn with_tcp(mut self, role: TcpRole) -> Self {
        self.spell_out(Group::Network);
        self.spell_out(Group::SocketPair);
        let client = if role.connects() { CLIENT } else { &[] };
        let server = if role.listens() { SERVER } else { &[] };
        let plain = || EVERY.iter().chain(client).chain(server);
        let rules = rules();
        let pairs = Group::SocketPair.rules();
        for call in Group::Network.calls() {
            let bounds = rules
                .iter()
                .chain(pairs.iter().filter(|rule| rule.call() == "socketpair"))
                .filter(|rule| rule.call() == *call);
            let bounds: Vec<_> = bounds.cloned().collect();
            if !plain().any(|name| name == call) {
                self.narrow(call, &bounds);
            }
        }
        self.calls.extend(plain().map(|name| (*name).to_owned()));
        rules.into_iter().fold(self, Self::allow_when)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::tests::allowed;
    use crate::{Arch, Program, Reporting};

    const ROLES: [TcpRole; 3] = [TcpRole::Client, TcpRole::Server, TcpRole::Both];
    const CLOEXEC: u64 = 0o2_000_000;
    const NONBLOCK: u64 = 0o4_000;
    /// Of IP: any, ICMP, TCP, UDP, DCCP, ICMPv6, SCTP, UDP-Lite, raw, SMC, MPTCP; none.
    const PROTOCOLS_OF_STREAMS: [u64; 12] =
        [0, 1, 6, 17, 33, 58, 132, 136, 255, 256, 262, 0xffff_ffff];

    /// With a policy that has nothing of sockets, one with pairs, one with everything.
    fn programs(role: TcpRole) -> Vec<Program> {
        let bare = SyscallPolicy::new();
        let wide = SyscallPolicy::python().allow_group(Group::Network);
        let named = SyscallPolicy::python().allow(Group::Network.calls());
        let ruled = SyscallPolicy::python()
            .allow_when(Rule::on("socket").int(0, 16))
            .allow_when(Rule::on("sendto").int(5, 16))
            .allow_when(Rule::on("setsockopt").int(1, 1));
        let policies = [bare, SyscallPolicy::python(), wide, named, ruled];
        let each = policies.into_iter().flat_map(|policy| {
            let policy = policy.with_tcp(role);
            let shared = policy.clone().sharing_uid(7);
            Arch::ALL.into_iter().flat_map(move |arch| {
                [&policy, &shared].map(|policy| policy.compile(arch, Reporting::Notify).unwrap())
            })
        });
        each.collect()
    }

    #[test]
    fn tcp_sockets_are_made_and_no_others() {
        for role in ROLES {
            for program in programs(role) {
                let socket = |family, kind, protocol| {
                    allowed(&program, "socket", [family, kind, protocol, 0, 0, 0])
                };
                for family in 0..64 {
                    for kind in 0..16 {
                        for protocol in PROTOCOLS_OF_STREAMS {
                            let tcp = [2, 10].contains(&family)
                                && kind == 1
                                && [0, 6].contains(&protocol);
                            assert_eq!(
                                socket(family, kind, protocol),
                                tcp,
                                "{family} {kind} {protocol}"
                            );
                        }
                    }
                }
                for flags in [CLOEXEC, NONBLOCK, CLOEXEC | NONBLOCK] {
                    assert!(socket(2, 1 | flags, 6) && socket(10, 1 | flags, 0));
                    assert!(!socket(2, 2 | flags, 0) && !socket(10, 3 | flags, 0));
                }
                assert!(!socket(2, 1 | 0x10, 0) && !socket(2, 1 | 0x4000_0000, 0));
                // What the kernel does not look at changes nothing.
                assert!(socket(2 | 1 << 32, 1 | 1 << 40, 6 | 1 << 50));
            }
        }
    }

    #[test]
    fn messages_go_out_without_fast_open_and_without_an_address() {
        const FAST: u64 = 0x2000_0000;
        const NOSIGNAL: u64 = 0x4000;
        for program in ROLES.into_iter().flat_map(programs) {
            let sendto =
                |flags, address| allowed(&program, "sendto", [3, 0, 9, flags, address, 16]);
            assert!(sendto(0, 0) && sendto(NOSIGNAL, 0));
            assert!(!sendto(FAST, 0) && !sendto(0, 1) && !sendto(0, 1 << 32));
            assert!(!sendto(FAST | NOSIGNAL, 1));
            let sendmsg = |flags| allowed(&program, "sendmsg", [3, 1, flags, 0, 0, 0]);
            assert!(sendmsg(0) && sendmsg(NOSIGNAL));
            assert!(!sendmsg(FAST) && !sendmsg(FAST | NOSIGNAL));
            for call in ["sendmmsg", "recvmmsg"] {
                assert!(!allowed(&program, call, [0; 6]), "{call}");
            }
        }
    }

    #[test]
    fn a_role_has_its_own_calls() {
        for role in ROLES {
            for program in programs(role) {
                let any = |name| allowed(&program, name, [3, 1, 1, 0, 0, 0]);
                assert_eq!(any("connect"), role.connects(), "{role:?}");
                for call in ["listen", "accept", "accept4"] {
                    assert_eq!(any(call), role.listens(), "{role:?} {call}");
                }
                for call in EVERY {
                    assert!(any(call), "{role:?} {call}");
                }
            }
        }
    }

    #[test]
    fn options_that_open_another_way_are_not_changed() {
        // SO_REUSEPORT, SO_BINDTODEVICE, SO_ATTACH_FILTER, SO_LOCK_FILTER, SO_MARK, SO_ATTACH_BPF, SO_ATTACH_REUSEPORT_EBPF;
        // IP_OPTIONS, IP_TRANSPARENT; TCP_CONGESTION, TCP_MD5SIG, TCP_REPAIR, TCP_FASTOPEN, TCP_FASTOPEN_CONNECT, TCP_ULP;
        // IPV6_ADDRFORM; SOL_MPTCP, SOL_TLS.
        let refused = [
            (1, &[15, 25, 26, 36, 44, 50, 52][..]),
            (0, &[4, 19]),
            (6, &[13, 14, 19, 23, 30, 31]),
            (41, &[1]),
            (284, &[1]),
            (282, &[1]),
        ];
        for program in ROLES.into_iter().flat_map(programs) {
            let option = |call, level, name| allowed(&program, call, [3, level, name, 0, 0, 0]);
            for (level, names) in refused {
                for name in names {
                    assert!(!option("setsockopt", level, *name), "{level} {name}");
                    assert_eq!(
                        option("getsockopt", level, *name),
                        level == 1,
                        "{level} {name}"
                    );
                }
            }
            for (level, name) in OPTIONS {
                let (level, name) = (level.into(), name.into());
                assert!(option("setsockopt", level, name) && option("getsockopt", level, name));
            }
        }
    }

    #[test]
    fn pairs_are_there_where_the_policy_has_them_and_stay_pairs() {
        for (policy, there) in [
            (SyscallPolicy::new(), false),
            (SyscallPolicy::python(), true),
            (SyscallPolicy::new().allow_group(Group::Network), true),
        ] {
            let program = policy.with_tcp(TcpRole::Both);
            let program = program.compile(Arch::X86_64, Reporting::Notify).unwrap();
            let pair = |family, kind| allowed(&program, "socketpair", [family, kind, 0, 0, 0, 0]);
            assert_eq!(pair(1, 1 | CLOEXEC), there);
            assert!(!pair(1, 2) && !pair(2, 1) && !pair(16, 3));
        }
    }

    #[test]
    fn what_is_denied_stays_denied() {
        let policy = SyscallPolicy::python().deny(["bind", "setsockopt"]);
        let program = policy.with_tcp(TcpRole::Both);
        let program = program.compile(Arch::X86_64, Reporting::Notify).unwrap();
        assert!(!allowed(&program, "bind", [0; 6]));
        assert!(!allowed(&program, "setsockopt", [3, 6, 1, 0, 0, 0]));
        assert!(allowed(&program, "connect", [0; 6]));
    }

    #[test]
    fn a_preset_with_tcp_stays_a_short_program() {
        for arch in Arch::ALL {
            let policy = SyscallPolicy::python().with_tcp(TcpRole::Both);
            let program = policy.compile(arch, Reporting::Notify).unwrap();
            let length = program.instructions().len();
            assert!(length < 350, "{length}");
        }
    }
}
