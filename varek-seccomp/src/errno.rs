//! Names of the errno values that a policy may answer with.

use serde::{Deserializer, Serializer, de};

/// Errno of a refused call where the policy names no other: "operation not permitted".
pub(crate) const EPERM: i32 = 1;
/// Errno of a call that the kernel does not have.
pub(crate) const ENOSYS: i32 = 38;
/// The highest errno that a filter can return (`MAX_ERRNO`).
pub(crate) const HIGHEST: i32 = 4095;

/// The same numbers on x86_64 and aarch64 (`asm-generic/errno-base.h`, `asm-generic/errno.h`).
const NAMES: &[(&str, i32)] = &[
    ("EPERM", EPERM),
    ("ENOENT", 2),
    ("ESRCH", 3),
    ("EINTR", 4),
    ("EIO", 5),
    ("ENXIO", 6),
    ("EBADF", 9),
    ("ECHILD", 10),
    ("EAGAIN", 11),
    ("ENOMEM", 12),
    ("EACCES", 13),
    ("EFAULT", 14),
    ("EBUSY", 16),
    ("EEXIST", 17),
    ("ENODEV", 19),
    ("EINVAL", 22),
    ("ENOTTY", 25),
    ("ENOSPC", 28),
    ("EROFS", 30),
    ("ENOSYS", ENOSYS),
    ("EPROTONOSUPPORT", 93),
    ("ESOCKTNOSUPPORT", 94),
    ("EOPNOTSUPP", 95),
    ("EAFNOSUPPORT", 97),
    ("ENETDOWN", 100),
    ("ENETUNREACH", 101),
    ("ECONNREFUSED", 111),
];

/// `EPERM`, or `errno 200` where there is no name.
pub(crate) fn display(errno: i32) -> String {
    name(errno).map_or_else(|| format!("errno {errno}"), String::from)
}

fn name(errno: i32) -> Option<&'static str> {
    NAMES
        .iter()
        .find(|(_, number)| *number == errno)
        .map(|(name, _)| *name)
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes fields by reference"
)]
pub(crate) fn serialize<S: Serializer>(errno: &i32, serializer: S) -> Result<S::Ok, S::Error> {
    match name(*errno) {
        Some(name) => serializer.serialize_str(name),
        None => serializer.serialize_i32(*errno),
    }
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
    struct Visitor;

    impl de::Visitor<'_> for Visitor {
        type Value = i32;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an errno as a number or as a name such as \"EPERM\"")
        }

        fn visit_i64<E: de::Error>(self, value: i64) -> Result<i32, E> {
            i32::try_from(value).map_err(|_| E::custom(format!("errno {value} is out of range")))
        }

        fn visit_u64<E: de::Error>(self, value: u64) -> Result<i32, E> {
            i32::try_from(value).map_err(|_| E::custom(format!("errno {value} is out of range")))
        }

        fn visit_str<E: de::Error>(self, value: &str) -> Result<i32, E> {
            let found = NAMES.iter().find(|(name, _)| *name == value);
            found.map(|(_, number)| *number).ok_or_else(|| {
                let near = crate::suggest::nearest(value, NAMES.iter().map(|(name, _)| *name));
                let hint = near
                    .map(|near| format!("; did you mean {near}?"))
                    .unwrap_or_default();
                E::custom(format!(
                    "unknown errno {value}{hint} (any number from 1 to 4095 works)"
                ))
            })
        }
    }

    deserializer.deserialize_any(Visitor)
}
