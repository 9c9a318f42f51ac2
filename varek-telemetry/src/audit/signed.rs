//! Signatures over the head of an audit log.

use std::fmt;

use ed25519_dalek::Signer as _;
use serde::{Deserialize, Serialize};

use super::Head;
use crate::arguments::{hex, unhex};

/// What a signature is made over: this, the number of lines in eight bytes, lowest first, and the hash.
const CONTEXT: &[u8] = b"varek audit head 1";

/// An Ed25519 key that signs heads (RFC 8032).
///
/// It is in the embedder's memory, out of every guest's reach but not out of the reach of the embedder's own
/// user. It is overwritten when it is dropped, and `Debug` does not show it.
#[derive(Clone)]
pub struct SigningKey(ed25519_dalek::SigningKey);

impl SigningKey {
    /// The key of this seed, 32 bytes that nobody else knows.
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        Self(ed25519_dalek::SigningKey::from_bytes(seed))
    }

    /// What its signatures are checked with.
    pub fn verifying_key(&self) -> VerifyingKey {
        VerifyingKey(self.0.verifying_key())
    }

    /// Signs a head.
    pub fn sign(&self, head: &Head) -> SignedHead {
        SignedHead {
            lines: head.lines,
            chain: hex(&head.chain),
            key: hex(self.0.verifying_key().as_bytes()),
            signature: hex(&self.0.sign(&message(head)).to_bytes()),
        }
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey(of {})", self.verifying_key())
    }
}

/// The public half of a [`SigningKey`]. Its text is 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifyingKey(ed25519_dalek::VerifyingKey);

/// Bytes that are no public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an Ed25519 public key")]
pub struct BadKey;

impl VerifyingKey {
    /// The key of these bytes.
    ///
    /// # Errors
    ///
    /// Where they are no point of the curve.
    pub fn from_bytes(bytes: &[u8; 32]) -> Result<Self, BadKey> {
        let key = ed25519_dalek::VerifyingKey::from_bytes(bytes).map_err(|_| BadKey)?;
        Ok(Self(key))
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        self.0.as_bytes()
    }
}

impl fmt::Display for VerifyingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(self.as_bytes()))
    }
}

/// A [`Head`] and a signature over it, as `AuditLog::signed_by` keeps it beside the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedHead {
    pub(super) lines: u64,
    pub(super) chain: String,
    key: String,
    pub(super) signature: String,
}

/// A head that was not signed by the key in question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the head was not signed by this key")]
pub struct BadHead;

impl SignedHead {
    /// The head, where this key signed it. The key must come from elsewhere than the log: anybody can sign with a
    /// key of his own.
    ///
    /// # Errors
    ///
    /// Where the head, the signature or the key is another.
    pub fn verify(&self, key: &VerifyingKey) -> Result<Head, BadHead> {
        let head = Head {
            lines: self.lines,
            chain: unhex(&self.chain).ok_or(BadHead)?,
        };
        let signature = unhex(&self.signature).ok_or(BadHead)?;
        let signature = ed25519_dalek::Signature::from_bytes(&signature);
        key.0
            .verify_strict(&message(&head), &signature)
            .map_err(|_| BadHead)?;
        Ok(head)
    }
}

fn message(head: &Head) -> Vec<u8> {
    let mut message = CONTEXT.to_vec();
    message.extend_from_slice(&head.lines.to_le_bytes());
    message.extend_from_slice(&head.chain);
    message
}

#[cfg(target_os = "linux")]
pub(super) use beside::write;

#[cfg(target_os = "linux")]
mod beside {
    use std::fs;
    use std::io::ErrorKind;
    use std::path::{Path, PathBuf};

    use super::{SignedHead, SigningKey};
    use crate::AuditLog;
    use crate::file::{LogError, LogFile};
    use crate::json_lines::numbered;

    impl AuditLog {
        /// Signs the end of the log with this key on every flush and when the sink is dropped, into `PATH.head`. Checks
        /// first that the log still has the lines that the last head was signed for.
        ///
        /// Who can take away both the end of the log and the head, or put an older head in its place, shows an older
        /// log: what helps against that is a copy of the head elsewhere.
        ///
        /// # Errors
        ///
        /// [`LogError::BadHead`] or [`LogError::Altered`] where head and log do not agree; [`LogError::Io`].
        pub fn signed_by(mut self, key: SigningKey) -> Result<Self, LogError> {
            let path = place(&self.path);
            let bad = |reason: String| LogError::BadHead {
                path: path.clone(),
                reason,
            };
            match fs::read(&path) {
                Ok(text) => {
                    let signed: SignedHead =
                        serde_json::from_slice(&text).map_err(|error| bad(error.to_string()))?;
                    let signed = signed
                        .verify(&key.verifying_key())
                        .map_err(|error| bad(error.to_string()))?;
                    let head = self.head();
                    if head.lines < signed.lines || head.lines == signed.lines && head != signed {
                        return Err(LogError::Altered {
                            path: self.path.clone(),
                            lines: head.lines,
                            signed: signed.lines,
                        });
                    }
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(LogError::io("read", &path)(error)),
            }
            self.key = Some(key);
            Ok(self)
        }
    }

    fn place(log: &Path) -> PathBuf {
        numbered(log, "head")
    }

    /// Puts a head beside its log, whole or not at all.
    pub(in crate::audit) fn write(log: &Path, head: &SignedHead) -> Result<(), LogError> {
        let path = place(log);
        let fresh = numbered(&path, "new");
        let text = serde_json::to_vec(head).map_err(|error| LogError::BadHead {
            path: path.clone(),
            reason: error.to_string(),
        })?;
        match fs::remove_file(&fresh) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(LogError::io("remove", &fresh)(error));
            }
            _ => {}
        }
        let mut file = LogFile::create(&fresh)?;
        file.append(&text)
            .and_then(|()| file.sync())
            .map_err(LogError::io("write", &fresh))?;
        fs::rename(&fresh, &path).map_err(LogError::io("rename", &fresh))
    }
}
