//! What a policy requires, against what a host has: the one place where that is decided.
//!
//! A layer that the policy does not name as best effort and the host lacks is an error, and all of them
//! are said at once. Three things hold whatever a policy names: there is always a system call filter, a
//! tree can always be killed at once, and a guest never runs as root.

use varek_telemetry::{Enforcement, Layer, LayerStatus};

use crate::error::Missing;
use crate::host::{Host, IdRange, MountSupport, Refusal};
use crate::identity::{Identity, UidRange};
use crate::limits::Overflow;
use crate::mounts::Bound;
use crate::namespaces;
use crate::network::Network;
use crate::policy::Policy;

/// What is going to be in force for every run of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layers {
    /// Denied calls notify the supervisor; otherwise the filter answers them itself.
    pub(crate) notify: bool,
    /// The ABI version of the rulesets.
    pub(crate) landlock: Option<u32>,
    /// Whose uid a run has.
    pub(crate) uid: Uid,
    /// The group of each run has the policy's memory limit.
    pub(crate) memory: bool,
    /// The group of each run has the policy's process limit.
    pub(crate) pids: bool,
    /// The group of each run has the policy's CPU share.
    pub(crate) cpu: bool,
    /// What the scratch directory of a run holds at most.
    pub(crate) scratch: Option<Bound>,
    /// A run has the namespaces that the policy names.
    pub(crate) namespaces: bool,
    /// The above, and what every run has, for people.
    pub(crate) enforcement: Enforcement,
}

/// Version of Landlock's ABI that bounds TCP ports (Linux 6.7).
const TCP_PORTS: u32 = 4;
/// Version of Landlock's ABI that keeps signals within a run (Linux 6.12).
pub(crate) const SIGNAL_SCOPE: u32 = 6;

/// Whose uid a guest has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Uid {
    Own,
    /// The embedder's, within Landlock of this ABI version.
    Shared {
        landlock: u32,
    },
}

/// What one layer comes to.
enum Verdict {
    Enforced(String),
    NotAsked,
    /// The host lacks it; an error unless the policy has the layer as best effort.
    Lacking(Missing),
    /// The host lacks it, and nothing makes up for that.
    Refused(Missing),
}

/// Decides every layer, or says everything that is missing.
pub(crate) fn layers(policy: &Policy, host: &Host) -> Result<Layers, Vec<Missing>> {
    if let Some(reason) = &host.unsupported {
        let asked = "a sandbox".to_owned();
        let has = "cannot run one".to_owned();
        return Err(vec![Missing {
            layer: Layer::Seccomp,
            asked,
            has,
            remedy: reason.clone(),
        }]);
    }
    let limits = &policy.limits;
    let mut decisions = Decisions {
        policy,
        enforcement: Enforcement::default(),
        missing: Vec::new(),
    };
    decisions.take(Layer::Seccomp, seccomp(policy, host));
    let notify = decisions.take(Layer::DenialReports, denial_reports(host));
    let memory = limits.memory.map(|bytes| format!("{bytes} bytes"));
    let memory = decisions.take(Layer::Memory, controller(host, Layer::Memory, memory));
    let pids = limits
        .pids
        .map(|count| format!("{count} processes and threads"));
    let pids = decisions.take(Layer::Pids, controller(host, Layer::Pids, pids));
    let cpu = limits.cpu.map(|share| format!("{share} of one CPU"));
    let cpu = decisions.take(Layer::Cpu, controller(host, Layer::Cpu, cpu));
    let landlock = decisions.take(Layer::Landlock, landlock(host));
    decisions.take(Layer::Network, network(policy, host, landlock));
    let uid = uid(policy, host);
    decisions.take(Layer::Identity, identity(policy, host, notify));
    let bound = Bound::of(policy, host.page_size);
    let bounded = decisions.take(Layer::Scratch, scratch(bound, host));
    let asked = decisions.take(Layer::Namespaces, namespaces(policy, host, uid));
    decisions.take(Layer::Rlimits, Verdict::Enforced(rlimits(policy)));
    decisions.take(Layer::Watchdog, watchdog(policy, host));
    let Decisions {
        enforcement,
        missing,
        ..
    } = decisions;
    if missing.is_empty() {
        let landlock = host.landlock.version().filter(|_| landlock);
        Ok(Layers {
            notify,
            landlock,
            uid,
            memory,
            pids,
            cpu,
            scratch: bound.filter(|_| bounded),
            namespaces: asked,
            enforcement,
        })
    } else {
        Err(missing)
    }
}

struct Decisions<'a> {
    policy: &'a Policy,
    enforcement: Enforcement,
    missing: Vec<Missing>,
}

impl Decisions<'_> {
    /// Records the verdict; whether the layer is in force.
    fn take(&mut self, layer: Layer, verdict: Verdict) -> bool {
        let best_effort = self.policy.best_effort.contains(&layer);
        let (status, enforced) = match verdict {
            Verdict::Enforced(detail) => (LayerStatus::Enforced { detail }, true),
            Verdict::NotAsked => (LayerStatus::NotAsked, false),
            Verdict::Lacking(missing) if best_effort => (absent(&missing), false),
            Verdict::Lacking(missing) | Verdict::Refused(missing) => {
                self.missing.push(missing);
                return false;
            }
        };
        self.enforcement.record(layer, status);
        enforced
    }
}

pub(crate) fn absent(missing: &Missing) -> LayerStatus {
    LayerStatus::Missing {
        reason: format!("the host {}; {}", missing.has, missing.remedy),
    }
}

fn missing(
    layer: Layer,
    asked: impl Into<String>,
    has: impl Into<String>,
    remedy: impl Into<String>,
) -> Missing {
    Missing {
        layer,
        asked: asked.into(),
        has: has.into(),
        remedy: remedy.into(),
    }
}

fn seccomp(policy: &Policy, host: &Host) -> Verdict {
    match host.seccomp_refusal() {
        None => {
            let starts = ["execve", "execveat"];
            let exec = if starts.iter().any(|call| policy.syscalls.allows(call)) {
                "exec of what Landlock grants"
            } else {
                "one exec"
            };
            Verdict::Enforced(format!("default deny, {exec}, no new privileges"))
        }
        Some(Refusal { has, remedy }) => {
            Verdict::Refused(missing(Layer::Seccomp, "a system call filter", has, remedy))
        }
    }
}

fn denial_reports(host: &Host) -> Verdict {
    if host.outer_listener {
        return Verdict::Lacking(missing(
            Layer::DenialReports,
            "reports of denied calls",
            "runs the embedder under a seccomp filter with a listener, of which a process has one only",
            "run without the outer listener; or name denial_reports in best_effort, and denied calls fail without a report",
        ));
    }
    if host.killable_notification {
        return Verdict::Enforced(if host.outer_filter {
            "of what the embedder's own seccomp filter lets through".into()
        } else {
            "every denied call but clone3, which libc does without".into()
        });
    }
    let has = if host.user_notification {
        format!(
            "has Linux {}, whose notifications every signal repeats",
            host.kernel
        )
    } else {
        "has no seccomp notifications for this program".to_owned()
    };
    let remedy = "use Linux 5.19 or newer; or name denial_reports in best_effort, and denied calls fail without a report";
    Verdict::Lacking(missing(
        Layer::DenialReports,
        "reports of denied calls",
        has,
        remedy,
    ))
}

fn controller(host: &Host, layer: Layer, limit: Option<String>) -> Verdict {
    let name = layer.to_string();
    match limit {
        None => Verdict::NotAsked,
        Some(limit) if host.groups.has(&name) => Verdict::Enforced(limit),
        Some(limit) => {
            let groups = &host.groups;
            let (has, remedy) = match groups.access.remedy() {
                // Without groups nothing runs, whatever is best effort.
                Some(remedy) => (
                    format!("has no {name} controller to use ({})", groups.access),
                    remedy,
                ),
                None => (
                    format!("offers no {name} controller ({})", groups.description),
                    format!(
                        "{}, or name {name} in best_effort",
                        groups.controllers_remedy().unwrap_or_default()
                    ),
                ),
            };
            Verdict::Lacking(missing(layer, limit, has, remedy))
        }
    }
}

fn scratch(bound: Option<Bound>, host: &Host) -> Verdict {
    match (bound, &host.mounts) {
        (None, _) => Verdict::Enforced("a private directory, removed afterwards".into()),
        (Some(bound), MountSupport::Allowed) => Verdict::Enforced(bounded_scratch(bound)),
        (Some(bound), refused) => {
            let remedy = refused.remedy().unwrap_or_default();
            Verdict::Lacking(unbounded_scratch(bound, &refused.to_string(), remedy))
        }
    }
}

fn bounded_scratch(bound: Bound) -> String {
    let programs = if bound.no_exec {
        ", nothing in it executable"
    } else {
        ""
    };
    format!(
        "a private tmpfs of {} bytes and {} files{programs}, gone afterwards",
        bound.bytes, bound.files
    )
}

/// What to say where the scratch directory is a directory on disk.
pub(crate) fn unbounded_scratch(bound: Bound, has: &str, remedy: &str) -> Missing {
    missing(
        Layer::Scratch,
        format!("a scratch directory of {} bytes", bound.bytes),
        format!(
            "{has}, so that it is a private directory on disk, removed afterwards, whose total size nothing bounds{}",
            if bound.no_exec {
                " and from which the loader runs what the guest writes"
            } else {
                ""
            }
        ),
        format!("{remedy}; or name scratch in best_effort, or leave limits.scratch out"),
    )
}

fn namespaces(policy: &Policy, host: &Host, uid: Uid) -> Verdict {
    if policy.namespaces.is_empty() {
        return Verdict::NotAsked;
    }
    match (uid, &host.mounts) {
        (Uid::Own, MountSupport::Allowed) => {
            Verdict::Enforced(namespaces::names(&policy.namespaces))
        }
        (Uid::Own, refused) => Verdict::Lacking(no_namespaces(
            policy,
            &refused.to_string(),
            refused.remedy().unwrap_or_default(),
        )),
        (Uid::Shared { .. }, _) => Verdict::Lacking(no_namespaces(
            policy,
            "gives guests the embedder's uid, and makes them no namespaces",
            "run this program as root with CAP_SYS_ADMIN",
        )),
    }
}

/// What to say where runs get no namespaces.
pub(crate) fn no_namespaces(policy: &Policy, has: &str, remedy: &str) -> Missing {
    missing(
        Layer::Namespaces,
        format!(
            "namespaces of a run's own: {}",
            namespaces::names(&policy.namespaces)
        ),
        has,
        format!("{remedy}; or name namespaces in best_effort, or leave them out of the policy"),
    )
}

fn landlock(host: &Host) -> Verdict {
    let Some(Refusal { has, remedy }) = host.landlock_refusal() else {
        return Verdict::Enforced(host.landlock.to_string());
    };
    Verdict::Lacking(missing(
        Layer::Landlock,
        "access to the granted paths alone",
        has,
        format!(
            "{remedy}, or name landlock in best_effort, and the guest reaches whatever its uid does"
        ),
    ))
}

/// `landlock`: whether there are rulesets. The filter is there whatever they do.
fn network(policy: &Policy, host: &Host, landlock: bool) -> Verdict {
    let asked = policy.network.describe();
    match &policy.network {
        Network::Host => Verdict::NotAsked,
        Network::Denied => Verdict::Enforced(asked),
        Network::Tcp { .. } => match host.landlock.version() {
            Some(TCP_PORTS..) if landlock => Verdict::Enforced(asked),
            Some(abi) if landlock => Verdict::Lacking(missing(
                Layer::Network,
                asked,
                format!("has Landlock ABI {abi}, which bounds no ports (ABI {TCP_PORTS})"),
                format!("use Linux 6.7 or newer, {UNBOUNDED}"),
            )),
            _ => Verdict::Lacking(missing(
                Layer::Network,
                asked,
                format!("has {}, so that nothing bounds ports", host.landlock),
                format!("use a host with Landlock (Linux 6.7 or newer), {UNBOUNDED}"),
            )),
        },
    }
}

const UNBOUNDED: &str = "choose network denied or host, or name network in best_effort, and the guest has TCP at every port";

fn uid(policy: &Policy, host: &Host) -> Uid {
    if obstacle(host, policy.identity.range()).is_none() {
        return Uid::Own;
    }
    let landlock = host.landlock.version().unwrap_or(0);
    Uid::Shared { landlock }
}

/// `reports`: whether denied calls are reported, and so could be performed.
fn identity(policy: &Policy, host: &Host, reports: bool) -> Verdict {
    let range = policy.identity.range();
    let UidRange { first, count } = range;
    let asked = format!(
        "a uid of its own from {first} to {}",
        u64::from(first) + u64::from(count) - 1
    );
    let Some((has, remedy)) = obstacle(host, range) else {
        return Verdict::Enforced(format!("{asked}, no groups, no capabilities"));
    };
    if host.uid == 0 {
        let remedy = format!("{remedy}; a guest is never run as root");
        return Verdict::Refused(missing(Layer::Identity, asked, has, remedy));
    }
    if host.landlock.version().is_none() {
        return Verdict::Refused(missing(
            Layer::Identity,
            asked,
            format!("{has}, and has {}", host.landlock),
            format!(
                "{remedy}, or use a host with Landlock: without it the guest would reach every file and process of \
                 uid {}",
                host.uid
            ),
        ));
    }
    match policy.identity {
        Identity::Separate(_) => Verdict::Enforced(shared(host, reports)),
        Identity::Own(_) => Verdict::Lacking(missing(
            Layer::Identity,
            asked,
            has,
            format!(
                "{remedy}; or choose identity separate, or name identity in best_effort, for {}",
                shared(host, reports)
            ),
        )),
    }
}

/// How a guest is kept apart under the embedder's uid.
fn shared(host: &Host, reports: bool) -> String {
    let signals = match (host.landlock.version(), reports) {
        (Some(SIGNAL_SCOPE..), _) => "signals scoped by Landlock",
        (_, true) => "signals performed by the supervisor within the run",
        (_, false) => "signals refused",
    };
    let changes = if reports {
        "modes, times and attributes of files changed beneath scratch alone"
    } else {
        "calls refused that change modes, owners, times or attributes of files"
    };
    format!(
        "the embedder's uid {}, kept apart by Landlock, with {signals}, with {changes}, and with calls refused that act \
         on other processes",
        host.uid
    )
}

/// What keeps runs from having uids of the range: what the host has, and what to do.
fn obstacle(host: &Host, range: UidRange) -> Option<(String, String)> {
    // Where /proc does not tell, the set-up of a run does: it fails by name.
    let mapped = |ids: &Option<Vec<IdRange>>| {
        ids.as_deref()
            .is_none_or(|ids| IdRange::cover(ids, range.first, range.count))
    };
    if host.uid != 0 {
        let has = format!(
            "runs this program as uid {}, which cannot become another",
            host.uid
        );
        return Some((has, "run it as root".into()));
    }
    if !host.missing_capabilities.is_empty() {
        let lost = host.missing_capabilities.join(", ");
        let has = format!("runs this program as root without {lost}");
        return Some((has, format!("give the container {lost}")));
    }
    if !mapped(&host.uids) || !mapped(&host.gids) {
        let has = "does not map that range into this program's user namespace";
        return Some((
            has.into(),
            "choose an identity within /proc/self/uid_map and gid_map".into(),
        ));
    }
    if !host.setgroups {
        let has = "denies setgroups in this program's user namespace";
        return Some((
            has.into(),
            "map its gids with newgidmap(1), which leaves setgroups allowed".into(),
        ));
    }
    None
}

fn rlimits(policy: &Policy) -> String {
    let files = policy.limits.file_size.map_or_else(
        || "files of any size".to_owned(),
        |bytes| format!("files of {bytes} bytes"),
    );
    format!(
        "{files}, {} descriptors a process, no core dumps",
        policy.limits.open_files
    )
}

const KILLED_AT_ONCE: &str = "a group whose whole tree is killed at once";

fn watchdog(policy: &Policy, host: &Host) -> Verdict {
    let limits = &policy.limits;
    if let Some(remedy) = host.groups.access.remedy() {
        return Verdict::Refused(missing(
            Layer::Watchdog,
            KILLED_AT_ONCE,
            format!("has no group to start it in ({})", host.groups.access),
            remedy,
        ));
    }
    if !host.groups.kill {
        return Verdict::Refused(missing(
            Layer::Watchdog,
            KILLED_AT_ONCE,
            format!("has Linux {}, which cannot", host.kernel),
            "use Linux 5.14 or newer",
        ));
    }
    let cpu = limits
        .cpu_time
        .map(|time| format!(", {time:?} of CPU time"))
        .unwrap_or_default();
    let output = match policy.overflow {
        Overflow::Kill => format!(", {} bytes of output", limits.output),
        Overflow::Truncate => String::new(),
    };
    Verdict::Enforced(format!(
        "kill of the whole tree after {:?} of wall clock{cpu}{output}; {:?} of grace",
        limits.wall_clock, policy.grace
    ))
}

#[cfg(test)]
mod tests;
