//! Bounded waiting for a state that lives in another process (a row of `pg_stat_activity`, a process
//! that ends), where no channel could tell. Inside one process use channels and barriers instead.

use std::time::{Duration, Instant};

/// Time between two looks. Short, since a look is cheap and tests wait in sum.
const STEP: Duration = Duration::from_millis(5);

/// Looks again and again until `look` returns something, at most for `within`.
///
/// Blocks the thread.
pub fn until<T>(within: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + within;
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        if Instant::now() >= deadline {
            return None;
        }
        std::thread::sleep(STEP);
    }
}

/// Waits until `holds` answers true; looks at least twice, the last time when `within` is over.
///
/// # Panics
/// When it does not hold within the time: the test has failed, and the message says what was awaited.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use std::time::Duration;
/// let mut looks = 0;
/// idem_testkit::wait::eventually("three looks", Duration::from_secs(5), async || {
///     looks += 1;
///     looks == 3
/// })
/// .await;
/// # });
/// ```
#[cfg(feature = "full")]
#[track_caller]
pub fn eventually<'a>(
    what: &'a str,
    within: Duration,
    mut holds: impl AsyncFnMut() -> bool + 'a,
) -> impl Future<Output = ()> + 'a {
    let caller = std::panic::Location::caller();
    async move {
        let deadline = Instant::now() + within;
        loop {
            let last = Instant::now() >= deadline;
            if holds().await {
                return;
            }
            assert!(!last, "waited {within:?} in vain, at {caller}, for: {what}");
            tokio::time::sleep(STEP).await;
        }
    }
}

#[cfg(all(test, feature = "full"))]
mod tests {
    use super::*;

    #[test]
    fn until_gives_up_and_finds() {
        assert_eq!(until(Duration::from_millis(20), || None::<()>), None);
        let mut looks = 0;
        assert_eq!(
            until(Duration::from_secs(5), || {
                looks += 1;
                (looks == 3).then_some(looks)
            }),
            Some(3)
        );
    }

    #[tokio::test]
    #[should_panic(expected = "in vain")]
    async fn eventually_panics_with_what_was_awaited() {
        eventually("what never comes", Duration::from_millis(20), async || false).await;
    }
}
