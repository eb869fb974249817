//! Fingerprints are stored for years: they are those of the first release, and the same whatever other crates of the
//! program have switched on in serde_json. (`tests/json-features` compiles this file with those features.)

use std::collections::BTreeMap;

use idem_runtime::Fingerprint;
use serde::Serialize;
use serde_json::Value;

fn of<T: Serialize + ?Sized>(value: &T) -> Fingerprint {
    Fingerprint::builder("op").field("v", value).expect("canonical").build()
}

fn json(text: &str) -> Fingerprint {
    of(&serde_json::from_str::<Value>(text).expect("JSON"))
}

#[derive(Serialize)]
struct Request<'a> {
    amount: i64,
    currency: &'a str,
    destination: Option<&'a str>,
    lines: Vec<(u8, f64)>,
    kind: Kind,
}

#[derive(Serialize)]
enum Kind {
    Plain,
    Express(u8),
    Parcel { weight: f32, fragile: bool },
    Route(char, char),
}

/// Name and fingerprint, one a line.
fn golden() -> String {
    let request = |kind| Request {
        amount: -100,
        currency: "EUR",
        destination: None,
        lines: vec![(1, 0.1), (2, 2.0)],
        kind,
    };
    let several = Fingerprint::builder("op")
        .field("amount", &100_u64)
        .and_then(|f| f.field("currency", "EUR"))
        .and_then(|f| f.field("destination", &None::<u8>));
    let map = BTreeMap::from([(-1, "minus"), (10, "ten"), (9, "nine")]);
    let all = [
        ("no fields", Fingerprint::builder("op").build()),
        ("three fields", several.expect("canonical").build()),
        ("unit", of(&())),
        ("true", of(&true)),
        ("integer", of(&42)),
        ("least", of(&i128::MIN)),
        ("most", of(&u128::MAX)),
        ("beyond 2^53", json("9007199254740993")),
        ("beyond u64", json("18446744073709551617")),
        ("fraction", of(&0.1)),
        ("fraction of 32 bits", of(&0.1_f32)),
        ("exponent", json("1.5e300")),
        ("minus zero", json("-0.0")),
        ("text", of("Zoë \u{1F980}\n\0")),
        ("char", of(&'é')),
        ("bytes", of(&[0_u8, 255])),
        ("map with integer keys", of(&map)),
        ("struct", of(&request(Kind::Plain))),
        ("newtype variant", of(&request(Kind::Express(3)))),
        ("struct variant", of(&request(Kind::Parcel { weight: 1.5, fragile: true }))),
        ("tuple variant", of(&request(Kind::Route('a', 'b')))),
        ("document", json(r#"{"b":[1,2.50,null,{"z":"","a":1e2}],"a":"x"}"#)),
    ];
    all.iter().map(|(name, fingerprint)| format!("{name}: {fingerprint:?}\n")).collect()
}

#[test]
fn fingerprints_are_those_of_the_first_release() {
    // C26b
    assert_eq!(golden(), include_str!("fingerprints-v1.txt"));
}

#[test]
fn the_examples_of_rfc_8785_shuffled_and_indented_are_equal() {
    // C27; sections 3.2.2 and 3.2.3.
    let input = r#"{
      "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
      "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
      "literals": [null, true, false]
    }"#;
    let output = "{\"literals\":[null,true,false],\"numbers\":[333333333.3333333,1e+30,4.5,0.002,1e-27],\
                  \"string\":\"€$\\u000f\\nA'B\\\"\\\\\\\\\\\"/\"}";
    assert_eq!(json(input), json(output));
    assert_ne!(json(input), json(&output.replace("4.5", "4.6")));

    let sorted = "{\"\\r\":\"Carriage Return\",\"1\":\"One\",\"\u{80}\":\"Control\",\"ö\":\"Latin Small Letter O\",\
                  \"€\":\"Euro Sign\",\"\u{1F600}\":\"Emoji: Grinning Face\",\"\u{FB33}\":\"Hebrew Letter\"}";
    let shuffled =
        "{ \"\\u20ac\": \"Euro Sign\",\t\"\\r\": \"Carriage Return\", \"\\ufb33\": \"Hebrew Letter\",
        \"1\": \"One\", \"\\ud83d\\ude00\": \"Emoji: Grinning Face\", \"\\u0080\": \"Control\",
        \"\\u00f6\": \"Latin Small Letter O\" }";
    assert_eq!(json(sorted), json(shuffled));
}

#[test]
fn the_numbers_of_rfc_8785_are_read_as_the_doubles_that_they_are() {
    // C27; appendix B.
    for (bits, text) in [
        (0x0000_0000_0000_0000_u64, "0"),
        (0x8000_0000_0000_0000, "0"),
        (0x0000_0000_0000_0001, "5e-324"),
        (0x8000_0000_0000_0001, "-5e-324"),
        (0x7fef_ffff_ffff_ffff, "1.7976931348623157e+308"),
        (0xffef_ffff_ffff_ffff, "-1.7976931348623157e+308"),
        (0x4340_0000_0000_0000, "9007199254740992"),
        (0xc340_0000_0000_0000, "-9007199254740992"),
        (0x4430_0000_0000_0000, "295147905179352830000"),
        (0x44b5_2d02_c7e1_4af5, "9.999999999999997e+22"),
        (0x44b5_2d02_c7e1_4af6, "1e+23"),
        (0x44b5_2d02_c7e1_4af7, "1.0000000000000001e+23"),
        (0x444b_1ae4_d6e2_ef4e, "999999999999999700000"),
        (0x444b_1ae4_d6e2_ef4f, "999999999999999900000"),
        (0x444b_1ae4_d6e2_ef50, "1e+21"),
        (0x3eb0_c6f7_a0b5_ed8c, "9.999999999999997e-7"),
        (0x3eb0_c6f7_a0b5_ed8d, "0.000001"),
        (0x41b3_de43_5555_5553, "333333333.3333332"),
        (0x41b3_de43_5555_5554, "333333333.33333325"),
        (0x41b3_de43_5555_5555, "333333333.3333333"),
        (0x41b3_de43_5555_5556, "333333333.3333334"),
        (0x41b3_de43_5555_5557, "333333333.33333343"),
        (0x4314_3ff3_c1cb_0959, "1424953923781206.2"),
    ] {
        assert_eq!(json(text), of(&f64::from_bits(bits)), "{text}");
    }
}

#[test]
fn raw_json_counts_as_the_document_that_it_is() {
    let raw = |text: &str| serde_json::value::RawValue::from_string(text.to_owned()).expect("JSON");
    assert_eq!(of(&raw(r#" {"b": 1.0, "a": [2] } "#)), json(r#"{"a":[2],"b":1}"#));
}
