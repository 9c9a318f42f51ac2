//! Which kernel mechanisms bound a run.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A kernel mechanism that bounds a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Layer {
    /// The system call filter: seccomp-bpf with no_new_privs (Linux 3.17).
    Seccomp,
    /// Denied calls reported through a killable user notification (Linux 5.19).
    DenialReports,
    /// Memory limit of the tree: memory controller.
    Memory,
    /// Process limit of the tree: pids controller.
    Pids,
    /// CPU share of the tree: cpu controller.
    Cpu,
    /// File system access by path: Landlock (Linux 5.13).
    Landlock,
    /// What the guest reaches over the network: no sockets or TCP alone, by the system call filter; TCP ports by Landlock
    /// (Linux 6.7).
    Network,
    /// An unprivileged uid and gid of its own, no groups, no capabilities.
    Identity,
    /// A private scratch directory of a bounded size.
    Scratch,
    /// Namespaces of a run's own: namespaces(7).
    Namespaces,
    /// Limits of each process: setrlimit(2).
    Rlimits,
    /// The wall-clock watchdog.
    Watchdog,
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Seccomp => "seccomp",
            Self::DenialReports => "denial reports",
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Cpu => "cpu",
            Self::Landlock => "landlock",
            Self::Network => "network",
            Self::Identity => "identity",
            Self::Scratch => "scratch",
            Self::Namespaces => "namespaces",
            Self::Rlimits => "rlimits",
            Self::Watchdog => "watchdog",
        })
    }
}

/// What became of one layer in one run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LayerStatus {
    /// In force, with what.
    Enforced {
        /// The mechanism and its figures, for people.
        detail: String,
    },
    /// The policy asked for it as best effort, and the host lacks it.
    Missing {
        /// What the host lacks, and what to do.
        reason: String,
    },
    /// The policy does not ask for it.
    NotAsked,
}

/// What was in force, layer by layer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Enforcement {
    layers: std::collections::BTreeMap<Layer, LayerStatus>,
}

impl Enforcement {
    /// Records the status of a layer; a later record of the same layer replaces the earlier one.
    pub fn record(&mut self, layer: Layer, status: LayerStatus) {
        self.layers.insert(layer, status);
    }

    /// The status of a layer; `None` where nothing was recorded.
    pub fn status(&self, layer: Layer) -> Option<&LayerStatus> {
        self.layers.get(&layer)
    }

    /// Every recorded layer, in a fixed order.
    pub fn layers(&self) -> impl Iterator<Item = (Layer, &LayerStatus)> {
        self.layers.iter().map(|(layer, status)| (*layer, status))
    }

    /// The layers that the policy wanted as best effort and the host lacks.
    pub fn missing(&self) -> impl Iterator<Item = (Layer, &str)> {
        self.layers().filter_map(|(layer, status)| match status {
            LayerStatus::Missing { reason } => Some((layer, reason.as_str())),
            _ => None,
        })
    }
}

impl fmt::Display for Enforcement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (layer, status)) in self.layers().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            match status {
                LayerStatus::Enforced { detail } => write!(f, "{layer}: {detail}")?,
                LayerStatus::Missing { reason } => write!(f, "{layer}: NOT ENFORCED, {reason}")?,
                LayerStatus::NotAsked => write!(f, "{layer}: not asked for")?,
            }
        }
        Ok(())
    }
}
