//! What a transaction pooler answers in place of the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use idem_runtime::{Outcome, PgStore};

use super::db::{Db, pool};
use super::race::apply;

/// What pgbouncer does when its server connection breaks after `COMMIT` was forwarded: a FATAL error to the client.
#[tokio::test(flavor = "multi_thread")]
async fn a_fatal_error_from_a_pooler_in_place_of_the_answer_is_in_doubt() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let db = Db::fresh().await;
    let rest = db.url().split_once('@').expect("user").1.to_owned();
    let address = rest.split('/').next().expect("host").to_owned();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let port = listener.local_addr().expect("bound").port();
    let fired = Arc::new(AtomicBool::new(false));
    tokio::spawn({
        let fired = fired.clone();
        async move {
            loop {
                let (mut client, _) = listener.accept().await.expect("accepted");
                let (address, fired) = (address.clone(), fired.clone());
                tokio::spawn(async move {
                    let mut server = tokio::net::TcpStream::connect(address).await.expect("connected");
                    let (mut up, mut down) = ([0u8; 65536], [0u8; 65536]);
                    let mut swallow = false;
                    loop {
                        tokio::select! {
                            n = client.read(&mut up) => {
                                let n = n.unwrap_or(0);
                                if n == 0 { return; }
                                if up[..n].windows(6).any(|w| w == b"COMMIT") && !fired.swap(true, Ordering::SeqCst) { swallow = true; }
                                server.write_all(&up[..n]).await.expect("written");
                            }
                            n = server.read(&mut down) => {
                                let n = n.unwrap_or(0);
                                if n == 0 { return; }
                                if swallow {
                                    let body = b"SFATAL\0VFATAL\0C08P01\0Mserver conn crashed?\0\0";
                                    let mut message = vec![b'E'];
                                    message.extend_from_slice(&(body.len() as u32 + 4).to_be_bytes());
                                    message.extend_from_slice(body);
                                    client.write_all(&message).await.expect("written");
                                    return;
                                }
                                client.write_all(&down[..n]).await.expect("written");
                            }
                        }
                    }
                });
            }
        }
    });
    let (user, path) =
        (db.url().split_once('@').expect("user").0, rest.split_once('/').expect("path").1.to_owned());
    let store = PgStore::new(pool(&format!("{user}@127.0.0.1:{port}/{path}"), 2));
    store.check().await.expect("ok");
    let r = apply(&store, "k").await;
    assert!(fired.load(Ordering::SeqCst));
    let effects = db.count("SELECT count(*) FROM effect").await;
    assert!(
        matches!(r, Ok(Outcome::Applied(_))) && effects == 1,
        "{effects} effects, and the caller hears {r:?}"
    );
}
