//! Tests of adaptive limiters that learn the rate of tokens: rejections, settled amounts, forecasts and changes of
//! quotas.

use super::learned_units::{costly, end, learned, probing, rates, send};
use super::*;
use futures_util::FutureExt;
use tower_outbound::limit::{Amounts, Unit};

#[tokio::test(start_paused = true)]
async fn rejections_of_requests_without_tokens_lower_the_rate_of_requests_and_pause() {
    let limiter = learned().await;
    // Less than a twentieth of the tokens remains, but the requests take none.
    end(send(&limiter, 0), StatusCode::TOO_MANY_REQUESTS, ["498", "1000"]);
    assert_eq!(rates(&limiter), [Some(480.0), Some(29_412.0)]);
    let start = Instant::now();
    for _ in 0..20 {
        end(limiter.acquire().await.unwrap(), StatusCode::TOO_MANY_REQUESTS, ["400", "1000"]);
    }
    assert!(start.elapsed() > seconds(60), "each rejected probe doubles the pause: {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn amount_settled_before_the_response_does_not_change_which_rate_a_rejection_lowers() {
    let limiter = learned().await;
    let mut permit = send(&limiter, 5_000);
    permit.settlement().unwrap().settle(Amounts::NONE);
    end(permit, StatusCode::TOO_MANY_REQUESTS, ["498", "2000"]);
    assert_eq!(rates(&limiter), [Some(490.0), Some(28_824.0)]);
}

#[tokio::test(start_paused = true)]
async fn estimate_above_the_limit_before_the_first_headers_delays_later_requests_by_at_most_a_window() {
    let limiter = LocalLimiter::adaptive([]);
    end(send(&limiter, u32::MAX), StatusCode::OK, ["499", "29000"]);
    advance(seconds(3)).await;
    end(send(&limiter, 1_000), StatusCode::TOO_MANY_REQUESTS, ["498", "0"]);
    sleep(seconds(60)).await;
    end(send(&limiter, 1_000), StatusCode::OK, ["497", "29000"]);
    let mut next = queued(&limiter, &costly(1_000));
    sleep(seconds(70)).await;
    assert_ready_ok!(next.poll());
}

#[tokio::test(start_paused = true)]
async fn resumed_limiter_does_not_wait_for_amounts_taken_at_the_discarded_rate() {
    let limiter = learned().await;
    let _held = send(&limiter, 30_000);
    limiter.resume();
    end(send(&limiter, 1_000), StatusCode::OK, ["498", "29000"]);
    advance(seconds(3)).await;
    send(&limiter, 1_000);
}

/// The probe after the pause counts as a mean amount, although its amount is larger.
#[tokio::test(start_paused = true)]
async fn forecast_during_a_pause_includes_the_mean_amount_of_the_probe() {
    let limiter = learned().await;
    end(send(&limiter, 1_000), StatusCode::TOO_MANY_REQUESTS, ["498", "0"]);
    let _ahead = [20_000, 20_000].map(|amount| queued(&limiter, &costly(amount)));
    let pause = limiter.snapshot().paused_until.unwrap() - Instant::now();
    let _last = queued(&limiter, &PermitRequest::new().with_max_wait(pause + seconds(10)));
}

#[tokio::test(start_paused = true)]
async fn forecast_of_a_request_without_tokens_includes_the_tokens_of_the_waiters_before_it() {
    let limiter = learned().await;
    let _held = send(&limiter, 1_000);
    let _waiters: Vec<_> = (0..100).map(|_| queued(&limiter, &costly(1_000))).collect();
    // 12 s for the requests, and at least 140 s for the tokens.
    let bounded = PermitRequest::new().with_max_wait(seconds(60));
    let refusal = limiter.acquire_with(&bounded).now_or_never().unwrap().unwrap_err();
    assert_eq!(refusal.reason(), Reason::MaxWait);
}

#[tokio::test(start_paused = true)]
async fn amount_from_before_a_lower_quota_is_not_returned_after_it() {
    let limiter = learned().await;
    let mut early = send(&limiter, 1_000);
    advance(seconds(1)).await;
    limiter.set_quotas([Quota::per_minute(6_100).unwrap().with_unit(Unit::Tokens).unwrap()]);
    limiter.set_quotas([]);
    assert_eq!(rates(&limiter)[1], Some(29_412.0));
    advance(seconds(3)).await;
    let _held = send(&limiter, 1_000);
    early.settlement().unwrap().settle(Amounts::NONE);
    let _next = queued(&limiter, &costly(1_000));
}

#[tokio::test(start_paused = true)]
async fn probe_of_the_tokens_that_is_rejected_for_another_reason_delays_the_next_probe() {
    let limiter = probing().await;
    send(&limiter, 1_000).complete(&ResponseInfo::new(StatusCode::SERVICE_UNAVAILABLE, &HeaderMap::new()));
    let mut next = queued(&limiter, &costly(1_000));
    sleep(seconds(1)).await;
    assert_pending!(next.poll());
    sleep(seconds(2)).await;
    assert_ready_ok!(next.poll());
}
