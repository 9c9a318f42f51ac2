//! From names to numbers: a policy, checked and resolved for one architecture.
//!
//! [`Resolved`] is what a policy means. The emitter turns it into a program, the supervisor's decisions and
//! explanations read it, and [`Resolved::ruling`] is the yardstick that a finished program is held against.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::{Place, Problem};
use crate::policy::FLOOR;
use crate::rule::{Rule, Test};
use crate::{Arch, Group, Refusal, SyscallPolicy, errno, suggest};

/// What the filter does with one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allow,
    /// Allowed where every test of one alternative holds.
    When(Vec<Vec<Test>>),
    /// Allowed with the permit of the run, and refused or killed without.
    Permit {
        kill: bool,
    },
    /// Answered as by a kernel that lacks the call, for this reason.
    Absent(&'static str),
    Kill,
}

/// Argument values that no policy can allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guard {
    /// Any of these bits in the low half of the argument.
    Bits { index: u8, bits: u32 },
    /// One of these values in the low half of the argument.
    Values { index: u8, values: &'static [u32] },
}

/// Where a call's permission comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) floor: bool,
    pub(crate) named: bool,
    pub(crate) ruled: bool,
    pub(crate) groups: Vec<Group>,
}

/// A call that is not simply refused.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    pub(crate) verdict: Verdict,
    pub(crate) guard: Option<Guard>,
    pub(crate) source: Source,
}

/// What happens to one call with certain arguments, before reporting turns it into an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Allow,
    Refuse,
    Absent,
    Kill,
}

/// A policy for one architecture. Calls without an entry are refused.
#[derive(Clone, Debug)]
pub(crate) struct Resolved {
    pub(crate) arch: Arch,
    pub(crate) refusal: Refusal,
    pub(crate) errno: i32,
    pub(crate) entries: BTreeMap<u32, Entry>,
    pub(crate) skipped: Vec<String>,
}

/// The seven namespace flags, `CLONE_PARENT` (children of the embedder instead of the guest) and
/// `CLONE_PTRACE`. The flags are the first argument on both architectures.
const CLONE_GUARD: Guard = Guard::Bits {
    index: 0,
    bits: 0x7e02_a000,
};

/// `TIOCSTI` and `TIOCLINUX`: they put input into a terminal, which its shell reads after the guest's end.
const IOCTL_GUARD: Guard = Guard::Values {
    index: 1,
    values: &[0x5412, 0x541c],
};

/// Why a call always fails with `ENOSYS`.
pub(crate) fn always_absent(name: &str) -> Option<&'static str> {
    match name {
        "clone3" => {
            Some("its flags are behind a pointer, where no filter can look; libc uses clone")
        }
        "io_uring_setup" | "io_uring_enter" | "io_uring_register" => {
            Some("a ring makes calls that no filter sees; event loops use epoll")
        }
        "mbind" | "set_mempolicy" | "set_mempolicy_home_node" => Some(
            "placement of shared memory on nodes is kept in kernel memory that no limit counts; libraries do without",
        ),
        _ => None,
    }
}

impl Resolved {
    pub(crate) fn new(policy: &SyscallPolicy, arch: Arch) -> Result<Self, Vec<Problem>> {
        let mut problems = Vec::new();
        if !(1..=errno::HIGHEST).contains(&policy.errno) {
            problems.push(Problem::Errno {
                errno: policy.errno,
            });
        }
        check_names(policy, &mut problems);
        let mut own_rules = Vec::new();
        for rule in &policy.rules {
            match tests(rule) {
                Ok(tests) => own_rules.push((rule.call(), tests)),
                Err(mut found) => problems.append(&mut found),
            }
        }

        let permissions = permissions(policy, own_rules);
        for name in &policy.kill {
            if permissions.contains_key(name.as_str()) && !FLOOR.contains(&name.as_str()) {
                problems.push(Problem::AllowedAndKilled { name: name.clone() });
            }
        }
        if !problems.is_empty() {
            return Err(problems);
        }

        let mut entries = BTreeMap::new();
        for (number, name) in arch.calls() {
            let permission = permissions.get(name);
            let killed = policy.kill.contains(name);
            if let Some((verdict, source)) = verdict(name, permission, killed) {
                let guard = match name {
                    "clone" => Some(CLONE_GUARD),
                    "ioctl" => Some(IOCTL_GUARD),
                    _ => None,
                };
                entries.insert(
                    number,
                    Entry {
                        name,
                        verdict,
                        guard,
                        source,
                    },
                );
            }
        }
        let skipped = named(policy).filter(|(_, name)| arch.number(name).is_none());
        let skipped: BTreeSet<_> = skipped.map(|(_, name)| name.to_owned()).collect();
        Ok(Self {
            arch,
            refusal: policy.default,
            errno: policy.errno,
            entries,
            skipped: skipped.into_iter().collect(),
        })
    }

    /// What the policy says about a call that carries no permit.
    pub(crate) fn outcome(&self, audit: u32, number: u32, args: &[u64; 6]) -> Outcome {
        if audit != self.arch.audit() || self.arch.is_foreign(number) {
            return Outcome::Kill;
        }
        if self.arch.name(number).is_none() {
            return Outcome::Absent;
        }
        let refused = match self.refusal {
            Refusal::Errno => Outcome::Refuse,
            Refusal::Kill => Outcome::Kill,
        };
        let Some(entry) = self.entries.get(&number) else {
            return refused;
        };
        let argument = |index: u8| args.get(usize::from(index)).copied().unwrap_or(0);
        let guarded = match entry.guard {
            Some(Guard::Bits { index, bits }) => argument(index) & u64::from(bits) != 0,
            Some(Guard::Values { index, values }) => values
                .iter()
                .any(|value| argument(index) & 0xffff_ffff == u64::from(*value)),
            None => false,
        };
        let holds = |test: &Test| argument(test.index) & test.mask == test.value;
        match &entry.verdict {
            Verdict::Absent(_) => Outcome::Absent,
            Verdict::Kill | Verdict::Permit { kill: true } => Outcome::Kill,
            Verdict::Allow if !guarded => Outcome::Allow,
            Verdict::When(rules) if !guarded && rules.iter().any(|rule| rule.iter().all(holds)) => {
                Outcome::Allow
            }
            Verdict::Allow | Verdict::When(_) | Verdict::Permit { kill: false } => refused,
        }
    }
}

/// Every place and name that the policy itself writes; groups are checked by a test.
fn named(policy: &SyscallPolicy) -> impl Iterator<Item = (Place, &str)> {
    let calls = policy
        .calls
        .iter()
        .map(|name| (Place::Calls, name.as_str()));
    let deny = policy.deny.iter().map(|name| (Place::Deny, name.as_str()));
    let kill = policy.kill.iter().map(|name| (Place::Kill, name.as_str()));
    let rules = policy.rules.iter().map(|rule| (Place::Rules, rule.call()));
    calls.chain(deny).chain(kill).chain(rules)
}

fn check_names(policy: &SyscallPolicy, problems: &mut Vec<Problem>) {
    let mut seen = BTreeSet::new();
    for (place, name) in named(policy) {
        let owned = name.to_owned();
        let problem = if Arch::ALL.iter().all(|arch| arch.number(name).is_none()) {
            let known = Arch::ALL
                .iter()
                .flat_map(|arch| arch.calls())
                .map(|(_, known)| known);
            Problem::UnknownCall {
                name: owned,
                place,
                suggestion: suggest::nearest(name, known),
            }
        } else if FLOOR.contains(&name) && place != Place::Calls {
            Problem::Floor { name: owned, place }
        } else if let Some(reason) = always_absent(name).filter(|_| place != Place::Deny) {
            Problem::AlwaysAbsent {
                name: owned,
                place,
                reason,
            }
        } else {
            continue;
        };
        if seen.insert((name, place as u8)) {
            problems.push(problem);
        }
    }
}

/// The conditions of a rule, merged to one test for each argument.
fn tests(rule: &Rule) -> Result<Vec<Test>, Vec<Problem>> {
    let call = || rule.call().to_owned();
    let mut problems = Vec::new();
    if rule.arguments().is_empty() {
        problems.push(Problem::EmptyRule { call: call() });
    }
    if rule.call() == "execve" {
        problems.push(Problem::ExecRule);
    }
    let mut tests: Vec<Test> = Vec::new();
    for condition in rule.arguments() {
        let index = condition.index();
        if let Some(reason) = condition.fault() {
            problems.push(Problem::Condition {
                call: call(),
                index,
                reason,
            });
            continue;
        }
        let test = condition.test();
        match tests.iter_mut().find(|known| known.index == index) {
            Some(known) if (known.value ^ test.value) & known.mask & test.mask != 0 => {
                problems.push(Problem::Contradiction {
                    call: call(),
                    index,
                });
            }
            Some(known) => {
                known.mask |= test.mask;
                known.value |= test.value;
            }
            None => tests.push(test),
        }
    }
    if problems.is_empty() {
        Ok(tests)
    } else {
        Err(problems)
    }
}

/// What allows a call: plainly, and under conditions.
#[derive(Default)]
struct Permission {
    plain: Option<Source>,
    conditional: Source,
    rules: Vec<Vec<Test>>,
}

/// What groups, names and rules allow, less what is denied.
fn permissions<'a>(
    policy: &'a SyscallPolicy,
    own_rules: Vec<(&'a str, Vec<Test>)>,
) -> BTreeMap<String, Permission> {
    let mut permissions: BTreeMap<String, Permission> = BTreeMap::new();
    for group in &policy.groups {
        for name in group.calls() {
            let permission = permissions.entry((*name).to_owned()).or_default();
            permission.plain.get_or_insert_default().groups.push(*group);
        }
        for rule in group.rules() {
            // A group's rules are checked by a test of the group.
            let Ok(tests) = tests(&rule) else { continue };
            let permission = permissions.entry(rule.call().to_owned()).or_default();
            permission.rules.push(tests);
            if permission.conditional.groups.last() != Some(group) {
                permission.conditional.groups.push(*group);
            }
        }
    }
    for name in &policy.calls {
        let permission = permissions.entry(name.clone()).or_default();
        permission.plain.get_or_insert_default().named = true;
    }
    for (name, tests) in own_rules {
        let permission = permissions.entry(name.to_owned()).or_default();
        permission.rules.push(tests);
        permission.conditional.ruled = true;
    }
    permissions.retain(|name, _| !policy.deny.contains(name));
    permissions
}

fn verdict(name: &str, permission: Option<&Permission>, killed: bool) -> Option<(Verdict, Source)> {
    if let Some(reason) = always_absent(name) {
        return Some((Verdict::Absent(reason), Source::default()));
    }
    let plain = permission.and_then(|permission| permission.plain.clone());
    if FLOOR.contains(&name) {
        let own = Test {
            index: 0,
            mask: 0xffff_ffff,
            value: 0,
        };
        let verdict = match plain {
            None if name == "prlimit64" => Verdict::When(vec![vec![own]]),
            _ => Verdict::Allow,
        };
        return Some((
            verdict,
            Source {
                floor: true,
                ..plain.unwrap_or_default()
            },
        ));
    }
    match (plain, permission) {
        (Some(source), _) => Some((Verdict::Allow, source)),
        (None, Some(permission)) => {
            let mut rules: Vec<Vec<Test>> = Vec::new();
            for rule in &permission.rules {
                if !rules.contains(rule) {
                    rules.push(rule.clone());
                }
            }
            Some((Verdict::When(rules), permission.conditional.clone()))
        }
        (None, None) if name == "execve" => {
            Some((Verdict::Permit { kill: killed }, Source::default()))
        }
        (None, None) => killed.then(|| (Verdict::Kill, Source::default())),
    }
}
