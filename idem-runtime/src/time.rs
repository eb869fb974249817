//! Time as both databases hold it here: microseconds since 1970, which both can compare exactly.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The last microsecond of the year 9999, and the first of the year 1: what both databases can hold.
const RANGE: std::ops::RangeInclusive<i64> = -62_135_596_800_000_000..=253_402_300_799_999_999;

/// Rounded to the microsecond below, and into the years 1 to 9999.
pub(crate) fn to_micros(time: SystemTime) -> i64 {
    let micros = match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_micros()).unwrap_or(i64::MAX),
        Err(before) => {
            let before = before.duration();
            let whole = i64::try_from(before.as_micros()).unwrap_or(i64::MAX);
            let rest = before.subsec_nanos() % 1_000 != 0;
            -whole - i64::from(rest)
        }
    };
    micros.clamp(*RANGE.start(), *RANGE.end())
}

pub(crate) fn from_micros(micros: i64) -> SystemTime {
    let distance = Duration::from_micros(micros.unsigned_abs());
    if micros >= 0 { UNIX_EPOCH + distance } else { UNIX_EPOCH - distance }
}

/// Of a [`Retain`](crate::Retain), which is shorter than 1,000 years.
pub(crate) fn duration_micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn micros_round_trip_on_both_sides_of_1970() {
        for micros in [0, 1, -1, 1_764_530_000_123_456, *RANGE.start(), *RANGE.end()] {
            assert_eq!(to_micros(from_micros(micros)), micros);
        }
        assert_eq!(to_micros(UNIX_EPOCH - Duration::from_nanos(1)), -1);
        assert_eq!(to_micros(UNIX_EPOCH + Duration::from_secs(u64::MAX >> 2)), *RANGE.end());
    }
}
