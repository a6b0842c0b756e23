//! Recognizes errors without a public type by their text. A text that is not recognized counts as a temporary failure.

/// Returns whether the resolver states that the name does not exist. Its error has no code, so its text is compared:
/// glibc, musl, macOS and Windows.
pub(super) fn is_unknown_name(text: &str) -> bool {
    const TEXTS: [&str; 5] = [
        "Name or service not known",
        "No address associated with hostname",
        "Name does not resolve",
        "nodename nor servname provided",
        "No such host is known",
    ];
    TEXTS.iter().any(|unknown| text.contains(unknown))
}

/// Returns whether a proxy has rejected the user or the password. The types of hyper-util's errors have no public name.
pub(super) fn is_rejected_by_proxy(text: &str) -> bool {
    ["tunnel error: proxy authorization required", "SOCKS error: credentials not accepted"].contains(&text)
}

/// Returns whether another TLS handshake would fail, too: see `is_lasting`. The text comes from OpenSSL below
/// native-tls, from rustls without the feature `rustls` of this crate, or from h2, which drops the error of rustls.
pub(super) fn is_lasting_tls(text: &str) -> bool {
    // rustls writes `received fatal alert: UnknownCA`, and OpenSSL `tlsv1 alert unknown ca:` and more.
    let is_known = |alert: &str| {
        is_lasting_alert(alert.strip_prefix(": ").unwrap_or(alert).split(':').next().unwrap_or_default())
    };
    text.split("alert").skip(1).any(is_known)
        || text.contains("certificate verify failed")
        || text.contains("invalid peer certificate")
}

/// Returns whether the server rejects the client's certificate, or the name or the versions that the client requested.
pub(super) fn is_lasting_alert(name: &str) -> bool {
    // The last one: another key has signed the certificate, for example a new authority with an old name.
    const ALERTS: &str = "HandshakeFailure BadCertificate UnsupportedCertificate CertificateRevoked \
        CertificateExpired CertificateUnknown UnknownCA AccessDenied ProtocolVersion InsufficientSecurity \
        UnrecognisedName UnrecognizedName CertificateRequired NoApplicationProtocol DecryptError";
    let name = name.replace(' ', "");
    ALERTS.split(' ').any(|alert| alert.eq_ignore_ascii_case(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_tls_library_shows_whether_a_retry_can_succeed() {
        for (text, lasting) in [
            ("received fatal alert: UnknownCA", true),
            ("received fatal alert: CertificateRequired", true),
            ("received fatal alert: InternalError", false),
            ("invalid peer certificate: UnknownIssuer", true),
            (
                "error:0A000086:SSL routines:tls_post_process_server_certificate:certificate verify failed:\
                 ../ssl/statem/statem_clnt.c:1890:",
                true,
            ),
            (
                "error:0A00042E:SSL routines:ssl3_read_bytes:tlsv1 alert protocol version:rec_layer_s3.c:1605:",
                true,
            ),
            ("error:0A000412:SSL routines::ssl/tls alert bad certificate:SSL alert number 42", true),
            (
                "error:0A000438:SSL routines:ssl3_read_bytes:tlsv1 alert internal error:rec_layer_s3.c:1605:",
                false,
            ),
            ("connection closed", false),
        ] {
            assert_eq!(is_lasting_tls(text), lasting, "{text}");
        }
    }

    #[cfg(feature = "rustls")]
    #[test]
    fn text_of_each_alert_of_rustls_shows_the_same_as_its_type() {
        for number in 0..=u8::MAX {
            let alert = rustls::Error::AlertReceived(number.into());
            assert_eq!(is_lasting_tls(&alert.to_string()), super::super::is_lasting(&alert), "{alert}");
        }
    }
}
