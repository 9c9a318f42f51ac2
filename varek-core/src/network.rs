//! What a guest reaches over the network: the policy's side. The kernel's side is the filter
//! ([`SyscallPolicy::with_tcp`]) and [`crate::landlock`].

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use varek_seccomp::{Group, Rule, SyscallPolicy, TcpRole};

use crate::error::Problem;

/// What a guest reaches over the network. This is the one place where that is said: a policy whose
/// [`syscalls`](crate::Policy::syscalls) name calls that make sockets or address them is a problem, unless this is
/// [`Network::Host`].
///
/// In TOML: `network = "denied"`, `network = "host"`, or `network = { tcp = { connect = [443], bind = [8080] } }`.
///
/// ```
/// use varek_core::{Network, Policy};
///
/// let client = Policy::python().network(Network::tcp([80, 443], []));
/// assert_eq!(client.problems(), []);
/// let contradiction = Policy::python().network(Network::tcp([], []));
/// assert_eq!(contradiction.problems()[0].field, "network");
/// ```
///
/// Sockets that the embedder hands to the guest as its stdin, stdout or stderr work under each of these.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Network {
    /// Nothing. socket(2) fails for every family, kind and protocol; socketpair(2) makes connected pairs of local
    /// stream sockets where `syscalls` have [`SyscallGroup::SocketPair`](crate::SyscallGroup::SocketPair), as the presets
    /// but `node` do: asyncio wakes itself by one, and it reaches nobody else.
    ///
    /// Enforced by the filter (seccomp(2), Linux 3.17), so on every host. Landlock refuses bind(2) and connect(2) of TCP
    /// a second time from Linux 6.7 on. Each attempt is a denied call of the outcome where those are reported (Linux 5.19).
    #[default]
    Denied,
    /// TCP over IPv4 and IPv6, to and from these ports of any host, and nothing else: no UDP, no raw sockets, no
    /// MPTCP, no netlink, no local sockets but pairs. [`Network::tcp`] makes it.
    ///
    /// The filter leaves the calls and options that TCP needs ([`SyscallPolicy::with_tcp`]); what it refuses is a denied
    /// call of the outcome. It sees no ports: Landlock bounds those (ABI 4, Linux 6.7; landlock(7)), and what
    /// that refuses is `EACCES` to the guest and in no outcome. Where the host has no such Landlock, the policy is
    /// refused, or with [`Layer::Network`](crate::Layer::Network) in `best_effort` runs with every TCP port open, and every
    /// outcome lists the layer as missing. The filter holds all the same.
    ///
    /// What gets round it:
    ///
    /// - Ports are bounded, not addresses: at an allowed port the guest reaches every host, and the services of this one.
    ///   What listens there can pass its data on: a proxy, or a name server.
    /// - Where `bind` names any port, a listen(2) without a bind(2) before it takes a free port of the ephemeral range, on
    ///   every address, which neither the filter nor Landlock sees. With an empty `bind`, listen(2) is refused.
    /// - A socket pair can be bound to a local name, abstract ones included, and connect(2) on it tells whether a local socket is
    ///   there. No connection comes of it.
    /// - What was sent stays in the kernel after the run until the peer takes it or the kernel gives up; on hybrid hosts no
    ///   limit counts it.
    /// - A BPF program by which root turns TCP sockets into MPTCP ones (`update_socket_protocol`, Linux 6.6) takes them
    ///   out of Landlock's sight.
    ///
    /// What an honest guest notices:
    ///
    /// - There is no name resolution, since DNS is UDP and a name service daemon answers at a local socket. Resolve in the
    ///   embedder and pass addresses on; or grant `/etc/hosts` for reading; or, for guests with glibc, let DNS use
    ///   TCP: grant `/etc/resolv.conf` and `/etc/hosts`, name port 53 in `connect`, and set `RES_OPTIONS=use-vc` in the
    ///   environment (resolv.conf(5)). Python's `http.server` looks up its own name when it starts: a denied call
    ///   `socket`, and it goes on.
    /// - Every client may call bind(2), and is refused by Landlock what `bind` does not name: urllib3 and Go try port 0 of
    ///   `::1` when they start, and then take IPv6 for missing. Port 0 in `bind` cures that, and lets the guest listen.
    /// - Go's servers (from 1.24) ask for MPTCP first and go on with TCP: one denied call `socket`.
    /// - TCP fast open (`MSG_FASTOPEN`, `TCP_FASTOPEN`, `TCP_FASTOPEN_CONNECT`), `SO_REUSEPORT` and packet filters are
    ///   refused: the first connects where Landlock does not look (seen on Linux 6.18).
    Tcp {
        /// Ports that the guest may connect to, 1 to 65535.
        #[serde(default)]
        connect: BTreeSet<u16>,
        /// Ports that the guest may listen at. 0 is a bind(2) to port 0, for which the kernel chooses a free one
        /// (`/proc/sys/net/ipv4/ip_local_port_range`). Ports under 1024 need a capability too, which guests do
        /// not have, unless `/proc/sys/net/ipv4/ip_unprivileged_port_start` is lower.
        #[serde(default)]
        bind: BTreeSet<u16>,
    },
    /// The host's network as it is, in the embedder's network namespace, with sockets of every family: the whole
    /// [`SyscallGroup::Network`](crate::SyscallGroup::Network). Calls can be taken away by
    /// [`SyscallPolicy::deny`]; what is left is bounded by what the guest's uid may do.
    ///
    /// Reached, among others: services of the machine on loopback addresses; local sockets whose file the guest's uid
    /// may write to, whatever paths are granted (Landlock does not mediate connect(2) to a path); **abstract local
    /// sockets**, which have no file and so no permissions, of everybody in the network namespace before Landlock's scope
    /// of them (ABI 6, Linux 6.12), and of the run alone from there on.
    ///
    /// Where guests share the embedder's uid, local sockets but pairs, and every family but IPv4, IPv6 and netlink, are
    /// refused all the same: see [`SyscallPolicy::sharing_uid`].
    Host,
}

/// Calls that make a socket or give one an address; what else there is acts on sockets that are there.
const REACHING: [&str; 7] = [
    "socket",
    "socketpair",
    "connect",
    "bind",
    "listen",
    "sendto",
    "sendmmsg",
];

/// Every run has a ruleset with a rule for each port.
const MOST_PORTS: usize = 1024;

static NO_PORTS: BTreeSet<u16> = BTreeSet::new();

impl Network {
    /// [`Network::Tcp`] with these ports to connect to, and to listen at.
    pub fn tcp(
        connect: impl IntoIterator<Item = u16>,
        bind: impl IntoIterator<Item = u16>,
    ) -> Self {
        Self::Tcp {
            connect: connect.into_iter().collect(),
            bind: bind.into_iter().collect(),
        }
    }

    /// Ports to connect to, of those that are bounded one by one.
    pub(crate) fn connect(&self) -> &BTreeSet<u16> {
        match self {
            Self::Tcp { connect, .. } => connect,
            Self::Denied | Self::Host => &NO_PORTS,
        }
    }

    /// Ports to listen at, of those that are bounded one by one.
    pub(crate) fn bind(&self) -> &BTreeSet<u16> {
        match self {
            Self::Tcp { bind, .. } => bind,
            Self::Denied | Self::Host => &NO_PORTS,
        }
    }

    /// The policy of the filter: that of the calls, and what this adds to it.
    pub(crate) fn filter(&self, syscalls: SyscallPolicy) -> SyscallPolicy {
        match self {
            Self::Denied => syscalls,
            Self::Tcp { connect, bind } => {
                syscalls.with_tcp(match (connect.is_empty(), bind.is_empty()) {
                    (_, true) => TcpRole::Client,
                    (true, false) => TcpRole::Server,
                    (false, false) => TcpRole::Both,
                })
            }
            Self::Host => syscalls.allow_group(Group::Network),
        }
    }

    /// What is bounded, for people.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Denied => "no sockets but connected local pairs".to_owned(),
            Self::Tcp { connect, bind } => {
                let end = |none: &str, some: &str, ports: &BTreeSet<u16>| {
                    if ports.is_empty() {
                        none.to_owned()
                    } else {
                        format!("{some} {}", listed(ports))
                    }
                };
                let client = end("no connections", "connections to ports", connect);
                let server = end("no servers", "servers at ports", bind);
                format!("TCP alone: {client}; {server}")
            }
            Self::Host => "the host's network".to_owned(),
        }
    }

    /// What contradicts itself, or what `syscalls` say.
    pub(crate) fn problems(&self, syscalls: &SyscallPolicy) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut add = |field, message| problems.push(Problem { field, message });
        if let Self::Tcp { connect, bind } = self {
            if connect.is_empty() && bind.is_empty() {
                add(
                    "network",
                    "is tcp without a port to connect to or to listen at; name one, or choose denied".into(),
                );
            }
            if connect.contains(&0) {
                add(
                    "network.tcp.connect",
                    "has port 0, at which nothing listens; name the ports, or choose host for all"
                        .into(),
                );
            }
            for (field, ports) in [("network.tcp.connect", connect), ("network.tcp.bind", bind)] {
                if ports.len() > MOST_PORTS {
                    add(
                        field,
                        format!(
                            "has {} ports, of at most {MOST_PORTS}; choose host for all",
                            ports.len()
                        ),
                    );
                }
            }
        }
        let named = self.named_elsewhere(syscalls);
        if !named.is_empty() {
            let named = named.join(", ");
            let message = match self {
                Self::Denied => format!(
                    "is denied, while syscalls allow {named}; say here what the guest may reach (tcp or host), and leave \
                     those out of syscalls"
                ),
                Self::Tcp { .. } => format!(
                    "is tcp, which brings the calls and options that TCP needs, while syscalls allow {named}; leave those \
                     out of syscalls, or choose host"
                ),
                Self::Host => format!(
                    "is host, which allows with any arguments what syscalls allow under conditions: {named}; leave \
                     those out of syscalls, or choose another network"
                ),
            };
            add("network", message);
        }
        problems
    }

    /// What `syscalls` say of sockets that this says otherwise.
    fn named_elsewhere(&self, syscalls: &SyscallPolicy) -> Vec<String> {
        let given = Group::SocketPair.calls();
        let elsewhere = |call: &str| match self {
            Self::Denied => REACHING.contains(&call),
            Self::Tcp { .. } => Group::Network.calls().contains(&call) && !given.contains(&call),
            Self::Host => false,
        };
        let in_vain = |call: &str| match self {
            Self::Host => Group::Network.calls().contains(&call),
            _ => elsewhere(call),
        };
        let group = syscalls
            .groups()
            .filter(|group| *self != Self::Host && *group == Group::Network)
            .map(|group| format!("the group {group}"));
        let calls = syscalls
            .calls()
            .filter(|call| elsewhere(call))
            .map(|call| format!("the call {call}"));
        let rules: BTreeSet<&str> = syscalls
            .rules()
            .iter()
            .map(Rule::call)
            .filter(|call| in_vain(call))
            .collect();
        let rules = rules.into_iter().map(|call| format!("a rule on {call}"));
        group.chain(calls).chain(rules).collect()
    }
}

/// The first ports, and how many more there are.
fn listed(ports: &BTreeSet<u16>) -> String {
    const SHOWN: usize = 8;
    let mut text = String::new();
    for (index, port) in ports.iter().take(SHOWN).enumerate() {
        let separator = if index > 0 { ", " } else { "" };
        let _ = match port {
            0 => write!(text, "{separator}0 (a free one)"),
            port => write!(text, "{separator}{port}"),
        };
    }
    if ports.len() > SHOWN {
        let _ = write!(text, " and {} more", ports.len() - SHOWN);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;

    fn fields(policy: &Policy) -> Vec<&'static str> {
        let problems = policy.problems();
        problems.iter().map(|problem| problem.field).collect()
    }

    fn changed(
        network: &Network,
        change: impl FnOnce(SyscallPolicy) -> SyscallPolicy,
    ) -> Vec<Problem> {
        let policy = Policy::python().network(network.clone()).syscalls(change);
        policy.problems()
    }

    #[test]
    fn the_documented_toml_is_what_is_read_and_json_comes_back() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Holder {
            #[serde(default)]
            network: Network,
        }
        for (text, network) in [
            ("", Network::Denied),
            ("network = \"denied\"", Network::Denied),
            ("network = \"host\"", Network::Host),
            (
                "network = { tcp = { connect = [443], bind = [8080] } }",
                Network::tcp([443], [8080]),
            ),
            (
                "[network.tcp]\nconnect = [443, 80, 443]",
                Network::tcp([80, 443], []),
            ),
        ] {
            let read: Holder = toml::from_str(text).unwrap();
            assert_eq!(read.network, network, "{text}");
            let toml = toml::to_string(&read).unwrap();
            assert_eq!(toml::from_str::<Holder>(&toml).unwrap(), read, "{toml}");
            let json = serde_json::to_string(&read).unwrap();
            assert_eq!(
                serde_json::from_str::<Holder>(&json).unwrap(),
                read,
                "{json}"
            );
        }
        for wrong in [
            "network = true",
            "network = \"none\"",
            "network = { tcp = { connect = [443], listen = [80] } }",
            "network = { tcp = { connect = [65536] } }",
            "network = { tcp = { connect = [-1] } }",
            "network = { udp = { connect = [53] } }",
        ] {
            assert!(toml::from_str::<Holder>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn whole_policies_round_trip_and_each_network_has_a_digest_of_its_own() {
        let networks = [
            Network::Denied,
            Network::Host,
            Network::tcp([443], []),
            Network::tcp([], [443]),
        ];
        let mut digests = BTreeSet::new();
        for network in networks {
            let policy = Policy::native().network(network);
            assert_eq!(policy.problems(), []);
            let toml = toml::to_string(&policy).unwrap();
            assert_eq!(toml::from_str::<Policy>(&toml).unwrap(), policy, "{toml}");
            digests.insert(policy.digest());
        }
        assert_eq!(digests.len(), 4);
        assert_eq!(Policy::python().network, Network::Denied);
    }

    #[test]
    fn ports_that_mean_nothing_are_problems() {
        let of = |network: Network| fields(&Policy::python().network(network));
        assert_eq!(of(Network::tcp([], [])), ["network"]);
        assert_eq!(of(Network::tcp([0, 80], [])), ["network.tcp.connect"]);
        assert_eq!(of(Network::tcp([], [0])), [""; 0]);
        assert_eq!(of(Network::tcp(1..=1024, 1..=1024)), [""; 0]);
        assert_eq!(
            of(Network::tcp(1..=1025, 1..=1025)),
            ["network.tcp.connect", "network.tcp.bind"]
        );
    }

    #[test]
    fn sockets_are_said_in_one_place() {
        let tcp = Network::tcp([443], []);
        for network in [&Network::Denied, &tcp] {
            let found = changed(network, |calls| calls.allow_group(Group::Network));
            assert!(found[0].message.contains("the group network"), "{found:?}");
            for call in REACHING {
                let found = changed(network, |calls| calls.allow([call]));
                assert!(
                    found[0].message.contains(&format!("the call {call}")),
                    "{found:?}"
                );
                let found = changed(network, |calls| {
                    calls
                        .allow_when(Rule::on(call).int(0, 16))
                        .allow_when(Rule::on(call).int(0, 1))
                });
                assert!(
                    found[0].message.contains(&format!("a rule on {call};")),
                    "{found:?}"
                );
            }
            let everything = |calls: SyscallPolicy| {
                calls
                    .allow_group(Group::Network)
                    .allow(["socket"])
                    .allow_when(Rule::on("bind").int(0, 3))
            };
            let found = changed(network, everything);
            assert_eq!(found.len(), 1, "{found:?}");
            let named = "the group network, the call socket, a rule on bind;";
            assert!(found[0].message.contains(named), "{found:?}");
            // What pairs and inherited descriptors need, and what is taken away, is no contradiction.
            let pairs =
                |calls: SyscallPolicy| calls.allow(["sendmsg", "recvmsg"]).deny(["socketpair"]);
            assert_eq!(changed(network, pairs), []);
        }
        let accept = |calls: SyscallPolicy| calls.allow(["accept4", "setsockopt"]);
        assert_eq!(changed(&Network::Denied, accept), []);
        assert_eq!(changed(&tcp, accept).len(), 1);

        let group = |calls: SyscallPolicy| {
            calls
                .allow_group(Group::Network)
                .allow(["socket"])
                .deny(["bind"])
        };
        assert_eq!(changed(&Network::Host, group), []);
        let rule = |calls: SyscallPolicy| calls.allow_when(Rule::on("socket").int(0, 16));
        let found = changed(&Network::Host, rule);
        assert!(found[0].message.contains("a rule on socket"), "{found:?}");
    }

    #[test]
    fn the_filter_has_what_the_network_says() {
        let allows =
            |network: &Network, call: &str| network.filter(SyscallPolicy::python()).allows(call);
        for (network, socket, connect, listen, sendmmsg) in [
            (Network::Denied, false, false, false, false),
            (Network::tcp([1], []), true, true, false, false),
            (Network::tcp([], [1]), true, false, true, false),
            (Network::tcp([1], [1]), true, true, true, false),
            (Network::Host, true, true, true, true),
        ] {
            let found =
                ["socket", "connect", "listen", "sendmmsg"].map(|call| allows(&network, call));
            assert_eq!(found, [socket, connect, listen, sendmmsg], "{network:?}");
        }
    }

    #[test]
    fn ports_are_listed_for_people() {
        assert_eq!(
            Network::tcp([443, 80], [0]).describe(),
            "TCP alone: connections to ports 80, 443; servers at ports 0 (a free one)"
        );
        assert_eq!(
            Network::tcp([], 1..=10).describe(),
            "TCP alone: no connections; servers at ports 1, 2, 3, 4, 5, 6, 7, 8 and 2 more"
        );
    }
}
