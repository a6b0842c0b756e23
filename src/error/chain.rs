//! The chain of an error's causes, and its redaction, because text that the server has chosen may repeat the key.

use std::{error::Error as StdError, fmt, io, iter};

/// Any error that can be sent between threads, such as an error of tower's layers or of an inner service.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// Returns the cause of `error`. Unlike `source()`, it also returns the error that an I/O error wraps.
pub(super) fn cause<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a (dyn StdError + 'static)> {
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(wrapped) => Some(wrapped),
        None => error.source(),
    }
}

/// Returns an iterator over `error` and its causes.
pub(crate) fn chain<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    iter::successors(Some(error), |error| cause(*error))
}

/// Writes each cause of `error` after a colon.
pub(crate) fn write_causes(error: &dyn StdError, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut next = error.source();
    while let Some(cause) = next {
        write!(f, ": {cause}")?;
        next = cause.source();
    }
    Ok(())
}

/// Replaces an error that shows text chosen by the server with an I/O error that shows only the reason. The server may
/// repeat the key in such text. Returns any other error unchanged.
///
/// Replaces the whole chain, because the `Debug` output of an outer error contains the inner errors.
pub(crate) fn redact(error: impl Into<BoxError>) -> BoxError {
    let original = error.into();
    let replacement = chain(&*original).find_map(reason);
    match replacement {
        Some((kind, reason)) => io::Error::new(kind, reason).into(),
        None => original,
    }
}

/// If the error shows text chosen by the server, returns an I/O error kind and the reason. Such text is the debug data
/// of a GOAWAY or the contents of a certificate.
#[cfg_attr(not(feature = "hyper"), allow(unused_variables, reason = "every known reason needs hyper"))]
fn reason(error: &(dyn StdError + 'static)) -> Option<(io::ErrorKind, String)> {
    #[cfg(feature = "hyper")]
    if let Some(error) = error.downcast_ref::<h2::Error>() {
        let reason = error.reason().filter(|_| error.is_go_away() && error.is_remote())?;
        let reason = format!("http2: connection closed by the server (GOAWAY, {reason:?})");
        return Some((io::ErrorKind::NotConnected, reason));
    }
    #[cfg(feature = "rustls")]
    if let Some(rustls::Error::InvalidCertificate(error)) = error.downcast_ref() {
        return invalid_certificate(error).map(|reason| (io::ErrorKind::InvalidData, reason));
    }
    // The text of an error of rustls whose type is not known, for example of another version.
    let text = cause(error).is_none().then(|| error.to_string())?;
    let (reason, _) = text.split_once("; certificate is only valid for ")?;
    Some((io::ErrorKind::InvalidData, reason.to_owned()))
}

#[cfg(feature = "rustls")]
fn invalid_certificate(error: &rustls::CertificateError) -> Option<String> {
    use rustls::CertificateError::*;
    let reason = match error {
        // Writes the name that the client expected, but not the names in the certificate.
        NotValidForNameContext { expected, .. } => format!("not valid for name {:?}", expected.to_str()),
        UnsupportedSignatureAlgorithmContext { .. }
        | UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => "unsupported signature algorithm".into(),
        InvalidPurposeContext { .. } => "not valid for a server".into(),
        _ => return None,
    };
    Some(format!("invalid peer certificate: {reason}"))
}

#[cfg(all(test, feature = "rustls"))]
mod tests {
    use rustls::{CertificateError, ExtendedKeyPurpose};

    use super::*;

    #[test]
    fn error_redacts_the_contents_of_a_certificate() {
        let presented = vec![ExtendedKeyPurpose::Other(vec![4_217])];
        let purpose =
            CertificateError::InvalidPurposeContext { required: ExtendedKeyPurpose::ServerAuth, presented };
        let algorithm = CertificateError::UnsupportedSignatureAlgorithmContext {
            signature_algorithm_id: vec![42, 17],
            supported_algorithms: Vec::new(),
        };
        for (error, reason) in
            [(purpose, "not valid for a server"), (algorithm, "unsupported signature algorithm")]
        {
            let error = redact(rustls::Error::InvalidCertificate(error));
            let shown = format!("invalid peer certificate: {reason}");
            assert_eq!(error.to_string(), shown);
            assert_eq!(format!("{error:?}"), format!("Custom {{ kind: InvalidData, error: {shown:?} }}"));
        }
        let expired = redact(rustls::Error::InvalidCertificate(CertificateError::Expired));
        assert_eq!(expired.to_string(), "invalid peer certificate: Expired");
    }
}
