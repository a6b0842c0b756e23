use super::super::*;

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
