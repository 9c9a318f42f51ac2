//! What an attack is: data.

use varek_core::{Cause, Policy, Resource};

use crate::scene::Scene;

/// A hostile program, what it is run under, what must come of it, and where the same program succeeds.
///
/// The program tries something once or more often and writes one line for each attempt: `NAME: won`, or `NAME: ` and the name
/// of the error, or `NAME: reached` where a call got further than to the filter. Under `policy` no attempt may win, whatever the host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attack {
    /// The guarantee, which is the name of its test.
    pub(crate) name: &'static str,
    pub(crate) family: Family,
    pub(crate) program: Program,
    /// The arguments that the program is run with, one run for each.
    pub(crate) runs: &'static [&'static str],
    pub(crate) stdin: Stdin,
    pub(crate) policy: fn(&Scene) -> Policy,
    /// How the run ends.
    pub(crate) ends: Ends,
    /// The denied calls of the outcome, in each run. Those of [`Ends::Forbidden`] need not be repeated.
    pub(crate) refused: &'static [Refused],
    /// Answers that the guest must get, where it has a uid of its own.
    pub(crate) answers: &'static [(&'static str, &'static str)],
    pub(crate) control: Control,
    /// Why this host cannot show it, if it cannot.
    pub(crate) lacks: fn() -> Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Family {
    Exec,
    Abi,
    Network,
    Namespaces,
    Proc,
    Filesystem,
    Signals,
    Resources,
    Kernel,
    Descriptors,
    Environment,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Program {
    /// Source of Python, after [`crate::prelude::PYTHON`].
    Python(&'static str),
    /// The function `attack` of C, after [`crate::prelude::C`].
    C(&'static str),
    /// A script of bash.
    Shell(&'static str),
}

/// What the guest has as descriptor 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stdin {
    Null,
    /// The granted file, open for reading.
    File,
    /// The scene's directory.
    Directory,
    /// A terminal.
    Terminal,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Ends {
    /// The program comes to its end and exits with 0.
    Itself,
    /// The run is killed for the call whose name is the run's argument.
    Forbidden,
    /// The run is killed for a call of this ABI.
    Foreign(&'static str),
    /// The run is killed for one of these, or the program comes to its end: kernels differ in whether they refuse or kill.
    Limited(&'static [Cause]),
    /// The same, and nothing but a kill.
    Killed(&'static [Cause]),
    /// The program comes to its end, with this limit among those that the run met.
    Met(Resource),
}

/// A denied call, and how often at least.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused {
    pub(crate) call: &'static str,
    pub(crate) count: u64,
    pub(crate) guests: Guests,
    /// Answered as a library's probe, with ENOSYS: no violation.
    pub(crate) probe: bool,
}

/// Whose calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guests {
    All,
    /// Those that share the embedder's uid.
    Sharing,
}

pub(crate) const fn refused(call: &'static str, count: u64) -> Refused {
    Refused {
        call,
        count,
        guests: Guests::All,
        probe: false,
    }
}

impl Refused {
    pub(crate) const fn sharing(self) -> Self {
        Self {
            guests: Guests::Sharing,
            ..self
        }
    }

    pub(crate) const fn probe(self) -> Self {
        Self {
            probe: true,
            ..self
        }
    }

    /// Whether it is expected of this embedder's guests.
    pub(crate) fn applies(&self) -> bool {
        match self.guests {
            Guests::All => true,
            Guests::Sharing => !crate::support::root(),
        }
    }
}

/// Where the same program succeeds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Control {
    pub(crate) place: Place,
    pub(crate) gain: Gain,
    /// What the embedder must be.
    pub(crate) needs: Needs,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    None,
    /// In a sandbox with a wider policy.
    Under(fn(&Scene) -> Policy),
    /// As a child of the embedder, with nothing around it.
    Outside,
    /// The same in namespaces of its own, which unshare(1) makes with these options.
    Unshared(&'static [&'static str]),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Gain {
    /// Every attempt wins.
    All,
    /// These do. The others are the kernel's own to refuse, or need what not every host has.
    These(&'static [&'static str]),
    /// In each run the attempt that is named as its argument.
    Run,
    /// The calls get to the kernel, which refuses them itself since their arguments are harmless: no call is denied and
    /// the program comes to its end.
    Reached,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    Nothing,
    Root,
    UserNamespaces,
}

pub(crate) const fn under(policy: fn(&Scene) -> Policy) -> Control {
    Control {
        place: Place::Under(policy),
        ..Attack::BASE.control
    }
}

pub(crate) const OUTSIDE: Control = Control {
    place: Place::Outside,
    ..Attack::BASE.control
};

pub(crate) const fn unshared(options: &'static [&'static str]) -> Control {
    Control {
        place: Place::Unshared(options),
        ..Attack::BASE.control
    }
}

impl Control {
    pub(crate) const fn gains(self, names: &'static [&'static str]) -> Self {
        Self {
            gain: Gain::These(names),
            ..self
        }
    }

    pub(crate) const fn run(self) -> Self {
        Self {
            gain: Gain::Run,
            ..self
        }
    }

    pub(crate) const fn reached(self) -> Self {
        Self {
            gain: Gain::Reached,
            ..self
        }
    }

    pub(crate) const fn needs(self, needs: Needs) -> Self {
        Self { needs, ..self }
    }
}

impl Attack {
    /// What an entry does not say.
    pub(crate) const BASE: Self = Self {
        name: "",
        family: Family::Exec,
        program: Program::Python(""),
        runs: &[""],
        stdin: Stdin::Null,
        policy: crate::scene::python,
        ends: Ends::Itself,
        refused: &[],
        answers: &[],
        control: Control {
            place: Place::None,
            gain: Gain::All,
            needs: Needs::Nothing,
        },
        lacks: || None,
    };

    /// The denied calls that a run of this embedder's guests has in its outcome.
    pub(crate) fn denials(&self, run: &'static str) -> Vec<Refused> {
        let listed = self.refused.iter().copied().filter(Refused::applies);
        match self.ends {
            Ends::Forbidden => listed.chain([refused(run, 1)]).collect(),
            _ => listed.collect(),
        }
    }
}

/// Entries of one family: for each a test of its name, and all of them as `ATTACKS`.
#[macro_export]
macro_rules! attacks {
    ($family:expr; $($(#[$note:meta])* $name:ident: $($field:ident = $value:expr),+;)*) => {
        pub(crate) const ATTACKS: &[$crate::entry::Attack] = &[$($crate::entry::Attack {
            name: stringify!($name),
            family: $family,
            $($field: $value,)+
            ..$crate::entry::Attack::BASE
        }),*];
        $(
            $(#[$note])*
            #[test]
            fn $name() {
                let found = ATTACKS.iter().find(|attack| attack.name == stringify!($name));
                $crate::play::play(found.unwrap());
            }
        )*
    };
}
