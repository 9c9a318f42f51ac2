//! The permit of a run's own `execve`.

use std::fmt;
use std::io;

/// 192 random bits that open `execve` once.
///
/// `execve` uses three of the six argument registers. The child that starts the guest passes the permit in
/// the other three (`r10`, `r8` and `r9` on x86_64, `x3` to `x5` on aarch64), and a program made by
/// [`Program::with_permit`](crate::Program::with_permit) lets `execve` pass where they match. The kernel
/// clears the registers when the new image starts, so the guest never sees the permit; it would have to
/// guess it, and each guess is a denied call. `execveat` has no permit.
///
/// Make a fresh one for every run. The words do not appear in `Debug`.
pub struct Permit([u64; 3]);

impl Permit {
    /// A fresh permit from the kernel's random numbers (getrandom(2)).
    ///
    /// # Errors
    ///
    /// Where the kernel gives no random numbers, which is seen only early in the boot.
    pub fn random() -> io::Result<Self> {
        let mut words = [0; 3];
        for word in &mut words {
            let mut bytes = [0; 8];
            getrandom::fill(&mut bytes)?;
            *word = u64::from_ne_bytes(bytes);
        }
        Ok(Self(words))
    }

    /// The values of the fourth, fifth and sixth argument of the permitted `execve`.
    pub const fn words(&self) -> [u64; 3] {
        self.0
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Permit(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_differ_and_stay_out_of_debug() {
        let [one, two] = [Permit::random().unwrap(), Permit::random().unwrap()];
        for (left, right) in one.words().iter().zip(two.words()) {
            assert_ne!(*left, right);
        }
        assert_eq!(format!("{one:?}"), "Permit(..)");
    }
}
