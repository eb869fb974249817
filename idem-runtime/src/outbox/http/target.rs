//! Where requests may go. The invariant: unless private targets are allowed, no connection is opened to an address that
//! is not on the public internet, whether it is written in the URL or comes from DNS; and the address that was looked at
//! is the one that is connected to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::HttpProviderError;
use crate::BoxError;

/// Parses a URL that requests may go to.
pub(super) fn target(text: &str, allow_private: bool) -> Result<Url, HttpProviderError> {
    let url = Url::parse(text).map_err(|error| HttpProviderError::Url { reason: error.to_string() })?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(HttpProviderError::Scheme { scheme: url.scheme().to_owned() });
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(HttpProviderError::Credentials);
    }
    match url.host_str().and_then(|host| host.trim_matches(['[', ']']).parse().ok()).map(refusal) {
        Some(Some(why)) if !allow_private => {
            Err(HttpProviderError::Target { host: url.host_str().unwrap_or_default().to_owned(), why })
        }
        _ => Ok(url),
    }
}

/// Looks names up and leaves out what is not on the public internet. Asked anew for each connection, and what it returns
/// is connected to, so a name that changes its address in between gains nothing.
#[derive(Debug)]
pub(super) struct Guard;

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            Ok(Box::new(public(name.as_str(), found)?.into_iter()) as Addrs)
        })
    }
}

fn public(host: &str, found: impl Iterator<Item = SocketAddr>) -> Result<Vec<SocketAddr>, BoxError> {
    let (mut public, mut refused) = (Vec::new(), None);
    for address in found {
        match refusal(address.ip()) {
            None => public.push(address),
            Some(why) => refused = Some((address.ip(), why)),
        }
    }
    match refused {
        Some((address, why)) if public.is_empty() => Err(format!(
            "the target {host} is refused, since its address {address} is {why}; if it is meant, \
             build the provider with allow_private_targets()"
        )
        .into()),
        _ => Ok(public),
    }
}

/// Why an address is refused; `None`: it is on the public internet.
fn refusal(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => refusal_v4(address),
        IpAddr::V6(address) => refusal_v6(address),
    }
}

/// By the registry of special-purpose addresses (RFC 6890 and its successors).
fn refusal_v4(address: Ipv4Addr) -> Option<&'static str> {
    match address.octets() {
        [0, ..] => Some("unspecified"),
        [127, ..] => Some("loopback"),
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => Some("private"),
        [100, 64..=127, ..] => Some("of a carrier's own network"),
        [169, 254, ..] => Some("link-local"),
        [192, 0, 0 | 2, _] | [198, 18..=19, ..] | [198, 51, 100, _] | [203, 0, 113, _] | [192, 88, 99, _] => {
            Some("reserved")
        }
        [224..=239, ..] => Some("multicast"),
        [240..=255, ..] => Some("reserved"),
        _ => None,
    }
}

/// Only what is routed globally, and forms that carry an address of version 4 by that address.
fn refusal_v6(address: Ipv6Addr) -> Option<&'static str> {
    let [a, b, c, d, e, f, g, h] = address.segments();
    let carried = |high: u16, low: u16| {
        let ([i, j], [k, l]) = (high.to_be_bytes(), low.to_be_bytes());
        refusal_v4(Ipv4Addr::new(i, j, k, l))
    };
    match [a, b, c, d, e, f] {
        _ if address == Ipv6Addr::LOCALHOST => Some("loopback"),
        // Compatible, mapped, translated, NAT64. NAT64 for local use (RFC 8215) is none of these, and reserved.
        [0, 0, 0, 0, 0, 0 | 0xffff] | [0, 0, 0, 0, 0xffff, 0] | [0x64, 0xff9b, 0, 0, 0, 0] => carried(g, h),
        [0x2002, ..] => carried(b, c),
        [0xfe80..=0xfebf, ..] => Some("link-local"),
        [0xfec0..=0xfeff, ..] | [0xfc00..=0xfdff, ..] => Some("unique local"),
        [0xff00..=0xffff, ..] => Some("multicast"),
        [0x2001, 0..=0x1ff, ..] | [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => Some("reserved"),
        [0x2000..=0x3fff, ..] => None,
        _ => Some("reserved"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(address: &str) -> Option<&'static str> {
        refusal(address.parse().expect(address))
    }

    #[test]
    fn no_form_of_a_private_address_is_let_through() {
        for inner in [
            "127.0.0.1",
            "127.255.255.254",
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "100.64.0.1",
            "100.127.255.255",
            "169.254.169.254",
            "192.0.0.1",
            "198.18.0.1",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
        ] {
            let v4: Ipv4Addr = inner.parse().expect(inner);
            let [a, b, c, d] = v4.octets();
            assert!(why(inner).is_some(), "{inner}");
            for form in [
                format!("::ffff:{inner}"),
                format!("::{inner}"),
                format!("::ffff:0:{inner}"),
                format!("64:ff9b::{inner}"),
                format!("2002:{a:02x}{b:02x}:{c:02x}{d:02x}::1"),
            ] {
                assert!(why(&form).is_some(), "{form}");
            }
        }
        for form in [
            "::",
            "::1",
            "fe80::1",
            "febf::1",
            "fec0::1",
            "fc00::1",
            "fdff::1",
            "ff02::1",
            "64:ff9b:1::7f00:1",
            "2001::1",
            "2001:db8::1",
            "100::1",
            "5f00::1",
            "3fff::1",
        ] {
            assert!(why(form).is_some(), "{form}");
        }
    }

    #[test]
    fn public_addresses_are_let_through() {
        for address in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.1",
            "100.63.255.255",
            "100.128.0.1",
            "172.15.0.1",
            "172.32.0.1",
            "192.167.1.1",
            "223.255.255.255",
            "2606:4700::1111",
            "2a00:1450::1",
            "::ffff:1.1.1.1",
            "64:ff9b::1.1.1.1",
            "2002:101:101::1",
        ] {
            assert_eq!(why(address), None, "{address}");
        }
    }

    #[test]
    fn a_literal_is_refused_in_every_spelling() {
        for host in [
            "127.0.0.1",
            "127.1",
            "2130706433",
            "0x7f000001",
            "0177.0.0.1",
            "127.0.0.1.",
            "[::1]",
            "[::ffff:7f00:1]",
            "[::ffff:169.254.169.254]",
            "%31%32%37.0.0.1",
            "①②⑦.0.0.1",
        ] {
            let url = format!("http://{host}:8080/x");
            assert!(matches!(target(&url, false), Err(HttpProviderError::Target { .. })), "{host}");
            assert!(target(&url, true).is_ok(), "{host}");
        }
    }

    #[test]
    fn names_that_resolve_to_private_addresses_are_left_out() {
        let addresses =
            |all: &[&str]| all.iter().map(|it| it.parse().expect("an address")).collect::<Vec<SocketAddr>>();
        let mixed = addresses(&["10.0.0.1:0", "1.1.1.1:0", "[fe80::1]:0"]);
        assert_eq!(public("x.example", mixed.into_iter()).expect("one is left"), addresses(&["1.1.1.1:0"]));
        let private = addresses(&["10.0.0.1:0", "[::1]:0"]);
        let error = public("x.example", private.into_iter()).expect_err("none is left").to_string();
        assert!(error.contains("x.example") && error.contains("allow_private_targets"), "{error}");
        assert_eq!(public("x.example", std::iter::empty()).expect("no refusal").len(), 0);
    }

    #[test]
    fn only_http_without_credentials() {
        for (url, wrong) in [("ftp://example.com", "ftp"), ("file:///etc/passwd", "file"), ("data:x", "data")]
        {
            let refused = target(url, true);
            assert!(matches!(refused, Err(HttpProviderError::Scheme { scheme }) if scheme == wrong), "{url}");
        }
        for url in
            ["https://user@example.com", "https://user:secret@example.com", "https://:secret@example.com"]
        {
            let error = target(url, false).expect_err(url);
            assert!(matches!(error, HttpProviderError::Credentials), "{url}");
            assert!(!error.to_string().contains("secret"));
        }
        assert!(matches!(target("example.com/x", false), Err(HttpProviderError::Url { .. })));
        assert!(matches!(target("https://", false), Err(HttpProviderError::Url { .. })));
        assert!(target("https://example.com:8443/a?b=c", false).is_ok());
    }
}
