//! What cannot be configured, and what is not taken from elsewhere.

use super::*;
use crate::outbox::HttpProviderError;

#[test]
fn no_header_replaces_the_key_or_the_content_type() {
    let https = || HttpProvider::builder("https://api.example.com/pay");
    for builder in [
        https().header("Idempotency-Key", "mine"),
        https().header("idempotency-key", "mine"),
        https().header("X-Key", "mine").key_header("x-key"),
        https().header("content-type", "text/plain"),
        https().header("Content-Length", "0"),
        https().header("Host", "evil.example"),
        https().header("transfer-encoding", "chunked"),
        https().header("connection", "x-a"),
        https().header("expect", "100-continue"),
        https().header("a b", "c"),
        https().header("x-a", "b\r\nx-c: d"),
        https().key_header("content-type"),
        https().key_header("host"),
        https().key_header(""),
    ] {
        assert!(matches!(builder.build(), Err(HttpProviderError::Header { .. })));
    }
    built(https().header("x-key", "1").header("authorization", "Bearer t"));
}

#[test]
fn what_is_wrong_is_said_when_it_is_built() {
    let error = |builder: HttpProviderBuilder| builder.build().expect_err("wrong");
    let https = || HttpProvider::builder("https://api.example.com/pay");
    let private = error(HttpProvider::builder("http://10.0.0.1/pay"));
    assert!(private.to_string().contains("allow_private_targets()"), "{private}");
    let private = error(https().reconcile_by_key("http://[::1]/{key}"));
    assert!(matches!(private, HttpProviderError::Target { .. }));
    let credentials = error(HttpProvider::builder("https://user:secret@api.example.com"));
    assert!(matches!(credentials, HttpProviderError::Credentials));
    assert!(!format!("{credentials} {credentials:?}").contains("secret"));
    assert!(matches!(error(https().reference_at("id")), HttpProviderError::Pointer { .. }));
    assert!(matches!(
        error(https().reconcile_by_reference("https://api.example.com/{key}")),
        HttpProviderError::Template { .. }
    ));
    let pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    assert!(matches!(
        error(https().root_certificate(pem)),
        HttpProviderError::Certificate { .. } | HttpProviderError::Client { .. }
    ));
}

#[test]
fn nothing_secret_is_printed() {
    let builder = HttpProvider::builder("https://api.example.com/pay?token=secret")
        .header("authorization", "Bearer secret")
        .reconcile_by_key("https://api.example.com/pay/{key}?token=secret");
    let text = format!("{builder:?} {:?}", built(builder.clone()));
    assert!(text.contains("https://api.example.com/pay"), "{text}");
    assert!(!text.contains("secret"), "{text}");
}

#[test]
fn the_terms_are_those_that_were_configured() {
    fn terms(provider: &impl Provider<Pay>) -> (KeyWindow, Duration) {
        (provider.key_window(), provider.longest_flight())
    }
    let https = || HttpProvider::builder("https://api.example.com/pay");
    assert_eq!(terms(&built(https())), (KeyWindow::Unknown, Duration::from_secs(120)));
    let day = KeyWindow::AtLeast(Duration::from_secs(86_400));
    let configured = built(https().key_window(day).longest_flight(Duration::from_secs(7)));
    assert_eq!(terms(&configured), (day, Duration::from_secs(7)));
}

/// A process of its own, since the environment is everybody's.
#[test]
fn a_proxy_of_the_environment_is_not_used() {
    const CHILD: &str = "IDEM_HTTP_PROXY_CHILD";
    const NAMES: [&str; 4] = ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"];
    if std::env::var_os(CHILD).is_some() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let counting = start().await;
            delivered(deliver(&built(to(counting.url())), &call("k")).await);
            assert_eq!(counting.done("k"), 1);
        });
        return;
    }
    let name = "outbox::http::tests::configured::a_proxy_of_the_environment_is_not_used";
    let output = std::process::Command::new(std::env::current_exe().expect("own path"))
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .envs(NAMES.map(|name| (name, "http://127.0.0.1:1")))
        .env_remove("no_proxy")
        .env_remove("NO_PROXY")
        .output()
        .expect("a child");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}
